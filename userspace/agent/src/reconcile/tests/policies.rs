//! Groups whose policies arrive after their endpoints.

use contiv_model::{key::POLICIES, policy::Policy};

use super::*;
use crate::state::Source;

const POD: &str = "n.t-e7";

fn of_group() -> Source {
    Source::Policies("g5:t".into())
}

/// A world without policies, to which the first endpoint of a group is added.
async fn joined() -> World {
    let mut world = World::following(Fake::new(), [SOURCE, POLICIES]);
    world.writer.complete(&POLICIES.into());
    world.populate();
    world.until(|status| status.in_sync).await;
    let (key, object) = endpoint(POD, "h0", 7);
    let ClusterObject::Endpoint(endpoint) = object else { unreachable!() };
    let group = (Some("g5:t".into()), Some(5.try_into().unwrap()));
    world.put((key, ClusterObject::Endpoint(Endpoint { group: group.0, group_number: group.1, ..endpoint })));
    world
}

/// Lists the policies of the group.
fn list(world: &mut World, policies: Vec<Policy>) {
    let put =
        |policy: Policy| Event::InitApply(Key::Policy(policy.id.clone()), Ok(ClusterObject::Policy(policy)));
    let events = [Event::Init].into_iter().chain(policies.into_iter().map(put)).chain([Event::InitDone]);
    world.writer.apply_all(events.map(|event| Update { source: of_group(), revision: 2, event }));
}

/// As in an ADD, whose interface appears as soon as the policies have arrived: the reconciler receives both at once.
#[tokio::test]
async fn a_group_without_policies_does_not_delay_its_first_endpoint() {
    let mut world = joined().await;
    world.until(|status| status.failures.count() == 1).await;
    let reply = world.handle.waiters.wait(&POD.into(), Presence::Present);
    list(&mut world, vec![]);
    world.attacher.attach(&POD.into(), Attachment::of_pod("vvport7"));
    let result = tokio::time::timeout(TIMEOUT, reply).await.unwrap().unwrap();
    assert_eq!(result, Ok(()));
    world.until(|status| status.degraded().is_empty()).await;
    assert!(installed(&world.switch).contains(&format!("local endpoint {POD}")));
    world.stop().await;
}

#[tokio::test]
async fn an_endpoint_waits_for_the_policies_of_its_group() {
    let mut world = joined().await;
    world.attacher.attach(&POD.into(), Attachment::of_pod("vvport7"));
    world.until(|status| status.failures.count() == 2).await;
    assert!(!installed(&world.switch).iter().any(|object| object.contains(POD)));
    let rules = vec![contiv_model::policy::Rule::isolation("r", contiv_model::policy::Direction::In)];
    let policy = Policy { id: "t:g5:t:p".into(), group: 5.try_into().unwrap(), rules };
    list(&mut world, vec![policy]);
    world.until(|status| status.degraded().is_empty()).await;
    let objects = installed(&world.switch);
    assert!(objects.contains(&"group 5".to_owned()), "{objects:?}");
    assert!(objects.contains(&format!("local endpoint {POD}")), "{objects:?}");
    world.stop().await;
}
