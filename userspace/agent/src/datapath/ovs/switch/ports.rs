//! Port and Interface rows of endpoints and tunnels.

mod closing;
mod udp_port;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::mac::Mac;
use serde_json::json;

pub(crate) use self::{closing::closing, udp_port::frees_tunnel_port};

use super::{
    limit::{self, Bandwidth},
    ovsdb::{Bridge, Database, Interface, OWNER_KEY, Operation, Port, Uuid, map, optional, set},
};
use crate::datapath::{
    KERNEL_MAC, Local, ObjectId, Peer,
    ovs::{bridge::BridgeKind, hash::hash, options::DatapathType, pipeline::bridge_and_tag},
};

/// Owner of uplinks, and name of the port of a bond.
pub(super) const UPLINK_OWNER: &str = "uplinkPort";
/// Owner of the port of the node's kernel.
const KERNEL_OWNER: &str = "kernelPort";
/// A VLAN id that no frame has (IEEE 802.1Q table 9-2).
const RESERVED_VLAN: i64 = 4095;
/// Beginning of the port names of tunnels.
const TUNNEL_PREFIX: &str = "vxif";
/// Maximum length of an interface name in Linux (IFNAMSIZ - 1).
const MAX_NAME: usize = 15;

/// Desired configuration of a port with one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) bridge: BridgeKind,
    pub(crate) name: String,
    /// Endpoint id, or empty.
    owner: String,
    tag: Option<i64>,
    vlan_mode: &'static str,
    /// The bridge sends no frame from one such port to another one or back to the same, neither by `NORMAL` nor by an output action.
    is_protected: bool,
    interface_type: &'static str,
    options: BTreeMap<String, String>,
    /// Ethernet address of an internal interface.
    mac: Option<Mac>,
    bandwidth: Bandwidth,
}

impl PortSpec {
    pub(crate) fn local(local: &Local, bandwidth: Bandwidth) -> PortSpec {
        let (bridge, tag) = bridge_and_tag(local.encap);
        let access = bridge == BridgeKind::Vlan;
        PortSpec {
            bridge,
            name: local.port.clone(),
            owner: local.id.to_string(),
            // On the VXLAN bridge flows assign the network.
            tag: access.then_some(tag.into()),
            vlan_mode: if access { "access" } else { "" },
            is_protected: false,
            interface_type: "",
            options: BTreeMap::new(),
            mac: None,
            bandwidth,
        }
    }

    /// The port on a VLAN that carries no frames, for a port whose flows are not programmed yet: the bridge floods to ports of
    /// the same VLAN. Such ports of all networks are on this one, so they are protected from each other. `None` if the port is on its
    /// VLAN and has flows (`is_programmed`), or if only flows lead to it.
    pub(crate) fn closed(&self, database: &Database, is_programmed: bool) -> Option<PortSpec> {
        // The flows are those of the place where the port is. An agent that ended in between, or lost the switch, has left it closed.
        let is_open = is_programmed && self.is_in_place(database);
        (!is_open && self.bridge == BridgeKind::Vlan).then(|| PortSpec {
            tag: Some(RESERVED_VLAN),
            is_protected: true,
            ..self.clone()
        })
    }

    /// Whether the port is on its bridge and its VLAN.
    pub(crate) fn is_in_place(&self, database: &Database) -> bool {
        find(database, &self.name).is_some_and(|found| {
            found.bridge_kind(database) == Some(self.bridge) && found.port.tag == self.tag
        })
    }

    pub(crate) fn tunnel(peer: &Peer, name: String, from: Option<IpAddr>) -> PortSpec {
        let options = [
            ("remote_ip", Some(peer.vtep.to_string())),
            ("local_ip", from.map(|ip| ip.to_string())),
            ("key", Some("flow".to_owned())),
            ("tos", Some("inherit".to_owned())),
            ("dst_port", Some(peer.port.to_string())),
        ];
        PortSpec {
            bridge: BridgeKind::Vxlan,
            name,
            owner: String::new(),
            tag: None,
            vlan_mode: "trunk",
            is_protected: false,
            interface_type: "vxlan",
            options: options.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
            mac: None,
            bandwidth: Bandwidth::Foreign,
        }
    }

