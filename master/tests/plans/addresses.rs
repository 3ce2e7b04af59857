//! Allocation of addresses.

use contiv_model::event::Event;
use contiv_store::Update;
use serde_json::json;

use crate::fixture::Fixture;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    let v6 =
        json!({"gateway": "10.1.0.254", "ipv6Subnet": "2001:db8:1::/64", "ipv6Gateway": "2001:db8:1::1"});
    fixture.network("net", "10.1.0.0/24", v6);
    fixture
}

#[test]
fn ipv6_allocation_wraps_around() {
    let mut fixture = fixture();
    assert_eq!(fixture.create("net", "a", "", "", ""), Ok(("10.1.0.1".into(), "2001:db8:1::2".into())));
    assert_eq!(fixture.create("net", "b", "", "", "").unwrap().1, "2001:db8:1::3");
    fixture.remove("net", "a").unwrap();
    let state = fixture.state("net");
    assert_eq!(state.ipv6_alloc_map.unwrap().into_keys().collect::<Vec<_>>(), ["::1", "::3"]);
    assert_eq!((state.ipv6_last_host.as_str(), state.ep_count, state.ep_addr_count), ("::3", 1, 2));
    // The next address, not the freed one.
    assert_eq!(fixture.create("net", "c", "", "", "").unwrap().1, "2001:db8:1::4");
}

#[test]
fn requested_addresses_have_one_owner() {
    let mut fixture = fixture();
    fixture.create("net", "a", "", "10.1.0.9", "2001:db8:1::9").unwrap();
    for (ip, ip6, error) in [
        ("10.1.0.9", "", "address 10.1.0.9 is in use"),
        ("10.1.0.254", "", "address 10.1.0.254 is in use"),
        ("10.1.0.0", "", "address 10.1.0.0 is in use"),
        ("10.1.0.255", "", "address 10.1.0.255 is in use"),
        ("10.2.0.1", "", "hostIP 10.2.0.1 is exceeding beyond subnet 10.1.0.0/24, hostID 65537"),
        ("", "2001:db8:1::9", "address 2001:db8:1::9 is in use"),
        ("", "2001:db8:1::1", "address 2001:db8:1::1 is in use"),
        ("", "2001:db8:1::", "address 2001:db8:1:: is in use"),
        ("", "2001:db8:2::9", "hostIP 2001:db8:2::9 is exceeding beyond subnet 2001:db8:1::/64"),
    ] {
        assert_eq!(fixture.create("net", "b", "", ip, ip6), Err(error.to_owned()));
    }
    // Automatic allocation skips it.
    for n in 2..9 {
        fixture.create("net", &format!("c{n}"), "", "", "").unwrap();
    }
    assert_eq!(fixture.create("net", "d", "", "", ""), Ok(("10.1.0.8".into(), "2001:db8:1::a".into())));
    assert_eq!(fixture.create("net", "e", "", "", "").unwrap().0, "10.1.0.10");
}

#[test]
fn a_reserved_address_is_used_by_one_endpoint() {
    let mut fixture = fixture();
    let reserved = fixture.alloc("net.default", "", "").unwrap();
    assert_eq!(reserved, "10.1.0.1/24");
    assert_eq!(fixture.create("net", "a", "", "10.1.0.1", "").unwrap().0, "10.1.0.1");
    assert_eq!(fixture.create("net", "b", "", "10.1.0.1", ""), Err("address 10.1.0.1 is in use".into()));
    let error = "address 10.1.0.1 is in use by endpoint net.default-a";
    assert_eq!(fixture.release("net.default", "10.1.0.1"), Err(error.into()));
    assert_eq!(fixture.alloc("net.default", "2001:db8:1::/64", ""), Ok("2001:db8:1::3/64".into()));
    assert_eq!(
        fixture.alloc("net.default", "2001:db8:1::/64", "2001:db8:1::3"),
        Err("address 2001:db8:1::3 is in use".into())
    );
    fixture.release("net.default", "2001:db8:1::3").unwrap();
    assert_eq!(fixture.alloc("", "2001:db8:1::/64", "2001:db8:1::3"), Ok("2001:db8:1::3/64".into()));
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.alloc("net.default", "", "10.1.0.1"), Ok("10.1.0.1/24".into()));
}

#[test]
fn reserved_addresses_are_not_freed() {
    let mut fixture = fixture();
    fixture.network("ranged", "10.2.0.10-10.2.0.12/24", json!({}));
    for (id, address) in
        [("net.default", "10.1.0.254"), ("net.default", "10.1.0.0"), ("ranged.default", "10.2.0.50")]
    {
        let before = fixture.content();
        fixture.release(id, address).unwrap();
        assert_eq!(fixture.content(), before, "{address}");
    }
    // An endpoint may have an address outside the range; the range is unchanged.
    fixture.create("ranged", "x", "", "10.2.0.50", "").unwrap();
    assert_eq!(fixture.create("ranged", "y", "", "10.2.0.50", ""), Err("address 10.2.0.50 is in use".into()));
    assert!(fixture.alloc("ranged.default", "", "10.2.0.50").is_err());
    fixture.remove("ranged", "x").unwrap();
    let given = (0..4).map(|n| fixture.create("ranged", &format!("z{n}"), "", "", "").map(|(ip, _)| ip));
    let full = "auto allocation failed - address exhaustion in subnet 10.2.0.0/24".to_owned();
    assert_eq!(
        given.collect::<Vec<_>>(),
        [Ok("10.2.0.10".into()), Ok("10.2.0.11".into()), Ok("10.2.0.12".into()), Err(full)]
    );
    // `10.3.0.77/24` is not a range: the whole subnet is allocated from.
    fixture.network("bits", "10.3.0.77/24", json!({}));
    assert_eq!(fixture.create("bits", "a", "", "", "").unwrap().0, "10.3.0.1");
    fixture.remove("bits", "a").unwrap();
    assert_eq!(fixture.create("bits", "b", "", "", "").unwrap().0, "10.3.0.1");
}

