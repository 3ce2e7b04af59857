//! An agent that starts while records are unreadable keeps the datapath entries of an earlier agent.

use contiv_model::service;

use super::*;
use crate::datapath::Object;

const POD: &str = "n.t-e1";
const REMOTE: &str = "n.t-e2";

impl World {
    /// An agent with the interface of a pod, and these records as a complete snapshot.
    fn begin(
        fake: Fake,
        records: impl IntoIterator<Item = (Key, ClusterObject)>,
        unreadable: &[Key],
    ) -> World {
        let mut world = World::start(fake);
        world.attacher.attach(&POD.into(), Attachment::of_pod("vvport1"));
        let records = records.into_iter().map(|(key, object)| Event::InitApply(key, Ok(object)));
        let unreadable = unreadable.iter().map(|key| Event::InitApply(key.clone(), Err(rejected(key))));
        let events = std::iter::once(Event::Init).chain(records).chain(unreadable).chain([Event::InitDone]);
        let update = |event| Update { source: SOURCE.into(), revision: 1, event };
        world.writer.apply_all(events.map(update));
        world
    }

    /// Returns the datapath as an agent with these records leaves it.
    async fn left_by(records: impl IntoIterator<Item = (Key, ClusterObject)>) -> Switch {
        let mut world = World::begin(Fake::new(), records, &[]);
        world.until(|status| status.in_sync).await;
        let switch = world.switch.clone();
        world.stop().await;
        switch
    }

    /// Waits until all orphans are removed.
    async fn until_complete(&mut self) -> Status {
        self.until(|status| status.in_sync && status.retained.is_none()).await
    }
}

fn rejected(key: &Key) -> state::Rejected {
    state::Rejected { key: key.to_string(), why: "no JSON".into() }
}

/// A network, a pod, and an endpoint on another node.
fn records() -> Vec<(Key, ClusterObject)> {
    vec![network(), endpoint(POD, "h0", 1), endpoint(REMOTE, "h1", 2)]
}

fn without(records: Vec<(Key, ClusterObject)>, key: &Key) -> Vec<(Key, ClusterObject)> {
    records.into_iter().filter(|(other, _)| other != key).collect()
}

fn condition(key: &Key) -> String {
    let why = "orphans: kept, because they may be those of invalid objects";
    format!("{why}: {key}; repair or delete these records")
}

#[tokio::test]
async fn an_unreadable_record_changes_nothing() {
    let switch = World::left_by(records()).await;
    let before = switch.objects();
    assert_eq!(before.len(), 4);
    for (key, object) in records() {
        let mut world =
            World::begin(Fake::reopen(&switch), without(records(), &key), std::slice::from_ref(&key));
        let status = world.until(|status| status.in_sync).await;
        assert_eq!(status.degraded(), [condition(&key)]);
        assert_eq!((switch.objects(), status.writes), (before.clone(), 0), "{key}");
        world.switch.request_resync();
        world.until(|status| status.in_sync && status.resyncs == 2).await;
        assert_eq!(switch.objects(), before, "{key}");
        world.put((key.clone(), object));
        let status = world.until_complete().await;
        assert_eq!((switch.objects(), status.writes, status.objects), (before.clone(), 0, 4), "{key}");
        assert!(status.degraded().is_empty());
        world.stop().await;
    }
}

#[tokio::test]
async fn all_records_may_be_unreadable() {
    let switch = World::left_by(records()).await;
    let before = switch.objects();
    let keys: Vec<Key> = records().into_iter().map(|(key, _)| key).collect();
    let mut world = World::begin(Fake::reopen(&switch), [], &keys);
    world.until(|status| status.in_sync).await;
    assert_eq!(switch.objects(), before);
    for record in records() {
        world.put(record);
    }
    let status = world.until_complete().await;
    assert_eq!((switch.objects(), status.writes), (before, 0));
    world.stop().await;
}

#[tokio::test]
async fn orphans_are_removed_when_the_unreadable_record_is_deleted() {
    let gone = endpoint("n.t-e3", "h1", 3);
    let switch = World::left_by(records().into_iter().chain([gone])).await;
    let key = Key::Endpoint(REMOTE.into());
    let mut world = World::begin(Fake::reopen(&switch), without(records(), &key), std::slice::from_ref(&key));
    world.until(|status| status.in_sync).await;
    assert_eq!(switch.objects().len(), 5);
    world.send(Event::Delete(key));
    world.until_complete().await;
    assert_eq!(installed(&switch), ["network n.t", "subnet n.t ipv4", "local endpoint n.t-e1"]);
    world.stop().await;
}

