//! Infra networks, whose endpoints are nodes.

use netmaster::plugin::Cleanup;
use serde_json::json;

use crate::fixture::Fixture;

fn infra(name: &str) -> serde_json::Value {
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

#[test]
fn a_network_that_is_created_again_has_the_addresses_of_its_nodes() {
    let mut fixture = Fixture::new();
    let with_v6 = |subnet: &str| {
        let mut body = infra("contivh1");
        body["subnet"] = json!(subnet);
        body["ipv6Subnet"] = json!("fd00::/120");
        body
    };
    fixture.put("networks", "default:contivh1", &with_v6("10.3.0.0/24")).unwrap();
    let first = fixture.create("contivh1", "h1", "", "", "").unwrap();
    fixture.delete("networks", "default:contivh1").unwrap();
    let refused = fixture.put("networks", "default:contivh1", &with_v6("10.4.0.0/24")).unwrap_err().text;
    assert!(refused.contains("contivh1 that was deleted: h (10.3.0.1);"), "{refused}");
    fixture.put("networks", "default:contivh1", &with_v6("10.3.0.0/24")).unwrap();
    assert_eq!(fixture.create("contivh1", "h1", "", "", "").unwrap(), first);
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