#[test]
fn pools_belong_to_their_groups() {
    let mut fixture = fixture();
    fixture.group("web", "net", "10.1.0.100-10.1.0.101");
    assert_eq!(fixture.create("net", "a", "web", "", "").unwrap().0, "10.1.0.100");
    // Addresses of a pool belong to it even if the request does not name the group.
    assert_eq!(fixture.create("net", "b", "", "10.1.0.101", "").unwrap().0, "10.1.0.101");
    let full = "auto allocation failed - address exhaustion in pool 10.1.0.100-10.1.0.101";
    assert_eq!(fixture.create("net", "c", "web", "", ""), Err(full.into()));
    // Addresses outside the pool belong to the network.
    assert_eq!(fixture.create("net", "d", "web", "10.1.0.1", "").unwrap().0, "10.1.0.1");
    assert_eq!(fixture.create("net", "e", "", "", "").unwrap().0, "10.1.0.2");
    assert_eq!(fixture.group_state("web").ep_count, 2);
    fixture.remove("net", "b").unwrap();
    assert_eq!(fixture.create("net", "f", "web", "", "").unwrap().0, "10.1.0.101");
    // Groups of another network are rejected.
    fixture.network("other", "10.9.0.0/24", json!({}));
    let error = "group web has its addresses on network net";
    assert_eq!(fixture.create("other", "g", "web", "", ""), Err(error.into()));
    for id in ["a", "d", "e", "f"] {
        fixture.remove("net", id).unwrap();
    }
    fixture.delete("endpointGroups", "default:web").unwrap();
    let state = fixture.state("net");
    assert_eq!(state.ip_alloc_map.iter().collect::<Vec<_>>(), [0, 254, 255]);
    assert_eq!((state.ep_count, state.ep_addr_count), (0, 0));
}

#[test]
fn a_deleted_group_leaves_the_addresses_of_others_taken() {
    let mut fixture = fixture();
    fixture.group("web", "net", "10.1.0.100-10.1.0.101");
    // Neither is of the group.
    assert_eq!(fixture.create("net", "b", "", "10.1.0.100", "").unwrap().0, "10.1.0.100");
    fixture.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(fixture.state("net").ip_alloc_map.iter().collect::<Vec<_>>(), [0, 100, 254, 255]);
    let again = json!({"tenantName": "default", "groupName": "web", "networkName": "net", "ipPool": "10.1.0.100-10.1.0.101"});
    let refused = fixture.put("endpointGroups", "default:web", &again).unwrap_err().text;
    assert_eq!(refused, "ip address 10.1.0.100 is not available");
    fixture.remove("net", "b").unwrap();
    fixture.put("endpointGroups", "default:web", &again).unwrap();
    assert_eq!(fixture.create("net", "c", "web", "", "").unwrap().0, "10.1.0.100");
}

#[test]
fn tags_are_kept_when_the_settings_are_recreated() {
    let mut fixture = fixture();
    let global = json!({"name": "global", "fwdMode": "bridge", "vlans": "1-100", "vxlans": "1-100", "pvtSubnet": "172.19.0.0/16"});
    fixture.delete("globals", "global").unwrap();
    let narrow = json!({"name": "global", "fwdMode": "bridge", "vlans": "1-100", "vxlans": "5-100", "pvtSubnet": "172.19.0.0/16"});
    let error = fixture.put("globals", "global", &narrow).unwrap_err().text;
    assert_eq!(error, "cannot update the vxlan range due to existing vxlans 1");
    fixture.put("globals", "global", &global).unwrap();
    fixture.network("other", "10.9.0.0/24", json!({}));
    assert_eq!((fixture.state("net").ext_pkt_tag, fixture.state("other").ext_pkt_tag), (1, 2));
}

#[test]
fn group_ids_are_not_reused_immediately() {
    let mut fixture = fixture();
    fixture.group("a", "net", "");
    fixture.group("b", "net", "");
    fixture.delete("endpointGroups", "default:b").unwrap();
    // The next leader does not reuse it either.
    let mut fixture = fixture.loaded();
    fixture.group("c", "net", "");
    assert_eq!(
        (fixture.group_state("a").endpoint_group_id, fixture.group_state("c").endpoint_group_id),
        (1, 3)
    );
}

/// A leader that does not know the outcome of a transaction reads the keys again, while the watch
/// may lag behind.
#[test]
fn updates_older_than_a_read_are_ignored() {
    let mut fixture = fixture();
    fixture.create("net", "a", "", "", "").unwrap();
    let key = "/contiv.io/state/eps/net.default-a";
    let old = fixture.stored(key);
    fixture.remove("net", "a").unwrap();
    fixture.reload(key);
    fixture.cache.apply_update(&Update { revision: old.mod_revision, event: Event::Apply(key.into(), old) });
    assert!(fixture.endpoints().is_empty());
    // The address has no other owner; it is free again.
    assert_eq!(fixture.create("net", "b", "", "", "").unwrap().0, "10.1.0.1");
    fixture.remove("net", "b").unwrap();
    assert_eq!(fixture.create("net", "c", "", "", "").unwrap().0, "10.1.0.1");
}
