//! Zones of connection tracking: how long their connections stay.
//!
//! The zones of the agent share one row, and that has one policy, which ovs-vswitchd gives to the datapath. It has the timeouts that flows
//! have on eBPF nodes: the kernel's own keep an established connection for five days. A connection that exists keeps its timeouts.
//!
//! The row also records the owner of each zone, so that connections of an earlier owner are found, also by another agent process.

use std::collections::{BTreeMap, BTreeSet};

use contiv_abi::Timeouts;
use serde_json::json;

use super::ovsdb::{
    Database, OPEN_VSWITCH, OWNER_KEY, Operation, Reference, Uuid, entries, map, numbered, optional, set,
};
use crate::datapath::ovs::options::DatapathType;

/// Owner of the rows.
const OWNER: &str = "connectionTracking";

/// Prefix of the keys of `external_ids` with the owners of zones.
const ZONE_PREFIX: &str = "zone-";

/// Networks and VRFs by their zones.
pub(crate) type Owners = BTreeMap<u16, String>;

/// Returns the timeouts by their keys (ovs-vswitchd.conf.db(5), table `CT_Timeout_Policy`). Either datapath ignores keys of the other.
fn policy(timeouts: &Timeouts, datapath_type: DatapathType) -> BTreeMap<String, i64> {
    let Timeouts { tcp, tcp_opening, tcp_half_closed, tcp_closing, udp, other, unanswered } = *timeouts;
    // The userspace datapath has one timeout for connections that one side has closed; the kernel another one when the other side has
    // acknowledged that.
    let fin_wait = match datapath_type {
        DatapathType::System => tcp_closing,
        DatapathType::Netdev => tcp_half_closed,
    };
    let timeouts = [
        ("tcp_syn_sent", tcp_opening),
        ("tcp_syn_sent2", tcp_opening),
        ("tcp_syn_recv", tcp_opening),
        ("tcp_established", tcp),
        ("tcp_fin_wait", fin_wait),
        ("tcp_close_wait", tcp_half_closed),
        ("tcp_last_ack", tcp_closing),
        ("tcp_time_wait", tcp_closing),
        ("tcp_close", tcp_closing),
        ("udp_first", unanswered),
        ("udp_single", unanswered),
        ("udp_multiple", udp),
        ("icmp_first", unanswered),
        ("icmp_reply", other),
    ];
    timeouts.into_iter().map(|(key, seconds)| (key.to_owned(), i64::from(seconds))).collect()
}

/// Returns the operations that give these zones of the datapath the timeouts, that record their owners, and that release other zones of
/// the agent. Zones of other programs stay as they are.
pub(crate) fn operations(
    database: &Database,
    datapath_type: DatapathType,
    zones: &BTreeSet<u16>,
    owners: &Owners,
    timeouts: &Timeouts,
) -> Vec<Operation> {
    let kind = datapath_type.name();
    let mut operations = release(database, |of, zone| of == kind && zones.contains(&zone));
    let datapath = database.datapaths.get(kind);
    let missing: Vec<i64> = missing(database, datapath_type, zones).into_iter().map(i64::from).collect();
    let own = own_row(database, datapath_type);
    let external_ids = external_ids(owners);
    let policy = policy(timeouts, datapath_type);
    let zone: Reference = match own {
        Some(zone) => {
            operations.extend(keep_policy(database, zone, &policy));
            if database.zones.get(zone).is_none_or(|row| row.external_ids != external_ids) {
                let columns = json!({"external_ids": map(&external_ids)});
                operations.push(Operation::update("CT_Zone", zone, columns));
            }
            zone.into()
        }
        None if missing.is_empty() => return operations,
        None => {
            let row = json!({"timeouts": entries(policy)});
            let (insert_policy, policy) = Operation::insert("CT_Timeout_Policy", "timeouts", row);
            let row = json!({"timeout_policy": optional(Some(policy)), "external_ids": map(&external_ids)});
            let (insert_zone, zone) = Operation::insert("CT_Zone", "zone", row);
            operations.extend([insert_policy, insert_zone]);
            zone
        }
    };
    if missing.is_empty() {
        return operations;
    }
    let added = numbered(missing, &zone);
    match datapath {
        Some(row) => operations.push(Operation::add_entries("Datapath", Some(row), "ct_zones", &added)),
        None => {
            let row = json!({"ct_zones": added, "external_ids": map(&owner())});
            let (insert, row) = Operation::insert("Datapath", "datapath", row);
            let link = entries([(kind, row)]);
            operations.extend([insert, Operation::add_entries(OPEN_VSWITCH, None, "datapaths", &link)]);
        }
    }
    operations
}