    pub(crate) fn uplink(name: &str) -> PortSpec {
        PortSpec {
            bridge: BridgeKind::Vlan,
            name: name.to_owned(),
            owner: UPLINK_OWNER.to_owned(),
            tag: None,
            vlan_mode: "trunk",
            // Frames of services return by it.
            is_protected: false,
            interface_type: "",
            options: BTreeMap::new(),
            mac: None,
            bandwidth: Bandwidth::Foreign,
        }
    }

    /// The port of the node's kernel. The bridge does not flood to it: it is on the VLAN of ports that are closed, and protected from
    /// them. No flow returns a frame by the port that it came from, if that is this one.
    pub(crate) fn kernel(bridge: BridgeKind, name: &str) -> PortSpec {
        // On the VXLAN bridge only flows lead to a port.
        let is_vlan = bridge == BridgeKind::Vlan;
        PortSpec {
            bridge,
            owner: KERNEL_OWNER.to_owned(),
            tag: is_vlan.then_some(RESERVED_VLAN),
            vlan_mode: if is_vlan { "access" } else { "" },
            is_protected: is_vlan,
            interface_type: "internal",
            mac: Some(KERNEL_MAC),
            ..PortSpec::uplink(name)
        }
    }

    fn external_ids(&self) -> BTreeMap<String, String> {
        let owner = (!self.owner.is_empty()).then(|| (OWNER_KEY.to_owned(), self.owner.clone()));
        owner.into_iter().collect()
    }

    /// Returns whether the database has the port with this configuration.
    pub(crate) fn is_in_sync(&self, database: &Database) -> bool {
        find(database, &self.name).is_some_and(|found| {
            found.bridge_kind(database) == Some(self.bridge)
                && self.matches_port(database, found.port)
                && self.matches_interface(found.interface)
        })
    }

    fn matches_port(&self, database: &Database, port: &Port) -> bool {
        port.tag == self.tag
            && port.vlan_mode.as_deref().unwrap_or_default() == self.vlan_mode
            && port.is_protected == self.is_protected
            && port.external_ids == self.external_ids()
            && self.bandwidth.matches_port(database, port)
    }

    fn matches_interface(&self, interface: &Interface) -> bool {
        // The switch chooses the address of interfaces without one.
        let mac = self.mac.map(|mac| mac.to_string());
        interface.interface_type == self.interface_type
            && (mac.is_none() || interface.mac == mac)
            && interface.options == self.options
            && self.bandwidth.matches_interface(interface)
            // Other keys belong to ovs-vswitchd and to other programs.
            && interface.external_ids.get(OWNER_KEY).map_or("", String::as_str) == self.owner
    }

    fn port_columns(&self) -> serde_json::Value {
        let vlan_mode = (!self.vlan_mode.is_empty()).then_some(self.vlan_mode);
        json!({
            "tag": optional(self.tag),
            "vlan_mode": optional(vlan_mode),
            "protected": self.is_protected,
            "external_ids": map(&self.external_ids()),
        })
    }

    fn interface_columns(&self) -> serde_json::Value {
        let mut row = json!({
            "type": self.interface_type,
            "options": map(&self.options),
            "external_ids": map(&self.external_ids()),
        });
        if let Some(mac) = self.mac {
            row["mac"] = json!(mac.to_string());
        }
        self.bandwidth.set_interface_columns(&mut row);
        row
    }

    /// Prepares the interface for the queue that the port gets.
    pub(crate) fn prepare_queue(&self, database: &Database, datapath_type: DatapathType) {
        let in_place = |found: PortRows<'_>| self.bandwidth.matches_port(database, found.port);
        if !find(database, &self.name).is_some_and(in_place) {
            self.bandwidth.prepare_queue(&self.name, datapath_type);
        }
    }

