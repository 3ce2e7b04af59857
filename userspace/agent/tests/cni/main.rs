//! CNI requests from the plugin to the kernel, with real namespaces, a real store, the fake datapath and a scripted
//! netmaster.
#![expect(clippy::unwrap_used, reason = "tests")]

mod bgp;
mod continuity;
mod crash;
mod deletion;
mod fabric;
mod failed_add;
mod garbage;
mod infra;
mod interest;
mod interfaces;
mod invalid_records;
mod late_store;
mod offload;
mod reboot;
mod renamed;
mod world;

use netplugin::datapath::ObjectId;
use testkit::{Netns, needs};
use world::{Call, HOST, World};

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
fn pod_waits_for_the_policy_of_its_group() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run_delaying(Some("/contiv.io/state/policy/"), async |world| {
        world.until("the datapath is in sync", || world.in_sync()).await;
        world.master.create_group().await;
        let mut add = std::pin::pin!(world.add_to_group("g", "c1", pod.path()));
        let endpoint = world.reader().wait(|state| state.endpoint(&"n.t-c1".into()).map(drop));
        tokio::select! {
            result = &mut add => panic!("attached without the policy: {result:?}"),
            () = endpoint => {}
        }
        // The other watches have delivered everything that the endpoint needs.
        let early = tokio::time::timeout(std::time::Duration::from_millis(500), &mut add).await;
        assert!(early.is_err(), "attached without the policy: {early:?}");
        assert!(world.local_endpoints().is_empty() && pod.links().unwrap().is_empty());
        world.deliver();
        add.await.unwrap();
        let group = ObjectId::Group(5.try_into().unwrap());
        assert!(world.switch.objects().get(&group).is_some());
    });
}

/// netmaster returns an endpoint that exists as it is: that of an attempt of a pod with this id that could not be undone.
#[test]
fn an_endpoint_of_an_earlier_attempt_gets_the_group_of_the_pod() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.until("the datapath is in sync", || world.in_sync()).await;
        world.master.create_group().await;
        world.put_endpoint("c1", HOST, 77).await;
        world.add_to_group("g", "c1", pod.path()).await.unwrap();
        assert_eq!(world.group_of("n.t-c1").await, "g:t");
        world.del("c1", None).await.unwrap();
        world.assert_nothing_left().await;
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
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let own = format!("/proc/{}/ns/net", thread.display());
        for (path, what) in
            [("/dev/null", "not a network namespace"), (&own, "the node's own network namespace")]
        {
            let error = world.add("c1", std::path::Path::new(path)).await.unwrap_err();
            assert_eq!(error.code, 4, "{error:?}");
            assert!(error.details.contains(path) && error.details.contains(what), "{error:?}");
        }
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
        for part in [
            "network unknown (label io.contiv.network of the pod or its network configuration)",
            "tenant t (label",
            "netctl network create --tenant t",
        ] {
            assert!(error.details.contains(part), "{error:?}");
        }
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
        // It is unknown whether netmaster has created the endpoint: its record stays until netmaster is asked.
        world.del("c2", None).await.unwrap();
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
        world.until_no_port().await;
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
fn interface_whose_removal_failed_is_removed_by_the_next_del() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.forget("n.t-c1");
        world.until("the datapath has no endpoint", || world.local_endpoints().is_empty()).await;
        assert_eq!(world.ports().await, ["vvport1"]);
        world.del("c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty());
    });
}

/// It was missing in the listing at the agent's start.
#[test]
fn interface_that_was_missed_is_attached_unless_a_del_has_begun() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |mut world| {
        world.add("c1", pod.path()).await.unwrap();
        world.forget("n.t-c1");
        world.until("the datapath has no endpoint", || world.local_endpoints().is_empty()).await;
        world.pods.recover_missed().await.unwrap();
        world.until("the datapath has the endpoint", || world.local_endpoints() == ["n.t-c1"]).await;

        world.stop_agent().await;
        let entry = world.entries().remove(0);
        let text = std::fs::read_to_string(&entry).unwrap();
        std::fs::write(&entry, text.replace("\"attached\"", "\"deleting\"")).unwrap();
        let world = world.restart().await;
        world.forget("n.t-c1");
        world.pods.recover_missed().await.unwrap();
        assert!(world.reader().with(|state| state.attachments().next().is_none()));
        world.finish_requests().await;
        world.assert_nothing_left().await;
    });
}

