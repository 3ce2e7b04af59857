//! CNI requests from the plugin to the kernel, with real namespaces, a real store, the fake datapath and a scripted
//! netmaster.
#![expect(clippy::unwrap_used, reason = "tests")]

mod continuity;
mod world;

use netplugin::datapath::ObjectId;
use testkit::{Netns, needs};
use world::World;

#[test]
fn add_and_del_leave_nothing_behind() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let result = world.add("c1", pod.path()).await.unwrap();
        assert_eq!(result["ips"][0]["address"], "10.9.0.1/24");
        assert_eq!(result["ips"][1]["address"], "2001:db8:9::1/64");
        assert_eq!(result["routes"][0]["gw"], "10.9.0.254");
        assert_eq!(result["interfaces"][0]["name"], "vvport1");
        assert_eq!(result["interfaces"][1]["mtu"], 1450);
        assert!(pod.ip("-o link show eth0").unwrap().contains("state UP"));
        assert_eq!(world.local_endpoints(), ["n.t-c1"]);
        let record = world.record("n.t-c1").await.unwrap();
        assert_eq!((record.port_name.as_str(), record.intf_name.as_str()), ("vport1", "eth0"));

        // A repeated ADD returns the same result and changes nothing.
        let writes = world.writes();
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), result);
        assert_eq!((world.writes(), world.master.created()), (writes, 1));

        for _ in 0..3 {
            world.del("c1", Some(pod.path())).await.unwrap();
            world.assert_nothing_left().await;
        }
        assert!(pod.links().unwrap().is_empty());
    });
}

#[test]
fn add_is_rolled_back_if_the_datapath_fails() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.switch.fail_object(ObjectId::Local("n.t-c1".into()));
        let error = world.add("c1", pod.path()).await.unwrap_err();
        assert_eq!(error.code, 100);
        assert!(error.msg.contains("Error programming the datapath"), "{error:?}");
        // The rollback's deletion may still be retried.
        world.switch.clear_faults();
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty());
        world.add("c1", pod.path()).await.unwrap();
    });
}

#[test]
fn existing_interface_in_the_pod_is_reported() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    pod.ip("link add eth0 type bridge").unwrap();
    World::run(async |world| {
        let error = world.add("c1", pod.path()).await.unwrap_err();
        assert!(error.details.contains("already has an interface with this name"), "{error:?}");
        assert_eq!(world.master.created(), 1);
        world.assert_nothing_left().await;
    });
    assert_eq!(pod.links().unwrap(), ["eth0"]);
}

#[test]
fn invalid_namespace_is_reported_before_a_request_to_netmaster() {
    needs!(root());
    World::run(async |world| {
        let error = world.add("c1", std::path::Path::new("/dev/null")).await.unwrap_err();
        assert_eq!(error.code, 4);
        assert!(error.details.contains("/dev/null") && error.details.contains("not a network namespace"));
        assert_eq!(world.master.created(), 0);
    });
}

#[test]
fn error_of_netmaster_is_reported_verbatim() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let error = world.add_to("unknown", "c1", pod.path()).await.unwrap_err();
        assert!(error.msg.contains("Error creating EP"), "{error:?}");
        assert!(error.details.contains("key not found"), "{error:?}");
        world.assert_nothing_left().await;
    });
}

#[test]
fn without_a_leader_add_is_rolled_back_and_del_requests_a_retry() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.master.resign();
        let (added, deleted) = tokio::join!(world.add("c2", other.path()), world.del("c1", Some(pod.path())));
        assert_eq!((added.unwrap_err().code, deleted.unwrap_err().code), (11, 11));
        assert!(other.links().unwrap().is_empty());
        // The parts on this node are removed without netmaster.
        assert!(pod.links().unwrap().is_empty() && world.local_endpoints().is_empty());
        world.master.lead();
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn pod_with_deleted_namespace_is_detached() {
    needs!(root());
    World::run(async |world| {
        let pod = Netns::new("pod").unwrap();
        world.add("c1", pod.path()).await.unwrap();
        drop(pod);
        world.pods.remove_vanished().await.unwrap();
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
        world.del("never-seen", None).await.unwrap();
    });
}

#[test]
fn del_finds_the_endpoint_after_its_labels_changed() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.del_from("unknown", "c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn requests_run_concurrently() {
    needs!(root());
    let pods: Vec<_> = (0..8).map(|_| Netns::new("pod").unwrap()).collect();
    World::run(async |world| {
        let all = pods.iter().enumerate().map(|(n, pod)| world.add_owned(format!("c{n}"), pod.path()));
        for result in futures::future::join_all(all).await {
            result.unwrap();
        }
        let mut ports = world.ports().await;
        ports.sort();
        assert_eq!(ports, (1..=8).map(|n| format!("vvport{n}")).collect::<Vec<_>>());
        assert_eq!(world.local_endpoints().len(), 8);
        for n in 0..8 {
            world.del(&format!("c{n}"), None).await.unwrap();
        }
        world.assert_nothing_left().await;
    });
}

#[test]
fn add_completes_after_the_client_disconnects() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.hold();
        world.call_and_disconnect("c1", pod.path()).await;
        world.master.request_received().await;
        world.master.release();
        world.until("the pod is attached", || world.local_endpoints() == ["n.t-c1"]).await;
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn restarted_agent_recovers_its_pods() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let before = world.add("c1", pod.path()).await.unwrap();
        let world = world.restart().await;
        world.until("the datapath is in sync", || world.in_sync()).await;
        assert_eq!((world.writes(), world.local_endpoints()), (0, vec!["n.t-c1".to_owned()]));
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), before);
        assert_eq!(world.writes(), 0);
        world.del("c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
    });
}
