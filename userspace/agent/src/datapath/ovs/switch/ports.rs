//! The ports that the bridges should have, as rows of the database.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde_json::json;

use super::ovsdb::{Bridge, Database, Interface, Operation, Port, Uuid, map, optional, set};
use crate::datapath::{
    Local, ObjectId, Peer,
    ovs::{
        pipeline::{Side, place},
        tables::cookie,
    },
};

/// The key of `external_ids` that says whose a port is.
const OWNER: &str = "endpoint-id";
/// The owner of uplinks, and the name of a bond of several.
pub(crate) const UPLINK: &str = "uplinkPort";
/// Linux cuts the names of interfaces here.
const NAME: usize = 15;

/// A port with one interface, as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) side: Side,
    pub(crate) name: String,
    owner: String,
    tag: Option<i64>,
    vlan_mode: &'static str,
    kind: &'static str,
    options: BTreeMap<String, String>,
}

impl Wanted {
    pub(crate) fn local(local: &Local) -> Wanted {
        let (side, tag) = place(local.encap);
        let access = side == Side::Vlan;
        Wanted {
            side,
            name: local.port.clone(),
            owner: local.id.to_string(),
            // On the VXLAN bridge flows alone say which network a port is on.
            tag: access.then_some(tag.into()),
            vlan_mode: if access { "access" } else { "" },
            kind: "",
            options: BTreeMap::new(),
        }
    }

    pub(crate) fn tunnel(peer: &Peer, name: String, from: Option<IpAddr>) -> Wanted {
        let options = [
            ("remote_ip", Some(peer.vtep.to_string())),
            ("local_ip", from.map(|ip| ip.to_string())),
            ("key", Some("flow".to_owned())),
            ("tos", Some("inherit".to_owned())),
            ("dst_port", Some(peer.port.to_string())),
        ];
        Wanted {
            side: Side::Vxlan,
            name,
            owner: String::new(),
            tag: None,
            vlan_mode: "trunk",
            kind: "vxlan",
            options: options.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
        }
    }

    pub(crate) fn uplink(name: &str) -> Wanted {
        Wanted {
            side: Side::Vlan,
            name: name.to_owned(),
            owner: UPLINK.to_owned(),
            tag: None,
            vlan_mode: "trunk",
            kind: "",
            options: BTreeMap::new(),
        }
    }

    fn external_ids(&self) -> BTreeMap<String, String> {
        let owner = (!self.owner.is_empty()).then(|| (OWNER.to_owned(), self.owner.clone()));
        owner.into_iter().collect()
    }

    /// Whether the port is there in every detail that we set.
    pub(crate) fn is_there(&self, database: &Database) -> bool {
        find(database, &self.name).is_some_and(|found| {
            found.side(database) == Some(self.side)
                && self.fits_port(found.port)
                && self.fits_interface(found.interface)
        })
    }

    fn fits_port(&self, port: &Port) -> bool {
        port.tag == self.tag
            && port.vlan_mode.as_deref().unwrap_or_default() == self.vlan_mode
            && port.external_ids == self.external_ids()
    }

    fn fits_interface(&self, interface: &Interface) -> bool {
        interface.kind == self.kind
            && interface.options == self.options
            // ovs-vswitchd and others keep notes of their own there.
            && interface.external_ids.get(OWNER).map_or("", String::as_str) == self.owner
    }

    fn port_columns(&self) -> serde_json::Value {
        let vlan_mode = (!self.vlan_mode.is_empty()).then_some(self.vlan_mode);
        json!({
            "tag": optional(self.tag),
            "vlan_mode": optional(vlan_mode),
            "external_ids": map(&self.external_ids()),
        })
    }

    fn interface_columns(&self) -> serde_json::Value {
        json!({"type": self.kind, "options": map(&self.options), "external_ids": map(&self.external_ids())})
    }

    /// What makes the port be there just so; `n` makes names unique within the transaction.
    pub(crate) fn operations(&self, database: &Database, n: usize) -> Vec<Operation> {
        let mut operations = vec![];
        // Without its bridge the port cannot be; the next observation makes the bridge first.
        let Some((bridge, _)) = database.bridge(self.side.bridge()) else { return operations };
        if let Some(found) = find(database, &self.name) {
            if found.side(database) == Some(self.side) {
                if !self.fits_port(found.port) {
                    operations.push(Operation::update("Port", found.port_uuid, self.port_columns()));
                }
                if !self.fits_interface(found.interface) {
                    operations.push(Operation::update(
                        "Interface",
                        found.interface_uuid,
                        self.interface_columns(),
                    ));
                }
                return operations;
            }
            // On the wrong bridge: a port is of one bridge only.
            operations.extend(found.unlink(database));
        }
        let mut row = self.interface_columns();
        row["name"] = json!(self.name);
        let (insert_interface, interface) = Operation::insert("Interface", &format!("interface{n}"), row);
        let mut row = self.port_columns();
        row["name"] = json!(self.name);
        row["interfaces"] = set([interface]);
        let (insert_port, port) = Operation::insert("Port", &format!("port{n}"), row);
        operations.extend([
            insert_interface,
            insert_port,
            Operation::link("Bridge", Some(bridge), "ports", &[port]),
        ]);
        operations
    }
}

/// A port with one interface in the database.
pub(crate) struct Found<'a> {
    port_uuid: &'a Uuid,
    port: &'a Port,
    interface_uuid: &'a Uuid,
    pub(crate) interface: &'a Interface,
}

