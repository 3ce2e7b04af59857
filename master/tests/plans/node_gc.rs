//! Nodes that are gone.

use std::time::{Duration, SystemTime};

use contiv_model::{endpoint, node, registry};
use netmaster::plugin::{NodeGcPlan, release_endpoints};
use serde_json::json;

use crate::fixture::Fixture;
use crate::nodes::{service, status};

const DAY: Duration = Duration::from_secs(24 * 3600);
const REGISTRATION: &str = "/contiv.io/service/netplugin.vtep/192.168.0.1:4789";

fn at(hours: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600)
}

/// Node `h` has a status and two endpoints. Host `elsewhere` has one endpoint and never had an
/// agent.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    for id in ["a", "b"] {
        fixture.create("net", id, "", "", "").unwrap();
    }
    let config = json!({"Container": "c", "Host": "elsewhere"});
    let body = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
    fixture.call("createEndpoint", &body).unwrap();
    let oper = endpoint::Oper { id: "net.default-a".into(), ..endpoint::Oper::default() };
    fixture
        .run(|staged| {
            staged.put("net.default-a", oper.clone());
            Ok(vec![])
        })
        .unwrap();
    status(&mut fixture, "h", true, 0);
    service(&mut fixture, registry::VTEP, "h", "192.168.0.1", 4789);
    fixture
}

fn plan_gc(fixture: &Fixture, hours: u64) -> NodeGcPlan {
    NodeGcPlan::new(&fixture.cache, at(hours), Some(DAY))
}

fn mark(fixture: &mut Fixture, hours: u64) {
    let plan = plan_gc(fixture, hours);
    fixture.run(|staged| plan.mark(at(hours), staged)).unwrap();
}

/// The lease of the node's registration expires.
fn away(fixture: Fixture) -> Fixture {
    let mut fixture = fixture;
    fixture.edit(REGISTRATION, None);
    fixture.loaded()
}

#[test]
fn endpoints_of_a_gone_node_are_released() {
    let mut fixture = fixture();
    assert_eq!(plan_gc(&fixture, 0), NodeGcPlan::default());
    fixture = away(fixture);
    assert_eq!(plan_gc(&fixture, 1).newly_gone, ["h"]);
    mark(&mut fixture, 1);
    // The next leader continues from there.
    let mut fixture = fixture.loaded();
    assert_eq!(plan_gc(&fixture, 24), NodeGcPlan::default());
    assert_eq!(NodeGcPlan::new(&fixture.cache, at(1000), None), NodeGcPlan::default());
    let expired = plan_gc(&fixture, 25).expired;
    assert_eq!(expired["h"], ["net.default-a", "net.default-b"]);
    let release = |fixture: &mut Fixture, part: &[String], last| {
        let done = fixture.run(|staged| release_endpoints("h", part, last, staged)).unwrap();
        String::from_utf8(done).unwrap().trim_end().parse::<usize>().unwrap()
    };
    assert_eq!(release(&mut fixture, &expired["h"][..1], false), 1);
    assert_eq!((fixture.endpoints().len(), plan_gc(&fixture, 25).expired["h"].len()), (2, 1));
    assert_eq!(release(&mut fixture, &expired["h"], true), 1);
    let left: Vec<_> = fixture.endpoints().into_iter().map(|endpoint| endpoint.homing_host.clone()).collect();
    assert_eq!(left, ["elsewhere"]);
    assert_eq!(fixture.state("net").ep_count, 1);
    for gone in ["oper/eps/", "oper/node/", "oper/vtep/", "state/gone-nodes/"] {
        assert_eq!(fixture.keys(&format!("/contiv.io/{gone}")), [""; 0]);
    }
    assert_eq!(plan_gc(&fixture, 26), NodeGcPlan::default());
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn a_node_that_returns_keeps_its_endpoints() {
    let mut fixture = away(fixture());
    mark(&mut fixture, 0);
    service(&mut fixture, registry::NETPLUGIN, "h", "10.0.0.1", 9002);
    // The node returns after the plan was made.
    let done = fixture.run(|staged| release_endpoints("h", &["net.default-a".into()], true, staged)).unwrap();
    assert_eq!((done.as_slice(), fixture.endpoints().len()), (&b"0\n"[..], 3));
    assert_eq!(plan_gc(&fixture, 100).returned, ["h"]);
    mark(&mut fixture, 100);
    assert!(fixture.cache.get::<node::Gone>("h").is_none());
    // When the node is gone again, the duration starts again.
    fixture.edit("/contiv.io/service/netplugin/10.0.0.1:9002", None);
    let mut fixture = fixture.loaded();
    mark(&mut fixture, 101);
    assert_eq!(plan_gc(&fixture, 124), NodeGcPlan::default());
    assert_eq!(plan_gc(&fixture, 125).expired.len(), 1);
}

#[test]
fn an_invalid_mark_counts_from_now() {
    let mut fixture = away(fixture());
    fixture.edit("/contiv.io/state/gone-nodes/h", Some(&json!({"host": "h", "since": "yesterday"})));
    let mut fixture = fixture.loaded();
    assert_eq!(plan_gc(&fixture, 1).newly_gone, ["h"]);
    mark(&mut fixture, 1);
    assert_eq!((plan_gc(&fixture, 24).expired.len(), plan_gc(&fixture, 25).expired.len()), (0, 1));
}
