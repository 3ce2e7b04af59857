//! Nodes that are gone.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use contiv_model::{bgp, endpoint, node, registry};
use netmaster::plugin::{
    GoneClock, NodeGcPlan, begin_node_deletion, continue_node_deletion, endpoints_of_node, release_batches,
    release_endpoints,
};
use netmaster::problem::Problem;
use serde_json::json;

use crate::fixture::Fixture;
use crate::nodes::{service, status};

const DAY: Duration = Duration::from_secs(24 * 3600);
const REGISTRATION: &str = "/contiv.io/service/netplugin.vtep/192.168.0.1:4789";

/// Monotonic time of the leaders.
fn at(hours: u64) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + Duration::from_secs(hours * 3600)
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
            staged.put("h", bgp::Oper { host: "h".into(), ..bgp::Oper::default() });
            Ok(vec![])
        })
        .unwrap();
    status(&mut fixture, "h", true, 0);
    service(&mut fixture, registry::VTEP, "h", "192.168.0.1", 4789);
    fixture
}

/// A leader that has led since hour `from`, at hour `to`.
fn plan_gc(fixture: &Fixture, from: u64, to: u64) -> NodeGcPlan {
    let mut clock = GoneClock::default();
    for hour in from..=to {
        clock.advance(&fixture.cache, at(hour));
    }
    NodeGcPlan::new(&fixture.cache, &clock, Some(DAY))
}

fn mark(fixture: &mut Fixture, plan: &NodeGcPlan) {
    fixture.run(|staged| plan.mark(SystemTime::now(), staged)).unwrap();
}

fn counted(fixture: &Fixture) -> u64 {
    fixture.cache.get::<node::Gone>("h").unwrap().counted_seconds / 3600
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
    assert_eq!(plan_gc(&fixture, 0, 0), NodeGcPlan::default());
    fixture = away(fixture);
    let gone = plan_gc(&fixture, 1, 1);
    assert_eq!(gone.newly_gone, ["h"]);
    mark(&mut fixture, &gone);
    // The next leader continues from what was counted, whatever the clocks show.
    let first = plan_gc(&fixture, 1, 13);
    assert_eq!((&first.expired.len(), first.counted["h"]), (&0, 12 * 3600));
    mark(&mut fixture, &first);
    let mut fixture = fixture.loaded();
    assert_eq!((counted(&fixture), plan_gc(&fixture, 500, 500)), (12, NodeGcPlan::default()));
    assert_eq!(plan_gc(&fixture, 500, 511).expired.len(), 0);
    let mut clock = GoneClock::default();
    clock.advance(&fixture.cache, at(0));
    clock.advance(&fixture.cache, at(1000));
    assert_eq!(NodeGcPlan::new(&fixture.cache, &clock, None), NodeGcPlan::default());
    let expired = plan_gc(&fixture, 500, 512).expired;
    assert_eq!(expired["h"], ["net.default-a", "net.default-b"]);
    let release = |fixture: &mut Fixture, part: &[String], last| {
        let done = fixture.run(|staged| release_endpoints("h", part, last, staged)).unwrap();
        String::from_utf8(done).unwrap().trim_end().parse::<usize>().unwrap()
    };
    assert_eq!(release(&mut fixture, &expired["h"][..1], false), 1);
    assert_eq!((fixture.endpoints().len(), plan_gc(&fixture, 500, 512).expired["h"].len()), (2, 1));
    assert_eq!(release(&mut fixture, &expired["h"], true), 1);
    let left: Vec<_> = fixture.endpoints().into_iter().map(|endpoint| endpoint.homing_host.clone()).collect();
    assert_eq!(left, ["elsewhere"]);
    assert_eq!(fixture.state("net").ep_count, 1);
    for gone in ["oper/eps/", "oper/node/", "oper/vtep/", "oper/bgp/", "state/gone-nodes/"] {
        assert_eq!(fixture.keys(&format!("/contiv.io/{gone}")), [""; 0]);
    }
    assert_eq!(plan_gc(&fixture, 0, 100), NodeGcPlan::default());
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn endpoints_with_invalid_records_are_released_with_their_node() {
    let mut fixture = away(fixture());
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    let keys = ["a", "b"].map(|id| format!("/contiv.io/state/eps/net.default-{id}"));
    for key in &keys {
        let mut record = fixture.value(key).unwrap();
        record["labels"] = json!(["of a newer form"]);
        fixture.break_key(key, Some(&record));
    }
    // What the agent has recorded tells the node of the second one.
    let oper = json!({"id": "net.default-b", "netID": "net.default", "endpointID": "b", "homingHost": "h"});
    fixture.break_key("/contiv.io/oper/eps/net.default-b", Some(&oper));
    fixture.break_key(&keys[1], Some(&json!({"labels": 1, "ipAddress": "10.1.0.2"})));
    let mut fixture = fixture.loaded();
    let expired = plan_gc(&fixture, 0, 24).expired;
    assert_eq!(expired["h"], ["net.default-a", "net.default-b"]);
    let released = fixture.run(|staged| release_endpoints("h", &expired["h"], true, staged)).unwrap();
    assert_eq!(released.as_slice(), b"2\n");
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), ["/contiv.io/state/eps/net.default-c"]);
    assert_eq!(fixture.keys("/contiv.io/oper/eps/"), [""; 0]);
    assert_eq!(fixture.state("net").ep_count, 1);
    assert_eq!(fixture.create("net", "d", "", "10.1.0.2", "").unwrap().0, "10.1.0.2");
    assert_eq!(fixture.loaded().content(), fixture.content());
}

