//! The host name of a node changes while its pods run.

use std::{fs, net::IpAddr, path::Path, time::Duration};

use serde_json::Value;
use testkit::{BpfDir, Netns, Pinger, needs, ovs::Switch, wait_until};

use crate::{
    crash::{Site, TIMEOUT},
    world::{HOST, World},
};

/// The scripted netmaster accepts it, as it begins with the name of the node.
const OTHER: &str = "node-under-test-renamed";

/// Removes the name of the node from what the agent remembers, as if an earlier release had written the file.
fn forget_name(socket: &Path) {
    let file = socket.with_extension("store.json");
    let mut memory: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    memory.as_object_mut().unwrap().remove("host");
    fs::write(file, memory.to_string()).unwrap();
}

#[test]
fn a_renamed_node_is_refused_and_its_datapath_stays() {
    needs!(root());
    let (pod, other) = (Netns::new("pod").unwrap(), Netns::new("pod").unwrap());
    World::run(async |mut world| {
        world.add("c1", pod.path()).await.unwrap();
        for knows_name in [true, false] {
            if !knows_name {
                world.stop_agent().await;
                forget_name(&world.socket());
            }
            world = world.restart_as(OTHER).await;
            let why = world.until_refused().await;
            assert!(why.contains(&format!("use --host {HOST}")), "{why}");
            assert_eq!((world.writes(), world.in_sync()), (0, false));
            assert_eq!(world.local_endpoints(), ["n.t-c1"]);
        }
        let world = world.restart().await;
        world.until("the datapath is in sync", || world.in_sync()).await;
        assert_eq!((world.writes(), world.local_endpoints()), (0, vec!["n.t-c1".to_owned()]));
        world.del("c1", Some(pod.path())).await.unwrap();
        world.assert_nothing_left().await;

        // A node without pods may have another name.
        let world = world.restart_as(OTHER).await;
        world.add("c2", other.path()).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c2"]);
        let world = world.restart().await;
        let why = world.until_refused().await;
        assert!(why.contains(&format!("use --host {OTHER}")), "{why}");
    });
}

#[test]
fn interfaces_of_endpoints_on_other_nodes_are_reported() {
    needs!(root());
    let pods = [(); 2].map(|()| Netns::new("pod").unwrap());
    World::run(async |world| {
        for (container, pod) in ["c1", "c2"].into_iter().zip(&pods) {
            world.add(container, pod.path()).await.unwrap();
        }
        world.put_endpoint("c1", "other", 1).await;
        let id = "n.t-c1".into();
        let is_there = |world: &World| {
            let host = world.reader().with(|state| state.endpoint(&id).map(|endpoint| endpoint.host.clone()));
            host.is_some_and(|host| host.as_str() == "other")
        };
        world.until("the record has arrived", || is_there(&world)).await;
        // The name of the node is that of its other pods.
        let world = world.restart().await;
        world.until("the datapath is in sync", || world.in_sync()).await;
        assert!(is_there(&world));
        let reported = || {
            world.pods.report_orphans();
            world.pods.warnings().borrow().lines().collect::<Vec<_>>()
        };
        let lines = reported();
        assert!(lines.len() == 1 && lines[0].contains("first: endpoint n.t-c1 on other"), "{lines:?}");
        world.del("c1", None).await.unwrap();
        assert_eq!((reported(), world.endpoints().await.len()), (vec![], 2));
    });
}

/// Pods reach each other while agents with another name are refused.
async fn pings_go_on(site: Site) {
    let pods = [(); 2].map(|()| Netns::new("pod").unwrap());
    let mut agent = site.agent(None).await;
    for (container, pod) in ["c1", "c2"].into_iter().zip(&pods) {
        site.request("ADD", container, &pod.path().display().to_string()).await.unwrap();
    }
    let target: IpAddr = "10.9.0.2".parse().unwrap();
    wait_until(TIMEOUT, "an answer", || {
        Ok((pods[0].ping(target, 1, Duration::from_millis(300))?.received == 1).then_some(()))
    })
    .unwrap();
    let pings = Pinger::start(&pods[0], target, Duration::from_millis(20)).unwrap();
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
    for knows_name in [true, false] {
        if !knows_name {
            forget_name(&site.socket());
        }
        let mut refused = site.spawn_as(OTHER);
        assert_eq!(refused.wait(TIMEOUT).unwrap().code(), Some(1), "{}", refused.log());
        let log = refused.log();
        assert!(log.lines().last().unwrap().contains(&format!("use --host {HOST}")), "{log}");
    }
    let answers = pings.answers();
    wait_until(TIMEOUT, "more answers", || Ok((pings.answers() > answers + 10).then_some(()))).unwrap();
    let mut agent = site.agent(None).await;
    let pings = pings.finish(TIMEOUT).unwrap();
    assert_eq!(pings.lost(), 0, "{pings:?}");
    for container in ["c1", "c2"] {
        site.request("DEL", container, "").await.unwrap();
    }
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
}

#[test]
fn pods_of_a_renamed_ebpf_node_keep_their_network() {
    needs!(root(), binary("ping"));
    let pins = BpfDir::new("pins").unwrap();
    let flags = |_: &Netns, directory: &Path| {
        let (root, ovsdb) = (pins.path().display().to_string(), directory.join("none.sock"));
        let ovsdb = format!("unix:{}", ovsdb.display());
        let flags = ["--mode", "cni", "--datapath", "ebpf", "--bpf-root", &root, "--ovsdb", &ovsdb];
        flags.map(str::to_owned).to_vec()
    };
    Site::run(flags, async |site| pings_go_on(site).await);
}

#[test]
fn pods_of_a_renamed_ovs_node_keep_their_network() {
    needs!(root(), binary("ping"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let mut switch = None;
    let start = |node: &Netns, _: &Path| {
        let started = switch.insert(Switch::start(node).unwrap());
        let ovsdb = format!("unix:{}", started.socket().display());
        ["--mode", "cni", "--ovs-datapath-type", "netdev", "--ovsdb", &ovsdb].map(str::to_owned).to_vec()
    };
    Site::run(start, async |site| pings_go_on(site).await);
    switch.unwrap().stop().unwrap();
}
