//! Reports of nodes and endpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use contiv_model::api::NodeState;
use contiv_model::{endpoint, node, registry};
use netmaster::access::Scope;
use netmaster::plugin::{nodes_with_outdated_vtep, write_vteps};
use netmaster::reports::{find_endpoint, find_node, nodes};
use serde_json::{Value, json};

use crate::fixture::Fixture;

pub(crate) fn status(fixture: &mut Fixture, host: &str, ready: bool, failed: u64) {
    let status = node::Status {
        host: host.into(),
        datapath: "ovs".into(),
        vtep_ip: "192.168.0.1".into(),
        vxlan_port: 4789,
        version: "0.1.0".into(),
        ready,
        applied_revision: 7,
        failed,
        degraded: vec![],
        regression_id: String::new(),
    };
    fixture
        .run(|staged| {
            staged.put(host, status.clone());
            Ok(vec![])
        })
        .unwrap();
}

pub(crate) fn service(fixture: &mut Fixture, name: &str, host: &str, address: &str, port: u16) {
    let service = registry::ServiceInfo {
        service_name: name.into(),
        hostname: host.into(),
        host_addr: address.into(),
        port,
        ..registry::ServiceInfo::default()
    };
    fixture
        .run(|staged| {
            staged.put(&format!("{name}/{address}:{port}"), service.clone());
            Ok(vec![])
        })
        .unwrap();
}

#[test]
fn nodes_are_reported_from_status_and_registrations() {
    let mut fixture = Fixture::new();
    assert_eq!(nodes(&fixture.cache)(), []);
    for (host, ready, failed) in [("d", true, 1), ("b", true, 0), ("a", true, 0), ("c", false, 0)] {
        status(&mut fixture, host, ready, failed);
    }
    for (n, host) in (1..).zip(["b", "c", "d", "original"]) {
        for port in [9002, 9003] {
            service(&mut fixture, registry::NETPLUGIN, host, &format!("10.0.0.{n}"), port);
        }
    }
    service(&mut fixture, registry::VTEP, "original", "10.0.1.1", 4789);
    service(&mut fixture, registry::NETMASTER, "", "10.0.0.9", 9999);

    let found = nodes(&fixture.cache)();
    let states: Vec<_> = found.iter().map(|node| (node.status.host.as_str(), node.state)).collect();
    assert_eq!(
        states,
        [
            ("a", NodeState::Gone),
            ("b", NodeState::Ready),
            ("c", NodeState::Starting),
            ("d", NodeState::Degraded),
            ("original", NodeState::Starting)
        ]
    );
    assert_eq!((found[4].status.vtep_ip.as_str(), found[4].control_ip.as_str()), ("10.0.1.1", "10.0.0.4"));

    let content: Value = serde_json::from_slice(&find_node(&fixture.cache, "b")().unwrap()).unwrap();
    assert_eq!(
        content,
        json!({"state": "ready", "registered": true, "controlIP": "10.0.0.1", "host": "b", "datapath": "ovs",
            "vtepIP": "192.168.0.1", "vxlanPort": 4789, "version": "0.1.0", "ready": true, "appliedRevision": 7,
            "failed": 0, "degraded": []})
    );
    assert_eq!(find_node(&fixture.cache, "x")().unwrap_err().text, "node not found");
}

/// Agents of an earlier release write the status only.
#[test]
fn vteps_in_statuses_become_records() {
    let mut fixture = Fixture::new();
    for host in ["new", "old", "moved", "none"] {
        status(&mut fixture, host, true, 0);
    }
    let vtep = |host: &str, ip: &str| node::Vtep { host: host.into(), vtep_ip: ip.into(), vxlan_port: 4789 };
    fixture
        .run(|staged| {
            staged.put("new", vtep("new", "192.168.0.1"));
            staged.put("moved", vtep("moved", "192.168.0.9"));
            if let Some(status) = staged.edit::<node::Status>("none") {
                status.vtep_ip.clear();
            }
            Ok(vec![])
        })
        .unwrap();
    let outdated = nodes_with_outdated_vtep(&fixture.cache);
    assert_eq!(outdated, ["moved", "old"]);
    let mut more = outdated;
    more.extend(["new".into(), "none".into(), "unknown".into()]);
    fixture.run(|staged| write_vteps(&more, staged)).unwrap();
    let records: Vec<_> = fixture.cache.all::<node::Vtep>().cloned().collect();
    assert_eq!(records, ["moved", "new", "old"].map(|host| vtep(host, "192.168.0.1")));
    assert_eq!(nodes_with_outdated_vtep(&fixture.cache), [""; 0]);
}

#[test]
fn a_search_for_an_endpoint_takes_those_of_the_tenants_in_the_scope() {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.create("net", "web", "", "", "").unwrap();
    let endpoint = fixture.cache.shared::<endpoint::State>("net.default-web").unwrap();
    let held = Arc::strong_count(&endpoint);
    let tenant = |name: &str| Scope::Tenants(BTreeSet::from([name.to_owned()]));
    let other = find_endpoint(&fixture.cache, "web", &tenant("other"));
    assert_eq!(Arc::strong_count(&endpoint), held, "an endpoint of another tenant");
    other().unwrap_err();
    for scope in [tenant("default"), Scope::All, Scope::Node("h".to_owned())] {
        let found = find_endpoint(&fixture.cache, "web", &scope)().unwrap();
        let found: Value = serde_json::from_slice(&found).unwrap();
        assert_eq!(found["Oper"]["endpointID"], "web");
    }
}