#[test]
fn reclaim_waits_for_a_running_del() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        world.master.hold();
        let mut del = std::pin::pin!(world.del("c1", None));
        tokio::select! {
            result = &mut del => panic!("{result:?}"),
            () = world.master.deletion_received() => {}
        }
        // The interface is gone, and its name is free for the next pod.
        let endpoint = "n.t-c1".into();
        let mut reclaim = std::pin::pin!(world.pods.reclaim(&endpoint));
        let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut reclaim).await;
        assert!(early.is_err(), "{early:?}");
        world.master.release();
        del.await.unwrap();
        assert!(!reclaim.await.unwrap());
        world.add("c2", other.path()).await.unwrap();
        assert_eq!(world.ports().await, ["vvport1"]);
    });
}

#[test]
fn reclaim_is_finished_after_its_client_has_gone() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        let endpoint = "n.t-c1".into();
        // Each poll lets the request go a step further.
        for polls in 1..4 {
            let mut reclaim = Box::pin(world.pods.reclaim(&endpoint));
            for _ in 0..polls {
                assert!(futures::poll!(&mut reclaim).is_pending());
                tokio::task::yield_now().await;
            }
            drop(reclaim);
            world.pods.finish_reclaims().await;
            assert!(pod.links().unwrap().is_empty());
            let has_record = || world.reader().with(|state| state.attachment(&endpoint).is_some());
            world.until("the record is deleted", || !has_record()).await;
            world.until("the datapath has no endpoint", || world.local_endpoints().is_empty()).await;
            world.del("c1", Some(pod.path())).await.unwrap();
            world.add("c1", pod.path()).await.unwrap();
        }
    });
}

#[test]
fn mtu_is_that_of_the_interface_with_the_vtep_address() {
    needs!(root());
    let (pod, late) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |world| {
        ip("link add under0 mtu 9000 type veth peer name under1");
        ip("link add tunnel0 mtu 1280 type vxlan id 7 dstport 4790");
        ip("tuntap add dev tunnel1 mode tun");
        ip("link set tunnel1 mtu 1300");
        ip("link set under1 mtu 8000");
        let warnings = || world.pods.warnings().borrow().lines().collect::<Vec<_>>();
        world.pods.refresh_underlay().await.unwrap();
        assert_eq!(warnings().len(), 1, "{:?}", warnings());
        assert!(warnings()[0].contains("192.168.0.1: no interface of this node has it"), "{:?}", warnings());
        // The lowest MTU of the interfaces that may carry the frames.
        let first = world.add("c1", pod.path()).await.unwrap();
        assert_eq!(first["interfaces"][1]["mtu"], 7950);

        ip("address add 192.168.0.1/24 dev under0");
        world.pods.refresh_underlay().await.unwrap();
        assert_eq!(warnings(), Vec::<String>::new());
        let result = world.add("c2", late.path()).await.unwrap();
        assert_eq!(result["interfaces"][1]["mtu"], 8950);
        // Attached pods keep theirs.
        assert_eq!(world.add("c1", pod.path()).await.unwrap(), first);
        let (fields, netns) = (format!(r#""prevResult":{first},"#), pod.path().display().to_string());
        let check = Call { fields: &fields, container: "c1", netns: &netns, ..Call::new("CHECK") };
        world.invoke(&check).await.unwrap();
    });
}

fn ip(words: &str) {
    let status = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(status.success(), "ip {words}");
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
fn request_that_outlasts_the_agent_is_interrupted_and_finished_by_the_next_one() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |mut world| {
        world.add("c1", pod.path()).await.unwrap();
        world.master.hold();
        let socket = world.socket();
        let call = Call { container: "c1", ..Call::new("DEL") };
        let mut del = std::pin::pin!(call.send(&socket));
        tokio::select! {
            result = &mut del => panic!("{result:?}"),
            () = world.master.deletion_received() => {}
        }
        let other = Netns::new("pod").unwrap();
        let netns = other.path().display().to_string();
        let call = Call { container: "c2", netns: &netns, ..Call::new("ADD") };
        let mut add = std::pin::pin!(call.send(&socket));
        tokio::select! {
            result = &mut add => panic!("{result:?}"),
            () = world.until("netmaster is asked for c2", || world.master.created() == 2) => {}
        }
        world.stop_agent().await;
        for refused in [add.await.unwrap_err(), del.await.unwrap_err()] {
            assert!(refused.code == 11 && refused.details.contains("the agent is stopping"), "{refused:?}");
        }
        // Whatever netmaster does now, nothing is attached that the next agent does not know.
        world.master.release();
        let world = world.restart().await;
        assert_eq!(world.entries().len(), 2);
        world.finish_requests().await;
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty() && other.links().unwrap().is_empty());
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
