//! Networks of several tenants that nodes route, so that they take the place of hosts outside of the cluster.

use netmaster::access::Scope;
use netmaster::objects::Cluster;
use netmaster::problem::Kind;
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// A cluster in the forward mode, with networks of tenant `red`.
fn fixture(mode: &str) -> Fixture {
    let mut fixture = Fixture::new();
    let global = json!({"name": "global", "networkInfraType": "default", "vlans": "1-4094",
        "vxlans": "1-10000", "fwdMode": mode, "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
    fixture.put("globals", "global", &global).unwrap();
    for tenant in ["blue", "red"] {
        fixture.put("tenants", tenant, &json!({"tenantName": tenant})).unwrap();
    }
    for (name, more) in [
        ("web", json!({"subnet": "10.1.0.10-10.1.0.20/24", "ipv6Subnet": "2001:db8:1::/64"})),
        ("vxlan", json!({"subnet": "10.3.0.0/24", "gateway": "10.3.0.1", "encap": "vxlan"})),
        ("infra", json!({"subnet": "10.4.0.0/24", "gateway": "10.4.0.1", "nwType": "infra"})),
        ("bridged", json!({"subnet": "10.5.0.0/24", "gateway": ""})),
    ] {
        fixture.put("networks", &format!("red:{name}"), &network("red", name, more)).unwrap();
    }
    fixture
}

/// A VLAN network with a gateway.
fn network(tenant: &str, name: &str, more: Value) -> Value {
    let mut body = json!({"tenantName": tenant, "networkName": name, "encap": "vlan", "subnet": "10.1.0.0/24",
        "gateway": "10.1.0.1"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Creates a network of tenant `blue`, and deletes it again. Returns why it was refused.
fn try_create(fixture: &mut Fixture, scope: &Scope, routes_vlans: bool, more: Value) -> Option<String> {
    let cluster = Cluster { routes_vlans, ..Cluster::default() };
    match fixture.put_as(scope, &cluster, "networks", "blue:a", &network("blue", "a", more)) {
        Ok(_) => {
            fixture.delete("networks", "blue:a").unwrap();
            None
        }
        Err(problem) => {
            assert_eq!(problem.kind, Kind::Forbidden, "{problem}");
            Some(problem.text)
        }
    }
}

fn tenants(names: &[&str]) -> Scope {
    Scope::Tenants(names.iter().map(|&name| name.to_owned()).collect())
}

/// The physical network would lead to its endpoints instead of hosts with the same addresses.
#[test]
fn a_tenant_operator_creates_no_routed_network() {
    let (mut routing, blue) = (fixture("routing"), tenants(&["blue"]));
    let refused = |subnet: &str| {
        Some(format!(
            "not allowed: nodes route a VLAN network with a gateway, and the physical network, which all tenants share, leads to \
             its subnet {subnet}: requires admin; use encap vxlan"
        ))
    };
    for (more, answer) in [
        (json!({}), refused("10.1.0.0/24")),
        (json!({"subnet": "10.2.0.0/24", "gateway": "10.2.0.1"}), refused("10.2.0.0/24")),
        (
            json!({"subnet": "10.2.0.30-10.2.0.40/24", "gateway": "10.2.0.1"}),
            refused("10.2.0.30-10.2.0.40/24"),
        ),
        (json!({"gateway": ""}), None),
        (json!({"encap": "vxlan"}), None),
    ] {
        assert_eq!(try_create(&mut routing, &blue, true, more.clone()), answer, "{more}");
    }
    let both = tenants(&["blue", "red"]);
    assert!(try_create(&mut routing, &both, true, json!({})).is_some(), "they are not all tenants");
    assert_eq!(try_create(&mut routing, &Scope::All, true, json!({})), None);
    // With `--netmode vxlan` nodes bridge VLAN networks, as in forward mode `bridge`.
    assert_eq!(try_create(&mut routing, &blue, false, json!({})), None);
    let mut bridging = fixture("bridge");
    assert_eq!(try_create(&mut bridging, &blue, true, json!({})), None);
}

/// The nodes themselves would send to its endpoints what is for hosts with the same addresses.
#[test]
fn a_tenant_operator_creates_no_network_that_nodes_have_a_route_to() {
    let (mut routing, both) = (fixture("routing"), tenants(&["blue", "red"]));
    let vxlan = |more: Value| {
        let mut body = json!({"encap": "vxlan", "subnet": "203.0.113.0/24", "gateway": "203.0.113.1"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    assert_eq!(try_create(&mut routing, &both, false, vxlan(json!({}))), None, "before nodes are on it");
    let infra = json!({"encap": "vxlan", "subnet": "10.9.0.0/24", "gateway": "10.9.0.1", "nwType": "infra"});
    routing.put("networks", "blue:contivh1", &network("blue", "contivh1", infra)).unwrap();
    let refused = |subnets: &str| {
        Some(format!(
            "not allowed: nodes have routes to the VXLAN networks with a gateway of tenant blue, because they are on its infra \
             network contivh1, and would send there what is for other hosts with addresses of {subnets}: requires admin"
        ))
    };
    let ip6 = json!({"gateway": "", "ipv6Subnet": "2001:db8::/64", "ipv6Gateway": "2001:db8::1"});
    for (more, answer) in [
        (json!({}), refused("203.0.113.0/24")),
        (ip6, refused("203.0.113.0/24 and 2001:db8::/64")),
        (json!({"gateway": ""}), None),
        (json!({"encap": "vlan"}), None),
    ] {
        assert_eq!(try_create(&mut routing, &both, false, vxlan(more.clone())), answer, "{more}");
    }
    assert_eq!(try_create(&mut routing, &Scope::All, false, vxlan(json!({}))), None);
    // Nodes are on no infra network of this tenant.
    let other = network("red", "b", vxlan(json!({})));
    routing.put_as(&both, &Cluster::default(), "networks", "red:b", &other).unwrap();
}

/// The forward mode is in them.
#[test]
fn nodes_may_route_while_their_settings_cannot_be_decoded() {
    let (mut bridging, blue) = (fixture("bridge"), tenants(&["blue"]));
    assert_eq!(try_create(&mut bridging, &blue, true, json!({})), None);
    bridging.edit("/contiv.io/master/config/global", Some(&json!("{")));
    let update = bridging.changes.last().unwrap().clone();
    bridging.cache.apply_update(&update);
    assert!(try_create(&mut bridging, &blue, true, json!({})).is_some());
    assert_eq!(try_create(&mut bridging, &blue, true, json!({"gateway": ""})), None);
}

/// An administrator has created them, or an earlier release.
#[test]
fn networks_that_exist_are_answered_as_before() {
    let (mut fixture, blue) = (fixture("routing"), tenants(&["blue"]));
    let cluster = Cluster { routes_vlans: true, ..Cluster::default() };
    let body = network("blue", "a", json!({}));
    fixture.put("networks", "blue:a", &body).unwrap();
    let mut fixture = fixture.loaded();
    let again = fixture.put_as(&blue, &cluster, "networks", "blue:a", &body).unwrap_err();
    assert_eq!(again.text, "Cant change network parameters after its created");
}