impl Found<'_> {
    fn bridge<'d>(&self, database: &'d Database) -> Option<(&'d Uuid, &'d Bridge)> {
        database.bridges.iter().find(|(_, bridge)| bridge.ports.contains(self.port_uuid))
    }

    /// Which of our bridges it is on.
    fn side(&self, database: &Database) -> Option<Side> {
        let (_, bridge) = self.bridge(database)?;
        Side::BOTH.into_iter().find(|side| side.bridge() == bridge.name)
    }

    fn unlink(&self, database: &Database) -> Option<Operation> {
        let (bridge, _) = self.bridge(database)?;
        Some(Operation::unlink("Bridge", Some(bridge), "ports", &[self.port_uuid.into()]))
    }
}

/// The port of this name, on any bridge.
pub(crate) fn find<'a>(database: &'a Database, name: &str) -> Option<Found<'a>> {
    let (port_uuid, port) = database.ports.iter().find(|(_, port)| port.name == name)?;
    let (interface_uuid, interface) =
        port.interfaces.iter().find_map(|uuid| Some((uuid, database.interfaces.get(uuid)?)))?;
    Some(Found { port_uuid, port, interface_uuid, interface })
}

/// What takes a port off its bridge.
pub(crate) fn removal(database: &Database, name: &str) -> Option<Operation> {
    find(database, name)?.unlink(database)
}

/// The names of our bridges' ports, with the side, without the bridges' own.
pub(crate) fn present(database: &Database) -> impl Iterator<Item = (Side, &str)> {
    Side::BOTH.into_iter().flat_map(move |side| {
        let bridge = database.bridge(side.bridge()).map(|(_, bridge)| bridge);
        let ports = bridge.into_iter().flat_map(move |bridge| database.ports_of(bridge));
        ports
            .map(move |(_, port, _)| (side, port.name.as_str()))
            .filter(move |(_, name)| *name != side.bridge())
    })
}

/// The names of the ports that say that they are the object's.
pub(crate) fn of_object(database: &Database, id: &ObjectId) -> BTreeSet<String> {
    let text = match id {
        ObjectId::Peer(vtep) => vtep.to_string(),
        ObjectId::Local(id) => id.to_string(),
        ObjectId::Network(_) | ObjectId::Group(_) | ObjectId::Remote(_) | ObjectId::Service(_) => {
            return BTreeSet::new();
        }
    };
    let is_its = |port: &Port, interface: &Interface| match id {
        ObjectId::Peer(_) => leads_to(interface, &text),
        _ => port.external_ids.get(OWNER) == Some(&text),
    };
    let bridges = Side::BOTH.into_iter().filter_map(|side| database.bridge(side.bridge()));
    let ports = bridges.flat_map(|(_, bridge)| database.ports_of(bridge));
    ports
        .filter(|(_, port, interfaces)| interfaces.iter().any(|(_, interface)| is_its(port, interface)))
        .map(|(_, port, _)| port.name.clone())
        .collect()
}

fn leads_to(interface: &Interface, vtep: &str) -> bool {
    interface.kind == "vxlan" && interface.options.get("remote_ip").is_some_and(|ip| ip == vtep)
}

/// The name of the tunnel to a node: that of the tunnel which is there; else the original's, `vxif` and the
/// digits of the address; else, where that is too long or another's (10.1.1.2 and 10.11.2 look alike), a hash.
pub(crate) fn tunnel_name(database: &Database, vtep: IpAddr, taken: impl Fn(&str) -> bool) -> String {
    if let Some(name) = of_object(database, &ObjectId::Peer(vtep)).into_iter().next() {
        return name;
    }
    let text = vtep.to_string();
    let plain = format!("vxif{}", text.replace('.', ""));
    let free = |name: &str| !taken(name) && find(database, name).is_none();
    if vtep.is_ipv4() && plain.len() <= NAME && free(&plain) {
        return plain;
    }
    let hash = cookie::hash(&text);
    format!("vxif{:011x}", hash >> 20)
}

/// What makes the uplinks be the VLAN bridge's: one a trunk, several a bond.
pub(crate) fn uplinks(database: &Database, names: &[String]) -> Vec<Operation> {
    match names {
        [] => vec![],
        [name] => Wanted::uplink(name).operations(database, 0),
        many => bond(database, many),
    }
}

fn bond(database: &Database, names: &[String]) -> Vec<Operation> {
    let fallback = BTreeMap::from([("lacp-fallback-ab".to_owned(), "true".to_owned())]);
    let owner = BTreeMap::from([(OWNER.to_owned(), UPLINK.to_owned())]);
    let wanted: BTreeSet<_> = names.iter().map(String::as_str).collect();
    let there = database.ports.values().any(|port| {
        let members: BTreeSet<_> = port
            .interfaces
            .iter()
            .filter_map(|uuid| database.interfaces.get(uuid))
            .map(|i| i.name.as_str())
            .collect();
        port.name == UPLINK
            && members == wanted
            && port.bond_mode.as_deref() == Some("balance-tcp")
            && port.lacp.as_deref() == Some("active")
            && port.other_config == fallback
    });
    let bridge = database.bridge(Side::Vlan.bridge()).filter(|_| !there);
    let Some((bridge, _)) = bridge else { return vec![] };
    let mut operations: Vec<_> =
        names.iter().map(String::as_str).chain([UPLINK]).filter_map(|name| removal(database, name)).collect();
    let (inserts, members): (Vec<_>, Vec<_>) = names
        .iter()
        .enumerate()
        .map(|(n, name)| Operation::insert("Interface", &format!("uplink{n}"), json!({"name": name})))
        .unzip();
    operations.extend(inserts);
    let row = json!({
        "name": UPLINK, "interfaces": set(members), "vlan_mode": "trunk", "bond_mode": "balance-tcp",
        "lacp": "active", "other_config": map(&fallback), "external_ids": map(&owner),
    });
    let (insert, port) = Operation::insert("Port", "bond", row);
    operations.extend([insert, Operation::link("Bridge", Some(bridge), "ports", &[port])]);
    operations
}
