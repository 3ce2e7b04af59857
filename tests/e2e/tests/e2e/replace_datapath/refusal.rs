//! A datapath that cannot come up on a node replaces nothing, and the node reports why.

use std::fs;

use e2e::cluster::{Encap, Node};
use testkit::{Pinger, needs, wait_until};

use super::{DEADLINE, INTERVAL, Site};

impl Site {
    /// Pings from the first node to the servers of both nodes.
    fn start_pingers(&self) -> Vec<Pinger> {
        let start = |ip| Pinger::start(self.client.netns(), ip, INTERVAL).unwrap();
        self.servers.iter().map(|pod| start(pod.ip.into())).collect()
    }
}

fn assert_none_lost(pingers: Vec<Pinger>) {
    for pinger in pingers {
        let target = pinger.target();
        assert_eq!(pinger.finish(DEADLINE).unwrap().lost(), 0, "{target}");
    }
}

/// Content of the file with the chosen datapath.
fn chosen(node: &Node) -> Option<String> {
    fs::read_to_string(node.cni_socket().with_extension("datapath")).ok().map(|text| text.trim().to_owned())
}

#[test]
fn a_stopped_switch_does_not_replace_the_programs() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    // Of an eBPF node, VLANs do not need the switch.
    let mut site = Site::build(Encap::Vlan).unwrap();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    let switch = site.cluster.nodes[0].switch_mut().unwrap();
    switch.kill_vswitchd().unwrap();
    switch.kill_database().unwrap();
    let pingers = site.start_pingers();
    site.set_datapath("node1", "ovs").unwrap();
    site.wait_refused("ovs", "is openvswitch-switch running on this node?");
    site.wait_datapath("ebpf");
    site.wait_pings();
    assert_none_lost(pingers);
    assert_eq!(chosen(&site.cluster.nodes[0]).as_deref(), Some("ebpf"));
    site.shut_down().unwrap();
}

/// As without the kernel's module, the switch responds and has no bridge for the agent.
#[test]
fn a_switch_that_cannot_have_the_bridges_does_not_replace_the_programs() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    let directory = site.cluster.nodes[0].switch().unwrap().directory().to_owned();
    let management = directory.join("contivVlanBridge.mgmt");
    wait_until(DEADLINE, "the switch removes its socket", || Ok((!management.exists()).then_some(())))
        .unwrap();
    // ovs-vswitchd cannot listen there.
    fs::create_dir(&management).unwrap();
    let pingers = site.start_pingers();
    site.set_datapath("node1", "ovs").unwrap();
    site.wait_refused("ovs", "build the datapath beside the other one");
    site.wait_datapath("ebpf");
    site.wait_pings();
    assert_none_lost(pingers);
    let node = &site.cluster.nodes[0];
    assert_eq!(chosen(node).as_deref(), Some("ebpf"));
    let bridges = node.switch().unwrap().vsctl(&["list-br"]).unwrap();
    assert!(!bridges.contains("contiv"), "{bridges}");

    // A restarted agent tries again.
    fs::remove_dir(&management).unwrap();
    site.cluster.nodes[0].restart_agent().unwrap();
    site.wait_datapath("ovs");
    site.wait_pings();
    site.shut_down().unwrap();
}

#[test]
fn programs_without_an_uplink_do_not_replace_the_switch() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.cluster.nodes[0].restart_agent_as("--vlan-uplinks", "nowhere0").unwrap();
    site.wait_pings();
    let pingers = site.start_pingers();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_refused("ebpf", "find the VLAN uplink nowhere0");
    site.wait_datapath("ovs");
    site.wait_pings();
    assert_none_lost(pingers);
    let node = &site.cluster.nodes[0];
    assert_eq!(chosen(node), None);
    let bridges = node.switch().unwrap().vsctl(&["list-br"]).unwrap();
    assert!(bridges.contains("contivVlanBridge") && bridges.contains("contivVxlanBridge"), "{bridges}");

    // A restarted agent tries again.
    site.cluster.nodes[0].restart_agent_as("--vlan-uplinks", "uplink0").unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    site.shut_down().unwrap();
}

/// The removal of the switch's bridges would not free the port.
#[test]
fn programs_without_the_port_of_the_tunnels_do_not_replace_the_switch() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    if testkit::ovs::on_kernel() {
        testkit::skip!("the switch has the port");
    }
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    let device = "link add foreign0 type vxlan external dstport 4789 nolearning udp6zerocsumrx";
    site.cluster.nodes[0].netns().ip(device).unwrap();
    let pingers = site.start_pingers();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_refused("ebpf", "create the VXLAN device contivvx0 on UDP port 4789");
    site.wait_datapath("ovs");
    site.wait_pings();
    assert_none_lost(pingers);
    assert_eq!(chosen(&site.cluster.nodes[0]), None);

    // A restarted agent tries again.
    site.cluster.nodes[0].netns().ip("link del foreign0").unwrap();
    site.cluster.nodes[0].restart_agent().unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    site.shut_down().unwrap();
}

/// The switch forwards while its database is away.
#[test]
fn a_switch_that_does_not_respond_is_not_taken_for_none() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    site.cluster.nodes[0].switch_mut().unwrap().kill_database().unwrap();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_refused("ebpf", "Open vSwitch does not respond");
    // ovs-vswitchd polls the ports of `netdev` only while it has its database, so no ping tells who forwards.
    let node = &mut site.cluster.nodes[0];
    let links = node.netns().links().unwrap();
    assert!(!links.iter().any(|link| link == "contivvx0"), "{links:?}");
    assert_eq!(chosen(node), None);

    // A restarted agent tries again.
    node.switch_mut().unwrap().start_database().unwrap();
    node.restart_agent().unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    site.shut_down().unwrap();
}