/// Returns the recorded owners of zones. A row of an older version has none.
pub(crate) fn owners(database: &Database, datapath_type: DatapathType) -> Owners {
    let row = own_row(database, datapath_type).and_then(|zone| database.zones.get(zone));
    let recorded = row.into_iter().flat_map(|row| &row.external_ids);
    let parsed = recorded.filter_map(|(key, owner)| {
        let zone = key.strip_prefix(ZONE_PREFIX)?.parse::<u16>().ok()?;
        Some((zone, owner.clone()))
    });
    parsed.collect()
}

/// Returns the zones whose recorded owner is another one.
pub(crate) fn changed(recorded: &Owners, owners: &Owners) -> Vec<u16> {
    let changed =
        owners.iter().filter(|&(zone, owner)| recorded.get(zone).is_some_and(|known| known != owner));
    changed.map(|(zone, _)| *zone).collect()
}

/// Returns those of these zones that the datapath does not have yet.
pub(crate) fn missing(database: &Database, datapath_type: DatapathType, zones: &BTreeSet<u16>) -> Vec<u16> {
    let datapath = database.datapaths.get(datapath_type.name());
    let tracking = datapath.and_then(|row| database.tracking.get(row));
    let is_present = |zone: u16| tracking.is_some_and(|row| row.zones.contains_key(&i64::from(zone)));
    zones.iter().copied().filter(|zone| !is_present(*zone)).collect()
}

/// Returns the zones of the agent in the datapath that are not among these.
pub(crate) fn released(database: &Database, datapath_type: DatapathType, zones: &BTreeSet<u16>) -> Vec<u16> {
    let datapath = database.datapaths.get(datapath_type.name());
    let tracking = datapath.and_then(|row| database.tracking.get(row));
    let present = tracking.into_iter().flat_map(|row| &row.zones);
    let own = present.filter(|(_, zone)| is_own(database, zone));
    let numbers = own.filter_map(|(zone, _)| u16::try_from(*zone).ok());
    numbers.filter(|zone| !zones.contains(zone)).collect()
}

/// Returns the operations that remove what [`operations`] has made.
pub(crate) fn removal(database: &Database) -> Vec<Operation> {
    let mut operations = release(database, |_, _| false);
    let is_unused = |row: &Uuid| {
        let tracking = database.tracking.get(row);
        tracking.is_some_and(|row| {
            row.external_ids.contains_key(OWNER_KEY) && row.zones.values().all(|zone| is_own(database, zone))
        })
    };
    let unused = database.datapaths.iter().filter(|(_, row)| is_unused(row)).map(|(kind, _)| kind.as_str());
    let unused: Vec<&str> = unused.collect();
    if !unused.is_empty() {
        operations.push(Operation::remove_entries(OPEN_VSWITCH, None, "datapaths", &set(unused)));
    }
    operations
}

