//! Flows of each object.

use contiv_model::{global::ArpMode, tag::Encap};
use openflow_rs::{Action, Field, Flow, Match};

use super::{
    group::{endpoint_group, peer_group},
    metadata::{self, network_match, network_match_from},
    neighbour,
    table::{self, priority},
};
use crate::datapath::{Local, Network, Remote, ovs::bridge::BridgeKind};

/// Returns the bridge that carries a network, and the network's tag there: a VLAN id or a VNI.
pub(crate) fn bridge_and_tag(encap: Encap) -> (BridgeKind, u32) {
    match encap {
        Encap::Vlan(vlan) => (BridgeKind::Vlan, vlan.get().into()),
        Encap::Vxlan { vni, .. } => (BridgeKind::Vxlan, vni.get()),
    }
}

/// Returns the flow of an uplink. Its frames keep their VLAN tag, by which the bridge selects ports.
pub(crate) fn uplink(port: u32) -> Flow {
    Flow::new(table::SOURCE, priority::MATCH, Match::new().in_port(port.into())).goto(table::SERVICE_SNAT)
}

/// Returns the flow of a tunnel.
pub(crate) fn peer(port: u32) -> Flow {
    Flow::new(table::INPUT, priority::MATCH, Match::new().in_port(port.into()))
        .write_metadata(metadata::FROM_VTEP, metadata::FROM_VTEP)
        .goto(table::SOURCE)
}

/// Returns the flows of a network with `groups` groups of local pods, on a node with `peer_groups` groups of peers.
pub(crate) fn network(network: &Network, groups: usize, peer_groups: usize) -> Vec<Flow> {
    let (bridge, tag) = bridge_and_tag(network.encap);
    let mut flows = vec![];
    if network.arp == ArpMode::Proxy {
        flows.extend(neighbour::intercept_requests(tag));
    }
    if bridge == BridgeKind::Vxlan {
        let from_vtep = metadata::FROM_VTEP;
        let to_pods = || (0..groups).map(|group| Action::Group(endpoint_group(tag, group)));
        let to_all = || {
            let tunnel_id = Action::set(Field::TunnelId, tag);
            let to_peers = (0..peer_groups).map(|group| Action::Group(peer_group(group)));
            std::iter::once(tunnel_id).chain(to_pods()).chain(to_peers)
        };
        let tunnelled = Match::new().tunnel_id(tag.into()).metadata(from_vtep, from_vtep);
        flows.extend([
            Flow::new(table::SOURCE, priority::MATCH, tunnelled)
                .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
                .goto(table::SERVICE_SNAT),
            Flow::new(table::DESTINATION, priority::FLOOD, network_match_from(tag, 0)).apply(to_all()),
            // Split horizon: the sending node replicates to all peers.
            Flow::new(table::DESTINATION, priority::FLOOD, network_match_from(tag, from_vtep))
                .apply(to_pods()),
            // Requests for unknown addresses.
            Flow::new(table::NEIGHBOUR, priority::FLOOD, network_match_from(tag, 0)).apply(to_all()),
        ]);
    }
    flows
}

/// Returns the flows of a local endpoint at `port`.
pub(crate) fn local(local: &Local, port: u32) -> Vec<Flow> {
    let (bridge, tag) = bridge_and_tag(local.encap);
    // A pod cannot choose its network: frames that it tags are dropped.
    let untagged = Match::new().in_port(port.into()).no_vlan();
    let mut flows = vec![
        Flow::new(table::SOURCE, priority::LOCAL_POD, untagged)
            .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
            .goto(table::SERVICE_DNAT),
    ];
    if bridge == BridgeKind::Vxlan {
        let destination = network_match(tag).eth_dst(local.mac.0);
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, destination).apply([Action::output(port)]));
    }
    flows.extend(neighbour::known_addresses(tag, local.mac.0, &local.addresses));
    flows.extend(neighbour::own_addresses(bridge, tag, port, &local.addresses));
    flows
}

/// Returns the flows of a remote endpoint. `port` is the tunnel to its node; `None` on a VLAN network.
pub(crate) fn remote(remote: &Remote, port: Option<u32>) -> Vec<Flow> {
    let (_, tag) = bridge_and_tag(remote.encap);
    let mut flows: Vec<_> = neighbour::known_addresses(tag, remote.mac.0, &remote.addresses).collect();
    if let Some(port) = port {
        // Split horizon: frames from a tunnel are not sent into another.
        let destination = network_match_from(tag, 0).eth_dst(remote.mac.0);
        let tunnel = [Action::set(Field::TunnelId, tag), Action::output(port)];
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, destination).apply(tunnel));
    }
    flows
}