    /// Returns the operations that create or update the port. `n` makes row names unique within the transaction.
    pub(crate) fn operations(&self, database: &Database, n: usize) -> Vec<Operation> {
        let mut operations = vec![];
        // The next observation creates a missing bridge.
        let Some((bridge, _)) = database.bridge(self.bridge.name()) else { return operations };
        if let Some(found) = find(database, &self.name) {
            if found.bridge_kind(database) == Some(self.bridge) {
                if !self.matches_port(database, found.port) {
                    let mut row = self.port_columns();
                    let owner = self.external_ids();
                    let qos = self.bandwidth.operations(database, Some(found.port), &owner, n, &mut row);
                    operations.push(Operation::update("Port", found.port_uuid, row));
                    operations.extend(qos);
                }
                if !self.matches_interface(found.interface) {
                    operations.push(Operation::update(
                        "Interface",
                        found.interface_uuid,
                        self.interface_columns(),
                    ));
                }
                return operations;
            }
            // The port is on the other bridge.
            operations.extend(found.removal(database));
        }
        let mut row = self.interface_columns();
        row["name"] = json!(self.name);
        let (insert_interface, interface) = Operation::insert("Interface", &format!("interface{n}"), row);
        let mut row = self.port_columns();
        row["name"] = json!(self.name);
        row["interfaces"] = set([interface]);
        operations.extend(self.bandwidth.operations(database, None, &self.external_ids(), n, &mut row));
        let (insert_port, port) = Operation::insert("Port", &format!("port{n}"), row);
        operations.extend([
            insert_interface,
            insert_port,
            Operation::link("Bridge", Some(bridge), "ports", &[port]),
        ]);
        operations
    }
}

/// Rows of a port and its first interface.
pub(crate) struct PortRows<'a> {
    port_uuid: &'a Uuid,
    port: &'a Port,
    interface_uuid: &'a Uuid,
    pub(crate) interface: &'a Interface,
}

impl PortRows<'_> {
    fn bridge<'d>(&self, database: &'d Database) -> Option<(&'d Uuid, &'d Bridge)> {
        database.bridges.iter().find(|(_, bridge)| bridge.ports.contains(self.port_uuid))
    }

    /// Returns which of the two bridges the port is on.
    fn bridge_kind(&self, database: &Database) -> Option<BridgeKind> {
        let (_, bridge) = self.bridge(database)?;
        BridgeKind::ALL.into_iter().find(|kind| kind.name() == bridge.name)
    }

    fn removal(&self, database: &Database) -> Vec<Operation> {
        let Some((bridge, _)) = self.bridge(database) else { return vec![] };
        let unlink = Operation::unlink("Bridge", Some(bridge), "ports", &[self.port_uuid.into()]);
        let mut operations = limit::removal(database, self.port_uuid, self.port);
        operations.push(unlink);
        operations
    }
}

/// Returns the port with this name, on any bridge.
pub(crate) fn find<'a>(database: &'a Database, name: &str) -> Option<PortRows<'a>> {
    let (port_uuid, port) = database.ports.iter().find(|(_, port)| port.name == name)?;
    let (interface_uuid, interface) =
        port.interfaces.iter().find_map(|uuid| Some((uuid, database.interfaces.get(uuid)?)))?;
    Some(PortRows { port_uuid, port, interface_uuid, interface })
}

/// Returns the names of the ports on the VLAN that carries no frames.
pub(crate) fn closed(database: &Database) -> BTreeSet<&str> {
    let closed = database.ports.values().filter(|port| port.tag == Some(RESERVED_VLAN));
    closed.map(|port| port.name.as_str()).collect()
}

/// Returns the operations that remove a port from its bridge.
pub(crate) fn removal(database: &Database, name: &str) -> Vec<Operation> {
    find(database, name).map(|found| found.removal(database)).unwrap_or_default()
}

/// Returns the names of the ports of both bridges, without their internal ports.
pub(crate) fn present(database: &Database) -> impl Iterator<Item = (BridgeKind, &str)> {
    BridgeKind::ALL.into_iter().flat_map(move |kind| {
        let bridge = database.bridge(kind.name()).map(|(_, bridge)| bridge);
        let ports = bridge.into_iter().flat_map(move |bridge| database.ports_of(bridge));
        ports
            .map(move |(_, port, _)| (kind, port.name.as_str()))
            .filter(move |(_, name)| *name != kind.name())
    })
}

/// Returns the names of the ports of both bridges that agents have added: those with an owner, and tunnels. Others stay.
pub(super) fn own(database: &Database) -> impl Iterator<Item = &str> {
    let bridges = BridgeKind::ALL.into_iter().filter_map(move |kind| database.bridge(kind.name()));
    let ports = bridges.flat_map(move |(_, bridge)| database.ports_of(bridge));
    let own = ports.filter(|(_, port, interfaces)| {
        let is_tunnel = interfaces.iter().any(|(_, interface)| interface.interface_type == "vxlan");
        port.external_ids.contains_key(OWNER_KEY) || is_tunnel && port.name.starts_with(TUNNEL_PREFIX)
    });
    own.map(|(_, port, _)| port.name.as_str())
}

