//! The connections to one node's Open vSwitch: its database and both bridges.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use openflow_rs::{Change, Connection, FlowFilter, connection, connection::Target};
use serde_json::json;

use super::{
    ovsdb::{self, Client, Database, OPEN_VSWITCH, Operation, set},
    ports,
};
use crate::datapath::ovs::{DatapathType, desired::Sides, pipeline::Side, tables::edit::Tables};

/// How long ovs-vswitchd may take to make a changed configuration true.
const RECONFIGURE_WITHIN: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Database(#[from] ovsdb::Error),
    #[error(
        "ovs-vswitchd could not make bridge {bridge} with datapath type {kind} (its log says why; type system \
         needs the kernel module openvswitch, --ovs-datapath-type netdev does without)"
    )]
    NotMade { bridge: &'static str, kind: &'static str },
    #[error("bridge {bridge} (is ovs-vswitchd running on this node?)")]
    Bridge { bridge: &'static str, source: Box<connection::Error> },
    #[error("bridge {bridge}")]
    Refused { bridge: &'static str, source: Box<connection::Error> },
}

pub(crate) struct Session {
    database: Client,
    /// Where the bridges' sockets are.
    directory: PathBuf,
    bridges: Sides<Option<Connection>>,
    /// Changes made through this session.
    writes: u64,
}

/// What the switch said of itself.
pub(crate) struct Dump {
    pub(crate) tables: Sides<Tables>,
    /// The numbers of the ports that the switch has, by name.
    pub(crate) ports: Sides<HashMap<String, u32>>,
}

impl Session {
    /// Connects; makes bridges and uplinks if they are not there.
    pub(crate) async fn open(
        socket: &Path,
        kind: DatapathType,
        uplinks: &[String],
    ) -> Result<Session, Error> {
        let database = Client::connect(socket).await?;
        let mut session = Session::over(database);
        session.directory = socket.parent().map(PathBuf::from).unwrap_or_default();
        session.scaffold(kind, uplinks).await?;
        Ok(session)
    }

    /// Only the database: for what can be done without the bridges.
    pub(crate) fn over(database: Client) -> Session {
        Session { database, directory: PathBuf::new(), bridges: Sides::default(), writes: 0 }
    }

    /// Makes bridges and uplinks be as they should, and the connections to them; does nothing when they are.
    pub(crate) async fn scaffold(&mut self, kind: DatapathType, uplinks: &[String]) -> Result<(), Error> {
        self.database.catch_up().await?;
        let database = self.database.database();
        for side in Side::BOTH {
            let operations = bridge(&database, side, kind);
            // A bridge made anew is not the one that we are connected to.
            if !operations.is_empty() {
                self.reconfigure(operations).await?;
                *self.bridges.get_mut(side) = None;
            }
            if self.bridges.get(side).is_none() {
                self.connect(side, kind).await?;
            }
        }
        let database = self.database.database();
        self.reconfigure(ports::uplinks(&database, uplinks)).await
    }

    async fn connect(&mut self, side: Side, kind: DatapathType) -> Result<(), Error> {
        let path = self.directory.join(format!("{}.mgmt", side.bridge()));
        match Connection::connect(&Target::Unix(path)).await {
            // Nobody here listens to what the switch says unasked.
            Ok((connection, _notifications)) => *self.bridges.get_mut(side) = Some(connection),
            // The number of the bridge's own port tells nothing: the kernel does not take names as long as these.
            Err(_) if self.database().bridge(side.bridge()).is_some_and(|(_, bridge)| !bridge.made) => {
                return Err(Error::NotMade { bridge: side.bridge(), kind: kind.name() });
            }
            Err(source) => return Err(failed(side, source)),
        }
        Ok(())
    }

    /// Connected, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        let open = |side| {
            self.bridges.get(side).as_ref().is_some_and(|connection: &Connection| !connection.is_closed())
        };
        !self.database.is_closed() && Side::BOTH.into_iter().all(open)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.database
    }

    pub(crate) fn database(&self) -> std::sync::Arc<Database> {
        self.database.database()
    }

    pub(crate) fn bridge(&self, side: Side) -> Option<&Connection> {
        self.bridges.get(side).as_ref()
    }

    /// Changes made since the last call.
    pub(crate) fn take_writes(&mut self) -> u64 {
        std::mem::take(&mut self.writes)
    }

    /// Does the operations and waits for the switch to follow; nothing to do is no write.
    pub(crate) async fn reconfigure(&mut self, operations: Vec<Operation>) -> Result<(), Error> {
        if operations.is_empty() {
            return Ok(());
        }
        self.writes += operations.iter().filter(|operation| operation.is_write()).count() as u64;
        Ok(self.database.reconfigure(operations, RECONFIGURE_WITHIN).await?)
    }

    /// Has the switch try again what it could not do.
    pub(crate) async fn nudge(&mut self) -> Result<(), Error> {
        Ok(self.database.reconfigure(vec![], RECONFIGURE_WITHIN).await?)
    }

    fn connection(&self, side: Side) -> Result<&Connection, Error> {
        let closed = || {
            let path = PathBuf::from(format!("{}.mgmt", side.bridge()));
            failed(side, connection::Error::Closed { target: Target::Unix(path), why: "not opened".into() })
        };
        self.bridges.get(side).as_ref().ok_or_else(closed)
    }

    pub(crate) async fn dump(&self) -> Result<Dump, Error> {
        let one = async |side| {
            let connection = self.connection(side)?;
            let flows = async { connection.dump_flows(FlowFilter::default()).await };
            let groups = async { connection.dump_groups().await };
            let ports = async { connection.ports().await };
            let all = futures::future::try_join3(flows, groups, ports).await;
            let (flows, groups, ports) = all.map_err(|source| failed(side, source))?;
            let tables = Tables::new(flows.into_iter().map(|stats| stats.flow), groups);
            let ports: HashMap<_, _> = ports.into_iter().map(|port| (port.name, port.port.0)).collect();
            Ok::<_, Error>((tables, ports))
        };
        let ((vlan, vlan_ports), (vxlan, vxlan_ports)) =
            futures::future::try_join(one(Side::Vlan), one(Side::Vxlan)).await?;
        Ok(Dump { tables: Sides { vlan, vxlan }, ports: Sides { vlan: vlan_ports, vxlan: vxlan_ports } })
    }

    /// Makes all changes of one bridge or none.
    pub(crate) async fn apply(&mut self, side: Side, changes: Vec<Change>) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let count = changes.len() as u64;
        self.connection(side)?.apply_bundle(changes).await.map_err(|source| failed(side, source))?;
        self.writes += count;
        Ok(())
    }

    /// Removes both bridges and all that is on them.
    pub(crate) async fn remove(&mut self) -> Result<(), Error> {
        let database = self.database.database();
        let ours: Vec<_> = Side::BOTH.iter().filter_map(|side| database.bridge(side.bridge())).collect();
        let ours: Vec<_> = ours.into_iter().map(|(uuid, _)| uuid.into()).collect();
        if ours.is_empty() {
            return Ok(());
        }
        self.reconfigure(vec![Operation::unlink(OPEN_VSWITCH, None, "bridges", &ours)]).await
    }
}

