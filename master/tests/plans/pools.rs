//! Address pools of groups in large networks.

use contiv_model::event::Event;
use contiv_model::{group, network};
use netmaster::cache::StagedTxn;
use netmaster::repair::release_unused;
use serde_json::json;

use crate::fixture::Fixture;

const GROUP: &str = "/contiv.io/state/endpointGroups/web:default";

/// A network of 8 million addresses.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.0.0.0/9", json!({"gateway": "10.0.0.1"}));
    fixture
}

/// Number and bytes of the values that were written since `from`.
fn written(fixture: &Fixture, from: usize) -> (usize, usize) {
    let values = fixture.changes[from..].iter().filter_map(|update| match &update.event {
        Event::Apply(_, kv) => Some(kv.value.len()),
        _ => None,
    });
    values.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
}

/// A pool takes from its network what it has, and gives back what no other object uses.
#[test]
fn a_pool_is_a_range_of_its_network() {
    let mut fixture = fixture();
    let before = fixture.state("net");
    let from = fixture.changes.len();
    fixture.group("web", "net", "10.16.0.0-10.79.255.255");
    // Records of objects, the record of the group and the journal of the network.
    assert!(written(&fixture, from).1 < 4 << 10, "{:?}", written(&fixture, from));
    let first = 16 << 16;
    let pool = first..80 << 16;
    let mut expected = before.ip_alloc_map.clone();
    assert_eq!(expected.insert_range(pool.clone()), 64 << 16);
    assert_eq!(fixture.state("net").ip_alloc_map, expected);
    let free = |fixture: &Fixture| fixture.group_state("web").pool_map().clear_ranges(0..1 << 23).next();
    assert_eq!(free(&fixture), Some(pool.clone()));
    // Both ends are addresses like others: they are not those of the network.
    for (id, ip, given) in [
        ("a", "", "10.16.0.0"),
        ("b", "10.79.255.255", "10.79.255.255"),
        ("c", "", "10.16.0.1"),
        ("d", "10.16.0.3", "10.16.0.3"),
    ] {
        assert_eq!(fixture.create("net", id, "web", ip, "").unwrap().0, given);
    }
    assert_eq!(fixture.create("net", "e", "", "", "").unwrap().0, "10.0.0.2");
    let lists = |types: &str, key: &str| {
        let report = fixture.inspect(types, key).unwrap();
        let list = |name: &str| report["Oper"][name].as_str().unwrap().to_owned();
        [list("allocatedIPAddresses"), list("availableIPAddresses")]
    };
    assert_eq!(
        lists("endpointGroups", "default:web"),
        ["10.16.0.0-10.16.0.1, 10.16.0.3, 10.79.255.255", "10.16.0.2, 10.16.0.4-10.79.255.254"]
    );
    assert_eq!(
        lists("networks", "default:net"),
        ["10.0.0.1-10.0.0.2, 10.16.0.0-10.79.255.255", "10.0.0.3-10.15.255.255, 10.80.0.0-10.127.255.254"]
    );

    let taken = json!({"tenantName": "default", "groupName": "db", "networkName": "net", "ipPool": "10.1.0.0-10.16.0.0"});
    let refused = fixture.put("endpointGroups", "default:db", &taken).unwrap_err().text;
    assert_eq!(refused, "ip address 10.16.0.0 is not available");
    assert_eq!(fixture.loaded().content(), fixture.content());
    assert_eq!(fixture.follower().content(), fixture.content());

    for id in ["a", "b", "c", "d"] {
        fixture.remove("net", id).unwrap();
    }
    // Of no group, but in the pool.
    fixture.create("net", "f", "", "10.20.0.0", "").unwrap();
    fixture.delete("endpointGroups", "default:web").unwrap();
    let mut expected = before.ip_alloc_map;
    expected.insert(2);
    expected.insert(20 << 16);
    assert_eq!(fixture.state("net").ip_alloc_map, expected);
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn the_record_of_a_group_is_as_large_as_its_pool() {
    let mut fixture = fixture();
    let profile = |dscp: i64| json!({"tenantName": "default", "profileName": "gold", "DSCP": dscp, "bandwidth": "10 mbps", "burst": 100});
    fixture.put("netprofiles", "default:gold", &profile(46)).unwrap();
    let from = fixture.changes.len();
    for n in 0..20 {
        let body = json!({"tenantName": "default", "groupName": format!("g{n}"), "networkName": "net", "netProfile": "gold", "ipPool": format!("10.{n}.0.9-10.{n}.0.9")});
        fixture.put("endpointGroups", &format!("default:g{n}"), &body).unwrap();
    }
    assert!(written(&fixture, from).1 < 80 << 10, "{:?}", written(&fixture, from));
    assert_eq!(fixture.create("net", "a", "g7", "", "").unwrap().0, "10.7.0.9");
    let full = "auto allocation failed - address exhaustion in pool 10.7.0.9-10.7.0.9";
    assert_eq!(fixture.create("net", "b", "g7", "", ""), Err(full.to_owned()));
    // All records are written again, for the settings of the profile.
    let from = fixture.changes.len();
    fixture.put("netprofiles", "default:gold", &profile(12)).unwrap();
    let (count, bytes) = written(&fixture, from);
    assert!(count == 21 && bytes < 21 << 10, "{count} values of {bytes} bytes");
    assert_eq!(fixture.group_state("g7").dscp, 12);
    let from = fixture.changes.len();
    fixture.put("netprofiles", "default:gold", &profile(12)).unwrap();
    assert!(written(&fixture, from).0 <= 1, "the groups have these settings");
    assert_eq!(fixture.loaded().content(), fixture.content());
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.loaded().create("net", "b", "g7", "", "").unwrap().0, "10.7.0.9");
}