/// Releases the zones of the agent that are not to be kept.
fn release(database: &Database, is_kept: impl Fn(&str, u16) -> bool) -> Vec<Operation> {
    let mut operations = vec![];
    for (kind, row) in &database.datapaths {
        let zones = database.tracking.get(row).into_iter().flat_map(|tracking| &tracking.zones);
        let own = zones.filter(|(_, zone)| is_own(database, zone)).map(|(zone, _)| *zone);
        let is_released = |zone: &i64| u16::try_from(*zone).is_ok_and(|zone| !is_kept(kind, zone));
        let released: Vec<i64> = own.filter(is_released).collect();
        if !released.is_empty() {
            let keys = set(released);
            operations.push(Operation::remove_entries("Datapath", Some(row), "ct_zones", &keys));
        }
    }
    operations
}

/// Returns the operations that restore the policy of the zones.
fn keep_policy(database: &Database, zone: &Uuid, policy: &BTreeMap<String, i64>) -> Vec<Operation> {
    let row = database.zones.get(zone).and_then(|zone| zone.timeout_policy.as_ref());
    let timeouts = || json!({"timeouts": entries(policy.clone())});
    match row.map(|row| (row, database.timeout_policies.get(row))) {
        Some((_, Some(known))) if known == policy => vec![],
        Some((row, _)) => vec![Operation::update("CT_Timeout_Policy", row, timeouts())],
        None => {
            let (insert, policy) = Operation::insert("CT_Timeout_Policy", "timeouts", timeouts());
            let columns = json!({"timeout_policy": optional(Some(policy))});
            vec![insert, Operation::update("CT_Zone", zone, columns)]
        }
    }
}

/// The row that the zones of the agent share.
fn own_row(database: &Database, datapath_type: DatapathType) -> Option<&Uuid> {
    let tracking = database.tracking.get(database.datapaths.get(datapath_type.name())?)?;
    tracking.zones.values().find(|zone| is_own(database, zone))
}

fn is_own(database: &Database, zone: &Uuid) -> bool {
    database.zones.get(zone).is_some_and(|zone| zone.external_ids.contains_key(OWNER_KEY))
}

fn owner() -> BTreeMap<String, String> {
    [(OWNER_KEY.to_owned(), OWNER.to_owned())].into()
}

