//! An agent that starts while the record of a pod or of its network is invalid leaves the pod as it is.

use std::fs;

use contiv_model::key::Key;
use contiv_store::{Outcome, Txn};
use serde_json::{Value, json};
use testkit::{Netns, needs};

use crate::world::{Call, HOST, VTEP, World, put};

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

/// Writes the record of an endpoint.
async fn put_text(world: &World, endpoint: &str, text: &str) {
    let txn = Txn::new().put(Key::Endpoint(endpoint.into()).to_string(), text.to_owned());
    assert!(matches!(world.store().commit(txn).await.unwrap(), Outcome::Committed { .. }));
}

#[test]
fn a_pod_is_deleted_whatever_its_record_is() {
    needs!(root());
    let own = format!(r#"{{"netID":"n.t","homingHost":"{HOST}","ipAddress":5}}"#);
    for text in ["{", r#"{"ipAddress":5}"#, own.as_str()] {
        let pod = Netns::new("pod").unwrap();
        World::run(async |mut world| {
            // By the agent that has added it, and by one that knows the record only.
            for (container, is_forgotten) in [("c1", false), ("c2", true)] {
                world.add(container, pod.path()).await.unwrap();
                put_text(&world, &format!("n.t-{container}"), text).await;
                if is_forgotten {
                    world.stop_agent().await;
                    fs::remove_dir_all(world.socket().with_extension("attachments")).unwrap();
                    world = world.restart().await;
                    world.reader().synced().await;
                }
                world.del(container, Some(pod.path())).await.unwrap();
                world.assert_nothing_left().await;
                assert!(world.entries().is_empty() && pod.links().unwrap().is_empty(), "{text}");
            }
        });
    }
}

#[test]
fn an_endpoint_of_an_unknown_node_is_not_deleted() {
    needs!(root());
    World::run(async |world| {
        let other = r#"{"homingHost":"other","ipAddress":5}"#;
        for (endpoint, text) in [("n.t-c1", "{"), ("n.t-c2", other), ("n.t-c3", "{")] {
            put_text(&world, endpoint, text).await;
        }
        // Its node is this one.
        world.put_record("c3", "", VTEP, Some("test")).await;
        for container in ["c1", "c2", "c3"] {
            world.del(container, None).await.unwrap();
        }
        assert_eq!((world.endpoints().await.len(), world.entries()), (2, vec![]));
        assert_eq!(world.record("n.t-c3").await, None);
    });
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

/// The datapath is that of another version, of which an agent of this one can change nothing.
#[test]
fn pods_are_refused_while_the_upgrade_of_the_datapath_is_postponed() {
    needs!(root());
    let pods = [(); 3].map(|()| Netns::new("pod").unwrap());
    World::run(async |mut world| {
        for (container, pod) in ["c1", "c2"].into_iter().zip(&pods) {
            world.add(container, pod.path()).await.unwrap();
        }
        let objects = world.switch.objects();
        let key = Key::Endpoint("n.t-c1".into());
        let record = world.store().get(&key.to_string()).await.unwrap().unwrap();
        let record: Value = serde_json::from_slice(&record.value).unwrap();
        put(world.store(), &key, &invalid(record.clone())).await;
        world.stop_agent().await;
        world.switch.set_other_version();

        let world = world.restart().await;
        world.until("the upgrade is postponed", || world.postponed().is_some()).await;
        let refused = world.invoke(&Call::new("STATUS")).await.unwrap_err();
        assert_eq!(refused.code, 50, "{refused:?}");
        assert!(refused.details.contains(&key.to_string()), "{refused:?}");
        let refused = world.add("c3", pods[2].path()).await.unwrap_err();
        assert_eq!(refused.code, 11, "{refused:?}");
        assert!(refused.details.contains("postponed"), "{refused:?}");
        assert!(refused.details.contains(&key.to_string()), "{refused:?}");
        assert!(pods[2].links().unwrap().is_empty());
        assert_eq!((world.master.created(), world.entries().len()), (2, 2));
        // A pod can leave.
        world.del("c2", Some(pods[1].path())).await.unwrap();
        assert!(pods[1].links().unwrap().is_empty());
        assert_eq!((world.switch.objects(), world.writes()), (objects, 0));

        put(world.store(), &key, &record).await;
        world.until("the datapath is in sync", || world.in_sync()).await;
        assert_eq!((world.postponed(), world.local_endpoints()), (None, vec!["n.t-c1".to_owned()]));
        world.add("c3", pods[2].path()).await.unwrap();
    });
}
