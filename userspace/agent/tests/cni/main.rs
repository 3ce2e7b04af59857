//! CNI requests from the plugin to the kernel: real namespaces, a real store, the fake datapath, and a master that does
//! as it is told.
#![expect(clippy::unwrap_used, reason = "tests")]

mod world;

use netplugin::datapath::ObjectId;
use testkit::{Netns, needs};
use world::World;

#[test]
fn a_pod_comes_and_goes_and_leaves_nothing() {
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

        // Asked again, it answers the same and changes nothing.
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
fn what_the_datapath_will_not_take_is_undone() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.switch.fail_object(ObjectId::Local("n.t-c1".into()));
        let error = world.add("c1", pod.path()).await.unwrap_err();
        assert_eq!(error.code, 100);
        assert!(error.msg.contains("Error programming the datapath"), "{error:?}");
        // It may still try to delete what it could not make.
        world.switch.heal();
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty());
        world.add("c1", pod.path()).await.unwrap();
    });
}

#[test]
fn a_name_that_is_taken_in_the_pod_is_told() {
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
fn a_file_that_is_no_namespace_is_told_before_the_master_is_asked() {
    needs!(root());
    World::run(async |world| {
        let error = world.add("c1", std::path::Path::new("/dev/null")).await.unwrap_err();
        assert_eq!(error.code, 4);
        assert!(error.details.contains("/dev/null") && error.details.contains("not a network namespace"));
        assert_eq!(world.master.created(), 0);
    });
}

#[test]
fn what_the_master_refuses_is_told_in_its_words() {
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
fn without_a_master_nothing_is_made_and_del_asks_to_be_repeated() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.master.leave();
        let (added, deleted) = tokio::join!(world.add("c2", other.path()), world.del("c1", Some(pod.path())));
        assert_eq!((added.unwrap_err().code, deleted.unwrap_err().code), (11, 11));
        assert!(other.links().unwrap().is_empty());
        // What could be removed without it, is.
        assert!(pod.links().unwrap().is_empty() && world.local_endpoints().is_empty());
        world.master.lead();
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn a_pod_whose_namespace_is_gone_is_let_go() {
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
fn del_finds_the_endpoint_whatever_the_labels_say_now() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.del_from("unknown", "c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn requests_run_beside_each_other() {
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
fn a_caller_that_goes_away_does_not_leave_half_a_pod() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.hold();
        world.call_and_hang_up("c1", pod.path()).await;
        world.master.asked().await;
        world.master.release();
        world.until("the pod is attached all the same", || world.local_endpoints() == ["n.t-c1"]).await;
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn an_agent_that_starts_again_knows_its_pods() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let before = world.add("c1", pod.path()).await.unwrap();
        let world = world.restart().await;
        world.until("the datapath is measured", || world.known()).await;
        assert_eq!((world.writes(), world.local_endpoints()), (0, vec!["n.t-c1".to_owned()]));
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), before);
        assert_eq!(world.writes(), 0);
        world.del("c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
    });
}
