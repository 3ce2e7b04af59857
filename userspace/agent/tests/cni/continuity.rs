//! The store loses data: the node forwards as before and refuses new pods.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use contiv_model::{
    key::{Key, ObjectType},
    node,
};
use contiv_store::{Config, Store, Txn, embedded};
use testkit::{Netns, needs};

use crate::world::{HOST, World, put};

const ENDPOINTS: [&str; 3] = ["n.t-c1", "n.t-c2", "n.t-c3"];

struct Pods([Netns; 3]);

impl Pods {
    /// Three pods on the node.
    async fn add(world: &World) -> Pods {
        let pods = [(); 3].map(|()| Netns::new("pod").unwrap());
        for (n, pod) in (1..).zip(&pods) {
            world.add(&format!("c{n}"), pod.path()).await.unwrap();
        }
        Pods(pods)
    }

    /// Asserts that the datapath has what it had, and that a new pod is refused with `why`.
    async fn assert_frozen(&self, world: &World, why: &str) {
        let reported = world.until_regressed().await;
        assert!(reported.contains(why), "{reported}");
        assert_eq!(world.local_endpoints(), ENDPOINTS);
        let new = Netns::new("pod").unwrap();
        let refused = world.add("c9", new.path()).await.unwrap_err();
        assert_eq!(refused.code, 11, "{refused:?}");
        assert!(refused.details.contains("store-regressed"), "{refused:?}");
        assert!(new.links().unwrap().is_empty());
        assert_eq!(world.local_endpoints(), ENDPOINTS);
    }
}

fn set_aside(folder: &Path) {
    fs::rename(folder, folder.with_extension("aside")).unwrap();
}

fn bring_back(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
    fs::rename(folder.with_extension("aside"), folder).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Accepts the store for the regression with this id, as netmaster does.
async fn accept(world: &World, regression_id: &str) {
    let accepted = node::AcceptedStore { host: HOST.into(), regression_id: regression_id.into() };
    put(world.store(), &Key::AcceptedStore(HOST.into()), &accepted).await;
}

/// Waits until the agent has deleted the acceptance.
async fn until_no_acceptance(world: &World) {
    let key = Key::AcceptedStore(HOST.into()).to_string();
    let deleted = async {
        while world.store().get(&key).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), deleted).await.is_ok(), "timeout: {key}");
}

/// Deletes every key below the prefix in one transaction, as `etcdctl del --prefix` does.
async fn delete_prefix(world: &World, prefix: &str) {
    let listing = world.store().list(prefix).await.unwrap();
    assert!(!listing.items.is_empty());
    let txn = listing.items.iter().fold(Txn::new(), |txn, kv| txn.delete(kv.key.clone()));
    world.store().commit(txn).await.map(drop).unwrap();
}

#[test]
fn emptied_store_changes_nothing_until_it_comes_back() {
    needs!(root());
    World::run(async |mut world| {
        let pods = Pods::add(&world).await;
        world.replace_store(set_aside).await;
        pods.assert_frozen(&world, "cluster id").await;
        // A pod can leave, but its addresses are released in its own store.
        assert_eq!(world.del("c3", None).await.unwrap_err().code, 11);
        assert_eq!(world.local_endpoints(), ENDPOINTS[..2]);
        world.replace_store(bring_back).await;
        world.until("the data is back", || world.regression().is_none()).await;
        world.del("c3", None).await.unwrap();
        world.add("c3", pods.0[2].path()).await.unwrap();
        assert_eq!(world.local_endpoints(), ENDPOINTS);
    });
}

#[test]
fn restored_backup_changes_nothing_until_it_is_accepted() {
    needs!(root());
    World::run(async |mut world| {
        let backup = |folder: &Path| folder.with_extension("backup");
        world.replace_store(|folder| copy(folder, &backup(folder))).await;
        let pods = Pods::add(&world).await;
        world
            .replace_store(|folder| {
                fs::remove_dir_all(folder).unwrap();
                copy(&backup(folder), folder);
            })
            .await;
        pods.assert_frozen(&world, "went back").await;
        // Writes do not make it the store that it was.
        let last = world.store().position().await.unwrap().revision;
        for _ in 0..30 {
            put(world.store(), &Key::MasterConfig, &serde_json::json!({})).await;
        }
        assert!(world.store().position().await.unwrap().revision >= last + 30);
        let world = world.restart().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        pods.assert_frozen(&world, "went back").await;

        accept(&world, &world.regression_id()).await;
        world.until("the store is accepted", || world.regression().is_none()).await;
        world.until("the store is followed", || world.local_endpoints().is_empty()).await;
        until_no_acceptance(&world).await;
        world.add("c9", Netns::new("pod").unwrap().path()).await.unwrap();
    });
}

