//! Policies of the node's groups.

use contiv_model::{group, policy::PolicyState};

use super::*;
use crate::plan::{self, Node, Unknown};

/// An endpoint of `group`, whose number is `number`; without the group's key if it is `None`.
fn member(name: &str, group: Option<&str>, number: i64, host: &str) -> (Key, Vec<u8>) {
    let endpoint = endpoint::State {
        id: format!("n0.t-{name}"),
        net_id: "n0.t".into(),
        endpoint_id: name.to_owned(),
        endpoint_group_id: number,
        endpoint_group_key: group.unwrap_or_default().to_owned(),
        ip_address: "10.1.0.6".into(),
        mac_address: "02:02:0a:01:00:06".into(),
        homing_host: host.to_owned(),
        ..endpoint::State::default()
    };
    (Key::Endpoint(endpoint.id.as_str().into()), serde_json::to_vec(&endpoint).unwrap())
}

/// A policy `p` of `t` on a group.
fn policy(group: &str, number: i64) -> (Key, Vec<u8>) {
    let id = format!("t:{group}:t:p");
    let policy = PolicyState { id: id.clone(), key: id.clone(), group: number, ..PolicyState::default() };
    (Key::Policy(id.as_str().into()), serde_json::to_vec(&policy).unwrap())
}

fn group_record(name: &str, number: i64) -> (Key, Vec<u8>) {
    let id = format!("{name}:t");
    let group = group::State {
        id: id.clone(),
        group_name: name.to_owned(),
        tenant_name: "t".into(),
        network_name: "n0".into(),
        endpoint_group_id: number,
        ..group::State::default()
    };
    (Key::Group(id.as_str().into()), serde_json::to_vec(&group).unwrap())
}

fn number(number: u32) -> group::GroupNumber {
    number.try_into().unwrap()
}

fn policies_on(scene: &Scene, of: u32) -> usize {
    scene.reader.with(|state| state.policies_on(number(of)).count())
}

fn policy_sources(scene: &Scene) -> Vec<String> {
    scene.reader.sources(POLICIES).iter().map(ToString::to_string).collect()
}

/// Returns the groups that wait for their policies on the node, according to the plan.
fn waiting(scene: &Scene) -> Vec<group::GroupNumber> {
    let node = Node { host: HOST.into(), vtep: std::net::Ipv4Addr::LOCALHOST.into() };
    let blocked = scene.reader.with(|state| plan::blocked_groups(state, &node));
    blocked.into_iter().filter(|(_, why)| *why == Unknown::Awaited).map(|(number, _)| number).collect()
}

impl Scene {
    /// Groups `g1` to `g3`, each with a policy, and endpoints of the first one on the node and of the second one elsewhere.
    async fn with_groups() -> Scene {
        let scene = Scene::new().await;
        for (name, number) in [("g1", 1), ("g2", 2), ("g3", 3)] {
            for (key, body) in [group_record(name, number), policy(name, number)] {
                scene.put(&key, body).await;
            }
        }
        for (key, body) in [member("m1", Some("g1:t"), 1, HOST), member("m2", Some("g2:t"), 2, "other")] {
            scene.put(&key, body).await;
        }
        scene
    }

    async fn put_object(&self, (key, body): (Key, Vec<u8>)) {
        self.put(&key, body).await;
    }
}

#[tokio::test]
async fn a_node_has_the_policies_of_its_own_groups() {
    let mut scene = Scene::with_groups().await;
    scene.synced().await;
    assert_eq!(policy_sources(&scene), ["/contiv.io/state/policy/t:g1:"]);
    assert_eq!([1, 2, 3].map(|number| policies_on(&scene, number)), [1, 0, 0]);
    assert_eq!(waiting(&scene), []);
    // The policies are watched.
    scene.delete(&policy("g1", 1).0).await;
    scene.until(|state| state.policies_on(number(1)).next().is_none()).await;
    scene.put_object(policy("g1", 1)).await;
    scene.until(|state| state.policies_on(number(1)).next().is_some()).await;
}

/// An endpoint is never planned without the policies of its group, however late they arrive.
#[tokio::test]
async fn a_group_is_closed_until_its_policies_arrive() {
    let mut scene = Scene::with_groups().await;
    scene.synced().await;
    let node = Node { host: HOST.into(), vtep: std::net::Ipv4Addr::LOCALHOST.into() };
    let planned = |scene: &Scene| {
        let id = crate::datapath::ObjectId::Group(number(3).into());
        scene.reader.with(|state| plan::object(state, &node, &id))
    };
    assert_eq!(planned(&scene), None);
    scene.put_object(member("m3", Some("g3:t"), 3, HOST)).await;
    let mut closed = 0;
    while policies_on(&scene, 3) == 0 {
        let batch = timeout(TIMEOUT, scene.sources.next()).await.unwrap();
        batch.unwrap().apply(&mut scene.writer);
        let (is_here, is_known) = scene.reader.with(|state| {
            let is_here = state.is_group_on(number(3), &HOST.into());
            (is_here, !state.lacks_policies(number(3), Some(&"g3:t".into())))
        });
        if is_here && !is_known {
            closed += 1;
            assert_eq!(waiting(&scene), [number(3)]);
            let Some(crate::datapath::Object::Group(group)) = planned(&scene) else {
                panic!("the group is not planned")
            };
            assert_eq!(group, group.closed());
        }
    }
    assert!(closed > 0);
    assert_eq!(waiting(&scene), []);
}

