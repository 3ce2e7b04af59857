//! Nodes that are gone.

use std::time::{Duration, SystemTime};

use contiv_model::{endpoint, node, registry};
use netmaster::plugin::{NodeGcPlan, release_endpoints};
use serde_json::json;

use crate::lab::Lab;
use crate::nodes::{service, status};

const DAY: Duration = Duration::from_secs(24 * 3600);
const REGISTRATION: &str = "/contiv.io/service/netplugin.vtep/192.168.0.1:4789";

fn at(hours: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600)
}

/// Node `h` has a status and two endpoints. Host `elsewhere` has one endpoint and never had an
/// agent.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.network("net", "10.1.0.0/24", json!({}));
    for id in ["a", "b"] {
        lab.create("net", id, "", "", "").unwrap();
    }
    let config = json!({"Container": "c", "Host": "elsewhere"});
    let body = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
    lab.call("createEndpoint", &body).unwrap();
    let oper = endpoint::Oper { id: "net.default-a".into(), ..endpoint::Oper::default() };
    lab.run(|staged| {
        staged.put("net.default-a", oper.clone());
        Ok(vec![])
    })
    .unwrap();
    status(&mut lab, "h", true, 0);
    service(&mut lab, registry::VTEP, "h", "192.168.0.1", 4789);
    lab
}

fn plan_gc(lab: &Lab, hours: u64) -> NodeGcPlan {
    NodeGcPlan::new(&lab.cache, at(hours), Some(DAY))
}

fn mark(lab: &mut Lab, hours: u64) {
    let plan = plan_gc(lab, hours);
    lab.run(|staged| plan.mark(at(hours), staged)).unwrap();
}

/// The lease of the node's registration expires.
fn away(lab: Lab) -> Lab {
    let mut lab = lab;
    lab.edit(REGISTRATION, None);
    lab.loaded()
}

#[test]
fn endpoints_of_a_gone_node_are_released() {
    let mut lab = lab();
    assert_eq!(plan_gc(&lab, 0), NodeGcPlan::default());
    lab = away(lab);
    assert_eq!(plan_gc(&lab, 1).newly_gone, ["h"]);
    mark(&mut lab, 1);
    // The next leader continues from there.
    let mut lab = lab.loaded();
    assert_eq!(plan_gc(&lab, 24), NodeGcPlan::default());
    assert_eq!(NodeGcPlan::new(&lab.cache, at(1000), None), NodeGcPlan::default());
    let expired = plan_gc(&lab, 25).expired;
    assert_eq!(expired["h"], ["net.default-a", "net.default-b"]);
    let release = |lab: &mut Lab, part: &[String], last| {
        let done = lab.run(|staged| release_endpoints("h", part, last, staged)).unwrap();
        String::from_utf8(done).unwrap().trim_end().parse::<usize>().unwrap()
    };
    assert_eq!(release(&mut lab, &expired["h"][..1], false), 1);
    assert_eq!((lab.endpoints().len(), plan_gc(&lab, 25).expired["h"].len()), (2, 1));
    assert_eq!(release(&mut lab, &expired["h"], true), 1);
    let left: Vec<_> = lab.endpoints().into_iter().map(|endpoint| endpoint.homing_host.clone()).collect();
    assert_eq!(left, ["elsewhere"]);
    assert_eq!(lab.state("net").ep_count, 1);
    for gone in ["oper/eps/", "oper/node/", "state/gone-nodes/"] {
        assert_eq!(lab.keys(&format!("/contiv.io/{gone}")), [""; 0]);
    }
    assert_eq!(plan_gc(&lab, 26), NodeGcPlan::default());
    assert_eq!(lab.loaded().content(), lab.content());
}

#[test]
fn a_node_that_returns_keeps_its_endpoints() {
    let mut lab = away(lab());
    mark(&mut lab, 0);
    service(&mut lab, registry::NETPLUGIN, "h", "10.0.0.1", 9002);
    // The node returns after the plan was made.
    let done = lab.run(|staged| release_endpoints("h", &["net.default-a".into()], true, staged)).unwrap();
    assert_eq!((done.as_slice(), lab.endpoints().len()), (&b"0\n"[..], 3));
    assert_eq!(plan_gc(&lab, 100).returned, ["h"]);
    mark(&mut lab, 100);
    assert!(lab.cache.get::<node::Gone>("h").is_none());
    // When the node is gone again, the duration starts again.
    lab.edit("/contiv.io/service/netplugin/10.0.0.1:9002", None);
    let mut lab = lab.loaded();
    mark(&mut lab, 101);
    assert_eq!(plan_gc(&lab, 124), NodeGcPlan::default());
    assert_eq!(plan_gc(&lab, 125).expired.len(), 1);
}

#[test]
fn an_invalid_mark_counts_from_now() {
    let mut lab = away(lab());
    lab.edit("/contiv.io/state/gone-nodes/h", Some(&json!({"host": "h", "since": "yesterday"})));
    let mut lab = lab.loaded();
    assert_eq!(plan_gc(&lab, 1).newly_gone, ["h"]);
    mark(&mut lab, 1);
    assert_eq!((plan_gc(&lab, 24).expired.len(), plan_gc(&lab, 25).expired.len()), (0, 1));
}
