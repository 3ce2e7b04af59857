//! Nodes that stay away.

use std::time::{Duration, SystemTime};

use contiv_model::{endpoint, node, registry};
use netmaster::plugin::{Round, release};
use serde_json::json;

use crate::lab::Lab;
use crate::nodes::{service, status};

const DAY: Duration = Duration::from_secs(24 * 3600);
const REGISTRATION: &str = "/contiv.io/service/netplugin.vtep/192.168.0.1:4789";

fn at(hours: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600)
}

/// The node `h` has told its status, and has two endpoints; `elsewhere`, which no agent was ever on, has one.
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
    lab.run(|draft| {
        draft.put("net.default-a", oper.clone());
        Ok(vec![])
    })
    .unwrap();
    status(&mut lab, "h", true, 0);
    service(&mut lab, registry::VTEP, "h", "192.168.0.1", 4789);
    lab
}

fn look(lab: &Lab, hours: u64) -> Round {
    Round::look(&lab.world, at(hours), Some(DAY))
}

fn note(lab: &mut Lab, hours: u64) {
    let round = look(lab, hours);
    lab.run(|draft| round.note(at(hours), draft)).unwrap();
}

/// Its lease runs out.
fn away(lab: Lab) -> Lab {
    let mut lab = lab;
    lab.edit(REGISTRATION, None);
    lab.loaded()
}

#[test]
fn a_node_that_stays_away_gives_up_its_endpoints() {
    let mut lab = lab();
    assert_eq!(look(&lab, 0), Round::default());
    lab = away(lab);
    assert_eq!(look(&lab, 1).vanished, ["h"]);
    note(&mut lab, 1);
    // The next leader goes on from there.
    let mut lab = lab.loaded();
    assert_eq!(look(&lab, 24), Round::default());
    assert_eq!(Round::look(&lab.world, at(1000), None), Round::default());
    let due = look(&lab, 25).due;
    assert_eq!(due["h"], ["net.default-a", "net.default-b"]);
    let release = |lab: &mut Lab, part: &[String], last| {
        let done = lab.run(|draft| release("h", part, last, draft)).unwrap();
        String::from_utf8(done).unwrap().trim_end().parse::<usize>().unwrap()
    };
    assert_eq!(release(&mut lab, &due["h"][..1], false), 1);
    assert_eq!((lab.endpoints().len(), look(&lab, 25).due["h"].len()), (2, 1));
    assert_eq!(release(&mut lab, &due["h"], true), 1);
    let left: Vec<_> = lab.endpoints().into_iter().map(|endpoint| endpoint.homing_host.clone()).collect();
    assert_eq!(left, ["elsewhere"]);
    assert_eq!(lab.state("net").ep_count, 1);
    for gone in ["oper/eps/", "oper/node/", "state/gone-nodes/"] {
        assert_eq!(lab.keys(&format!("/contiv.io/{gone}")), [""; 0]);
    }
    assert_eq!(look(&lab, 26), Round::default());
    assert_eq!(lab.loaded().told(), lab.told());
}

#[test]
fn a_node_that_comes_back_keeps_them() {
    let mut lab = away(lab());
    note(&mut lab, 0);
    service(&mut lab, registry::NETPLUGIN, "h", "10.0.0.1", 9002);
    // It was found due just before it came back.
    let done = lab.run(|draft| release("h", &["net.default-a".into()], true, draft)).unwrap();
    assert_eq!((done.as_slice(), lab.endpoints().len()), (&b"0\n"[..], 3));
    assert_eq!(look(&lab, 100).back, ["h"]);
    note(&mut lab, 100);
    assert!(lab.world.get::<node::Gone>("h").is_none());
    // It goes again: the time counts from then.
    lab.edit("/contiv.io/service/netplugin/10.0.0.1:9002", None);
    let mut lab = lab.loaded();
    note(&mut lab, 101);
    assert_eq!(look(&lab, 124), Round::default());
    assert_eq!(look(&lab, 125).due.len(), 1);
}

#[test]
fn a_mark_that_nobody_can_read_counts_from_now() {
    let mut lab = away(lab());
    lab.edit("/contiv.io/state/gone-nodes/h", Some(&json!({"host": "h", "since": "yesterday"})));
    let mut lab = lab.loaded();
    assert_eq!(look(&lab, 1).vanished, ["h"]);
    note(&mut lab, 1);
    assert_eq!((look(&lab, 24).due.len(), look(&lab, 25).due.len()), (0, 1));
}