/// This includes a group that has no policies.
#[tokio::test]
async fn a_group_without_policies_is_known_when_they_are_listed() {
    let mut scene = Scene::with_groups().await;
    scene.synced().await;
    scene.delete(&policy("g3", 3).0).await;
    let request = scene.attacher.request(&"n0.t".into(), Some(&"g3:t".into()));
    let lacks = |state: &State| state.lacks_policies(number(3), Some(&"g3:t".into()));
    assert!(scene.reader.with(lacks));
    scene.until(|state| !lacks(state)).await;
    drop(request);
    // This happens before the time limit for unneeded parts.
    scene.watch_again();
    let since = Instant::now();
    scene.until(lacks).await;
    assert!(since.elapsed() < UNNEEDED_TIMEOUT, "{:?}", since.elapsed());
    assert_eq!(policy_sources(&scene), ["/contiv.io/state/policy/t:g1:"]);
    assert_eq!((policies_on(&scene, 1), waiting(&scene)), (1, vec![]));
}

/// The rules of both apply to the endpoints of each.
#[tokio::test]
async fn groups_with_one_number_are_needed_together() {
    let mut scene = Scene::with_groups().await;
    scene.put_object(group_record("g3", 1)).await;
    scene.put_object(policy("g3", 1)).await;
    scene.synced().await;
    assert_eq!((policies_on(&scene, 1), waiting(&scene)), (2, vec![]));
}

#[tokio::test]
async fn a_group_that_no_key_names_makes_the_node_watch_all_policies() {
    let mut scene = Scene::with_groups().await;
    scene.put_object(member("m4", None, 9, HOST)).await;
    scene.put_object(policy("unknown", 9)).await;
    scene.synced().await;
    assert_eq!(policy_sources(&scene), [POLICIES]);
    assert_eq!([1, 2, 3, 9].map(|number| policies_on(&scene, number)), [1; 4]);
    assert_eq!(waiting(&scene), []);
}

#[tokio::test]
async fn a_node_with_many_groups_watches_all_policies() {
    let mut scene = Scene::with_groups().await;
    scene.synced().await;
    let request = |number| {
        let group = format!("more{number}:t");
        scene.attacher.request(&"n0.t".into(), Some(&group.as_str().into()))
    };
    let requests: Vec<_> = (0..MAX_GROUPS).map(request).collect();
    // The group's watch ends when the watch of all policies replaces it.
    while policy_sources(&scene) != [POLICIES] {
        assert_eq!((policies_on(&scene, 1), waiting(&scene)), (1, vec![]));
        let batch = timeout(TIMEOUT, scene.sources.next()).await.unwrap();
        batch.unwrap().apply(&mut scene.writer);
    }
    assert_eq!([1, 2, 3].map(|number| policies_on(&scene, number)), [1; 3]);
    // The same with new watches, although the node needs only one group.
    drop(requests);
    for round in 0..2 {
        let name = format!("late{round}");
        scene.put_object(policy(&name, 7)).await;
        scene.until(|state| state.policies_on(number(7)).next().is_some()).await;
        scene.delete(&policy(&name, 7).0).await;
        scene.until(|state| state.policies_on(number(7)).next().is_none()).await;
        assert_eq!((policies_on(&scene, 1), waiting(&scene)), (1, vec![]));
        scene.watch_again();
    }
}

/// A regressed store may have other rules, and the pods run.
#[tokio::test]
async fn policies_of_a_known_state_are_followed_at_once() {
    let mut scene = Scene::with_groups().await;
    scene.synced().await;
    let opened = |scene: &Scene| {
        // The policies are watched before all endpoints are read.
        let mut watches = NeededWatches::new(scene.store.clone(), HOST.into(), scene.reader.clone());
        let mut opened = vec![];
        while let Some(Event::Opened(source, _)) = watches.update() {
            opened.push(source);
        }
        opened
    };
    assert_eq!(opened(&scene), [Source::Policies("g1:t".into())]);
    scene.put_object(member("m4", None, 9, HOST)).await;
    scene.until(|state| state.groups_on(&HOST.into()).len() == 2).await;
    let has_all = |scene: &Scene| policy_sources(scene) == [POLICIES];
    while !has_all(&scene) {
        scene.sources.next().await.unwrap().apply(&mut scene.writer);
    }
    assert_eq!(opened(&scene), [Source::Prefix(POLICIES)]);
}
