//! CHECK, STATUS and GC, several interfaces of a pod, and deletions that are finished later.

use std::time::Duration;

use contivk8s::wire::Request;
use testkit::{Netns, needs};

use crate::world::{Call, HOST, VTEP, World};

fn netns(pod: &Netns) -> String {
    pod.path().display().to_string()
}

#[test]
fn check_finds_what_was_changed_after_add() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        let result = world.add("c1", pod.path()).await.unwrap();
        let fields = format!(r#""prevResult":{result},"#);
        let (here, there) = (netns(&pod), netns(&other));
        let call = Call { fields: &fields, container: "c1", netns: &here, ..Call::new("CHECK") };
        world.invoke(&call).await.unwrap();
        for (change, undo, what) in [
            ("link set eth0 mtu 1500", "link set eth0 mtu 1450", "1450"),
            (
                "link set eth0 address 02:00:00:00:00:07",
                "link set eth0 address 02:02:0a:09:00:01",
                "02:02:0a:09:00:01",
            ),
            ("address del 10.9.0.1/24 dev eth0", "address add 10.9.0.1/24 dev eth0", "10.9.0.1/24"),
            (
                "-6 address del 2001:db8:9::1/64 dev eth0",
                "-6 address add 2001:db8:9::1/64 dev eth0 nodad",
                "2001:db8:9::1/64",
            ),
            (
                "route del default",
                "route add default via 10.9.0.254 dev eth0 onlink",
                "no default route by 10.9.0.254",
            ),
        ] {
            pod.ip(change).unwrap();
            let refused = world.invoke(&call).await.unwrap_err();
            assert!(refused.details.contains(what), "{change}: {refused:?}");
            assert_eq!(refused.code, 100, "{refused:?}");
            pod.ip(undo).unwrap();
            if change.contains("address del 10") {
                // The kernel removed the route with the last address.
                pod.ip("route replace default via 10.9.0.254 dev eth0 onlink").unwrap();
            }
        }
        world.invoke(&call).await.unwrap();
        // Later plugins have changed the interface. `tuning` lists another Ethernet address, but no other MTU.
        pod.ip("link set eth0 mtu 1400").unwrap();
        world.invoke(&call).await.unwrap();
        pod.ip("link set eth0 address 02:00:00:00:00:07").unwrap();
        let mut changed = result.clone();
        changed["interfaces"][1]["mac"] = "02:00:00:00:00:07".into();
        // The result of another plugin need not have the interface of the node.
        changed["interfaces"].as_array_mut().unwrap().remove(0);
        let changed = format!(r#""prevResult":{changed},"#);
        world.invoke(&Call { fields: &changed, ..call }).await.unwrap();
        pod.ip("link set eth0 address 02:02:0a:09:00:01").unwrap();
        world.invoke(&call).await.unwrap();
        // Results before version 1.1.0 list no MTU. The node drops longer frames all the same.
        pod.ip("link set eth0 mtu 1500").unwrap();
        let mut old = result.clone();
        for interface in old["interfaces"].as_array_mut().unwrap() {
            interface.as_object_mut().unwrap().remove("mtu");
        }
        let old = format!(r#""prevResult":{old},"#);
        let refused = world.invoke(&Call { fields: &old, ..call }).await.unwrap_err();
        assert!(refused.details.contains("1450"), "{refused:?}");
        pod.ip("link set eth0 mtu 1450").unwrap();
        // A later plugin has taken the route away, and said so.
        pod.ip("route del default").unwrap();
        let mut changed = result.clone();
        changed["routes"].as_array_mut().unwrap().retain(|route| route["dst"] != "0.0.0.0/0");
        let changed = format!(r#""prevResult":{changed},"#);
        world.invoke(&Call { fields: &changed, ..call }).await.unwrap();
        pod.ip("link set eth0 down").unwrap();
        let refused = world.invoke(&call).await.unwrap_err();
        assert!(refused.details.contains("is down"), "{refused:?}");
        let elsewhere = Call { fields: &fields, container: "c1", netns: &there, ..Call::new("CHECK") };
        let refused = world.invoke(&elsewhere).await.unwrap_err();
        assert!(refused.details.contains("not the other end of vvport1"), "{refused:?}");
        let unknown = Call { fields: &fields, container: "c2", netns: &here, ..Call::new("CHECK") };
        let refused = world.invoke(&unknown).await.unwrap_err();
        assert!(refused.details.contains("n.t-c2 has no interface"), "{refused:?}");
    });
}

#[test]
fn status_tells_whether_an_add_can_succeed() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.until("the datapath is in sync", || world.in_sync()).await;
        world.invoke(&Call::new("STATUS")).await.unwrap();
        // An ADD waits while the datapath is repaired.
        world.switch.fail_apply(1000);
        let _added = tokio::time::timeout(Duration::from_secs(1), world.add("c9", pod.path())).await;
        world.until("the datapath has failed", || !world.in_sync()).await;
        world.invoke(&Call::new("STATUS")).await.unwrap();
        world.switch.clear_faults();
        world.until("the datapath is in sync", || world.in_sync()).await;
        // An ADD waits for the next leader.
        world.master.resign();
        world.invoke(&Call::new("STATUS")).await.unwrap();
        let refused = async {
            loop {
                match world.invoke(&Call::new("STATUS")).await {
                    Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    Err(refused) => break refused,
                }
            }
        };
        let refused = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
        assert_eq!(refused.code, 50, "{refused:?}");
        assert!(refused.details.contains("is a netmaster running?"), "{refused:?}");
        world.master.lead();
        world.invoke(&Call::new("STATUS")).await.unwrap();
    });
}

