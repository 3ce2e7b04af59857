//! What the switch holds, measured against what it should.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::{Value, json};

use super::{
    Ovs,
    desired::{self, Batch, Ports, Setting, State},
    failed,
    pipeline::Side,
    switch::{
        ovsdb::Database,
        ports::{self, UPLINK, Wanted},
        session::{Dump, Session},
    },
    tables::index::Port,
};
use crate::datapath::{Desired, Error, Object, ObjectId, Observed};

impl Ovs {
    pub(crate) async fn observe_on(
        &mut self,
        session: &mut Session,
        desired: &Desired,
    ) -> Result<Observed, Error> {
        let scaffolded = session.scaffold(self.options.datapath_type, &self.options.uplinks).await;
        scaffolded.map_err(|error| failed("make bridges and uplinks", error))?;
        let dump = session.dump().await.map_err(|error| failed("read the bridges' tables", error))?;
        let database = session.database();
        self.layout = layout(&database);

        let (ports, mut wrong) = self.ports(&database, &dump, desired);
        let uplinks: Vec<_> =
            self.options.uplinks.iter().filter_map(|name| dump.ports.vlan.get(name)).copied().collect();
        let setting = Setting { uplinks, solicitations: self.options.datapath_type.solicitations() };
        let expected = State::expected(desired, &ports, setting);
        let verdict = desired::compare(&expected, &dump.tables, desired);
        wrong.extend(verdict.wrong);
        wrong.extend(desired.iter().map(|(id, _)| id.clone()).filter(|id| expected.books.get(id).is_none()));

        self.state = State { books: expected.books, tables: dump.tables, setting: expected.setting };
        if verdict.scaffold {
            self.repair_scaffold(session).await?;
        }
        self.find_way(session, self.state.books.peers().values().copied()).await;
        let strays = verdict.strays + self.stray_ports(&database, desired).len();
        let same = desired.iter().map(|(id, _)| id).filter(|id| !wrong.contains(id)).cloned().collect();
        Ok(Observed { in_sync: same, orphans: strays })
    }

    /// The ports of objects that have one, and the objects whose port is not as it should be.
    fn ports(&self, database: &Database, dump: &Dump, desired: &Desired) -> (Ports, BTreeSet<ObjectId>) {
        let mut ports = Ports::new();
        let mut wrong = BTreeSet::new();
        for (id, object) in desired.iter() {
            let wanted = match object {
                Object::Local(local) => Wanted::local(local),
                Object::Peer(peer) => {
                    let name = ports::tunnel_name(database, peer.vtep, |_| false);
                    Wanted::tunnel(peer, name, self.options.vtep)
                }
                Object::Network(_) | Object::Group(_) | Object::Remote(_) | Object::Service(_) => continue,
            };
            if !wanted.is_there(database) {
                wrong.insert(id.clone());
            }
            match dump.ports.get(wanted.side).get(&wanted.name) {
                Some(number) => drop(ports.insert(id.clone(), Port { name: wanted.name, number: *number })),
                None => drop(wrong.insert(id.clone())),
            }
        }
        (ports, wrong)
    }

    async fn repair_scaffold(&mut self, session: &mut Session) -> Result<(), Error> {
        let mut batch = Batch::on(&mut self.state);
        batch.scaffold();
        let changes = batch.changes();
        for (side, changes) in [(Side::Vlan, changes.vlan), (Side::Vxlan, changes.vxlan)] {
            session.apply(side, changes).await.map_err(|error| failed("make the tables", error))?;
        }
        batch.finish();
        Ok(())
    }

    fn stray_ports(&self, database: &Database, desired: &Desired) -> Vec<String> {
        let mut owned = BTreeSet::new();
        for (id, object) in desired.iter() {
            match object {
                Object::Local(local) => drop(owned.insert(local.port.clone())),
                Object::Peer(_) => owned.extend(ports::of_object(database, id)),
                Object::Network(_) | Object::Group(_) | Object::Remote(_) | Object::Service(_) => {}
            }
        }
        let present = ports::present(database).map(|(_, name)| name);
        let strays = present.filter(|name| !owned.contains(*name) && !is_uplink(name, &self.options.uplinks));
        strays.map(str::to_owned).collect()
    }
}

/// Whether a port of this name carries the VLAN networks outside.
pub(crate) fn is_uplink(name: &str, uplinks: &[String]) -> bool {
    match uplinks {
        [] => false,
        [one] => one == name,
        _ => name == UPLINK,
    }
}

/// The configuration of our bridges in one number: it changes when ports, or their numbers, do.
pub(crate) fn layout(database: &Database) -> u64 {
    let mut hasher = DefaultHasher::new();
    for side in Side::BOTH {
        let Some((uuid, bridge)) = database.bridge(side.bridge()) else { continue };
        (uuid, &bridge.fail_mode, &bridge.protocols, &bridge.datapath_type).hash(&mut hasher);
        for (uuid, port, interfaces) in database.ports_of(bridge) {
            (uuid, &port.name, port.tag, &port.vlan_mode).hash(&mut hasher);
            for (uuid, interface) in interfaces {
                (uuid, &interface.kind, &interface.options, interface.number()).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// Resolves when a connection is lost, or the configuration is not `layout` any more.
pub(crate) async fn until_disturbed(session: &Session, layout: u64) {
    let lost = Side::BOTH.map(|side| {
        let connection = session.bridge(side).cloned();
        Box::pin(async move {
            match connection {
                Some(connection) => connection.closed().await,
                None => std::future::pending().await,
            }
        })
    });
    let mut database = session.client().watch();
    let changed = async {
        // An error means that the connection to the database is gone.
        let _changed = database.wait_for(|database| self::layout(database) != layout).await;
    };
    tokio::select! {
        _ = futures::future::select_all(lost) => {}
        () = session.client().closed() => {}
        () = changed => {}
    }
}

pub(crate) fn inspect(ovs: &Ovs) -> Value {
    let database = ovs.session.as_ref().map(Session::database);
    let bridges = Side::BOTH.map(|side| {
        let ports = database.iter().flat_map(|database| ports::present(database));
        let ports: serde_json::Map<_, _> = ports
            .filter(|(on, _)| *on == side)
            .map(|(_, name)| {
                let number = database.as_ref().and_then(|d| ports::find(d, name)?.interface.number());
                (name.to_owned(), json!({"ofport": number, "owner": ovs.state.books.owner_of_port(name).map(ToString::to_string)}))
            })
            .collect();
        let tables = ovs.state.tables.get(side);
        (side.bridge().to_owned(), json!({"flows": tables.len(), "groups": tables.groups().len(), "ports": ports}))
    });
    json!({
        "datapath": "ovs",
        "datapathType": ovs.options.datapath_type.name(),
        "connected": ovs.session.as_ref().is_some_and(Session::is_open),
        "objects": ovs.state.books.len(),
        "writes": ovs.writes,
        "uplinks": ovs.options.uplinks,
        "bridges": serde_json::Map::from_iter(bridges),
    })
}
