//! The reconciliation loop with the fake datapath.

mod groups;
mod policies;
mod retention;
mod takeover;

use std::time::Duration;

use contiv_model::{
    endpoint::Endpoint,
    event::Event,
    group::{Group, GroupNumber},
    key::Key,
    mac::Mac,
    network::{self, Kind},
    tag::Encap,
};
use futures::executor::block_on;
use proptest::prelude::*;
use tokio::task::JoinHandle;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    datapath::{
        Datapath as _, Desired, ObjectId,
        fake::{Fake, Switch},
    },
    plan::{
        self, Node,
        tests::{apply_event, event, node},
    },
    state::{self, Attacher, Attachment, ClusterObject, DirtySet, State, Update, Writer},
};

const SOURCE: &str = "test";
const TIMEOUT: Duration = Duration::from_secs(10);

/// A reconciler whose state the test provides.
struct World {
    writer: Writer,
    attacher: Attacher,
    handle: Handle,
    switch: Switch,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl World {
    fn start(fake: Fake) -> World {
        World::following(fake, [SOURCE])
    }

    fn following(fake: Fake, sources: impl IntoIterator<Item = &'static str>) -> World {
        let (writer, attacher, reader, changes) = state::new(sources);
        let switch = fake.switch().clone();
        let node = Node { host: "h0".into(), vtep: [192, 168, 0, 10].into() };
        let (reconciler, handle) = Reconciler::new(fake, node, reader, changes, Duration::from_secs(3600));
        let stop = CancellationToken::new();
        let task = tokio::spawn(reconciler.run(stop.clone()));
        World { writer, attacher, handle, switch, stop, task }
    }

    /// A world with the objects of [`populate`](Self::populate) in effect.
    async fn populated(fake: Fake) -> World {
        let mut world = World::start(fake);
        world.populate();
        world.until(|status| status.in_sync).await;
        world
    }

    fn send(&mut self, event: Event<Key, ClusterObject>) {
        self.send_at(1, event);
    }

    fn send_at(&mut self, revision: i64, event: Event<Key, ClusterObject>) {
        let event = event.map(|key| key, Ok);
        self.writer.apply(Update { source: SOURCE.into(), revision, event });
    }

    fn put(&mut self, (key, object): (Key, ClusterObject)) {
        self.send(Event::Apply(key, object));
    }

    /// Sends one network, which has a subnet, and one endpoint with its interface as a complete snapshot.
    fn populate(&mut self) {
        for object in [network(), endpoint("e1", "h0", 1)] {
            self.put(object);
        }
        self.attacher.attach(&"e1".into(), Attachment::of_pod("vvport1"));
        self.send(Event::Init);
        for (key, object) in [network(), endpoint("e1", "h0", 1)] {
            self.send(Event::InitApply(key, object));
        }
        self.send(Event::InitDone);
    }

    async fn until(&mut self, what: impl FnMut(&Status) -> bool) -> Status {
        let seen = tokio::time::timeout(TIMEOUT, self.handle.status.wait_for(what)).await;
        seen.unwrap().unwrap().clone()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn network() -> (Key, ClusterObject) {
    let id: contiv_model::name::NetworkId = "n.t".into();
    let network = network::Network {
        id: id.clone(),
        tenant: "t".parse().unwrap(),
        name: "n".parse().unwrap(),
        kind: Kind::Data,
        encap: Encap::Vlan(5.try_into().unwrap()),
        subnet: "10.0.0.0/24".parse().unwrap(),
        gateway: None,
        subnet_v6: None,
        gateway_v6: None,
    };
    (Key::Network(id), ClusterObject::Network(network))
}

fn endpoint(name: &str, host: &str, ip: u8) -> (Key, ClusterObject) {
    let ip = [10, 0, 0, ip].into();
    let endpoint = Endpoint {
        id: name.into(),
        network: "n.t".into(),
        group: None,
        group_number: None,
        ip,
        ip6: None,
        mac: Mac::of_endpoint(ip),
        host: host.into(),
        vtep: None,
    };
    (Key::Endpoint(name.into()), ClusterObject::Endpoint(endpoint))
}

fn installed(switch: &Switch) -> Vec<String> {
    switch.objects().iter().map(|(id, _)| id.to_string()).collect()
}

#[tokio::test]
async fn deletes_nothing_before_the_state_is_complete() {
    let world = World::populated(Fake::new()).await;
    let switch = world.switch.clone();
    world.stop().await;

    let mut world = World::start(Fake::reopen(&switch));
    world.put(network());
    tokio::task::yield_now().await;
    assert_eq!(installed(&switch), ["network n.t", "subnet n.t ipv4", "local endpoint e1"]);
    world.populate();
    let status = world.until(|status| status.in_sync).await;
    assert_eq!((status.writes, status.objects, status.failures.count()), (0, 3, 0));
    world.stop().await;
    assert_eq!(installed(&switch).len(), 3);
}

#[tokio::test]
async fn change_causes_only_its_own_ops() {
    let mut world = World::start(Fake::new());
    world.populate();
    let before = world.until(|status| status.in_sync).await;
    world.put(endpoint("e2", "h1", 2));
    let status = world.until(|status| status.objects == 4).await;
    // Two ops: the endpoint may have been local before.
    assert_eq!((status.writes - before.writes, status.ops - before.ops, status.resyncs), (1, 2, 1));
    world.send(Event::Delete(Key::Endpoint("e2".into())));
    world.until(|status| status.objects == 3).await;
    assert_eq!(installed(&world.switch), ["network n.t", "subnet n.t ipv4", "local endpoint e1"]);
    world.stop().await;
}

#[tokio::test]
async fn failed_object_is_retried_alone() {
    let fake = Fake::new();
    fake.switch().fail_object(ObjectId::Remote("e2".into()));
    let mut world = World::populated(fake).await;
    world.put(endpoint("e2", "h1", 2));
    world.put(endpoint("e3", "h1", 3));
    let status = world.until(|status| status.objects == 5 && status.ops_failed > 1).await;
    assert_eq!(
        status.degraded(),
        [
            "remote endpoints: 1 failed, retrying; first: remote endpoint e2: fake datapath: set remote endpoint \
          e2: injected fault"
        ]
    );
    assert!(installed(&world.switch).contains(&"remote endpoint e3".to_owned()));
    world.switch.clear_faults();
    let status = world.until(|status| status.failures.count() == 0).await;
    assert_eq!((installed(&world.switch).len(), status.resyncs), (5, 1));
    world.stop().await;
}

#[tokio::test]
async fn failed_object_holds_the_applied_revision_back() {
    let fake = Fake::new();
    fake.switch().fail_object(ObjectId::Remote("e2".into()));
    let mut world = World::populated(fake).await;
    for (revision, (key, object)) in [(7, endpoint("e2", "h1", 2)), (8, endpoint("e3", "h1", 3))] {
        world.send_at(revision, Event::Apply(key, object));
    }
    let status = world.until(|status| status.objects == 5 && status.ops_failed > 1).await;
    assert_eq!((status.revision, status.failures.count()), (1, 1));
    // A full resync reports no other failures.
    world.switch.request_resync();
    let status = world.until(|status| status.in_sync && status.resyncs == 2).await;
    assert_eq!(status.revision, 1);
    world.switch.clear_faults();
    let status = world.until(|status| status.failures.count() == 0).await;
    assert_eq!(status.revision, 8);
    world.stop().await;
}

#[tokio::test]
async fn error_causes_a_full_resync() {
    let mut world = World::populated(Fake::new()).await;
    world.switch.fail_apply(1);
    world.put(endpoint("e2", "h1", 2));
    let status = world.until(|status| status.resyncs == 2).await;
    assert_eq!(installed(&world.switch).len(), 4);
    assert!(status.ops_failed == 0);
    world.until(|status| status.in_sync && status.error.is_none()).await;
    world.stop().await;
}

/// Value of a series of the reconciler's metrics, zero if there is none.
fn series(world: &World, name: &str) -> u64 {
    let mut registry = prometheus_client::registry::Registry::default();
    world.handle.metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

#[tokio::test]
async fn lag_is_measured_until_the_change_is_in_effect() {
    let mut world = World::populated(Fake::new()).await;
    assert_eq!(series(&world, "watch_lag_seconds_count"), 1);
    world.switch.fail_apply(1);
    world.put(endpoint("e2", "h1", 2));
    world.until(|status| status.resyncs == 2 && status.in_sync).await;
    // The change whose operations failed is in effect after the resync.
    assert_eq!(series(&world, "watch_lag_seconds_count"), 2);
    let call = |call, result| {
        let labels = format!("{{call=\"{call}\",result=\"{result}\"}}");
        series(&world, &format!("datapath_call_duration_seconds_count{labels}"))
    };
    assert_eq!((call("apply", "error"), call("observe", "ok"), call("apply", "partial")), (1, 2, 0));
    let remote = |result| {
        let labels = format!("{{operation=\"set\",object=\"remote-endpoint\",result=\"{result}\"}}");
        series(&world, &format!("datapath_object_ops_total{labels}"))
    };
    assert_eq!((remote("unknown"), remote("ok"), remote("failed")), (1, 1, 0));

    // A change of an interface on this node is not a change of the store.
    let before = world.handle.status.borrow().ops;
    world.attacher.detach(&"e1".into());
    world.until(|status| status.ops > before && status.objects == 3).await;
    assert_eq!(series(&world, "watch_lag_seconds_count"), 2);
    world.stop().await;
}

#[tokio::test]
async fn requested_resync_repairs_the_datapath() {
    let mut world = World::populated(Fake::new()).await;
    world.switch.drop_object(&ObjectId::Network("n.t".into()));
    world.switch.add_foreign_items(2);
    world.switch.request_resync();
    world.until(|status| status.in_sync && status.resyncs == 2).await;
    assert_eq!((installed(&world.switch).len(), world.switch.foreign_items()), (3, 0));
    world.stop().await;
}

/// The next periodic resync of these tests is an hour away.
#[tokio::test]
async fn failed_removal_of_orphans_is_reported_and_retried() {
    let mut world = World::populated(Fake::new()).await;
    world.switch.add_foreign_items(1);
    world.switch.fail_ops(1);
    world.switch.request_resync();
    let status = world.until(|status| status.in_sync && !status.degraded().is_empty()).await;
    assert_eq!(
        status.degraded(),
        ["orphans: removal failed, retrying: fake datapath: remove orphans: injected fault"]
    );
    assert_eq!(world.switch.foreign_items(), 1);
    world.until(|status| status.in_sync && status.degraded().is_empty()).await;
    assert_eq!((world.switch.foreign_items(), installed(&world.switch).len()), (0, 3));
    world.stop().await;
}

#[tokio::test]
async fn waiter_is_notified_when_the_endpoint_is_set() {
    let mut world = World::populated(Fake::new()).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let here = || Attachment::of_pod("vvport4");

    // The interface may be recorded before the endpoint arrives.
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    world.put(endpoint("e4", "h0", 4));
    tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();
    assert!(installed(&world.switch).contains(&"local endpoint e4".to_owned()));

    // A waiter is also notified without a change.
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();

    let reply = world.handle.waiters.wait(&id, Presence::Absent);
    world.attacher.detach(&id);
    tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();
    assert!(!installed(&world.switch).contains(&"local endpoint e4".to_owned()));

    world.switch.remove_interface("vvport4");
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    let error = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("no interface vvport4"), "{error}");
    world.stop().await;
}

fn group_of(endpoint: (Key, ClusterObject), number: u32) -> (Key, ClusterObject) {
    let (key, object) = endpoint;
    let ClusterObject::Endpoint(endpoint) = object else { unreachable!() };
    let group_number = Some(GroupNumber::try_from(number).unwrap());
    (key, ClusterObject::Endpoint(Endpoint { group_number, ..endpoint }))
}

fn group_with_dscp(number: u32, dscp: u8) -> (Key, ClusterObject) {
    let number = GroupNumber::try_from(number).unwrap();
    let key: contiv_model::name::GroupKey = format!("g{number}:t").into();
    let group = Group { key: key.clone(), number, dscp: dscp.try_into().ok(), rate: None };
    (Key::Group(key), ClusterObject::Group(group))
}

#[tokio::test]
async fn endpoint_waits_for_its_group() {
    let fake = Fake::new();
    let five = ObjectId::Group(GroupNumber::try_from(5).unwrap().into());
    fake.switch().fail_object(five.clone());
    let mut world = World::populated(fake).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.put(group_with_dscp(5, 46));
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let error = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("waits for group 5"), "{error}");
    assert_eq!(installed(&world.switch), ["network n.t", "subnet n.t ipv4", "local endpoint e1"]);
    world.switch.clear_faults();
    world.until(|status| status.failures.count() == 0 && status.objects == 5).await;
    assert_eq!(
        installed(&world.switch),
        ["network n.t", "subnet n.t ipv4", "group 5", "local endpoint e1", "local endpoint e4"]
    );
    world.stop().await;
}

/// The existing endpoint is not changed, and the new one remains pending, also after a full resync.
#[tokio::test]
async fn invalid_policy_blocks_new_endpoints() {
    let mut world = World::start(Fake::new());
    world.put(group_with_dscp(5, 46));
    world.populate();
    for object in [group_with_dscp(5, 46), group_of(endpoint("e1", "h0", 1), 5)] {
        world.put(object);
    }
    world.until(|status| status.in_sync && status.objects == 4).await;
    let before = world.switch.objects();
    let key = Key::Policy("t:g5:t:p".into());
    let rejected = state::Rejected { key: key.to_string(), why: "no JSON".into() };
    let event = Event::Apply(key.clone(), Err(rejected));
    world.writer.apply(Update { source: SOURCE.into(), revision: 2, event });
    world.put(group_with_dscp(5, 10));
    let status = world.until(|status| status.failures.count() == 1).await;
    assert_eq!(
        status.failures.lines(),
        ["groups with policies, DSCP or bandwidth: 1 failed, retrying; first: group 5: \
          /contiv.io/state/policy/t:g5:t:p is invalid; see /inspect/driver"]
    );
    let id: contiv_model::name::EndpointId = "e4".into();
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let error = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("/contiv.io/state/policy/t:g5:t:p is invalid"), "{error}");
    world.switch.request_resync();
    world.until(|status| status.in_sync && status.resyncs == 2).await;
    assert_eq!(world.switch.objects(), before);

    world.send(Event::Delete(key));
    world.until(|status| status.failures.count() == 0).await;
    assert_eq!(
        installed(&world.switch),
        ["network n.t", "subnet n.t ipv4", "group 5", "local endpoint e1", "local endpoint e4"]
    );
    let five = ObjectId::Group(GroupNumber::try_from(5).unwrap().into());
    assert_ne!(world.switch.objects().get(&five), before.get(&five));
    world.stop().await;
}

#[tokio::test]
async fn unsupported_policies_are_reported_and_do_not_block() {
    let fake = Fake::new();
    fake.switch().support_only_forwarding();
    let mut world = World::populated(fake).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.put(group_with_dscp(5, 46));
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();
    let status = world.until(|status| status.failures.count() > 0).await;
    assert_eq!(
        status.failures.lines(),
        ["groups with policies, DSCP or bandwidth: 1 not supported by this datapath yet"]
    );
    // A full resync does not retry unsupported objects; a change does.
    let failed = status.ops_failed;
    world.switch.request_resync();
    let status = world.until(|status| status.in_sync && status.resyncs == 2).await;
    assert_eq!((status.ops_failed, status.failures.count()), (failed, 1));
    world.put(group_with_dscp(5, 0));
    world.until(|status| status.failures.count() == 0).await;
    world.stop().await;
}

#[tokio::test]
async fn debug_dump_is_available() {
    let world = World::populated(Fake::new()).await;
    let (reply, answer) = oneshot::channel();
    world.handle.inspect.send(Inspection::Dump(reply)).await.unwrap();
    assert_eq!(answer.await.unwrap()["objects"].as_array().unwrap().len(), 3);
    world.stop().await;
}

#[tokio::test]
async fn packets_are_traced_by_the_names_of_endpoints() {
    let world = World::populated(Fake::new()).await;
    let ask = async |endpoint: &str| {
        let query =
            format!(r#"{{"ingress":{{"endpoint":"{endpoint}"}},"destination":"10.0.0.9","protocol":1}}"#);
        let (reply, answer) = oneshot::channel();
        let query = Box::new(serde_json::from_str(&query).unwrap());
        world.handle.inspect.send(Inspection::Trace(query, reply)).await.unwrap();
        answer.await.unwrap()
    };
    let traced = ask("e1").await.unwrap();
    assert_eq!((traced.probe.header.source, traced.findings.method), ([10, 0, 0, 1].into(), "oracle"));
    assert!(matches!(ask("e9").await, Err(TraceError::Unresolved(_))));
    world.stop().await;
}

proptest! {
    /// The ops of a change convert a datapath with the previous plan to one with the new plan, and no object that is
    /// already correct is dirty.
    #[test]
    fn ops_lead_from_plan_to_plan(batches in prop::collection::vec(prop::collection::vec(event(), 1..8), 1..12)) {
        let (mut state, mut desired, mut fake) = (State::default(), Desired::default(), Fake::new());
        block_on(fake.observe(&desired)).unwrap();
        for batch in batches {
            let (before, mut dirty) = (desired.clone(), DirtySet::default());
            for event in batch {
                dirty.merge(apply_event(&mut state, event, 0));
            }
            let ids = plan::update(&mut desired, &state, &node(), &dirty);
            let writes = fake.writes();
            prop_assert!(block_on(fake.apply(&ordered(&ids, &desired))).unwrap().is_empty());
            prop_assert_eq!(fake.switch().objects(), desired.clone());
            let changed = ids.iter().filter(|id| before.get(id) != desired.get(id)).count() as u64;
            prop_assert_eq!(fake.writes() - writes, changed);
        }
    }
}