/// The power of the node has failed before netmaster created the endpoints, or refused them.
#[test]
fn records_without_an_endpoint_are_deleted_with_their_node() {
    let mut fixture = fixture();
    let oper = |id: &str, host: &str| endpoint::Oper {
        id: id.into(),
        homing_host: host.into(),
        ..endpoint::Oper::default()
    };
    // One that is on a network that does not exist, one whose endpoint is on another host, and one of another node.
    let records = [
        oper("gone.default-x", "h"),
        oper("net.default-b", "h"),
        oper("net.default-c", "h"),
        oper("net.default-o", "i"),
        oper("net.default-x", "h"),
    ];
    fixture
        .run(|staged| {
            records.iter().for_each(|record| staged.put(&record.id, record.clone()));
            Ok(vec![])
        })
        .unwrap();
    fixture = away(fixture);
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    let expired = plan_gc(&fixture, 0, 24).expired;
    let ids = ["net.default-a", "net.default-b", "gone.default-x", "net.default-c", "net.default-x"];
    assert_eq!(expired["h"], ids);
    let released = fixture.run(|staged| release_endpoints("h", &expired["h"], true, staged)).unwrap();
    assert_eq!(released.as_slice(), b"2\n");
    assert_eq!(fixture.keys("/contiv.io/oper/eps/"), ["/contiv.io/oper/eps/net.default-o"]);
    let left: Vec<_> = fixture.endpoints().into_iter().map(|endpoint| endpoint.id.clone()).collect();
    assert_eq!(left, ["net.default-c"]);
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn a_node_that_returns_keeps_its_endpoints() {
    let mut fixture = away(fixture());
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    service(&mut fixture, registry::NETPLUGIN, "h", "10.0.0.1", 9002);
    // The node returns after the plan was made.
    let done = fixture.run(|staged| release_endpoints("h", &["net.default-a".into()], true, staged)).unwrap();
    assert_eq!((done.as_slice(), fixture.endpoints().len()), (&b"0\n"[..], 3));
    let mut clock = GoneClock::default();
    for hour in 0..100 {
        clock.advance(&fixture.cache, at(hour));
    }
    let returned = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
    assert_eq!(returned.returned, ["h"]);
    mark(&mut fixture, &returned);
    assert!(fixture.cache.get::<node::Gone>("h").is_none());
    // When the node is gone again, the time starts again.
    fixture.edit("/contiv.io/service/netplugin/10.0.0.1:9002", None);
    let mut fixture = fixture.loaded();
    clock.advance(&fixture.cache, at(100));
    let gone = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
    assert_eq!(gone.newly_gone, ["h"]);
    mark(&mut fixture, &gone);
    for (hour, expired) in [(101, 0), (124, 0), (125, 1)] {
        clock.advance(&fixture.cache, at(hour));
        let plan = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
        assert_eq!(plan.expired.len(), expired, "hour {hour}");
    }
}

/// The node registers and is gone again between two checks: only the watch has reported it.
#[test]
fn the_time_starts_again_after_a_short_return() {
    let mut fixture = away(fixture());
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    let half_a_day = plan_gc(&fixture, 0, 12);
    mark(&mut fixture, &half_a_day);
    let mut clock = GoneClock::default();
    for hour in 0..=5 {
        clock.advance(&fixture.cache, at(hour));
    }
    let late = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
    assert_eq!(late.counted["h"], 17 * 3600);
    let registration = json!({"ServiceName": registry::NETPLUGIN, "Hostname": "h"});
    for value in [Some(&registration), None] {
        fixture.edit("/contiv.io/service/netplugin/10.0.0.1:9002", value);
        let update = fixture.changes.last().unwrap().clone();
        fixture.cache.apply_update(&update);
    }
    // Of a leader that has followed this one.
    let of_next = plan_gc(&fixture, 0, 100);
    // Of this leader, whose last plan is committed after the registration.
    mark(&mut fixture, &late);
    clock.advance(&fixture.cache, at(6));
    let own = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
    for plan in [&of_next, &own] {
        assert_eq!(plan.returned, ["h"]);
        assert_eq!((plan.expired.len(), plan.counted.len()), (0, 0));
    }
    mark(&mut fixture, &own);
    let gone = plan_gc(&fixture, 0, 0);
    assert_eq!(gone.newly_gone, ["h"]);
    mark(&mut fixture, &gone);
    assert_eq!(plan_gc(&fixture, 0, 23).expired.len(), 0);
    assert_eq!(plan_gc(&fixture, 0, 24).expired["h"], ["net.default-a", "net.default-b"]);
}

#[test]
fn nothing_is_released_while_most_nodes_are_gone() {
    let mut fixture = away(fixture());
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    let half_a_day = plan_gc(&fixture, 0, 12);
    mark(&mut fixture, &half_a_day);
    // Three of five nodes are gone.
    for host in ["i", "j", "k", "l"] {
        status(&mut fixture, host, true, 0);
    }
    for (host, ip) in [("k", "192.168.0.4"), ("l", "192.168.0.5")] {
        service(&mut fixture, registry::VTEP, host, ip, 4789);
    }
    let mut clock = GoneClock::default();
    for hour in 0..100 {
        clock.advance(&fixture.cache, at(hour));
        let plan = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
        assert_eq!((plan.expired.len(), plan.counted.len()), (0, 0), "hour {hour}");
        mark(&mut fixture, &plan);
    }
    // The others have as much time left as before.
    service(&mut fixture, registry::VTEP, "j", "192.168.0.3", 4789);
    for (hour, expired) in [(100, &[][..]), (110, &[]), (112, &["h"]), (124, &["h", "i"])] {
        clock.advance(&fixture.cache, at(hour));
        let plan = NodeGcPlan::new(&fixture.cache, &clock, Some(DAY));
        assert_eq!(plan.expired.keys().collect::<Vec<_>>(), expired, "hour {hour}");
    }
}

/// Deletes the node as an operator requests it, and returns the number of released endpoints.
fn delete_node(fixture: &mut Fixture, host: &str) -> Result<u64, Problem> {
    fixture.run(|staged| begin_node_deletion(host, SystemTime::now(), staged))?;
    let batches = release_batches(&endpoints_of_node(host, &fixture.cache));
    let (last, mut released) = (batches.len(), 0);
    for (n, batch) in (1..).zip(&batches) {
        let done = fixture.run(|staged| continue_node_deletion(host, batch, n == last, staged))?;
        released += serde_json::from_slice::<u64>(&done).unwrap();
    }
    Ok(released)
}

#[test]
fn endpoints_are_released_again_when_nodes_are_deleted() {
    let mut fixture = away(fixture());
    for host in ["i", "j", "k", "l"] {
        status(&mut fixture, host, true, 0);
    }
    for (host, ip) in [("k", "192.168.0.4"), ("l", "192.168.0.5")] {
        service(&mut fixture, registry::VTEP, host, ip, 4789);
    }
    // Three of five nodes are gone.
    let gone = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &gone);
    assert_eq!(plan_gc(&fixture, 0, 100), NodeGcPlan::default());
    assert_eq!(delete_node(&mut fixture, "h").unwrap(), 2);
    let left: Vec<_> = fixture.endpoints().into_iter().map(|endpoint| endpoint.homing_host.clone()).collect();
    assert_eq!(left, ["elsewhere"]);
    assert_eq!(fixture.state("net").ep_count, 1);
    assert_eq!(fixture.create("net", "new", "", "10.1.0.1", "").unwrap().0, "10.1.0.1");
    for of_node in ["oper/node/h", "oper/vtep/h", "oper/bgp/h", "oper/eps/", "state/gone-nodes/h"] {
        assert_eq!(fixture.keys(&format!("/contiv.io/{of_node}")), [""; 0]);
    }
    assert_eq!(plan_gc(&fixture, 0, 24).expired.keys().collect::<Vec<_>>(), ["i", "j"]);
    // Garbage collection may not have noticed yet that a node is gone.
    fixture
        .run(|staged| {
            staged.delete::<node::Gone>("i");
            Ok(vec![])
        })
        .unwrap();
    assert_eq!(delete_node(&mut fixture, "i").unwrap(), 0);
    assert!(fixture.cache.get::<node::Status>("i").is_none());
    assert_eq!(fixture.loaded().content(), fixture.content());
}

