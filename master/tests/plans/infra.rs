//! Infra networks, whose endpoints are nodes.

use netmaster::plugin::Cleanup;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn infra(name: &str) -> Value {
    json!({"tenantName": "default", "networkName": name, "nwType": "infra", "encap": "vlan", "subnet": "10.3.0.0/24"})
}

#[test]
fn infra_network_names_are_interface_names() {
    let mut fixture = Fixture::new();
    fixture
        .put("networks", "default:contivh10000000", &infra("contivh10000000"))
        .expect("15 characters are a name");
    fixture.delete("networks", "default:contivh10000000").unwrap();
    let refused =
        fixture.put("networks", "default:contivh100000000", &infra("contivh100000000")).unwrap_err();
    let why = "network name \"contivh100000000\" is too long: the limit for infra networks is 15 characters (interface name)";
    assert_eq!(refused.text, why);
    fixture.network("a-network-of-pods-only", "10.4.0.0/24", json!({}));
}

#[test]
fn node_endpoints_are_not_cleaned_up_and_may_outlive_their_network() {
    let mut fixture = Fixture::new();
    fixture.put("networks", "default:contivh1", &infra("contivh1")).unwrap();
    fixture.create("contivh1", "h", "", "", "").unwrap();
    let found = Cleanup::read("default", "net", "contivh1").and_then(|cleanup| cleanup.find(&fixture.cache));
    assert!(found.is_err(), "{found:?}");
    fixture.delete("networks", "default:contivh1").unwrap();
    assert_eq!(fixture.endpoints().len(), 1);
    fixture.remove("contivh1", "h").unwrap();
    assert!(fixture.endpoints().is_empty());
}

/// An infra network with IPv6, and with these fields.
fn with_v6(changed: &Value) -> Value {
    let mut body = infra("contivh1");
    body["ipv6Subnet"] = json!("fd00::/120");
    body.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
    body
}

#[test]
fn a_network_that_is_created_again_has_the_addresses_of_its_nodes() {
    let mut fixture = Fixture::new();
    let same = with_v6(&json!({}));
    fixture.put("networks", "default:contivh1", &same).unwrap();
    let first = fixture.create("contivh1", "h1", "", "", "").unwrap();
    fixture.delete("networks", "default:contivh1").unwrap();
    let other = with_v6(&json!({"subnet": "10.4.0.0/24"}));
    let refused = fixture.put("networks", "default:contivh1", &other).unwrap_err().text;
    assert!(refused.contains("contivh1 that was deleted: h (10.3.0.1);"), "{refused}");
    fixture.put("networks", "default:contivh1", &same).unwrap();
    assert_eq!(fixture.create("contivh1", "h1", "", "", "").unwrap(), first);
    check_that_the_first_address_is_in_use(&mut fixture);
}

/// The node that has joined has the first address: the next one gets the second, and no address is left when both leave.
fn check_that_the_first_address_is_in_use(fixture: &mut Fixture) {
    let (ip, ip6) = fixture.create("contivh1", "h2", "", "", "").unwrap();
    assert_eq!((ip.as_str(), ip6.as_str()), ("10.3.0.2", "fd00::2"));
    let state = fixture.state("contivh1");
    assert_eq!((state.ep_count, state.ep_addr_count), (2, 4));
    for id in ["h1", "h2"] {
        fixture.remove("contivh1", id).unwrap();
    }
    let state = fixture.state("contivh1");
    assert_eq!((state.ep_count, state.ep_addr_count), (0, 0));
}

#[test]
fn a_network_that_is_created_again_does_not_reserve_addresses_of_nodes() {
    for (ip, ip6, changed, refused) in [
        ("10.3.0.9", "fd00::9", json!({"gateway": "10.3.0.9"}), "10.3.0.9"),
        ("10.3.0.8", "fd00::9", json!({"subnet": "10.3.0.8/30"}), "10.3.0.8"),
        ("10.3.0.11", "fd00::9", json!({"subnet": "10.3.0.8/30"}), "10.3.0.11"),
        ("10.3.0.9", "fd00::9", json!({"ipv6Gateway": "fd00::9"}), "fd00::9"),
        ("10.3.0.9", "fd00::10", json!({"ipv6Subnet": "fd00::10/124"}), "fd00::10"),
        ("10.3.0.9", "fd00::9", json!({"ipv6Subnet": ""}), "fd00::9"),
    ] {
        let mut fixture = Fixture::new();
        let same = with_v6(&json!({}));
        fixture.put("networks", "default:contivh1", &same).unwrap();
        fixture.create("contivh1", "h1", "", ip, ip6).unwrap();
        fixture.delete("networks", "default:contivh1").unwrap();
        let text = fixture.put("networks", "default:contivh1", &with_v6(&changed)).unwrap_err().text;
        assert!(text.contains(&format!("contivh1 that was deleted: h ({refused});")), "{changed}: {text}");
        fixture.put("networks", "default:contivh1", &same).unwrap();
    }
}

#[test]
fn a_network_that_is_created_again_has_the_addresses_of_nodes_with_invalid_records() {
    const RECORD: &str = "/contiv.io/state/eps/contivh1.default-h1";
    let mut fixture = Fixture::new();
    let same = with_v6(&json!({}));
    fixture.put("networks", "default:contivh1", &same).unwrap();
    fixture.create("contivh1", "h1", "", "", "").unwrap();
    fixture.delete("networks", "default:contivh1").unwrap();
    let mut record = fixture.value(RECORD).unwrap();
    record["labels"] = json!(["of a newer form"]);
    fixture.edit(RECORD, Some(&record));
    // One netmaster starts then, the other has watched the change, and knows the record of before, too.
    let starting = fixture.loaded();
    let update = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&update);
    for mut fixture in [starting, fixture] {
        let other = with_v6(&json!({"gateway": "10.3.0.1"}));
        let refused = fixture.put("networks", "default:contivh1", &other).unwrap_err().text;
        assert!(refused.contains("contivh1 that was deleted: h (10.3.0.1);"), "{refused}");
        fixture.put("networks", "default:contivh1", &same).unwrap();
        check_that_the_first_address_is_in_use(&mut fixture);
    }
}
