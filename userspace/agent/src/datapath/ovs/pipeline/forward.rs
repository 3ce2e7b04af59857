//! The flows of each object.

use contiv_model::{global::ArpMode, tag::Encap};
use openflow_rs::{Action, Field, Flow, Match};

use super::{PEERS, Side, metadata, neighbour, of_network, of_network_from, pods_group, priority, table};
use crate::datapath::{Local, Network, Remote};

/// The bridge that carries a network, and its tag there.
pub(crate) fn place(encap: Encap) -> (Side, u32) {
    match encap {
        Encap::Vlan(vlan) => (Side::Vlan, vlan.get().into()),
        Encap::Vxlan { vni, .. } => (Side::Vxlan, vni.get()),
    }
}

/// Frames from outside keep their tag; the bridge itself knows which ports it goes to.
pub(crate) fn uplink(port: u32) -> Flow {
    Flow::new(table::ORIGIN, priority::MATCH, Match::new().in_port(port.into())).goto(table::SERVICE_SNAT)
}

/// Frames from another node.
pub(crate) fn peer(port: u32) -> Flow {
    Flow::new(table::INPUT, priority::MATCH, Match::new().in_port(port.into()))
        .write_metadata(metadata::FROM_VTEP, metadata::FROM_VTEP)
        .goto(table::ORIGIN)
}

/// `parts` is the number of groups that send to the network's pods.
pub(crate) fn network(network: &Network, parts: usize) -> Vec<Flow> {
    let (side, tag) = place(network.encap);
    let mut flows = vec![];
    if network.arp == ArpMode::Proxy {
        flows.extend(neighbour::asked(tag));
    }
    if side == Side::Vxlan {
        let from_vtep = metadata::FROM_VTEP;
        let to_pods = || (0..parts).map(|part| Action::Group(pods_group(tag, part)));
        let to_all = || {
            std::iter::once(Action::set(Field::TunnelId, tag)).chain(to_pods()).chain([Action::Group(PEERS)])
        };
        let tunnelled = Match::new().tunnel_id(tag.into()).metadata(from_vtep, from_vtep);
        flows.extend([
            Flow::new(table::ORIGIN, priority::MATCH, tunnelled)
                .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
                .goto(table::SERVICE_SNAT),
            Flow::new(table::DESTINATION, priority::FLOOD, of_network_from(tag, 0)).apply(to_all()),
            // What came from another node went to all other nodes already.
            Flow::new(table::DESTINATION, priority::FLOOD, of_network_from(tag, from_vtep)).apply(to_pods()),
            // Requests for addresses that nobody is known to have.
            Flow::new(table::NEIGHBOUR, priority::FLOOD, of_network_from(tag, 0)).apply(to_all()),
        ]);
    }
    flows
}

pub(crate) fn local(local: &Local, port: u32) -> Vec<Flow> {
    let (side, tag) = place(local.encap);
    // A pod has no say in which network it is on: what it tagged itself is dropped.
    let untagged = Match::new().in_port(port.into()).no_vlan();
    let mut flows = vec![
        Flow::new(table::ORIGIN, priority::POD, untagged)
            .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
            .goto(table::SERVICE_DNAT),
    ];
    if side == Side::Vxlan {
        let here = of_network(tag).eth_dst(local.mac.0);
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, here).apply([Action::output(port)]));
    }
    flows.extend(neighbour::known(tag, local.mac.0, local.ip, local.ip6));
    flows.extend(neighbour::own(side, tag, port, local.ip, local.ip6));
    flows
}

/// `port` leads to its node, where the network is a VXLAN.
pub(crate) fn remote(remote: &Remote, port: Option<u32>) -> Vec<Flow> {
    let (_, tag) = place(remote.encap);
    let mut flows: Vec<_> = neighbour::known(tag, remote.mac.0, remote.ip, remote.ip6).collect();
    if let Some(port) = port {
        // Only from here: a frame from one node is never sent on to another.
        let there = of_network_from(tag, 0).eth_dst(remote.mac.0);
        let tunnel = [Action::set(Field::TunnelId, tag), Action::output(port)];
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, there).apply(tunnel));
    }
    flows
}
