//! What a failed ADD leaves for later.

use testkit::{Netns, needs};

use crate::world::{HOST, VTEP, World};

/// The store is away, so neither of them reaches netmaster.
#[test]
fn a_failed_add_does_not_forget_the_del_before_it() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |mut world| {
        world.add("c1", pod.path()).await.unwrap();
        let listen = world.stop_store().await;
        assert_eq!(world.del("c1", None).await.unwrap_err().code, 11);
        assert_eq!(world.add("c1", pod.path()).await.unwrap_err().code, 11);
        assert_eq!(world.entries().len(), 1);
        world.start_store(listen).await;
        world.finish_requests().await;
        world.assert_nothing_left().await;
    });
}

#[test]
fn a_failed_add_does_not_change_the_entry_of_an_attached_pod() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |mut world| {
        world.add("c1", pod.path()).await.unwrap();
        let entry = world.entries().remove(0);
        let text = std::fs::read_to_string(&entry).unwrap();
        world.stop_store().await;
        assert_eq!(world.add("c1", pod.path()).await.unwrap_err().code, 11);
        assert_eq!(std::fs::read_to_string(&entry).unwrap(), text);
    });
}

/// The endpoint of an earlier attempt was recorded, and netmaster has deleted it.
#[test]
fn no_record_is_left_of_an_endpoint_that_is_not_created_again() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.until("the datapath is in sync", || world.in_sync()).await;
        world.master.create_group().await;
        world.put_endpoint("c1", HOST, 77).await;
        world.put_record("c1", "", VTEP, Some("test")).await;
        world.master.refuse_after(1);
        let refused = world.add_to_group("g", "c1", pod.path()).await.unwrap_err();
        assert!(refused.details.contains("no address left"), "{refused:?}");
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}