/// An acceptance remains if an operator accepts the store twice, and is in a store that was restored from a copy with it.
#[test]
fn acceptance_of_another_regression_changes_nothing() {
    needs!(root());
    World::run(async |world| {
        let why = "which counts them, did not change";
        let pods = Pods::add(&world).await;
        accept(&world, "5eed").await;
        delete_prefix(&world, "/contiv.io/state/eps/").await;
        pods.assert_frozen(&world, why).await;
        until_no_acceptance(&world).await;
        // A netmaster of an earlier release writes no id.
        for other in ["", "5eed"] {
            accept(&world, other).await;
            until_no_acceptance(&world).await;
            pods.assert_frozen(&world, why).await;
        }
        // A new agent on the node has the same regression.
        let id = world.regression_id();
        let world = world.restart().await;
        assert_eq!(world.regression_id(), id);
        accept(&world, &id).await;
        world.until("the store is accepted", || world.regression().is_none()).await;
        world.until("the store is followed", || world.local_endpoints().is_empty()).await;
        until_no_acceptance(&world).await;
    });
}

/// The lost part of the history concerns no record that exists, so every watch continues from its revision.
#[test]
fn history_is_compared_when_watches_continue() {
    needs!(root());
    World::run(async |mut world| {
        let pods = Pods::add(&world).await;
        let mut backup = PathBuf::new();
        world
            .replace_store(|folder| {
                backup = folder.with_extension("backup");
                copy(folder, &backup);
            })
            .await;
        let node = Key::NodeVtep("other".into());
        put(world.store(), &node, &serde_json::json!("not a VTEP")).await;
        world.until("the record has arrived", || world.reader().rejected_count() == 1).await;
        delete_prefix(&world, &node.to_string()).await;
        world.until("the deletion has arrived", || world.reader().rejected_count() == 0).await;

        // The other history is the longer one.
        let listen = ([127, 0, 0, 1], testkit::free_port().unwrap()).into();
        let server = embedded::Server::open(&backup, listen).await.unwrap();
        let other = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        for _ in 0..30 {
            put(&other, &Key::Object(ObjectType::Tenant, "x".into()), &serde_json::json!({})).await;
        }
        server.shutdown().await.unwrap();
        world
            .replace_store(|folder| {
                fs::remove_dir_all(folder).unwrap();
                copy(&backup, folder);
            })
            .await;
        pods.assert_frozen(&world, "the store's history lacks").await;
    });
}

#[test]
fn prefixes_deleted_by_hand_change_nothing() {
    needs!(root());
    for (prefix, why) in [
        ("/contiv.io/", "lacks the identity"),
        ("/contiv.io/state/", "was deleted, but not the object"),
        ("/contiv.io/state/nets/", "was deleted, but not the object"),
        ("/contiv.io/state/eps/", "which counts them, did not change"),
        ("/contiv.io/master/", "lacks the identity"),
    ] {
        World::run(async |world| {
            let pods = Pods::add(&world).await;
            delete_prefix(&world, prefix).await;
            let reported = world.until_regressed().await;
            pods.assert_frozen(&world, if prefix == "/contiv.io/" { "" } else { why }).await;
            // A new agent on the node finds the same.
            let world = world.restart().await;
            assert_eq!(world.regression(), Some(reported));
            pods.assert_frozen(&world, "").await;
        });
    }
}

#[test]
fn agent_that_starts_on_an_emptied_store_changes_nothing() {
    needs!(root());
    World::run(async |mut world| {
        let pods = Pods::add(&world).await;
        world.stop_agent().await;
        world.replace_store(set_aside).await;
        let world = world.restart().await;
        pods.assert_frozen(&world, "cluster id").await;
    });
}

#[test]
fn repeated_add_on_an_emptied_store_keeps_the_interface() {
    needs!(root());
    World::run(async |mut world| {
        let pods = Pods::add(&world).await;
        world.stop_agent().await;
        world.replace_store(set_aside).await;
        let mut world = world.restart().await;
        world.until_regressed().await;
        let refused = world.add("c1", pods.0[0].path()).await.unwrap_err();
        assert_eq!(refused.code, 11, "{refused:?}");
        assert!(refused.details.contains("store-regressed"), "{refused:?}");
        assert_eq!((world.ports().await.len(), pods.0[0].links().unwrap().len()), (3, 1));
        world.replace_store(bring_back).await;
        world.until("the data is back", || world.regression().is_none()).await;
        world.add("c1", pods.0[0].path()).await.unwrap();
        assert_eq!(world.ports().await.len(), 3);
    });
}

#[test]
fn agent_that_starts_after_records_were_deleted_changes_nothing() {
    needs!(root());
    World::run(async |mut world| {
        let pods = Pods::add(&world).await;
        world.stop_agent().await;
        delete_prefix(&world, "/contiv.io/state/").await;
        let world = world.restart().await;
        pods.assert_frozen(&world, "exists without its record").await;
    });
}

#[test]
fn deletions_by_netmaster_are_followed() {
    needs!(root());
    World::run(async |mut world| {
        let _pods = Pods::add(&world).await;
        world.master.delete_endpoints(&ENDPOINTS[..2]).await;
        world.until("two endpoints are deleted", || world.local_endpoints() == ENDPOINTS[2..]).await;
        // Also while the agent has no connection.
        let store = world.store().clone();
        world.stop_agent().await;
        world.master.delete_endpoints(&ENDPOINTS[2..]).await;
        drop(store);
        let world = world.restart().await;
        world.until("all endpoints are deleted", || world.local_endpoints().is_empty()).await;
        assert_eq!(world.regression(), None);
    });
}
