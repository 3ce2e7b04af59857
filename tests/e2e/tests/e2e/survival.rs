//! Agents and netmaster are killed while pods communicate.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{collections::BTreeSet, time::Duration};

use e2e::cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind};
use testkit::{Ping, Pinger, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
/// 100 pings per second.
const INTERVAL: Duration = Duration::from_millis(10);
const WRITES: &str = "contiv_datapath_writes_total";

fn cluster(encap: Encap, store: StoreKind) -> (Cluster, Vec<Pod>) {
    let shape = Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap, store };
    let mut cluster = Cluster::build(shape).unwrap();
    cluster.start_agents().unwrap();
    cluster.create_network(&Network::pods()).unwrap();
    let pods = cluster
        .nodes
        .iter()
        .flat_map(|node| {
            (1..=2)
                .map(|number| Pod::add(node, &Network::pods(), &format!("{}-{number}", node.name)).unwrap())
        })
        .collect();
    (cluster, pods)
}

/// Pings between the nodes in both directions and within each node, IPv4 and IPv6: all paths.
fn ping_everywhere(pods: &[Pod]) -> Vec<Pinger> {
    let mut pingers = vec![];
    for (from, to) in [(0, 2), (2, 0), (0, 1), (2, 3)] {
        let (from, to) = (&pods[from], &pods[to]);
        for address in [to.ip.into(), to.ipv6.unwrap().into()] {
            wait_until(DEADLINE, &format!("{} reaches {} at {address}", from.name, to.name), || {
                Ok((from.netns().ping(address, 1, INTERVAL)?.received == 1).then_some(()))
            })
            .unwrap();
            pingers.push(Pinger::start(from.netns(), address, INTERVAL).unwrap());
        }
    }
    pingers
}

/// Waits for further replies on every path.
fn wait_replies(pingers: &[Pinger], replies: usize) {
    let wanted: Vec<_> = pingers.iter().map(|pinger| pinger.answers() + replies).collect();
    for (pinger, wanted) in pingers.iter().zip(wanted) {
        wait_until(DEADLINE, "more replies", || Ok((pinger.answers() >= wanted).then_some(()))).unwrap();
    }
}

fn assert_no_loss(cluster: &Cluster, pingers: Vec<Pinger>) {
    let finish = |pinger: Pinger| (pinger.target(), pinger.finish(DEADLINE).unwrap());
    let pings: Vec<_> = pingers.into_iter().map(finish).collect();
    let is_complete = |(_, ping): &(_, Ping)| ping.sent >= 100 && ping.lost() == 0;
    // A switch that gets no processor time forwards nothing, and its sockets overflow.
    let switches = cluster.nodes.iter().filter_map(|node| node.switch()?.vswitchd());
    let warnings: Vec<_> = switches.map(|process| process.tail()).collect();
    assert!(pings.iter().all(is_complete), "{pings:#?}, warnings of the switches: {warnings:#?}");
}

fn agent_restarts_lose_no_ping(encap: Encap) {
    let (mut cluster, pods) = cluster(encap, StoreKind::Embedded);
    let pingers = ping_everywhere(&pods);
    wait_replies(&pingers, 50);
    for number in 0..cluster.nodes.len() {
        let node = &mut cluster.nodes[number];
        node.kill_agent().unwrap();
        wait_replies(&pingers, 100);
        node.restart_agent().unwrap();
        wait_replies(&pingers, 100);
        // The counter of a new process starts at zero: the agent has not rewritten correct state.
        assert_eq!(node.metric(WRITES).unwrap(), 0.0, "{} wrote after its restart", node.name);
    }
    assert_no_loss(&cluster, pingers);
    for pod in pods {
        let node = cluster.nodes.iter().find(|node| node.name == pod.node).unwrap();
        pod.remove(node).unwrap();
    }
    cluster.shut_down().unwrap();
}

#[test]
fn no_ping_is_lost_when_agents_are_killed_vxlan() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"));
    let _machine = testkit::exclusive();
    agent_restarts_lose_no_ping(Encap::Vxlan);
}

#[test]
fn no_ping_is_lost_when_agents_are_killed_vlan() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"));
    let _machine = testkit::exclusive();
    agent_restarts_lose_no_ping(Encap::Vlan);
}

#[test]
fn killed_netmaster_allocates_no_address_twice_and_forwarding_continues() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"), binary("ping"), binary("etcd"));
    let _machine = testkit::exclusive();
    for store in [StoreKind::Embedded, StoreKind::Etcd] {
        let (mut cluster, mut pods) = cluster(Encap::Vxlan, store);
        let pingers = ping_everywhere(&pods);
        cluster.master.kill().unwrap();
        wait_replies(&pingers, 50);
        cluster.master.restart().unwrap();
        wait_replies(&pingers, 50);
        assert_no_loss(&cluster, pingers);
        for node in &cluster.nodes {
            pods.push(Pod::add(node, &Network::pods(), &format!("{}-late", node.name)).unwrap());
        }
        let addresses: BTreeSet<_> = pods.iter().map(|pod| pod.ip).collect();
        let addresses_v6: BTreeSet<_> = pods.iter().map(|pod| pod.ipv6).collect();
        assert_eq!((addresses.len(), addresses_v6.len()), (pods.len(), pods.len()));
        let late = &pods[pods.len() - 2..];
        wait_until(DEADLINE, "the late pods reach each other", || {
            Ok((late[0].netns().ping(late[1].ip.into(), 1, INTERVAL)?.received == 1).then_some(()))
        })
        .unwrap();
    }
}

/// SIGTERM while a node attaches many pods: each request either succeeds or leaves nothing behind.
#[test]
fn terminated_agent_finishes_the_requests_of_the_runtime() {
    needs!(root(), binary("ping"));
    let _machine = testkit::exclusive();
    let network = Network::pods();
    let mut cluster = Cluster::ebpf(Encap::Vxlan, &network).unwrap();
    let agent = cluster.nodes[0].agent().unwrap().pid();
    let node = &cluster.nodes[0];
    let network = &network;
    let results: Vec<_> =
        std::thread::scope(|scope| {
            let add = |number| scope.spawn(move || Pod::add(node, network, &format!("pod{number}")));
            let adds: Vec<_> = (0..32).map(add).collect();
            wait_until(DEADLINE, "some pods have interfaces", || {
                Ok((node.pod_links()?.len() >= 4).then_some(()))
            })
            .unwrap();
            nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGTERM).unwrap();
            adds.into_iter().map(|add| add.join().unwrap()).collect()
        });
    assert!(cluster.nodes[0].agent().unwrap().wait(DEADLINE).unwrap().success());
    let attached: Vec<&Pod> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    assert!(!attached.is_empty());
    let refusals = results.iter().filter_map(|result| result.as_ref().err());
    let refusals: Vec<_> = refusals.map(|refused| format!("{refused:#}")).collect();
    assert!(!refusals.iter().any(|text| text.contains("rollback")), "{refusals:?}");
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), attached.len(), "{refusals:?}");
    cluster.nodes[0].restart_agent().unwrap();
    wait_until(DEADLINE, "the store has the endpoints of the attached pods only", || {
        let known = cluster.nodes[0].metric("contiv_state_endpoints")?;
        Ok((known == attached.len() as f64).then_some(()))
    })
    .unwrap();
    for pod in &attached[1..] {
        let ping = attached[0].netns().ping(pod.ip.into(), 1, Duration::from_secs(5)).unwrap();
        assert_eq!(ping.received, 1, "{}", pod.name);
    }
}