#[test]
fn gc_deletes_what_the_runtime_does_not_list() {
    needs!(root());
    let pods = [(); 3].map(|()| Netns::new("pod").unwrap());
    World::run(async |world| {
        let paths = [0, 1, 2].map(|n| netns(&pods[n]));
        for call in [
            Call { container: "c1", netns: &paths[0], ..Call::new("ADD") },
            Call { container: "c1", ifname: "net1", netns: &paths[0], ..Call::new("ADD") },
            Call { container: "c2", netns: &paths[1], ..Call::new("ADD") },
            Call { container: "c3", netns: &paths[2], configuration: "other", ..Call::new("ADD") },
        ] {
            world.invoke(&call).await.unwrap();
        }
        assert_eq!(world.local_endpoints(), ["n.t-c1", "n.t-c1-net1", "n.t-c2", "n.t-c3"]);
        let list = r#""cni.dev/valid-attachments":[{"containerID":"c1","ifname":"net1"}],"#;
        world.invoke(&Call { fields: list, ..Call::new("GC") }).await.unwrap();
        // Also after an upgrade of the agent, the attachments of the other network configuration are not touched.
        let world = world.restart().await;
        world.invoke(&Call { fields: list, ..Call::new("GC") }).await.unwrap();
        world.until("two endpoints are left", || world.local_endpoints() == ["n.t-c1-net1", "n.t-c3"]).await;
        assert_eq!(world.ports().await.len(), 2);
        assert_eq!(pods[0].links().unwrap(), ["net1"]);
        for (container, ifname) in [("c1", "net1"), ("c3", "eth0")] {
            world.invoke(&Call { container, ifname, ..Call::new("DEL") }).await.unwrap();
        }
        world.assert_nothing_left().await;
    });
}

#[test]
fn gc_leaves_an_attachment_whose_add_was_running() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.master.hold();
        let mut add = std::pin::pin!(world.add("c1", pod.path()));
        tokio::select! {
            result = &mut add => panic!("{result:?}"),
            () = world.master.request_received() => {}
        }
        let request = Request { network_name: "test".into(), ..Request::default() };
        let mut gc = std::pin::pin!(world.pods.collect_garbage(&request));
        assert!(futures::poll!(&mut gc).is_pending());
        world.master.release();
        let (added, collected) = tokio::join!(add, gc);
        added.unwrap();
        collected.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c1"]);
        // A later GC that does not list it deletes it.
        world.pods.collect_garbage(&request).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn gc_without_a_network_configuration_deletes_nothing() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        // A plugin of an earlier version does not send the name.
        world.call_and_disconnect("c1", pod.path()).await;
        world.until("the pod is attached", || world.local_endpoints() == ["n.t-c1"]).await;
        let refused = world.pods.collect_garbage(&Request::default()).await.unwrap_err();
        assert_eq!(refused.code.number(), 7, "{refused}");
        assert_eq!(world.local_endpoints(), ["n.t-c1"]);
    });
}