fn external_ids(owners: &Owners) -> BTreeMap<String, String> {
    let mut external_ids = owner();
    external_ids.extend(owners.iter().map(|(zone, owner)| (format!("{ZONE_PREFIX}{zone}"), owner.clone())));
    external_ids
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn shown(operations: &[Operation]) -> Vec<Value> {
        operations.iter().map(Operation::json).collect()
    }

    /// A database with zone 5 of the agent and zone 9 of another program.
    fn database(timeouts: &Timeouts) -> Database {
        let mut database = Database::default();
        let policy = entries(policy(timeouts, DatapathType::Netdev));
        let zones = json!(["map", [[5, ["uuid", "own"]], [9, ["uuid", "other"]]]]);
        let owned = json!(["map", [[OWNER_KEY, OWNER]]]);
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"datapaths": ["map", [["netdev", ["uuid", "d"]]]]}}},
            "Datapath": {"d": {"new": {"ct_zones": zones, "external_ids": owned}}},
            "CT_Zone": {
                "own": {"new": {"timeout_policy": ["uuid", "p"], "external_ids": owned}},
                "other": {"new": {"timeout_policy": ["set", []], "external_ids": ["map", []]}},
            },
            "CT_Timeout_Policy": {"p": {"new": {"timeouts": policy}}},
        }));
        database
    }

    #[test]
    fn zones_are_added_and_released() {
        let timeouts = Timeouts::default();
        let database = database(&timeouts);
        let of = |zones: &[u16]| {
            let zones = zones.iter().copied().collect();
            shown(&operations(&database, DatapathType::Netdev, &zones, &Owners::new(), &timeouts))
        };
        assert_eq!(of(&[5]), Vec::<Value>::new());
        assert_eq!(of(&[5, 9]), Vec::<Value>::new(), "another program has the zone");
        let wanted = BTreeSet::from([6, 7]);
        assert_eq!(released(&database, DatapathType::Netdev, &wanted), [5]);
        assert_eq!(missing(&database, DatapathType::Netdev, &BTreeSet::from([5, 6, 9])), [6]);
        let changed = of(&[6, 7]);
        let [release, add] = &changed[..] else { panic!("{changed:?}") };
        assert_eq!(release["mutations"], json!([["ct_zones", "delete", ["set", [5]]]]));
        let own = ["uuid", "own"];
        assert_eq!(add["mutations"], json!([["ct_zones", "insert", ["map", [[6, own], [7, own]]]]]));
        // Of the other type.
        let all = shown(&operations(
            &database,
            DatapathType::System,
            &BTreeSet::from([5]),
            &Owners::new(),
            &timeouts,
        ));
        let text = |one: &Value| format!("{} {}", one["op"], one["table"]).replace('"', "");
        let expected = [
            "mutate Datapath",
            "insert CT_Timeout_Policy",
            "insert CT_Zone",
            "insert Datapath",
            "mutate Open_vSwitch",
        ];
        assert_eq!(all.iter().map(text).collect::<Vec<_>>(), expected);
        let removed = shown(&removal(&database));
        assert_eq!(removed.len(), 1, "another program has a zone of the datapath: {removed:?}");
    }

    #[test]
    fn owners_of_zones_are_recorded() {
        let timeouts = Timeouts::default();
        let mut database = database(&timeouts);
        let of = |zone, owner: &str| Owners::from([(zone, owner.to_owned())]);
        let green = of(5, "green:net");
        // A row of an older version says nothing about the connections.
        assert_eq!(changed(&owners(&database, DatapathType::Netdev), &green), [] as [u16; 0]);
        let zones = BTreeSet::from([5]);
        let all = shown(&operations(&database, DatapathType::Netdev, &zones, &green, &timeouts));
        let [update] = &all[..] else { panic!("{all:?}") };
        let recorded = json!(["map", [[OWNER_KEY, OWNER], ["zone-5", "green:net"]]]);
        assert_eq!(update["row"]["external_ids"], recorded);

        let row = json!({"new": {"timeout_policy": ["uuid", "p"], "external_ids": recorded}});
        database.update(&json!({"CT_Zone": {"own": row}}));
        let known = owners(&database, DatapathType::Netdev);
        assert_eq!(known, green);
        assert!(operations(&database, DatapathType::Netdev, &zones, &green, &timeouts).is_empty());
        assert_eq!(changed(&known, &of(5, "red:net")), [5]);
        assert_eq!(changed(&known, &of(6, "red:net")), [] as [u16; 0]);
    }

    #[test]
    fn a_changed_policy_is_restored() {
        let wanted = Timeouts { tcp: 7200, ..Timeouts::default() };
        let zones = BTreeSet::from([5]);
        let database = database(&Timeouts::default());
        let all = shown(&operations(&database, DatapathType::Netdev, &zones, &Owners::new(), &wanted));
        let [update] = &all[..] else { panic!("{all:?}") };
        assert_eq!(update["where"], json!([["_uuid", "==", ["uuid", "p"]]]));
        let timeouts = update["row"]["timeouts"][1].as_array().unwrap();
        assert!(timeouts.contains(&json!(["tcp_established", 7200])), "{timeouts:?}");
    }

    #[test]
    fn half_closed_connections_stay_with_both_datapaths() {
        let timeouts = Timeouts::default();
        let of = |datapath_type, key: &str| policy(&timeouts, datapath_type)[key];
        let [half_closed, closing] = [timeouts.tcp_half_closed, timeouts.tcp_closing].map(i64::from);
        assert_eq!(of(DatapathType::Netdev, "tcp_fin_wait"), half_closed);
        assert_eq!(of(DatapathType::System, "tcp_fin_wait"), closing);
        assert_eq!(of(DatapathType::System, "tcp_close_wait"), half_closed);
    }
}