#[tokio::test]
async fn readable_records_are_followed_beside_an_unreadable_one() {
    let switch = World::left_by(records()).await;
    let key = Key::Endpoint(REMOTE.into());
    let mut world = World::begin(Fake::reopen(&switch), without(records(), &key), std::slice::from_ref(&key));
    world.until(|status| status.in_sync).await;
    world.put(endpoint("n.t-e3", "h1", 3));
    world.until(|status| status.objects == 4).await;
    assert_eq!(switch.objects().len(), 5);
    world.send(Event::Delete(Key::Endpoint("n.t-e3".into())));
    world.until(|status| status.objects == 3).await;
    let three = ["network n.t", "subnet n.t ipv4", "remote endpoint n.t-e2", "local endpoint n.t-e1"];
    assert_eq!(installed(&switch), three);
    // A deletion that was interrupted is repeated: a full resync does not find it among the orphans.
    world.put(endpoint("n.t-e3", "h1", 3));
    world.until(|status| status.objects == 4).await;
    world.switch.fail_apply(1);
    world.send(Event::Delete(Key::Endpoint("n.t-e3".into())));
    world.until(|status| status.in_sync && status.objects == 3).await;
    assert_eq!(installed(&switch), three);
    world.stop().await;
}

#[tokio::test]
async fn a_pod_whose_record_is_unreadable_is_deleted_with_its_interface() {
    for key in [Key::Endpoint(POD.into()), Key::Network("n.t".into())] {
        let switch = World::left_by(records()).await;
        let mut world =
            World::begin(Fake::reopen(&switch), without(records(), &key), std::slice::from_ref(&key));
        world.until(|status| status.in_sync).await;
        let reply = world.handle.waiters.wait(&POD.into(), Presence::Absent);
        world.attacher.detach(&POD.into());
        tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();
        assert!(switch.objects().get(&ObjectId::Local(POD.into())).is_none(), "{key}");
        assert!(world.handle.status.borrow().degraded().contains(&condition(&key)));
        world.stop().await;
    }
}

/// The network of a pod is kept when the last endpoint with a readable record is deleted.
#[tokio::test]
async fn a_pod_whose_record_is_unreadable_keeps_its_network() {
    let second = endpoint("n.t-e3", "h0", 3);
    let switch = World::left_by(records().into_iter().chain([second.clone()])).await;
    let key = Key::Endpoint(POD.into());
    let records = without(records(), &key).into_iter().chain([second.clone()]);
    let mut world = World::begin(Fake::reopen(&switch), records, std::slice::from_ref(&key));
    world.until(|status| status.in_sync).await;
    world.send(Event::Delete(second.0));
    // Changes on the network are applied.
    world.put(endpoint(REMOTE, "h1", 22));
    let is_new = |object: &Object| matches!(object, Object::Remote(remote) if remote.addresses.contains([10, 0, 0, 22].into()));
    let remote = ObjectId::Remote(REMOTE.into());
    world.until(|_| switch.objects().get(&remote).is_some_and(is_new)).await;
    assert_eq!(
        installed(&switch),
        ["network n.t", "subnet n.t ipv4", "remote endpoint n.t-e2", "local endpoint n.t-e1"]
    );
    world.stop().await;
}

fn web() -> (Key, ClusterObject) {
    let service = service::Service {
        id: "web:t".into(),
        tenant: "t".parse().unwrap(),
        network: Some("n.t".into()),
        vip: [10, 0, 0, 100].into(),
        ports: vec!["80:8080:TCP".parse().unwrap()],
        affinity: None,
    };
    (Key::ServiceLb("web:t".into()), ClusterObject::Service(service))
}

fn providers(slice: &str, last: u8) -> (Key, ClusterObject) {
    (Key::Providers(slice.into()), ClusterObject::Providers(vec![[10, 0, 0, last].into()]))
}

