//! Groups that endpoints leave.

use super::*;
use crate::datapath::Op;

fn group(number: u32) -> ObjectId {
    ObjectId::Group(GroupNumber::try_from(number).unwrap().into())
}

/// A world with one endpoint, the only one in group 5.
async fn world() -> World {
    let mut world = World::start(Fake::new());
    world.populate();
    for object in [group_with_dscp(5, 46), group_of(endpoint("e1", "h0", 1), 5)] {
        world.put(object);
    }
    world.until(|status| status.in_sync && status.objects == 4 && status.failures.count() == 0).await;
    world
}

/// Moves the endpoint to group 6, which is new on the node.
fn regroup(world: &mut World) {
    for object in [group_with_dscp(6, 10), group_of(endpoint("e1", "h0", 1), 6)] {
        world.put(object);
    }
}

/// The endpoint has all rules of one of the two groups at any time.
#[tokio::test]
async fn a_group_stays_while_its_endpoint_cannot_leave_it() {
    for (faulty, failures) in [(group(6), 3), (ObjectId::Local("e1".into()), 2)] {
        let mut world = world().await;
        let before = world.switch.objects();
        world.switch.fail_object(faulty.clone());
        regroup(&mut world);
        let status = world.until(|status| status.failures.count() == failures).await;
        let lines = status.failures.lines().concat();
        assert!(lines.contains("local endpoints: 1 failed, retrying"), "{lines}");
        let e1 = ObjectId::Local("e1".into());
        let is_unchanged = |objects: &Desired| {
            [group(5), e1.clone()]
                .iter()
                .all(|id| objects.get(id) == before.get(id) && before.get(id).is_some())
        };
        assert!(is_unchanged(&world.switch.objects()), "{faulty}");
        // The removal of orphans does not remove anything from the endpoint either.
        world.switch.request_resync();
        world.until(|status| status.resyncs == 2).await;
        assert!(is_unchanged(&world.switch.objects()), "{faulty}");

        world.switch.clear_faults();
        world.until(|status| status.in_sync && status.failures.count() == 0).await;
        assert_eq!(
            installed(&world.switch),
            ["network n.t", "subnet n.t ipv4", "group 6", "local endpoint e1"]
        );
        world.stop().await;
    }
}

#[tokio::test]
async fn a_group_is_deleted_after_its_endpoint_has_left_it() {
    let mut world = world().await;
    let before = world.switch.changes().len();
    regroup(&mut world);
    let has_left = |switch: &Switch| {
        !switch.objects().iter().any(|(id, _)| *id == group(5)) && installed(switch).len() == 4
    };
    let switch = world.switch.clone();
    world.until(|_| has_left(&switch)).await;
    let changes = world.switch.changes()[before..].to_vec();
    let ids: Vec<_> = changes.iter().filter_map(Op::target).collect();
    assert_eq!(ids, [group(6), ObjectId::Local("e1".into()), group(5)]);
    world.stop().await;
}
