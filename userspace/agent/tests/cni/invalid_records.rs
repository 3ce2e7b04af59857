//! An agent that starts while the record of a pod or of its network is invalid leaves the pod as it is.

use contiv_model::key::Key;
use serde_json::{Value, json};
use testkit::{Netns, needs};

use crate::world::{Call, World, put};

/// What makes a record invalid; the agent can tell whose it is from the key only.
fn invalid(mut record: Value) -> Value {
    for field in ["ipAddress", "pktTagType"] {
        if let Some(value) = record.get_mut(field) {
            *value = json!("of a future version");
        }
    }
    record
}

#[test]
fn a_pod_stays_until_it_is_deleted() {
    needs!(root());
    for key in [Key::Endpoint("n.t-c1".into()), Key::Network("n.t".into())] {
        let pod = Netns::new("pod").unwrap();
        let netns = pod.path().display().to_string();
        World::run(async |world| {
            let result = world.add("c1", pod.path()).await.unwrap();
            let objects = world.switch.objects();
            let record = world.store().get(&key.to_string()).await.unwrap().unwrap();
            let record: Value = serde_json::from_slice(&record.value).unwrap();
            put(world.store(), &key, &invalid(record)).await;
            world.until("the record has arrived", || world.reader().rejected_count() == 1).await;

            let world = world.restart().await;
            world.until("the datapath is in sync", || world.in_sync()).await;
            assert_eq!((world.switch.objects(), world.writes()), (objects.clone(), 0), "{key}");
            let fields = format!(r#""prevResult":{result},"#);
            let check = Call { fields: &fields, container: "c1", netns: &netns, ..Call::new("CHECK") };
            let add = Call { command: "ADD", fields: "", ..check };
            for call in [&check, &add] {
                let refused = world.invoke(call).await.unwrap_err();
                assert_eq!(refused.code, 11, "{refused:?}");
                assert!(refused.details.contains(&key.to_string()), "{refused:?}");
            }
            assert_eq!(pod.links().unwrap(), ["eth0"]);
            assert_eq!((world.switch.objects(), world.master.created()), (objects, 1), "{key}");

            world.del("c1", Some(pod.path())).await.unwrap();
            world.assert_nothing_left().await;
            assert!(pod.links().unwrap().is_empty());
        });
    }
}

#[test]
fn a_pod_is_found_again_when_the_record_is_repaired() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let result = world.add("c1", pod.path()).await.unwrap();
        let objects = world.switch.objects();
        let key = Key::Endpoint("n.t-c1".into());
        let record = world.store().get(&key.to_string()).await.unwrap().unwrap();
        let record: Value = serde_json::from_slice(&record.value).unwrap();
        put(world.store(), &key, &invalid(record.clone())).await;
        let world = world.restart().await;
        world.until("the datapath is in sync", || world.in_sync()).await;
        put(world.store(), &key, &record).await;
        let is_known = || world.reader().with(|state| state.endpoint(&"n.t-c1".into()).is_some());
        world.until("the record has arrived", is_known).await;
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), result);
        assert_eq!((world.switch.objects(), world.writes()), (objects, 0));
        world.del("c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
    });
}
