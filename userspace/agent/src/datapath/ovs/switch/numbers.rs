//! Numbers of services and VRFs that their names do not tell: the database keeps them, in `external_ids` of a bridge.

use std::collections::BTreeMap;

use contiv_model::vrf::Vrf;

use super::ovsdb::{Database, Operation, map, set};
use crate::datapath::ovs::{
    bridge::BridgeKind,
    tables::{
        cookie::Cookie,
        ids::{Numbers, ObjectNumbers},
    },
};

/// The bridge whose row has the numbers, which hold on both.
const BRIDGE: BridgeKind = BridgeKind::Vxlan;
/// Keys begin with one of these, followed by the cookie of the service or the name of the tenant.
const SERVICE: &str = "contiv-service-";
const VRF: &str = "contiv-vrf-";

/// Returns the numbers in the database.
pub(crate) fn stored(database: &Database) -> ObjectNumbers {
    let entries = || database.bridge(BRIDGE.name()).into_iter().flat_map(|(_, bridge)| &bridge.external_ids);
    let services = entries().filter_map(|(key, number)| {
        let cookie = u64::from_str_radix(key.strip_prefix(SERVICE)?, 16).ok()?;
        Some((Cookie(cookie), number.parse().ok()?))
    });
    let vrfs = entries().filter_map(|(key, number)| {
        let tenant = key.strip_prefix(VRF)?.parse().ok()?;
        Some((Vrf::Tenant(tenant), number.parse().ok()?))
    });
    ObjectNumbers { services: Numbers::of(services), vrfs: Numbers::of(vrfs) }
}

/// Returns the operations that make the database keep these numbers, and no others unless `keeps` is true.
pub(crate) fn operations(database: &Database, numbers: &ObjectNumbers, keeps: bool) -> Vec<Operation> {
    let Some((row, bridge)) = database.bridge(BRIDGE.name()) else { return vec![] };
    let services = numbers.services.displaced().map(|(cookie, number)| (service_key(*cookie), number));
    let vrfs = numbers.vrfs.displaced().filter_map(|(vrf, number)| Some((vrf_key(vrf)?, number)));
    let wanted: BTreeMap<String, String> =
        services.chain(vrfs).map(|(key, number)| (key, number.to_string())).collect();
    let is_stale = |(key, number): &(&String, &String)| match wanted.get(*key) {
        Some(wanted) => wanted != *number,
        None => !keeps && (key.starts_with(SERVICE) || key.starts_with(VRF)),
    };
    let stale: Vec<&str> = bridge.external_ids.iter().filter(is_stale).map(|(key, _)| key.as_str()).collect();
    let mut operations = vec![];
    if !stale.is_empty() {
        operations.push(Operation::remove_entries("Bridge", Some(row), "external_ids", &set(stale)));
    }
    let is_missing = |(key, number): &(String, String)| bridge.external_ids.get(key) != Some(number);
    let missing: BTreeMap<String, String> = wanted.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        operations.push(Operation::add_entries("Bridge", Some(row), "external_ids", &map(&missing)));
    }
    operations
}

fn service_key(cookie: Cookie) -> String {
    format!("{SERVICE}{:016x}", cookie.0)
}

/// Only VRFs of tenants have numbers.
fn vrf_key(vrf: &Vrf) -> Option<String> {
    match vrf {
        Vrf::Tenant(tenant) => Some(format!("{VRF}{tenant}")),
        Vrf::Network(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::datapath::ovs::tables::ids::Owner as _;

    const SERVICE_NUMBER: u32 = 77;

    fn red() -> Vrf {
        Vrf::Tenant("red".parse().unwrap())
    }

    /// A number that the VRF has not chosen.
    fn other_number() -> u32 {
        red().first_choice() % 100 + 200
    }

    fn database(entries: &[(&str, String)]) -> Database {
        let mut database = Database::default();
        database.update(&json!({
            "Open_vSwitch": {"root": {"new": {"bridges": ["uuid", "b"]}}},
            "Bridge": {"b": {"new": {"name": BRIDGE.name(), "external_ids": ["map", entries]}}},
        }));
        database
    }

    /// The mutations of the row.
    fn changes(database: &Database, numbers: &ObjectNumbers, keeps: bool) -> Vec<Value> {
        let operations = operations(database, numbers, keeps);
        operations.iter().map(|operation| operation.json()["mutations"][0].clone()).collect()
    }

    #[test]
    fn only_numbers_that_names_do_not_tell_are_kept() {
        let chosen = Vrf::Tenant("blue".parse().unwrap());
        let numbers = ObjectNumbers {
            services: Numbers::of([(Cookie(5), SERVICE_NUMBER), (Cookie(9), Cookie(9).first_choice())]),
            vrfs: Numbers::of([(red(), other_number()), (chosen.clone(), chosen.first_choice())]),
        };
        let keys = ["contiv-service-0000000000000005", "contiv-vrf-red"];
        let values = [SERVICE_NUMBER, other_number()].map(|number| number.to_string());
        let entries = [(keys[0], values[0].clone()), (keys[1], values[1].clone())];
        let empty = database(&[]);
        let added = json!(["external_ids", "insert", ["map", entries]]);
        assert_eq!(changes(&empty, &numbers, false), [added]);
        let full = database(&entries);
        assert_eq!(changes(&full, &numbers, false), Vec::<Value>::new());
        let read = stored(&full);
        assert_eq!(read.services.get(&Cookie(5)), Some(SERVICE_NUMBER));
        assert_eq!(read.vrfs.get(&red()), Some(other_number()));
    }

    #[test]
    fn numbers_of_removed_owners_and_changed_ones_go() {
        let kept = ("contiv-vrf-red", other_number().to_string());
        let others = [("bridge-id", "x".to_owned()), ("contiv-service-05", "77".to_owned())];
        let database = database(&[vec![kept], others.into()].concat());
        let none = ObjectNumbers::default();
        let removed = json!(["external_ids", "delete", ["set", ["contiv-service-05", "contiv-vrf-red"]]]);
        assert_eq!(changes(&database, &none, false), [removed]);
        assert_eq!(changes(&database, &none, true), Vec::<Value>::new());
        let number = other_number() + 1;
        let numbers = ObjectNumbers { vrfs: Numbers::of([(red(), number)]), ..none };
        let expected = [
            json!(["external_ids", "delete", ["set", ["contiv-vrf-red"]]]),
            json!(["external_ids", "insert", ["map", [["contiv-vrf-red", number.to_string()]]]]),
        ];
        assert_eq!(changes(&database, &numbers, true), expected);
    }
}
