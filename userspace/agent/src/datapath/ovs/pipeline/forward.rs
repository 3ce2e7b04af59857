//! Flows of each object.

use std::net::IpAddr;

use contiv_model::{global::ArpMode, group::Dscp};
use ipnet::IpNet;
use openflow_rs::{Action, Field, Flow, Match};

use super::{
    answer, external,
    group::{UPLINK_GROUP, endpoint_group, peer_group, receiver_group},
    guard::{self, Record},
    kernel,
    metadata::{self, Domain, Segment, bridge_and_tag, match_from, network_match, network_match_from},
    neighbour, policy, route,
    table::{self, priority},
};
use crate::datapath::{Local, Network, Remote, Subnet, ovs::bridge::BridgeKind};

/// Returns the flow of an uplink. Frames from an uplink keep their VLAN tag, which the bridge uses to select ports.
pub(crate) fn outside(port: u32) -> Flow {
    Flow::new(table::INPUT, priority::MATCH, Match::new().in_port(port.into()))
        .write_metadata(metadata::OUTSIDE, metadata::OUTSIDE)
        .goto(table::SOURCE)
}

/// Returns the flows of a tunnel.
pub(crate) fn tunnel(port: u32) -> Vec<Flow> {
    let mut flows = guard::port(port);
    flows.push(outside(port));
    flows
}

/// Returns the flows for packets that the node's kernel sends from VLAN networks for which the node is the gateway.
pub(crate) fn from_network(port: u32) -> Vec<Flow> {
    guard::port(port)
}

/// Returns the flows for packets that pods send to the tunnel port of a node.
pub(crate) fn vtep(address: IpAddr, port: u16) -> [Flow; 3] {
    guard::to_vtep(address, port)
}

/// Returns the flows of a subnet. `kernel` is the port of the node's kernel.
pub(crate) fn subnet(subnet: &Subnet, segment: Segment, kernel: Option<u32>) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    let mut flows = policy::subnet(subnet, domain);
    // The other nodes are reached through the kernel.
    if !subnet.is_routed_vlan() {
        flows.extend(policy::within(domain, subnet.prefix));
    }
    if let IpNet::V4(prefix) = subnet.prefix
        && prefix.prefix_len() < 31
    {
        flows.extend(guard::broadcast(domain, prefix));
    }
    if let Some(gateway) = subnet.gateway.filter(|_| subnet.is_routed()) {
        flows.extend(guard::router(domain, subnet.prefix, gateway.ip));
        flows.push(neighbour::gateway(tag, gateway.ip));
        flows.extend(route::gateway(domain, gateway.ip));
        flows.extend(route::link_local(domain, subnet.prefix));
        // The kernel sends the ICMP errors for the networks that it routes.
        flows.extend((!domain.is_local()).then(|| answer::expired(domain, subnet.prefix, gateway.ip)));
        if domain.is_local() {
            flows.extend(match kernel {
                Some(port) => kernel::subnet(segment, subnet.prefix, port),
                None => vec![kernel::unreachable(segment, subnet.prefix)],
            });
            flows.push(kernel::gateway(domain, gateway.ip));
        }
    }
    flows
}

/// Returns the number of the VRF whose packets a flow matches.
pub(crate) fn vrf_number(flow: &Flow) -> Option<u32> {
    let entered = || flow.instructions.apply.iter().find_map(metadata::entered_vrf);
    metadata::matched_vrf(&flow.matching).or_else(|| entered().filter(|_| flow.table == table::SOURCE))
}

/// Destinations of the replicated frames of a network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread<'a> {
    /// Number of groups of local pods.
    pub(crate) groups: usize,
    /// Number of groups of peers.
    pub(crate) peer_groups: usize,
    /// Port numbers of the uplinks.
    pub(crate) uplinks: &'a [u32],
    /// Port numbers of the standby uplinks.
    pub(crate) standby: &'a [u32],
    /// A local pod has rules, so that each receiver is evaluated.
    pub(crate) has_rules: bool,
}

