//! The loop over the fake datapath.

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

use super::*;
use crate::{
    datapath::fake::{Fake, Switch},
    plan::tests::{event, happen, node},
    state::{self, Attacher, Attachment, State, Touched, Update, Writer},
};

const SOURCE: &str = "test";
const PATIENCE: Duration = Duration::from_secs(10);

/// A node whose state the test tells.
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
        let (writer, attacher, reader, changes) = state::new([SOURCE]);
        let switch = fake.switch().clone();
        let node = Node { host: "h0".into(), vtep: [192, 168, 0, 10].into() };
        let (reconciler, handle) = Reconciler::new(fake, node, reader, changes, Duration::from_secs(3600));
        let stop = CancellationToken::new();
        let task = tokio::spawn(reconciler.run(stop.clone()));
        World { writer, attacher, handle, switch, stop, task }
    }

    /// With what [`settle`](Self::settle) tells, in force.
    async fn settled(fake: Fake) -> World {
        let mut world = World::start(fake);
        world.settle();
        world.until(|status| status.known).await;
        world
    }

    fn tell(&mut self, event: Event<Key, state::Object>) {
        let event = event.map(|key| key, Ok);
        self.writer.apply(Update { source: SOURCE, revision: 1, event });
    }

    fn put(&mut self, (key, object): (Key, state::Object)) {
        self.tell(Event::Apply(key, object));
    }

    /// One network and one endpoint with its interface, and the word that this is all.
    fn settle(&mut self) {
        for object in [network(), endpoint("e1", "h0", 1)] {
            self.put(object);
        }
        self.attacher.attach(&"e1".into(), Attachment::of_pod("vvport1"));
        self.tell(Event::Init);
        for (key, object) in [network(), endpoint("e1", "h0", 1)] {
            self.tell(Event::InitApply(key, object));
        }
        self.tell(Event::InitDone);
    }

    async fn until(&mut self, what: impl FnMut(&Status) -> bool) -> Status {
        let seen = tokio::time::timeout(PATIENCE, self.handle.status.wait_for(what)).await;
        seen.unwrap().unwrap().clone()
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn network() -> (Key, state::Object) {
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
    (Key::Network(id), state::Object::Network(network))
}

fn endpoint(name: &str, host: &str, ip: u8) -> (Key, state::Object) {
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
    (Key::Endpoint(name.into()), state::Object::Endpoint(endpoint))
}

fn held(switch: &Switch) -> Vec<String> {
    switch.objects().iter().map(|(id, _)| id.to_string()).collect()
}

#[tokio::test]
async fn nothing_is_removed_before_everything_is_told() {
    let world = World::settled(Fake::new()).await;
    let switch = world.switch.clone();
    world.stop().await;

    let mut world = World::start(Fake::reopen(&switch));
    world.put(network());
    tokio::task::yield_now().await;
    assert_eq!(held(&switch), ["network n.t", "local endpoint e1"]);
    world.settle();
    let status = world.until(|status| status.known).await;
    assert_eq!((status.writes, status.objects, status.failures.count()), (0, 2, 0));
    world.stop().await;
    assert_eq!(held(&switch).len(), 2);
}

#[tokio::test]
async fn a_change_costs_its_own_ops() {
    let mut world = World::start(Fake::new());
    world.settle();
    let before = world.until(|status| status.known).await;
    world.put(endpoint("e2", "h1", 2));
    let status = world.until(|status| status.objects == 3).await;
    // The endpoint might have been here before as well.
    assert_eq!((status.writes - before.writes, status.ops - before.ops, status.observed), (1, 2, 1));
    world.tell(Event::Delete(Key::Endpoint("e2".into())));
    world.until(|status| status.objects == 2).await;
    assert_eq!(held(&world.switch), ["network n.t", "local endpoint e1"]);
    world.stop().await;
}

#[tokio::test]
async fn what_fails_is_tried_again_alone() {
    let fake = Fake::new();
    fake.switch().fail_object(ObjectId::Remote("e2".into()));
    let mut world = World::settled(fake).await;
    world.put(endpoint("e2", "h1", 2));
    world.put(endpoint("e3", "h1", 3));
    let status = world.until(|status| status.objects == 4 && status.ops_failed > 1).await;
    assert_eq!(
        status.degraded(),
        [
            "remote endpoints: 1 failed and will be tried again, such as remote endpoint e2: fake datapath: set remote endpoint \
          e2: it was told to fail"
        ]
    );
    assert!(held(&world.switch).contains(&"remote endpoint e3".to_owned()));
    world.switch.heal();
    let status = world.until(|status| status.failures.count() == 0).await;
    assert_eq!((held(&world.switch).len(), status.observed), (4, 1));
    world.stop().await;
}

#[tokio::test]
async fn after_an_error_everything_is_measured() {
    let mut world = World::settled(Fake::new()).await;
    world.switch.fail_apply(1);
    world.put(endpoint("e2", "h1", 2));
    let status = world.until(|status| status.observed == 2).await;
    assert_eq!(held(&world.switch).len(), 3);
    assert!(status.ops_failed == 0);
    world.until(|status| status.known && status.error.is_none()).await;
    world.stop().await;
}

#[tokio::test]
async fn a_disturbance_is_repaired() {
    let mut world = World::settled(Fake::new()).await;
    world.switch.lose(&ObjectId::Network("n.t".into()));
    world.switch.litter(2);
    world.switch.disturb();
    world.until(|status| status.known && status.observed == 2).await;
    assert_eq!((held(&world.switch).len(), world.switch.debris()), (2, 0));
    world.stop().await;
}

#[tokio::test]
async fn one_hears_when_an_endpoint_is_in_force() {
    let mut world = World::settled(Fake::new()).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let here = || Attachment::of_pod("vvport4");

    // Told first of the interface, then of the endpoint, as it may happen.
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    world.put(endpoint("e4", "h0", 4));
    tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap();
    assert!(held(&world.switch).contains(&"local endpoint e4".to_owned()));

    // Again, though nothing changes.
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap();

    let told = world.handle.settled.wait(&id, Presence::Absent);
    world.attacher.detach(&id);
    tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap();
    assert!(!held(&world.switch).contains(&"local endpoint e4".to_owned()));

    world.switch.lose_interface("vvport4");
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.attacher.attach(&id, here());
    let error = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("there is no interface vvport4"), "{error}");
    world.stop().await;
}