/// Another machine may get the name of a node that an operator deletes. One that is collected may return.
#[test]
fn requests_of_operators_are_deleted_with_the_node() {
    let requested = || {
        let mut fixture = away(fixture());
        fixture
            .run(|staged| {
                staged.put("h", node::ChosenDatapath { host: "h".into(), datapath: "ovs".into() });
                staged.put("h", node::AcceptedStore { host: "h".into(), ..node::AcceptedStore::default() });
                Ok(vec![])
            })
            .unwrap();
        let gone = plan_gc(&fixture, 0, 0);
        mark(&mut fixture, &gone);
        fixture
    };
    let left = |fixture: &Fixture| {
        ["state/node-datapath/h", "oper/accepted-store/h"]
            .map(|key| fixture.keys(&format!("/contiv.io/{key}")).len())
    };
    let mut deleted = requested();
    assert_eq!(left(&deleted), [1, 1]);
    assert_eq!(delete_node(&mut deleted, "h").unwrap(), 2);
    assert_eq!(left(&deleted), [0, 0]);

    let mut collected = requested();
    let expired = plan_gc(&collected, 0, 24).expired;
    collected.run(|staged| release_endpoints("h", &expired["h"], true, staged)).unwrap();
    assert!(collected.cache.get::<node::Status>("h").is_none());
    assert_eq!(left(&collected), [1, 0]);
    // An operator can still delete what was chosen for it, but not while an agent of this name is registered.
    service(&mut collected, registry::VTEP, "h", "192.168.0.1", 4789);
    let registered = delete_node(&mut collected, "h").unwrap_err().text;
    assert!(registered.starts_with("node h is registered"), "{registered}");
    assert_eq!(left(&collected), [1, 0]);
    let mut collected = away(collected);
    assert_eq!(delete_node(&mut collected, "h").unwrap(), 0);
    assert_eq!(left(&collected), [0, 0]);
    assert!(collected.cache.get::<node::Gone>("h").is_none());
    assert_eq!(delete_node(&mut collected, "h").unwrap_err().text, "node not found");
    assert_eq!(collected.loaded().content(), collected.content());
}

