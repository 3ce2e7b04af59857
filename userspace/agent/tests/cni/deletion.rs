//! What a DEL must and must not delete, and ADDs that did not end.

use std::{fs, time::Duration};

use axum::http::StatusCode;
use contiv_model::{endpoint::Oper, key::Key};
use contiv_store::Txn;
use netplugin::datapath::ObjectId;
use testkit::{Netns, needs};
use tokio_util::sync::CancellationToken;

use crate::world::{Call, HOST, VTEP, World, put};

#[test]
fn endpoint_of_another_node_is_neither_attached_nor_deleted() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.put_endpoint("c1", "other", 7).await;
        world.put_record("c1", "vport7", "192.168.0.8", None).await;
        let record = world.record("n.t-c1").await;
        let refused = world.add("c1", pod.path()).await.unwrap_err();
        assert!(refused.details.contains("already exists on node other"), "{refused:?}");
        // Runtimes send a DEL after each ADD that failed.
        world.del("c1", Some(pod.path())).await.unwrap();
        assert_eq!((world.endpoints().await, world.entries()), (vec!["n.t-c1".to_owned()], vec![]));
        assert_eq!(world.record("n.t-c1").await, record);
    });
}

/// By the record, the same machine has attached the pod.
#[test]
fn endpoint_of_an_earlier_name_of_the_node_is_deleted() {
    needs!(root());
    World::run(async |world| {
        world.put_endpoint("c1", "earlier", 7).await;
        let record = Oper {
            net_id: "n.t".into(),
            cont_uuid: "c1".into(),
            homing_host: "earlier".into(),
            vtep_ip: VTEP.into(),
            ..Oper::default()
        };
        put(world.store(), &Key::EndpointOper("n.t-c1".into()), &record).await;
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn refused_add_leaves_no_record_of_an_endpoint_of_another_node() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.put_endpoint("c1", "other", 7).await;
        world.add("c1", pod.path()).await.unwrap_err();
        assert_eq!((world.record("n.t-c1").await, world.entries()), (None, vec![]));
    });
}

/// The agent was killed before it rolled the record back.
#[test]
fn del_of_a_refused_add_deletes_its_record() {
    needs!(root());
    World::run(async |world| {
        world.put_endpoint("c1", "other", 7).await;
        world.put_record("c1", "", VTEP, Some("test")).await;
        world.del("c1", None).await.unwrap();
        assert_eq!((world.record("n.t-c1").await, world.endpoints().await.len()), (None, 1));
        assert!(world.entries().is_empty());
    });
}

#[test]
fn endpoint_is_recorded_before_netmaster_creates_it() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.hold();
        let mut add = std::pin::pin!(world.add("c1", pod.path()));
        tokio::select! {
            result = &mut add => panic!("{result:?}"),
            () = world.master.request_received() => {}
        }
        let record = world.record("n.t-c1").await.unwrap();
        assert_eq!((record.cont_uuid.as_str(), record.vtep_ip.as_str()), ("c1", VTEP));
        assert_eq!((record.port_name.as_str(), record.cni_configuration.as_deref()), ("", Some("test")));
        world.master.release();
        add.await.unwrap();
        let record = world.record("n.t-c1").await.unwrap();
        assert_eq!((record.port_name.as_str(), record.ip_address.as_str()), ("vport1", "10.9.0.1"));
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn del_of_a_recorded_endpoint_asks_netmaster() {
    needs!(root());
    World::run(async |world| {
        // netmaster may be creating the endpoint.
        world.put_record("c1", "", VTEP, Some("test")).await;
        world.master.resign();
        assert_eq!(world.del("c1", None).await.unwrap_err().code, 11);
        assert!(world.record("n.t-c1").await.is_some());
        world.master.lead();
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

#[test]
fn unknown_container_is_deleted_without_netmaster() {
    needs!(root());
    World::run(async |world| {
        world.master.resign();
        world.del("never-seen", None).await.unwrap();
        assert!(world.entries().is_empty());
    });
}

#[test]
fn labels_that_became_invalid_do_not_keep_the_pod() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        let refused = world.add_to("a_b", "c1", pod.path()).await.unwrap_err();
        assert_eq!(refused.code, 7, "{refused:?}");
        world.del_from("a_b", "c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// Runtimes need not repeat the CNI_ARGS of the ADD.
#[test]
fn endpoint_that_was_named_by_an_argument_is_found_by_its_container() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        let netns = pod.path().display().to_string();
        let args = ";K8S_POD_INFRA_CONTAINER_ID=x";
        let call = Call { args, container: "y", netns: &netns, ..Call::new("ADD") };
        world.invoke(&call).await.unwrap();
        world.add("z", other.path()).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-x", "n.t-z"]);
        world.invoke(&Call { container: "y", ifname: "net1", ..Call::new("DEL") }).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-x", "n.t-z"]);
        world.del("y", None).await.unwrap();
        assert_eq!((world.local_endpoints(), world.entries().len()), (vec!["n.t-z".to_owned()], 1));
        world.del("z", None).await.unwrap();
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty() && world.entries().is_empty());
    });
}

#[test]
fn endpoint_that_netmaster_created_without_a_readable_answer_is_released() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.garble();
        let refused = world.add("c1", pod.path()).await.unwrap_err();
        assert!(refused.details.contains("decode netmaster's response"), "{refused:?}");
        assert_eq!(world.endpoints().await, ["n.t-c1"]);
        world.finish_requests().await;
        world.assert_nothing_left().await;
    });
}