fn backends(switch: &Switch) -> Vec<u8> {
    let objects = switch.objects();
    let web = ObjectId::Service("web:t".into());
    let Some(Object::Service(service)) = objects.get(&web) else { return vec![] };
    let last = |ip| match ip {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    };
    service.backends.iter().map(|backend| last(backend.ip)).collect()
}

#[tokio::test]
async fn a_service_keeps_the_backends_of_an_unreadable_list() {
    let all = || records().into_iter().chain([web(), providers("web:t", 1), providers("web:t/1", 2)]);
    let switch = World::left_by(all()).await;
    let key = Key::Providers("web:t/1".into());
    let readable = || without(all().collect(), &key);
    let unreadable = std::slice::from_ref(&key);
    let mut world = World::begin(Fake::reopen(&switch), readable(), unreadable);
    let status = world.until(|status| status.in_sync).await;
    assert_eq!((backends(&switch), status.degraded()), (vec![1, 2], vec![condition(&key)]));
    // A new list would be incomplete without the other lists.
    world.put(providers("web:t", 3));
    world.put(endpoint("n.t-e3", "h1", 4));
    world.until(|now| now.objects > status.objects).await;
    assert_eq!(backends(&switch), [1, 2]);
    world.put(providers("web:t/1", 2));
    world.until_complete().await;
    assert_eq!(backends(&switch), [2, 3]);
    world.stop().await;

    // An unreadable network does not cause the removal of backends, either.
    let switch = World::left_by(all()).await;
    let key = Key::Network("n.t".into());
    let mut world =
        World::begin(Fake::reopen(&switch), without(all().collect(), &key), std::slice::from_ref(&key));
    world.until(|status| status.in_sync).await;
    assert_eq!(backends(&switch), [1, 2]);
    world.stop().await;

    // A new node gets the objects with readable records.
    let mut world = World::begin(Fake::new(), readable(), unreadable);
    world.until_complete().await;
    assert_eq!(backends(&world.switch), [1]);
    world.stop().await;
}

#[tokio::test]
async fn a_new_node_retains_nothing() {
    let keys = [Key::Endpoint(REMOTE.into()), Key::Network("m.t".into())];
    let mut world = World::begin(Fake::new(), without(records(), &keys[0]), &keys);
    let status = world.until(|status| status.in_sync).await;
    assert!(status.degraded().is_empty(), "{:?}", status.degraded());
    // From then on the datapath has only objects that this process has planned.
    world.switch.add_foreign_items(2);
    world.switch.request_resync();
    world.until(|status| status.in_sync && status.resyncs == 2).await;
    assert_eq!(world.switch.foreign_items(), 0);
    world.stop().await;
}

/// The tables of the other version have entries of the record; those of this version would not.
#[tokio::test]
async fn an_upgrade_waits_until_all_records_are_readable() {
    let second = endpoint("n.t-e3", "h0", 3);
    let switch = World::left_by(records().into_iter().chain([second.clone()])).await;
    switch.set_other_version();
    let before = switch.objects();
    let keys = [Key::Endpoint(REMOTE.into()), Key::Endpoint("n.t-e9".into())];
    let mut world = World::begin(Fake::reopen(&switch), without(records(), &keys[0]), &keys);
    let status = world.until(|status| status.postponed.is_some()).await;
    let why = |keys: &[Key]| {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        format!(
            "fake datapath: upgrade: postponed, and nothing is changed meanwhile, because it would end what the node forwards for \
             invalid objects: {}; repair or delete these records",
            keys.join(", ")
        )
    };
    assert_eq!(status.degraded(), [why(&keys)]);
    assert_eq!((status.in_sync, status.error, status.writes), (false, None, 0));
    // A new pod is refused, and an existing one can be deleted.
    let id: contiv_model::name::EndpointId = "n.t-e4".into();
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.put(endpoint("n.t-e4", "h0", 4));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let refused = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap();
    assert_eq!(refused, Err(why(&keys)));
    for id in [id, POD.into()] {
        let reply = world.handle.waiters.wait(&id, Presence::Absent);
        world.attacher.detach(&id);
        tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap();
    }
    // One of the records is deleted: the other one is still unreadable.
    world.send(Event::Delete(keys[1].clone()));
    let status = world.until(|status| status.degraded() == [why(&keys[..1])]).await;
    assert_eq!((switch.objects(), status.writes), (before, 0));
    // All records are readable.
    world.attacher.attach(&POD.into(), Attachment::of_pod("vvport1"));
    world.put(endpoint(REMOTE, "h1", 2));
    let status = world.until_complete().await;
    assert!(!switch.is_of_other_version() && status.postponed.is_none() && status.degraded().is_empty());
    assert_eq!(
        installed(&switch),
        ["network n.t", "subnet n.t ipv4", "remote endpoint n.t-e2", "local endpoint n.t-e1"]
    );
    world.stop().await;
}