#[test]
fn parallel_requests_for_one_pod_leave_nothing_or_all_of_it() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        for round in 0..5 {
            let gc = Call { fields: r#""cni.dev/valid-attachments":[],"#, ..Call::new("GC") };
            let (added, deleted, collected, again, last) = tokio::join!(
                world.add("c1", pod.path()),
                world.del("c1", None),
                world.invoke(&gc),
                world.add("c1", pod.path()),
                world.del("c1", None),
            );
            for result in [added, deleted, collected, again, last] {
                result.unwrap();
            }
            // Whichever request was the last one, every part agrees.
            let attached = world.entries().len();
            assert!(attached <= 1, "{round}");
            assert_eq!((world.ports().await.len(), pod.links().unwrap().len()), (attached, attached));
            assert_eq!(world.record("n.t-c1").await.is_some(), attached == 1);
            assert_eq!((world.endpoints().await.len(), world.local_endpoints().len()), (attached, attached));
        }
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
        assert!(world.entries().is_empty());
    });
}

#[test]
fn gc_releases_the_attachments_of_an_earlier_boot() {
    needs!(root());
    World::run(async |world| {
        // Endpoints of this node without an interface: one was a pod's, the other was created by another client.
        for (octet, name) in [(1, "c1"), (2, "c2")] {
            world.put_endpoint(name, HOST, octet).await;
        }
        world.put_record("c1", "vport1", VTEP, Some("test")).await;
        let world = world.restart().await;
        let list = |known: &str| format!(r#""cni.dev/valid-attachments":{known},"#);
        let known = list(r#"[{"containerID":"c1","ifname":"eth0"}]"#);
        world.invoke(&Call { fields: &known, ..Call::new("GC") }).await.unwrap();
        assert!(world.record("n.t-c1").await.is_some());
        world.invoke(&Call { fields: &list("[]"), ..Call::new("GC") }).await.unwrap();
        assert_eq!(
            (world.endpoints().await, world.record("n.t-c1").await),
            (vec!["n.t-c2".to_owned()], None)
        );
    });
}

#[test]
fn gc_leaves_the_attachments_of_other_network_configurations_of_an_earlier_boot() {
    needs!(root());
    World::run(async |world| {
        for (octet, name, configuration) in [(1, "c1", Some("other")), (2, "c2", None)] {
            world.put_endpoint(name, HOST, octet).await;
            world.put_record(name, &format!("vport{octet}"), VTEP, configuration).await;
        }
        let world = world.restart().await;
        let fields = r#""cni.dev/valid-attachments":[],"#;
        world.invoke(&Call { fields, ..Call::new("GC") }).await.unwrap();
        assert_eq!(world.endpoints().await, ["n.t-c1", "n.t-c2"]);
        assert!(world.record("n.t-c1").await.is_some() && world.record("n.t-c2").await.is_some());
        // The record of an earlier version does not tell its configuration: only the time limit releases it.
        world.invoke(&Call { fields, configuration: "other", ..Call::new("GC") }).await.unwrap();
        assert_eq!(world.endpoints().await, ["n.t-c2"]);
        world.pods.release_lost().await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn add_writes_the_network_configuration_to_the_record() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        let record = world.record("n.t-c1").await.unwrap();
        assert_eq!(record.cni_configuration.as_deref(), Some("test"));
    });
}

#[test]
fn deletion_that_failed_is_finished_without_another_del() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.master.resign();
        assert_eq!(world.del("c1", None).await.unwrap_err().code, 11);
        let world = world.restart().await;
        world.master.lead();
        world.finish_requests().await;
        world.assert_nothing_left().await;
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
    });
}

#[test]
fn deletions_that_failed_are_finished_in_parallel() {
    const COUNT: usize = 8;
    needs!(root());
    let pods: Vec<_> = (0..COUNT).map(|_| Netns::new("pod").unwrap()).collect();
    World::run(async |world| {
        world.master.postpone_deletions();
        for (n, pod) in pods.iter().enumerate() {
            let container = format!("c{n}");
            world.add(&container, pod.path()).await.unwrap();
            assert_eq!(world.del(&container, None).await.unwrap_err().code, 11);
        }
        assert_eq!((world.master.deleted(), world.pods.unfinished()), (COUNT, COUNT));
        world.master.hold();
        let all_asked = async {
            // Each waits for its answer.
            world.until("netmaster is asked for all", || world.master.deleted() == 2 * COUNT).await;
            world.master.release();
            world.master.delete_postponed().await
        };
        let ((), answers) = tokio::join!(world.finish_requests(), all_asked);
        assert!(answers.len() >= COUNT, "{answers:?}");
        assert_eq!(world.pods.unfinished(), 0);
        world.assert_nothing_left().await;
    });
}