/// Returns the flows of a network.
pub(crate) fn network(network: &Network, domain: Domain, spread: Spread<'_>) -> Vec<Flow> {
    let (bridge, tag) = bridge_and_tag(network.encap);
    let Spread { groups, peer_groups, .. } = spread;
    let mut flows = policy::network(network, domain);
    flows.extend(evaluated_flood(network, domain, spread));
    if network.arp == ArpMode::Proxy {
        flows.extend(neighbour::intercept_requests(tag));
    }
    let outside = metadata::OUTSIDE;
    let arrived = match bridge {
        BridgeKind::Vlan => match_from(outside).vlan(tag as u16),
        // A VLAN tag inside a tunnel would nest a network in a network.
        BridgeKind::Vxlan => match_from(outside).tunnel_id(tag.into()).no_vlan(),
    };
    let to_pods = || (0..groups).map(|group| Action::Group(endpoint_group(tag, group)));
    if domain.is_local() {
        let from_pods = [table::DESTINATION, table::NEIGHBOUR]
            .map(|table| Flow::new(table, priority::FLOOD, network_match_from(tag, 0)).apply(to_pods()));
        flows.extend(from_pods);
        flows.extend(kernel::network(tag));
        return flows;
    }
    flows.push(
        Flow::new(table::SOURCE, priority::MATCH, arrived)
            .apply(domain.enter())
            .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
            .goto(table::STATION),
    );
    if bridge == BridgeKind::Vxlan {
        let to_all = || {
            let tunnel_id = Action::set(Field::TunnelId, tag);
            let to_peers = (0..peer_groups).map(|group| Action::Group(peer_group(group)));
            std::iter::once(tunnel_id).chain(to_pods()).chain(to_peers)
        };
        flows.extend([
            Flow::new(table::DESTINATION, priority::FLOOD, network_match_from(tag, 0)).apply(to_all()),
            // Split horizon: the sending node replicates to all peers.
            Flow::new(table::DESTINATION, priority::FLOOD, network_match_from(tag, outside)).apply(to_pods()),
            // Requests for unknown addresses.
            Flow::new(table::NEIGHBOUR, priority::FLOOD, network_match_from(tag, 0)).apply(to_all()),
        ]);
    }
    flows
}

/// Returns the flows that replicate frames to the receivers that the rules allow.
fn evaluated_flood(network: &Network, domain: Domain, spread: Spread<'_>) -> Vec<Flow> {
    let (bridge, tag) = bridge_and_tag(network.encap);
    if !spread.has_rules {
        return vec![];
    }
    let groups: Vec<u32> = (0..spread.groups).map(|group| receiver_group(tag, group)).collect();
    let leave = match (bridge, spread.uplinks) {
        _ if domain.is_local() => vec![],
        (BridgeKind::Vxlan, _) => {
            let peers = (0..spread.peer_groups).map(|group| Action::Group(peer_group(group)));
            std::iter::once(Action::set(Field::TunnelId, tag)).chain(peers).collect()
        }
        (BridgeKind::Vlan, []) => vec![],
        (BridgeKind::Vlan, uplinks) => {
            let out = match uplinks {
                [one] => Action::output(*one),
                _ => Action::Group(UPLINK_GROUP),
            };
            vec![Action::push_vlan(), Action::set_vlan(tag as u16), out]
        }
    };
    let mut flows = policy::flood(domain.is_learning(), tag, &groups, spread.standby);
    flows.push(policy::far(tag, leave));
    flows
}