fn group_of(endpoint: (Key, state::Object), number: u32) -> (Key, state::Object) {
    let (key, object) = endpoint;
    let state::Object::Endpoint(endpoint) = object else { unreachable!() };
    let group_number = Some(GroupNumber::try_from(number).unwrap());
    (key, state::Object::Endpoint(Endpoint { group_number, ..endpoint }))
}

fn marked(number: u32, dscp: u8) -> (Key, state::Object) {
    let number = GroupNumber::try_from(number).unwrap();
    let key: contiv_model::name::GroupKey = format!("g{number}:t").into();
    let group = Group { key: key.clone(), number, dscp: dscp.try_into().ok(), rate: None };
    (Key::Group(key), state::Object::Group(group))
}

#[tokio::test]
async fn an_endpoint_waits_for_what_holds_for_its_group() {
    let fake = Fake::new();
    let five = ObjectId::Group(GroupNumber::try_from(5).unwrap());
    fake.switch().fail_object(five.clone());
    let mut world = World::settled(fake).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.put(marked(5, 46));
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let error = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("group 5 is not in force"), "{error}");
    assert_eq!(held(&world.switch), ["network n.t", "local endpoint e1"]);
    world.switch.heal();
    world.until(|status| status.failures.count() == 0 && status.objects == 4).await;
    assert_eq!(held(&world.switch), ["network n.t", "group 5", "local endpoint e1", "local endpoint e4"]);
    world.stop().await;
}