#[test]
fn registered_nodes_are_not_deleted() {
    let mut fixture = fixture();
    let refused = |fixture: &mut Fixture, host: &str| delete_node(fixture, host).unwrap_err().text;
    assert!(refused(&mut fixture, "h").starts_with("node h is registered; stop its agent"));
    assert_eq!(refused(&mut fixture, "elsewhere"), "node not found");
    // The node registers after the deletion began, and is gone again.
    let mut fixture = away(fixture);
    let all = ["net.default-a".to_owned(), "net.default-b".to_owned()];
    let continued =
        |fixture: &mut Fixture| fixture.run(|staged| continue_node_deletion("h", &all, true, staged));
    fixture.run(|staged| begin_node_deletion("h", SystemTime::now(), staged)).unwrap();
    service(&mut fixture, registry::NETPLUGIN, "h", "10.0.0.1", 9002);
    assert!(continued(&mut fixture).unwrap_err().text.starts_with("node h is registered"));
    let returned = plan_gc(&fixture, 0, 0);
    mark(&mut fixture, &returned);
    fixture.edit("/contiv.io/service/netplugin/10.0.0.1:9002", None);
    let mut fixture = fixture.loaded();
    assert!(continued(&mut fixture).unwrap_err().text.contains("has registered meanwhile"));
    assert_eq!(fixture.endpoints().len(), 3);
    // Garbage collection was faster.
    assert_eq!(delete_node(&mut fixture, "h").unwrap(), 2);
    assert_eq!(continued(&mut fixture).unwrap(), b"0\n");
}