/// Unreadable records of groups do not retain orphans.
#[tokio::test]
async fn an_upgrade_does_not_wait_for_an_unreadable_group() {
    let switch = World::left_by(records()).await;
    switch.set_other_version();
    let mut world = World::begin(Fake::reopen(&switch), records(), &[Key::Group("g6:t".into())]);
    world.until_complete().await;
    assert!(!switch.is_of_other_version());
    assert_eq!(installed(&switch).len(), 4);
    world.stop().await;
}

/// An endpoint of this node in group 5.
fn member(name: &str, ip: u8) -> (Key, ClusterObject) {
    let (key, object) = group_of(endpoint(name, "h0", ip), 5);
    let ClusterObject::Endpoint(endpoint) = object else { unreachable!() };
    (key, ClusterObject::Endpoint(Endpoint { group: Some("g5:t".into()), ..endpoint }))
}

/// The datapath's entries of the group belong to an object of the plan.
#[tokio::test]
async fn orphans_are_removed_beside_an_unreadable_group() {
    let all = || vec![network(), member(POD, 1), group_with_dscp(5, 46)];
    let (group, _) = group_with_dscp(5, 46);
    for key in [group, Key::Policy("t:g5:t:p".into())] {
        let switch = World::left_by(all().into_iter().chain([endpoint(REMOTE, "h1", 2)])).await;
        let before = switch.objects();
        assert_eq!(before.len(), 5);
        // A group without endpoints on this node has no entries here.
        let unreadable = [key.clone(), Key::Group("g6:t".into())];
        let mut world = World::begin(Fake::reopen(&switch), without(all(), &key), &unreadable);
        let status = world.until(|status| status.in_sync).await;
        assert!(status.retained.is_none(), "{key}");
        let after = ["network n.t", "subnet n.t ipv4", "group 5", "local endpoint n.t-e1"];
        assert_eq!(installed(&switch), after, "{key}");
        let five = ObjectId::Group(GroupNumber::try_from(5).unwrap().into());
        assert_eq!(switch.objects().get(&five), before.get(&five), "{key}");
        // Its deletion does not cause a full resync.
        world.send(Event::Delete(Key::Group("g6:t".into())));
        world.send(Event::Delete(key.clone()));
        world.until(|status| status.degraded().is_empty()).await;
        assert_eq!(world.handle.status.borrow().resyncs, 1, "{key}");
        world.stop().await;
    }
}

/// The settings of the group are not changed, and new endpoints remain pending.
#[tokio::test]
async fn an_unreadable_group_blocks_new_endpoints() {
    let all = || [network(), member(POD, 1), group_with_dscp(5, 46)];
    let switch = World::left_by(all()).await;
    let before = switch.objects();
    assert_eq!(before.len(), 4);
    let (key, group) = group_with_dscp(5, 46);
    let mut world =
        World::begin(Fake::reopen(&switch), without(all().into(), &key), std::slice::from_ref(&key));
    world.until(|status| status.in_sync).await;
    let id: contiv_model::name::EndpointId = "n.t-e4".into();
    let reply = world.handle.waiters.wait(&id, Presence::Present);
    world.put(member("n.t-e4", 4));
    world.attacher.attach(&id, Attachment::of_pod("vvport4"));
    let error = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap().unwrap_err();
    assert!(error.contains("/contiv.io/state/endpointGroups/g5:t is invalid"), "{error}");
    assert_eq!(switch.objects(), before);
    world.put((key, group));
    world.until(|status| status.in_sync && status.degraded().is_empty() && status.objects == 5).await;
    assert_eq!(switch.objects().len(), 5);
    world.stop().await;
}