/// The one who is there goes on as before, and the one who comes waits, also after everything was measured.
#[tokio::test]
async fn a_policy_that_is_not_understood_lets_nobody_in() {
    let mut world = World::start(Fake::new());
    world.put(marked(5, 46));
    world.settle();
    for object in [marked(5, 46), group_of(endpoint("e1", "h0", 1), 5)] {
        world.put(object);
    }
    world.until(|status| status.known && status.objects == 3).await;
    let before = world.switch.objects();
    let key = Key::Policy("t:g5:t:p".into());
    let rejected = state::Rejected { key: key.to_string(), why: "no JSON".into() };
    let event = Event::Apply(key.clone(), Err(rejected));
    world.writer.apply(Update { source: SOURCE, revision: 2, event });
    world.put(marked(5, 10));
    let status = world.until(|status| status.failures.count() == 1).await;
    assert_eq!(
        status.failures.lines(),
        ["groups with policies, DSCP or bandwidth: 1 failed and will be tried again, such as group 5: \
          /contiv.io/state/policy/t:g5:t:p is not understood: see /inspect/driver"]
    );
    let id: contiv_model::name::EndpointId = "e4".into();
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let error = tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("/contiv.io/state/policy/t:g5:t:p is not understood"), "{error}");
    world.switch.disturb();
    world.until(|status| status.known && status.observed == 2).await;
    assert_eq!(world.switch.objects(), before);

    world.tell(Event::Delete(key));
    world.until(|status| status.failures.count() == 0).await;
    assert_eq!(held(&world.switch), ["network n.t", "group 5", "local endpoint e1", "local endpoint e4"]);
    let five = ObjectId::Group(GroupNumber::try_from(5).unwrap());
    assert_ne!(world.switch.objects().get(&five), before.get(&five));
    world.stop().await;
}

#[tokio::test]
async fn where_policies_are_not_supported_pods_go_on_and_it_is_said() {
    let fake = Fake::new();
    fake.switch().support_only_forwarding();
    let mut world = World::settled(fake).await;
    let id: contiv_model::name::EndpointId = "e4".into();
    let told = world.handle.settled.wait(&id, Presence::Present);
    world.put(marked(5, 46));
    world.put(group_of(endpoint("e4", "h0", 4), 5));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    tokio::time::timeout(PATIENCE, told).await.unwrap().unwrap().unwrap();
    let status = world.until(|status| status.failures.count() > 0).await;
    assert_eq!(
        status.failures.lines(),
        ["groups with policies, DSCP or bandwidth: 1 not supported by this datapath yet"]
    );
    // Measuring everything is no reason to try again; a change is.
    let failed = status.ops_failed;
    world.switch.disturb();
    let status = world.until(|status| status.known && status.observed == 2).await;
    assert_eq!((status.ops_failed, status.failures.count()), (failed, 1));
    world.put(marked(5, 0));
    world.until(|status| status.failures.count() == 0).await;
    world.stop().await;
}

#[tokio::test]
async fn the_inside_can_be_asked_for() {
    let world = World::settled(Fake::new()).await;
    let (ask, answer) = oneshot::channel();
    world.handle.inspect.send(Inspection::Inside(ask)).await.unwrap();
    assert_eq!(answer.await.unwrap()["objects"].as_array().unwrap().len(), 2);
    world.stop().await;
}

proptest! {
    /// The ops of a change bring a datapath that holds the plan of before to that of after, and no object that is
    /// right is touched.
    #[test]
    fn ops_lead_from_plan_to_plan(batches in prop::collection::vec(prop::collection::vec(event(), 1..8), 1..12)) {
        let (mut state, mut desired, mut fake) = (State::default(), Desired::default(), Fake::new());
        block_on(fake.observe(&desired)).unwrap();
        for batch in batches {
            let (before, mut touched) = (desired.clone(), Touched::default());
            for event in batch {
                touched.merge(happen(&mut state, event, 0));
            }
            let ids = plan::update(&mut desired, &state, &node(), &touched);
            let writes = fake.writes();
            prop_assert!(block_on(fake.apply(&ordered(&ids, &desired))).unwrap().is_empty());
            prop_assert_eq!(fake.switch().objects(), desired.clone());
            let changed = ids.iter().filter(|id| before.get(id) != desired.get(id)).count() as u64;
            prop_assert_eq!(fake.writes() - writes, changed);
        }
    }
}
