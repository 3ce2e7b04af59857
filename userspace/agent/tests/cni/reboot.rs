//! Pods whose interfaces and network namespaces are gone, for example because the node was booted again.

use std::fs;

use contiv_model::{endpoint::Oper, key::Key};
use contiv_store::Txn;
use serde_json::{Value, json};
use testkit::{Netns, needs};

use crate::world::{Call, HOST, VTEP, World, put};

/// Stops the agent, deletes the pods' namespaces as a reboot does, and starts an agent.
async fn reboot(mut world: World, pods: Vec<Netns>, meanwhile: impl FnOnce(&World)) -> World {
    world.stop_agent().await;
    drop(pods);
    world.until_no_port().await;
    meanwhile(&world);
    let world = world.restart().await;
    world.reader().synced().await;
    world
}

/// Removes what is on a file system that does not outlive a reboot.
fn forget(world: &World) {
    fs::remove_dir_all(world.socket().with_extension("attachments")).unwrap();
    for file in ["boot", "store.json"] {
        fs::remove_file(world.socket().with_extension(file)).unwrap();
    }
}

/// Adds `c1` and two interfaces of `c2`.
async fn add_pods(world: &World) -> Vec<Netns> {
    let pods: Vec<_> = (0..2).map(|_| Netns::new("pod").unwrap()).collect();
    for (container, ifname, pod) in [("c1", "eth0", 0), ("c2", "eth0", 1), ("c2", "net1", 1)] {
        let netns = pods[pod].path().display().to_string();
        world.invoke(&Call { container, ifname, netns: &netns, ..Call::new("ADD") }).await.unwrap();
    }
    // No attachment of an earlier boot exists.
    world.reader().synced().await;
    world.pods.release_lost().await.unwrap();
    assert_eq!(world.endpoints().await.len(), 3);
    pods
}

/// Only `c1` comes back, with the address that it had.
async fn c1_comes_back(world: &World, before: &str) {
    let back = Netns::new("pod").unwrap();
    let result = world.add("c1", back.path()).await.unwrap();
    assert_eq!(result["ips"][0]["address"], before);
    world.pods.release_lost().await.unwrap();
    assert_eq!((world.endpoints().await, world.entries().len()), (vec!["n.t-c1".to_owned()], 1));
    assert_eq!((world.record("n.t-c2").await, world.local_endpoints()), (None, vec!["n.t-c1".to_owned()]));
    world.pods.release_lost().await.unwrap();

    // The runtime's own deletions come later.
    for (container, ifname) in [("c2", "eth0"), ("c2", "net1"), ("c1", "eth0")] {
        world.invoke(&Call { container, ifname, ..Call::new("DEL") }).await.unwrap();
    }
    world.assert_nothing_left().await;
    assert!(world.entries().is_empty());
}

#[test]
fn addresses_of_pods_that_did_not_come_back_are_released() {
    needs!(root());
    World::run(async |world| {
        let pods = add_pods(&world).await;
        let world = reboot(world, pods, |_| {}).await;
        c1_comes_back(&world, "10.9.0.1/24").await;
    });
}

#[test]
fn addresses_are_released_if_the_journal_does_not_outlive_the_reboot() {
    needs!(root());
    World::run(async |world| {
        let pods = add_pods(&world).await;
        let world = reboot(world, pods, forget).await;
        c1_comes_back(&world, "10.9.0.1/24").await;
    });
}

#[test]
fn endpoint_whose_add_was_interrupted_by_a_power_failure_is_released() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.reader().synced().await;
        world.pods.release_lost().await.unwrap();
        // netmaster has created the endpoint, and the agent does not know it.
        world.master.garble();
        world.add("c1", pod.path()).await.unwrap_err();
        assert_eq!(world.endpoints().await, ["n.t-c1"]);
        let world = reboot(world, vec![pod], forget).await;
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