fn failed(side: Side, source: connection::Error) -> Error {
    let (bridge, refused) = (
        side.bridge(),
        matches!(source, connection::Error::Refused { .. } | connection::Error::TooLong { .. }),
    );
    let source = Box::new(source);
    if refused { Error::Refused { bridge, source } } else { Error::Bridge { bridge, source } }
}

/// Whether the switch is sound and only did not like what it was told.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Refused { .. } | Error::Database(ovsdb::Error::Refused { .. }))
}

/// What makes a bridge be as it should.
fn bridge(database: &Database, side: Side, kind: DatapathType) -> Vec<Operation> {
    let name = side.bridge();
    let columns = json!({
        "fail_mode": set(["secure"]),
        "protocols": set(["OpenFlow13"]),
        "datapath_type": kind.name(),
    });
    if let Some((uuid, bridge)) = database.bridge(name) {
        let fits = bridge.fail_mode.as_deref() == Some("secure")
            && bridge.protocols.iter().map(String::as_str).eq(["OpenFlow13"])
            && (bridge.datapath_type == kind.name()
                || bridge.datapath_type.is_empty() && kind == DatapathType::System);
        return if fits { vec![] } else { vec![Operation::update("Bridge", uuid, columns)] };
    }
    let interface = json!({"name": name, "type": "internal"});
    let (insert_interface, interface) =
        Operation::insert("Interface", &format!("{name}Interface"), interface);
    let port = json!({"name": name, "interfaces": set([interface])});
    let (insert_port, port) = Operation::insert("Port", &format!("{name}Port"), port);
    let mut row = columns;
    row["name"] = json!(name);
    row["ports"] = set([port]);
    let (insert_bridge, bridge) = Operation::insert("Bridge", name, row);
    let link = Operation::link(OPEN_VSWITCH, None, "bridges", &[bridge]);
    vec![insert_interface, insert_port, insert_bridge, link]
}
