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

/// Returns the operations that add the uplinks to the VLAN bridge: one as a trunk port, several as a bond.
pub(crate) fn operations(database: &Database, names: &[String]) -> Vec<Operation> {
    match names {
        [] => vec![],
        [name] => {
            // An interface belongs to one port: the bond of an earlier configuration gives it up.
            let bond = removal(database, UPLINK_OWNER);
            bond.into_iter().chain(PortSpec::uplink(name).operations(database, 0)).collect()
        }
        many => bond(database, many),
    }
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
    let mut operations: Vec<_> = names
        .iter()
        .map(String::as_str)
        .chain([UPLINK_OWNER])
        .flat_map(|name| removal(database, name))
        .collect();
    let (inserts, members): (Vec<_>, Vec<_>) = names
        .iter()
        .enumerate()
        .map(|(n, name)| Operation::insert("Interface", &format!("uplink{n}"), json!({"name": name})))
        .unzip();
    operations.extend(inserts);
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