#[test]
fn record_of_an_endpoint_that_was_not_created_is_deleted_after_a_reboot() {
    needs!(root());
    World::run(async |world| {
        world.reader().synced().await;
        world.pods.release_lost().await.unwrap();
        world.put_record("c1", "", VTEP, Some("test")).await;
        world.put_record("other", "", "192.168.0.8", Some("test")).await;
        world.pods.release_lost().await.unwrap();
        assert!(world.record("n.t-c1").await.is_some());
        let world = reboot(world, vec![], forget).await;
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.record("n.t-c1").await, None);
        assert!(world.record("n.t-other").await.is_some() && world.entries().is_empty());
    });
}

#[test]
fn records_on_a_network_that_was_deleted_are_deleted_after_a_reboot() {
    needs!(root());
    World::run(async |world| {
        world.reader().synced().await;
        world.pods.release_lost().await.unwrap();
        // Of ADDs that were interrupted, on this machine and on another one with its name.
        for (name, vtep) in [("c1", VTEP), ("c2", "192.168.0.8")] {
            let record = Oper {
                net_id: "gone.t".into(),
                cont_uuid: name.into(),
                vtep_ip: vtep.into(),
                homing_host: HOST.into(),
                ..Oper::default()
            };
            put(world.store(), &Key::EndpointOper(format!("gone.t-{name}").as_str().into()), &record).await;
        }
        let world = reboot(world, vec![], forget).await;
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.record("gone.t-c1").await, None);
        assert!(world.record("gone.t-c2").await.is_some());
        // The boot is dealt with.
        assert!(world.socket().with_extension("boot").exists());
    });
}

