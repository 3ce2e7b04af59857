//! `epcleanup` of endpoints, and `netplugin cleanup` of a removed node.

use std::time::Duration;

use e2e::cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind};
use testkit::{needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn epcleanup_removes_the_interfaces_from_the_nodes() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"));
    let _machine = testkit::shared();
    let shape =
        Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = Cluster::build(shape).unwrap();
    cluster.start_agents().unwrap();
    cluster.create_network(&Network::pods()).unwrap();
    let pods: Vec<Pod> = cluster
        .nodes
        .iter()
        .map(|node| Pod::add(node, &Network::pods(), &format!("{}-pod", node.name)).unwrap())
        .collect();
    for node in &cluster.nodes {
        assert_eq!(node.pod_links().unwrap().len(), 1);
    }
    let client = cluster.client();
    client.delete("/debug/epcleanup/tenant/blue/net/pods").unwrap();
    for node in &cluster.nodes {
        assert_eq!(node.pod_links().unwrap(), Vec::<String>::new(), "{}", node.name);
    }
    let inspected = client.get_json("/api/v1/inspect/networks/blue:pods/").unwrap();
    assert_eq!(
        inspected["Oper"]["allocatedIPAddresses"],
        Network::pods().gateway,
        "only the gateway is allocated"
    );

    // A later DEL of kubelet succeeds.
    for pod in pods {
        let node = cluster.nodes.iter().find(|node| node.name == pod.node).unwrap();
        pod.remove(node).unwrap();
    }
    // The addresses are free again, and forwarding works.
    let pods: Vec<Pod> = cluster
        .nodes
        .iter()
        .map(|node| Pod::add(node, &Network::pods(), &format!("{}-next", node.name)).unwrap())
        .collect();
    assert_eq!(pods[0].ip.to_string(), "10.1.0.1");
    wait_until(DEADLINE, "the new pods reach each other", || {
        let ping = pods[0].netns().ping(pods[1].ip.into(), 1, Duration::from_millis(10))?;
        Ok((ping.received == 1).then_some(()))
    })
    .unwrap();
    for pod in pods {
        let node = cluster.nodes.iter().find(|node| node.name == pod.node).unwrap();
        pod.remove(node).unwrap();
    }
    cluster.shut_down().unwrap();
}

#[test]
fn cleanup_of_a_removed_node_removes_all_state() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"));
    let _machine = testkit::shared();
    let shape =
        Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = Cluster::build(shape).unwrap();
    let before: Vec<_> = cluster.nodes.iter().map(|node| node.netns().links().unwrap()).collect();
    cluster.start_agents().unwrap();
    cluster.create_network(&Network::pods()).unwrap();
    let pods: Vec<Pod> = cluster
        .nodes
        .iter()
        .map(|node| Pod::add(node, &Network::pods(), &format!("{}-out", node.name)).unwrap())
        .collect();
    for node in &mut cluster.nodes {
        if node.datapath == Datapath::Ebpf {
            let running = node.clean_up().unwrap_err().to_string();
            assert!(running.contains("another netplugin uses it; stop that process first"), "{running}");
        }
        // SIGKILL: the agent cannot clean up itself.
        node.kill_agent().unwrap();
        let (other, what) = match node.datapath {
            Datapath::Ovs => (Datapath::Ebpf, "has contivVlanBridge and contivVxlanBridge of another agent"),
            Datapath::Ebpf => (Datapath::Ovs, "eBPF programs of another agent are attached"),
        };
        let refused = node.refusal_of(other).unwrap();
        assert!(refused.contains(what) && refused.contains("netplugin cleanup --datapath"), "{refused}");
        node.clean_up().unwrap();
        // A second cleanup succeeds.
        node.clean_up().unwrap();
    }
    for (node, before) in cluster.nodes.iter().zip(before) {
        let mut links = node.netns().links().unwrap();
        // A userspace switch creates its own devices.
        links.retain(|link| !before.contains(link) && !link.starts_with("ovs-"));
        assert_eq!(links, Vec::<String>::new(), "{}", node.name);
        if node.datapath == Datapath::Ebpf {
            let uplink = node.netns().output("ip", &["link", "show", "uplink0"]).unwrap();
            assert!(!uplink.contains("PROMISC") && !uplink.contains("xdp"), "{uplink}");
        }
        let pins = std::fs::read_dir(node.pins()).map_or(0, Iterator::count);
        assert_eq!(pins, 0, "{} has pins left", node.name);
        if let Some(switch) = node.switch() {
            let bridges = switch.vsctl(&["list-br"]).unwrap();
            assert!(!bridges.contains("contiv"), "{bridges}");
        }
    }
    drop(pods);
}
