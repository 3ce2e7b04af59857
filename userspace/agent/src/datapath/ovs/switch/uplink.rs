//! Ports of the VLAN uplinks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{
    ovsdb::{Database, Interface, OWNER_KEY, Operation, map, set},
    ports::{PortSpec, UPLINK_OWNER, own, removal},
};
use crate::datapath::ovs::bridge::BridgeKind;

/// Returns whether a port of the VLAN bridge is an uplink: the interface itself, or the bond of several.
pub(crate) fn is_uplink(name: &str, uplinks: &[String]) -> bool {
    match uplinks {
        [] => false,
        [one] => one == name,
        _ => name == UPLINK_OWNER,
    }
}

/// Returns the names of the ports that a garbage collection may remove: those that agents have added, without the uplinks.
pub(crate) fn collectable<'a>(
    database: &'a Database,
    uplinks: &'a [String],
) -> impl Iterator<Item = &'a str> {
    own(database).filter(move |name| !is_uplink(name, uplinks))
}

/// Returns the operations that add the uplinks to the VLAN bridge, one as a trunk port, several as a bond, and remove those of an
/// earlier configuration: an interface belongs to one port, and the bridge would forward between two uplinks that are no bond.
pub(crate) fn operations(database: &Database, names: &[String]) -> Vec<Operation> {
    let mut removed: BTreeSet<&str> = former(database, names).collect();
    let added = match names {
        [] => vec![],
        [name] => PortSpec::uplink(name).operations(database, 0),
        many => {
            let bond = bond(database, many);
            if !bond.is_empty() {
                removed.extend(many.iter().map(String::as_str).chain([UPLINK_OWNER]));
            }
            bond
        }
    };
    removed.into_iter().flat_map(|name| removal(database, name)).chain(added).collect()
}

/// Returns the names of the ports of the VLAN bridge that were uplinks and are none any more.
fn former<'a>(database: &'a Database, uplinks: &'a [String]) -> impl Iterator<Item = &'a str> {
    let bridge = database.bridge(BridgeKind::Vlan.name());
    let ports = bridge.into_iter().flat_map(move |(_, bridge)| database.ports_of(bridge));
    let added = ports.filter(|(_, port, _)| {
        port.name == UPLINK_OWNER
            || port.external_ids.get(OWNER_KEY).is_some_and(|owner| owner == UPLINK_OWNER)
    });
    added.map(|(_, port, _)| port.name.as_str()).filter(move |name| !is_uplink(name, uplinks))
}

/// Returns the uplinks that are not in the VLAN bridge yet, by themselves or as members of a bond.
pub(crate) fn missing<'a>(database: &Database, names: &'a [String]) -> Vec<&'a str> {
    let bridge = database.bridge(BridgeKind::Vlan.name());
    let ports = bridge.into_iter().flat_map(|(_, bridge)| database.ports_of(bridge));
    let interfaces = ports.flat_map(|(_, _, interfaces)| interfaces);
    let present: BTreeSet<&str> = interfaces.map(|(_, interface)| interface.name.as_str()).collect();
    names.iter().map(String::as_str).filter(|name| !present.contains(name)).collect()
}

/// Returns the uplinks in the order in which frames may leave by them: the active member of the bond is the first. Without LACP it
/// is the only one through which the bond takes frames from the switches, and stays so when another one gets its link back.
pub(crate) fn active_first<'a>(database: &Database, names: &'a [String]) -> Vec<&'a str> {
    let (mut order, others) = by_activity(database, names);
    order.extend(others);
    order
}

/// Returns the uplinks that stand by: those through which a bond without LACP takes no frames. None while its active member is
/// unknown.
pub(crate) fn standby<'a>(database: &Database, names: &'a [String]) -> Vec<&'a str> {
    // One member is enough: the bond then trusts the switch to send each frame once.
    let negotiated = database.interfaces.values().any(|one| one.lacp_current && names.contains(&one.name));
    match by_activity(database, names) {
        (active, others) if !negotiated && !active.is_empty() => others,
        _ => vec![],
    }
}

/// The active member of the bond, and the other uplinks.
fn by_activity<'a>(database: &Database, names: &'a [String]) -> (Vec<&'a str>, Vec<&'a str>) {
    let bond = database.ports.values().find(|port| port.name == UPLINK_OWNER);
    let active = bond.and_then(|bond| bond.active_member.as_ref());
    let is_active = |name: &&str| {
        let mut interfaces = database.interfaces.values();
        active.is_some() && interfaces.any(|one| one.name == *name && one.mac_in_use.as_ref() == active)
    };
    names.iter().map(String::as_str).partition(is_active)
}

