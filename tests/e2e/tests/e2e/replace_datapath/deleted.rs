//! Pods whose endpoint was deleted before the agent that replaces the datapath started.

use e2e::cluster::{Datapath, Encap, Network, Node, Pod};
use serde_json::json;
use testkit::needs;

use super::Site;

/// Whether the host end of a pod's interface is up.
fn is_up(node: &Node, host_end: &str) -> bool {
    let link = node.netns().output("ip", &["-o", "link", "show", "dev", host_end]).unwrap();
    let flags = link.split(['<', '>']).nth(1).unwrap_or_default();
    flags.split(',').any(|flag| flag == "UP")
}

/// Without a datapath, frames of the pod would enter the network stack of the node.
#[test]
fn a_pod_whose_endpoint_was_deleted_is_cut_off() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    for datapath in [Datapath::Ebpf, Datapath::Ovs] {
        let node = &mut site.cluster.nodes[0];
        let others = node.pod_links().unwrap();
        let pod = Pod::add(node, &Network::pods(), "deleted").unwrap();
        let host_end = node.pod_links().unwrap().into_iter().find(|link| !others.contains(link)).unwrap();
        node.kill_agent().unwrap();
        let endpoint =
            json!({"TenantName": "blue", "NetworkName": "pods", "EndpointID": pod.call().container_id});
        site.cluster.client().post_json("/plugin/deleteEndpoint", &endpoint).unwrap();

        let node = &mut site.cluster.nodes[0];
        assert!(is_up(node, &host_end));
        node.replace_datapath(datapath).unwrap();
        assert!(!is_up(node, &host_end), "{} of {} is up", host_end, datapath.name());
        assert!(others.iter().all(|other| is_up(node, other)), "{others:?}");
        site.wait_pings();
        pod.remove(&site.cluster.nodes[0]).unwrap();
    }
    site.shut_down().unwrap();
}