/// Returns the flows of a local endpoint at `port`. `dscp` is set in its packets.
pub(crate) fn local(local: &Local, segment: Segment, port: u32, dscp: Option<Dscp>) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    // A pod cannot choose its network: frames that it tags are dropped.
    let untagged = Match::new().in_port(port.into()).no_vlan();
    let mut flows = vec![
        Flow::new(table::SOURCE, priority::LOCAL_POD, untagged)
            .apply(domain.enter())
            .apply([metadata::sent_by(&local.id)])
            .write_metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
            .goto(table::GUARD),
    ];
    flows.extend(guard::pod(local, port));
    let Local { mac, addresses, identity, .. } = local;
    let record = Record { segment, mac: *mac, addresses, identity: *identity, port: Some(port) };
    flows.extend(guard::known_local(record));
    flows.extend(policy::endpoint(record));
    flows.push(policy::known_opener(&local.id, port));
    if let Some(dscp) = dscp {
        let packets = [Match::new().ipv4(), Match::new().ipv6()].map(|m| m.in_port(port.into()));
        flows.extend(packets.map(|m| {
            let mark = Action::set(Field::IpDscp, dscp.get());
            Flow::new(table::DSCP, priority::MATCH, m).apply([mark, Action::resubmit(table::SERVICE_SNAT)])
        }));
    }
    if !domain.is_learning() {
        let destination = network_match(tag).eth_dst(local.mac.0);
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, destination).apply([Action::output(port)]));
    }
    flows.extend(neighbour::known_addresses(segment, local.mac, &local.addresses));
    flows.extend(neighbour::own_addresses(tag, port, &local.addresses));
    flows.extend(route::local(segment, port, local.mac, &local.addresses));
    if domain.is_learning() {
        flows.extend(external::local(segment, local.mac, &local.addresses));
    }
    flows
}

/// Returns the flows of the record of a local endpoint without a port: its addresses belong to this node, and no frame
/// may come from them.
pub(crate) fn unattached(local: &Local, segment: Segment) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    let Local { mac, addresses, identity, .. } = local;
    let record = Record { segment, mac: *mac, addresses, identity: *identity, port: None };
    let mut flows = guard::known_local(record);
    // Drops frames to the endpoint instead of flooding them as frames to an unknown address. The priority is lower than
    // that of the flows of an endpoint that has moved to another node.
    if !domain.is_learning() {
        let destination = network_match(tag).eth_dst(mac.0);
        flows.push(Flow::new(table::DESTINATION, priority::MATCH - 1, destination));
    }
    if domain.is_local() {
        // The kernel would send these packets to the physical network, which routes them to this node.
        let to = |ip| Flow::new(table::IP, priority::MATCH - 1, guard::destination(domain.packets(), ip));
        flows.extend(addresses.iter().map(to));
    }
    flows
}

/// Table of the flow that admits the frames of a local endpoint. The flows of its record are in other tables.
pub(crate) const ENTRY_TABLE: u8 = table::SOURCE;

/// Reports whether this flow admits the frames of the local endpoint at `port` to the network with this tag.
pub(crate) fn is_entry(flow: &Flow, port: u32, tag: u32) -> bool {
    let network = (u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK);
    flow.table == ENTRY_TABLE
        && flow.matching.exact(Field::InPort) == Some(port.into())
        && flow.instructions.metadata == Some(network)
}

/// Returns the flows of a remote endpoint. `port` is the tunnel to its node or, on a VLAN network for which the node is
/// the gateway, the port of this node's kernel. It is `None` on other VLAN networks, and while there is no tunnel.
pub(crate) fn remote(remote: &Remote, segment: Segment, port: Option<u32>) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    let Remote { mac, addresses, identity, .. } = remote;
    let record = Record { segment, mac: *mac, addresses, identity: *identity, port: None };
    let mut flows = guard::known_remote(record, port);
    flows.extend(policy::endpoint(record));
    if domain.is_local() {
        flows.extend(neighbour::routed_addresses(domain, addresses));
        flows.extend(kernel::endpoint(segment, *mac, addresses));
        return flows;
    }
    flows.extend(neighbour::known_addresses(segment, *mac, addresses));
    flows.extend(route::endpoint(segment, *mac, addresses));
    // Split horizon: frames from a tunnel are not forwarded to another tunnel.
    let destination = || network_match_from(tag, 0).eth_dst(remote.mac.0);
    if let Some(port) = port {
        let tunnel = [Action::set(Field::TunnelId, tag), Action::output(port)];
        flows.push(Flow::new(table::DESTINATION, priority::MATCH, destination()).apply(tunnel));
    } else if domain.bridge() == BridgeKind::Vxlan {
        // Drops the frames instead of flooding them to all tunnels as frames to an unknown address. The priority is lower
        // than that of the flows of an endpoint that has moved to this node.
        flows.push(Flow::new(table::DESTINATION, priority::MATCH - 1, destination()));
    }
    flows
}