/// The record that an earlier release, or the original, has written.
#[test]
fn whole_bitmaps_of_large_networks_are_read() {
    let mut fixture = fixture();
    fixture.group("web", "net", "10.16.0.7-10.16.0.9");
    fixture.create("net", "a", "web", "", "").unwrap();
    let mut state: group::State = serde_json::from_slice(&fixture.stored(GROUP).value).unwrap();
    let map = state.take_pool_map();
    assert_eq!(map.clear_ranges(0..1 << 23).flatten().collect::<Vec<_>>(), [(16 << 16) + 8, (16 << 16) + 9]);
    state.epg_ip_alloc_map = map.into_bitset();
    let whole = serde_json::to_value(&state).unwrap();
    assert!(whole["epgIpAllocMap"].as_str().unwrap().len() > 1 << 20);
    let content = fixture.content();
    fixture.break_key(GROUP, Some(&whole));
    let mut fixture = fixture.loaded();
    assert_eq!(fixture.content(), content);
    // The next change writes it as this release does.
    assert_eq!(fixture.create("net", "b", "web", "", "").unwrap().0, "10.16.0.8");
    let stored = fixture.stored(GROUP).value;
    assert!(stored.len() < 1 << 10);
    assert_eq!(fixture.value(GROUP).unwrap()["epgIpAllocMap"], "AAAAAAAAAAA=");
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.loaded().create("net", "c", "web", "", "").unwrap().0, "10.16.0.7");
}

/// What another release may have left: an address without an owner, in the pool and outside of it.
#[test]
fn unused_addresses_of_pools_are_released() {
    let mut fixture = fixture();
    fixture.group("web", "net", "10.16.0.0-10.79.255.255");
    fixture.create("net", "a", "web", "", "").unwrap();
    fixture.create("net", "b", "", "", "").unwrap();
    let good = fixture.content();
    fixture
        .run(|staged| {
            let (record, change) = staged.allocation::<group::State>("web:default").unwrap();
            change.pool.take_range(&record.pool, 20 << 16, (20 << 16) + 5);
            change.pool.take(&record.pool, (80 << 16) - 1);
            let (record, change) = staged.allocation::<network::State>("net.default").unwrap();
            change.pool.take(&record.pool, 77);
            Ok(vec![])
        })
        .unwrap();
    let release = |staged: &mut StagedTxn<'_>| Ok(release_unused(staged).join("\n").into_bytes());
    let lines = String::from_utf8(fixture.run(release).unwrap()).unwrap();
    assert_eq!(lines, "network net.default: 8 IPv4 and 0 IPv6 addresses had no owner");
    assert_eq!(fixture.run(release).unwrap(), b"");
    let mut content = fixture.content();
    // `release_unused` counts the addresses, which the test has not counted when it took them.
    content[0][0]["epAddrCount"] = good[0][0]["epAddrCount"].clone();
    assert_eq!(content, good);
}