/// netmaster carries out the request of the first ADD after the DEL: it had waited in a connection.
#[test]
fn endpoint_that_netmaster_creates_after_its_deletion_is_deleted() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.garble();
        world.add("c1", pod.path()).await.unwrap_err();
        world.master.answer();
        world.add("c1", pod.path()).await.unwrap();
        // The endpoint of an attachment stays.
        let finish = world.pods.finish_requests(CancellationToken::new());
        assert!(tokio::time::timeout(Duration::from_secs(5), finish).await.is_err());
        assert_eq!(world.endpoints().await, ["n.t-c1"]);
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;

        world.put_endpoint("c1", HOST, 1).await;
        // An agent that restarts remembers the request.
        let world = world.restart().await;
        let stop = CancellationToken::new();
        let deleted = async {
            while !world.endpoints().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            stop.cancel();
        };
        let both = futures::future::join(world.pods.finish_requests(stop.clone()), deleted);
        let (finished, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        finished.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

/// netmaster carries out the requests of the DELs after the next ADDs: they had waited in a connection. The first DEL has found the
/// endpoint in the store, the second one has not.
#[test]
fn deletion_that_is_carried_out_after_the_next_add_changes_nothing() {
    needs!(root());
    let [pod, first, second] = std::array::from_fn(|_| Netns::new("pod").unwrap());
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.put_record("c2", "", VTEP, Some("test")).await;
        world.master.postpone_deletions();
        for container in ["c1", "c2"] {
            assert_eq!(world.del(container, None).await.unwrap_err().code, 11);
        }
        for (container, pod) in [("c1", &first), ("c2", &second)] {
            world.add(container, pod.path()).await.unwrap();
        }
        assert_eq!(world.master.delete_postponed().await, [StatusCode::PRECONDITION_FAILED; 2]);
        assert_eq!(world.endpoints().await, ["n.t-c1", "n.t-c2"]);
        for container in ["c1", "c2"] {
            world.del(container, None).await.unwrap();
        }
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

/// The rollback has failed to remove the interface, which the next agent finds, and netmaster carries out its deletion after the next
/// ADD.
#[test]
fn endpoint_of_a_rollback_is_created_again() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.switch.fail_object(ObjectId::Local("n.t-c1".into()));
        world.master.postpone_deletions();
        let refused = world.add("c1", pod.path()).await.unwrap_err();
        assert!(refused.details.contains("postponed"), "{refused:?}");
        world.switch.clear_faults();
        crate::ip(&format!("link add vvport1 type veth peer name eth0 netns {}", pod.path().display()));
        crate::ip("link set vvport1 alias n.t-c1");

        let world = world.restart().await;
        world.add("c1", pod.path()).await.unwrap();
        assert_eq!(world.master.created(), 2);
        assert_eq!(world.master.delete_postponed().await, [StatusCode::PRECONDITION_FAILED]);
        assert_eq!(world.endpoints().await, ["n.t-c1"]);
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

/// netmaster carries out the request of an attempt with the earlier group after that endpoint was deleted.
#[test]
fn endpoint_that_comes_back_in_the_earlier_group_is_not_attached() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.until("the datapath is in sync", || world.in_sync()).await;
        world.master.create_group().await;
        world.put_endpoint("c1", HOST, 77).await;
        world.master.restore_next();
        let refused = world.add_to_group("g", "c1", pod.path()).await.unwrap_err();
        assert!(refused.code == 11 && refused.details.contains("by another request"), "{refused:?}");
        assert!(world.local_endpoints().is_empty() && pod.links().unwrap().is_empty());
        world.add_to_group("g", "c1", pod.path()).await.unwrap();
        assert_eq!(world.group_of("n.t-c1").await, "g:t");
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn add_completes_what_an_interrupted_add_left() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |mut world| {
        let before = world.add("c1", pod.path()).await.unwrap();
        let record = world.record("n.t-c1").await;
        // As after a kill between interface and record.
        world.stop_agent().await;
        let txn = Txn::new().delete(Key::EndpointOper("n.t-c1".into()).to_string());
        world.store().commit(txn).await.map(drop).unwrap();
        let entry = world.entries().remove(0);
        let text = fs::read_to_string(&entry).unwrap();
        fs::write(&entry, text.replace("\"attached\"", "\"adding\"")).unwrap();
        let world = world.restart().await;
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), before);
        assert_eq!(world.record("n.t-c1").await, record);
        assert_eq!(fs::read_to_string(&entry).unwrap(), text);
    });
}

#[test]
fn interface_that_a_del_left_does_not_hinder_an_add() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.forget("n.t-c1");
        world.until("the datapath has no endpoint", || world.local_endpoints().is_empty()).await;
        world.add("c1", pod.path()).await.unwrap();
        assert_eq!((world.ports().await.len(), pod.links().unwrap().len()), (1, 1));
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn deletion_whose_entry_cannot_be_written_is_finished() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        let entry = world.entries().remove(0);
        // Nothing can be written, as on a full disk.
        let blocked = entry.with_added_extension("new");
        fs::create_dir(&blocked).unwrap();
        world.master.resign();
        assert_eq!(world.del("c1", None).await.unwrap_err().code, 11);
        let refused = world.add("c1", pod.path()).await.unwrap_err();
        assert_eq!(refused.code, 11, "{refused:?}");
        assert!(refused.details.contains("change the attachment's entry"), "{refused:?}");
        fs::remove_dir(&blocked).unwrap();
        world.master.lead();
        world.finish_requests().await;
        world.assert_nothing_left().await;
    });
}

#[test]
fn entries_that_were_removed_by_hand_do_not_hinder_requests() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        fs::remove_dir_all(world.socket().with_extension("attachments")).unwrap();
        world.add("c2", other.path()).await.unwrap();
        for container in ["c1", "c2"] {
            world.del(container, None).await.unwrap();
        }
        world.assert_nothing_left().await;
    });
}