/// The agent knows neither the name nor the tenant of such a network.
#[test]
fn addresses_on_a_network_with_an_invalid_record_are_released_when_it_is_repaired() {
    needs!(root());
    World::run(async |world| {
        let pods = add_pods(&world).await;
        // Of an ADD that was interrupted.
        world.put_record("c3", "", VTEP, Some("test")).await;
        let key = Key::Network("n.t".into());
        let record = world.store().get(&key.to_string()).await.unwrap().unwrap();
        let record: Value = serde_json::from_slice(&record.value).unwrap();
        put(world.store(), &key, &json!({ "id": 5 })).await;
        let world = reboot(world, pods, forget).await;
        world.until("the record has arrived", || world.reader().rejected_count() == 1).await;
        for _ in 0..2 {
            world.pods.release_lost().await.unwrap();
        }
        assert_eq!(world.endpoints().await.len(), 3);
        put(world.store(), &key, &record).await;
        let is_known = || world.reader().with(|state| state.network(&"n.t".into()).is_some());
        world.until("the network has arrived", is_known).await;
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

#[test]
fn endpoints_of_others_are_not_released_after_a_reboot() {
    needs!(root());
    World::run(async |world| {
        let pods = add_pods(&world).await;
        // Created by another client, recorded by a machine with the same name, and attached by the original netplugin.
        for (octet, name) in [(7, "foreign"), (8, "other"), (9, "original")] {
            world.put_endpoint(name, HOST, octet).await;
        }
        world.put_record("other", "vport8", "192.168.0.8", None).await;
        world.put_record("original", "vport9", VTEP, None).await;
        let world = reboot(world, pods, forget).await;
        crate::ip("link add vvport9 type veth peer name original");
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.endpoints().await, ["n.t-foreign", "n.t-original", "n.t-other"]);
    });
}

#[test]
fn pod_whose_namespace_was_deleted_is_released_without_a_request() {
    needs!(root());
    World::run(async |world| {
        let mut pods = add_pods(&world).await;
        // The namespace of c1 still exists without its interface.
        crate::ip("link del vvport1");
        drop(pods.pop());
        world.until_no_port().await;
        world.pods.remove_vanished().await.unwrap();
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.endpoints().await, ["n.t-c1"]);
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// The address of the node has changed, or another machine has its name.
#[test]
fn endpoints_with_another_vtep_are_reported_and_not_released() {
    needs!(root());
    World::run(async |world| {
        for (octet, name, vtep) in [(7, "c1", VTEP), (8, "c2", "192.168.0.8")] {
            world.put_endpoint(name, HOST, octet).await;
            world.put_record(name, &format!("vport{octet}"), vtep, Some("test")).await;
        }
        let world = reboot(world, vec![], |_| {}).await;
        let warnings = || world.pods.warnings().borrow().lines().collect::<Vec<_>>();
        // Also when the boot is dealt with.
        for _ in 0..3 {
            world.pods.release_lost().await.unwrap();
            let lines = warnings();
            let first = "first: endpoint n.t-c2 with VTEP address 192.168.0.8";
            assert!(lines.len() == 1 && lines[0].contains(first), "{lines:?}");
        }
        assert_eq!(world.endpoints().await, ["n.t-c2"]);
        world.master.delete_endpoints(&["n.t-c2"]).await;
        let is_gone = || world.reader().with(|state| state.endpoint(&"n.t-c2".into()).is_none());
        world.until("the endpoint is deleted", is_gone).await;
        world.pods.release_lost().await.unwrap();
        assert_eq!(warnings(), Vec::<String>::new());
    });
}

#[test]
fn damaged_entries_without_an_endpoint_are_removed() {
    needs!(root());
    World::run(async |mut world| {
        let pods = add_pods(&world).await;
        world.stop_agent().await;
        world.entries().iter().for_each(|entry| fs::write(entry, "{").unwrap());
        // Nothing is left of c1, and of c2 the record only.
        world.master.delete_endpoints(&["n.t-c1", "n.t-c2"]).await;
        let txn = Txn::new().delete(Key::EndpointOper("n.t-c1".into()).to_string());
        world.store().commit(txn).await.map(drop).unwrap();
        drop(pods);
        world.until_no_port().await;
        let world = world.restart().await;
        world.reader().synced().await;
        assert_eq!(world.entries().len(), 3);
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

/// The directory with the entries was emptied while the agent was stopped. The node was not booted again.
#[test]
fn pods_without_an_entry_are_released_when_their_interfaces_are_gone() {
    needs!(root());
    World::run(async |mut world| {
        let pods = add_pods(&world).await;
        world.put_endpoint("foreign", HOST, 7).await;
        world.stop_agent().await;
        fs::remove_dir_all(world.socket().with_extension("attachments")).unwrap();
        let world = world.restart().await;
        world.reader().synced().await;
        world.reader().wait(|state| state.endpoint(&"n.t-foreign".into()).map(drop)).await;
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.endpoints().await.len(), 4);
        drop(pods);
        world.until_no_port().await;
        world.pods.remove_vanished().await.unwrap();
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.endpoints().await, ["n.t-foreign"]);
        assert_eq!((world.record("n.t-c1").await, world.entries()), (None, vec![]));
    });
}

#[test]
fn nothing_is_released_while_the_store_is_regressed() {
    needs!(root());
    World::run(async |world| {
        let pods = add_pods(&world).await;
        let mut world = reboot(world, pods, |_| {}).await;
        world.replace_store(|folder| fs::rename(folder, folder.with_extension("aside")).unwrap()).await;
        world.until_regressed().await;
        world.pods.release_lost().await.unwrap();
        assert_eq!(world.entries().len(), 3);
        world
            .replace_store(|folder| {
                fs::remove_dir_all(folder).unwrap();
                fs::rename(folder.with_extension("aside"), folder).unwrap();
            })
            .await;
        world.until("the data is back", || world.regression().is_none()).await;
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn attachments_with_damaged_entries_are_deleted_once_their_interfaces_are_gone() {
    needs!(root());
    World::run(async |mut world| {
        let pods = add_pods(&world).await;
        let tear = |world: &World| world.entries().iter().for_each(|entry| fs::write(entry, "{").unwrap());
        // Torn while the pods run: they keep their interfaces, and a DEL finds them.
        world.stop_agent().await;
        tear(&world);
        let world = world.restart().await;
        world.reader().synced().await;
        world.pods.release_lost().await.unwrap();
        world.del("c1", None).await.unwrap();
        assert_eq!((world.endpoints().await.len(), world.entries().len()), (2, 2));

        let world = reboot(world, pods, tear).await;
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}