/// Returns the names of the ports of endpoints.
pub(crate) fn of_endpoints(database: &Database) -> impl Iterator<Item = &str> {
    let is_endpoint = |found: PortRows<'_>| {
        let owner = found.port.external_ids.get(OWNER_KEY);
        found.interface.interface_type.is_empty() && owner.is_some_and(|owner| owner != UPLINK_OWNER)
    };
    own(database).filter(move |name| find(database, name).is_some_and(is_endpoint))
}

/// Returns the names of the ports that belong to an object: tunnels by `remote_ip`, others by their owner.
pub(crate) fn of_object(database: &Database, id: &ObjectId) -> BTreeSet<String> {
    let text = match id {
        ObjectId::Peer(vtep) => vtep.to_string(),
        ObjectId::Local(id) => id.to_string(),
        ObjectId::Network(_)
        | ObjectId::Subnet(_)
        | ObjectId::Route(_)
        | ObjectId::Group(_)
        | ObjectId::Remote(_)
        | ObjectId::Service(_) => return BTreeSet::new(),
    };
    let is_owned = |port: &Port, interface: &Interface| match id {
        ObjectId::Peer(_) => leads_to(interface, &text),
        _ => port.external_ids.get(OWNER_KEY) == Some(&text),
    };
    let bridges = BridgeKind::ALL.into_iter().filter_map(|kind| database.bridge(kind.name()));
    let ports = bridges.flat_map(|(_, bridge)| database.ports_of(bridge));
    ports
        .filter(|(_, port, interfaces)| interfaces.iter().any(|(_, interface)| is_owned(port, interface)))
        .map(|(_, port, _)| port.name.clone())
        .collect()
}

fn leads_to(interface: &Interface, vtep: &str) -> bool {
    interface.interface_type == "vxlan" && interface.options.get("remote_ip").is_some_and(|ip| ip == vtep)
}

/// Returns the port name of the tunnel to a peer: that of an existing tunnel; else `vxif` and the digits of the address;
/// else `vxif` and a hash, if the name is too long or in use (10.1.12.3 and 10.11.2.3 have the same digits).
pub(crate) fn tunnel_name(database: &Database, vtep: IpAddr, taken: impl Fn(&str) -> bool) -> String {
    if let Some(name) = of_object(database, &ObjectId::Peer(vtep)).into_iter().next() {
        return name;
    }
    let text = vtep.to_string();
    let plain = format!("{TUNNEL_PREFIX}{}", text.replace('.', ""));
    let free = |name: &str| !taken(name) && find(database, name).is_none();
    if vtep.is_ipv4() && plain.len() <= MAX_NAME && free(&plain) {
        return plain;
    }
    let hash = hash(&text);
    format!("{TUNNEL_PREFIX}{:011x}", hash >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_closed_until_it_is_moved_to_its_vlan() {
        let port = PortSpec { tag: Some(100), ..PortSpec::uplink("vvport1") };
        let mut database = Database::default();
        let is_closed = |database: &Database, is_programmed| {
            port.closed(database, is_programmed)
                .is_some_and(|closed| closed.tag == Some(RESERVED_VLAN) && closed.is_protected)
        };
        assert!(is_closed(&database, false), "a new port");
        let [vlan, vxlan] = BridgeKind::ALL.map(BridgeKind::name);
        let cases = [(vlan, RESERVED_VLAN, true), (vlan, 101, true), (vxlan, 100, true), (vlan, 100, false)];
        for (bridge, tag, expected) in cases {
            database.update(&json!({
                "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "bridge"]}}},
                "Bridge": {"bridge": {"new": {"name": bridge, "ports": ["uuid", "port"]}}},
                "Port": {"port": {"new": {"name": "vvport1", "tag": tag, "interfaces": ["uuid", "interface"]}}},
                "Interface": {"interface": {"new": {"name": "vvport1"}}},
            }));
            assert_eq!(is_closed(&database, true), expected, "{bridge}, {tag}");
            assert!(is_closed(&database, false), "{bridge}, {tag}, without flows");
        }
    }
}