/// Returns why uplinks carry no traffic, one line each.
pub(crate) fn warnings(database: &Database, names: &[String]) -> Vec<String> {
    let interface = |name: &str| database.interfaces.values().find(|interface| interface.name == name);
    let why = |name: &String| match interface(name) {
        Some(interface) if interface.number().is_some() => None,
        Some(Interface { error: Some(error), .. }) => Some(error.clone()),
        _ => Some("ovs-vswitchd has not opened it".to_owned()),
    };
    let line = |name: &String| Some(format!("VLAN uplink {name} (--vlan-uplinks): {}", why(name)?));
    names.iter().filter_map(line).collect()
}

/// Returns the operations that add the bond, unless it is there. Its interfaces must be free.
fn bond(database: &Database, names: &[String]) -> Vec<Operation> {
    let fallback = BTreeMap::from([("lacp-fallback-ab".to_owned(), "true".to_owned())]);
    let owner = BTreeMap::from([(OWNER_KEY.to_owned(), UPLINK_OWNER.to_owned())]);
    let wanted: BTreeSet<_> = names.iter().map(String::as_str).collect();
    let present = database.ports.values().any(|port| {
        let members: BTreeSet<_> = port
            .interfaces
            .iter()
            .filter_map(|uuid| database.interfaces.get(uuid))
            .map(|i| i.name.as_str())
            .collect();
        port.name == UPLINK_OWNER
            && members == wanted
            && port.bond_mode.as_deref() == Some("balance-tcp")
            && port.lacp.as_deref() == Some("active")
            && port.other_config == fallback
    });
    let bridge = database.bridge(BridgeKind::Vlan.name()).filter(|_| !present);
    let Some((bridge, _)) = bridge else { return vec![] };
    let (mut operations, members): (Vec<_>, Vec<_>) = names
        .iter()
        .enumerate()
        .map(|(n, name)| Operation::insert("Interface", &format!("uplink{n}"), json!({"name": name})))
        .unzip();
    let row = json!({
        "name": UPLINK_OWNER, "interfaces": set(members), "vlan_mode": "trunk", "bond_mode": "balance-tcp",
        "lacp": "active", "other_config": map(&fallback), "external_ids": map(&owner),
    });
    let (insert, port) = Operation::insert("Port", "bond", row);
    operations.extend([insert, Operation::link("Bridge", Some(bridge), "ports", &[port])]);
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_interfaces(database: &mut Database, uplinks: &[String], lacp_current: &serde_json::Value) {
        let interface = |name: &str| {
            let mac = format!("02:00:00:00:00:0{}", &name[3..]);
            json!({"new": {"name": name, "mac_in_use": mac, "ofport": 1, "lacp_current": lacp_current}})
        };
        let interfaces: serde_json::Map<_, _> =
            uplinks.iter().map(|name| (name.clone(), interface(name))).collect();
        database.update(&json!({"Interface": interfaces}));
    }

    /// The VLAN bridge with a port for each uplink, and ports of others.
    fn bridge_with(uplinks: &[&str]) -> Database {
        let external_ids = |owner: &str| json!(["map", [[OWNER_KEY, owner]]]);
        let mut ports = serde_json::Map::new();
        let mut add = |name: &str, external_ids: serde_json::Value| {
            let row = json!({"name": name, "interfaces": ["uuid", name], "vlan_mode": "trunk",
                "external_ids": external_ids});
            ports.insert(name.to_owned(), json!({"new": row}));
        };
        uplinks.iter().for_each(|name| add(name, external_ids(UPLINK_OWNER)));
        add("vvport1", external_ids("net.blue-pod1"));
        add("mirror0", json!(["map", []]));
        let uuids: Vec<_> = ports.keys().map(|name| json!(["uuid", name])).collect();
        let interface = |name: &String| {
            let external_ids = &ports[name]["new"]["external_ids"];
            (name.clone(), json!({"new": {"name": name, "type": "", "external_ids": external_ids}}))
        };
        let interfaces: serde_json::Map<_, _> = ports.keys().map(interface).collect();
        let mut database = Database::default();
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "bridge"]}}},
            "Bridge": {"bridge": {"new": {"name": "contivVlanBridge", "ports": ["set", uuids]}}},
            "Port": ports,
            "Interface": interfaces,
        }));
        database
    }

    /// The transaction that adds uplinks removes the earlier ones: the flows that an earlier agent has left let frames from them enter.
    #[test]
    fn former_uplinks_leave_the_bridge_with_the_change() {
        for (present, wanted, expected) in [
            (&["eth1"][..], &["eth2"][..], &["eth1"][..]),
            (&["eth1"], &["eth1"], &[]),
            (&["eth1", "eth2"], &["eth2"], &["eth1"]),
            (&["eth3"], &["eth1", "eth2"], &["eth3"]),
            (&["eth1"], &["eth1", "eth2"], &["eth1"]),
            (&["uplinkPort"], &["eth1"], &["uplinkPort"]),
            (&["uplinkPort"], &["eth1", "eth2"], &["uplinkPort"]),
            (&["eth1"], &[], &["eth1"]),
        ] {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            let operations = operations(&bridge_with(present), &wanted);
            let operations: Vec<_> = operations.iter().map(Operation::json).collect();
            let is_unlink = |operation: &&serde_json::Value| operation["mutations"][0][1] == "delete";
            let unlinked = operations.iter().filter(is_unlink).map(|operation| &operation["mutations"][0]);
            let removed: Vec<_> =
                expected.iter().map(|name| json!(["ports", "delete", ["set", [["uuid", name]]]])).collect();
            assert_eq!(
                unlinked.collect::<Vec<_>>(),
                removed.iter().collect::<Vec<_>>(),
                "{present:?} {wanted:?}"
            );
            let is_link = |operation: &serde_json::Value| operation["mutations"][0][1] == "insert";
            let adds = !wanted.iter().all(|name| present.contains(&name.as_str()));
            assert_eq!(operations.iter().any(is_link), adds, "{present:?} {wanted:?}");
        }
    }

    #[test]
    fn uplinks_stand_by_without_lacp_only() {
        let uplinks = ["eth1", "eth2"].map(str::to_owned);
        let (active, unknown) = (json!("02:00:00:00:00:02"), json!(["set", []]));
        for (lacp_current, active, expected) in [
            (json!(["set", []]), &active, &["eth1"][..]),
            (json!(false), &active, &["eth1"]),
            (json!(true), &active, &[]),
            (json!(false), &unknown, &[]),
        ] {
            let mut database = Database::default();
            set_interfaces(&mut database, &uplinks, &lacp_current);
            let bond = json!({"name": UPLINK_OWNER, "bond_active_slave": active});
            database.update(&json!({"Port": {"bond": {"new": bond}}}));
            assert_eq!(standby(&database, &uplinks), expected, "{lacp_current} {active}");
        }
    }

    #[test]
    fn the_active_member_of_the_bond_is_first() {
        let uplinks = ["eth1", "eth2", "eth3"].map(str::to_owned);
        let mut database = Database::default();
        set_interfaces(&mut database, &uplinks, &json!(["set", []]));
        for (active, order) in [
            (json!(["set", []]), ["eth1", "eth2", "eth3"]),
            (json!("02:00:00:00:00:02"), ["eth2", "eth1", "eth3"]),
            (json!("02:00:00:00:00:01"), ["eth1", "eth2", "eth3"]),
            (json!("02:00:00:00:00:09"), ["eth1", "eth2", "eth3"]),
        ] {
            let bond = json!({"name": UPLINK_OWNER, "bond_active_slave": active});
            database.update(&json!({"Port": {"bond": {"new": bond}}}));
            assert_eq!(active_first(&database, &uplinks), order, "{active}");
        }
    }

    #[test]
    fn members_of_the_bond_are_in_the_bridge() {
        let uplinks = ["eth1", "eth2", "eth3"].map(str::to_owned);
        let mut database = Database::default();
        set_interfaces(&mut database, &uplinks, &json!(false));
        assert_eq!(missing(&database, &uplinks), ["eth1", "eth2", "eth3"], "without a bridge");
        let members = json!(["set", [["uuid", "eth1"], ["uuid", "eth2"]]]);
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "bridge"]}}},
            "Bridge": {"bridge": {"new": {"name": "contivVlanBridge", "ports": ["uuid", "bond"]}}},
            "Port": {"bond": {"new": {"name": UPLINK_OWNER, "interfaces": members}}},
        }));
        assert_eq!(missing(&database, &uplinks), ["eth3"]);
    }
}
