//! VLAN networks for which the node is the gateway: their packets leave and enter the node through its kernel.
//!
//! ```text
//!  pod ─▶ 16 routed ─ 7 ─┬─ endpoint on the node: see `route`
//!                        └─ other destination, expired TTL ─ 4 policy ... 9 ─▶ kernel
//!  kernel ─▶ 1 network of the destination ─ 14 to 16 checks ─ 7 endpoint on the node ─ 4 policy ... 9 ─▶ pod
//! ```
//!
//! Frames of these networks stay on the node: none goes to an uplink, and none comes from one. The kernel forwards
//! between the node and the physical network by IP. It decrements the TTL, and sends ICMP errors to the senders of
//! packets that it cannot forward. On the kernel's port, the source and the destination have one fixed Ethernet address;
//! the tables replace it with the router's.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac};
use ipnet::IpNet;
use openflow_rs::{Action, Field, Flow, Match, matching::mac_bits};

use super::{
    family::Family,
    guard,
    metadata::{
        Domain, NETWORK, NETWORK_SHIFT, OUTSIDE, Segment, mark_routed, match_from, network_match_from,
        routed, to_no_service,
    },
    table::{self, priority, priority::check, priority::router as rank},
};
use crate::datapath::{KERNEL_MAC, host_access::NO_HOST};

/// ICMPv6 types of the neighbour discovery messages that pods send on their links (RFC 4861).
const DISCOVERY: [u8; 3] = [133, 135, 136];

/// Sends a packet to the kernel if it passes the rules.
pub(super) fn leave() -> [Action; 3] {
    [
        mark_routed(false),
        Action::set(Field::EthDst, mac_bits(Mac::ROUTER.0)),
        Action::resubmit(table::DESTINATION_GROUP),
    ]
}

/// Returns the flows that exist for any desired state. Expired packets go to the kernel, because it sends the ICMP error,
/// except packets that a pod sends to itself. A backend is an endpoint with a record. Until the record exists, packets to
/// its service are dropped, since rules could not identify the endpoint.
pub(super) fn base() -> [Flow; 4] {
    let expired = |priority, m| Flow::new(table::EXPIRED, priority, m);
    let leaving = |flow: Flow| flow.apply(guard::clear()).apply(leave());
    [
        expired(priority::OWN_ADDRESS, guard::with_same(Match::new())),
        leaving(expired(priority::MATCH + 1, guard::without_owner(to_no_service(Match::new())))),
        expired(priority::MATCH, guard::without_owner(Match::new())),
        leaving(expired(priority::MISS, Match::new())),
    ]
}

/// Returns the flows of a network.
pub(super) fn network(tag: u32) -> Vec<Flow> {
    let of_pods = |family: Family| family.packets(routed(network_match_from(tag, 0)));
    let mut flows = vec![];
    for family in Family::ALL {
        for ttl in [0u8, 1] {
            let expired = of_pods(family).field(Field::IpTtl, ttl);
            let expired = Flow::new(table::IP, rank::EXPIRED + 1, expired)
                .apply(guard::find_owner(family, family.destination()))
                .apply(guard::compare(Field::EthSrc))
                .apply([Action::resubmit(table::EXPIRED)]);
            flows.push(expired);
        }
        let unknown = Flow::new(table::IP, rank::OUTSIDE, to_no_service(of_pods(family)));
        flows.push(unknown.apply(leave()));
    }
    // Dropped even if they have expired: the kernel would accept them as its own.
    let of_node = |prefix| guard::destination_within(routed(network_match_from(tag, 0)), prefix);
    let no_host = NO_HOST.map(IpNet::from).into_iter().chain([guard::LINK_LOCAL.into()]);
    flows.extend(no_host.map(|prefix| Flow::new(table::IP, rank::NO_HOST, of_node(prefix))));
    let of_link = guard::source_within(routed(network_match_from(tag, 0)), guard::LINK_LOCAL.into());
    flows.push(Flow::new(table::IP, rank::NO_HOST, of_link));
    // Routers do not forward discovery messages, and rules do not apply to them.
    let discovery = |kind: u8| {
        let for_router = network_match_from(tag, 0).eth_dst(Mac::ROUTER.0);
        for_router.icmpv6(kind).field(Field::IpTtl, guard::ND_HOP_LIMIT)
    };
    flows.extend(DISCOVERY.map(|kind| Flow::new(table::DESTINATION, priority::MATCH + 1, discovery(kind))));
    // The bridge does not learn the ports of the network's stations.
    flows.push(Flow::new(table::DESTINATION, priority::FLOOD, network_match_from(tag, OUTSIDE)));
    flows
}

/// Matches packets that pods of a subnet send to the kernel.
fn to_kernel(tag: u32, prefix: IpNet) -> Flow {
    let leaving = guard::source_within(network_match_from(tag, 0).eth_dst(Mac::ROUTER.0), prefix);
    Flow::new(table::DESTINATION, priority::MATCH, leaving)
}

/// Returns the flow of a subnet while the kernel has no port: packets for the kernel must not be flooded to the pods of
/// the network.
pub(super) fn unreachable(Segment { tag, .. }: Segment, prefix: IpNet) -> Flow {
    to_kernel(tag, prefix)
}

/// Returns the flows of a subnet. The kernel receives and sends its packets at `port`. Packets between subnets of
/// different VRFs are dropped.
pub(super) fn subnet(Segment { tag, domain, .. }: Segment, prefix: IpNet, port: u32) -> Vec<Flow> {
    let output = [Action::set(Field::EthDst, mac_bits(KERNEL_MAC.0)), Action::output(port)];
    let to_kernel = to_kernel(tag, prefix).apply(output);
    let port = port.into();
    let within = |m| guard::destination_within(m, prefix);
    let from_kernel = Match::new().in_port(port).eth_src(KERNEL_MAC.0).eth_dst(KERNEL_MAC.0).no_vlan();
    let router = [Field::EthSrc, Field::EthDst].map(|field| Action::set(field, mac_bits(Mac::ROUTER.0)));
    let arrived = Flow::new(table::SOURCE, priority::MATCH, within(from_kernel))
        .apply(router)
        .apply(domain.enter())
        .write_metadata(u64::from(tag) << NETWORK_SHIFT | OUTSIDE, NETWORK | OUTSIDE)
        .goto(table::STATION);
    let from_subnet = |m: Match| guard::source_within(m.in_port(port), prefix);
    let of_vrf = domain.packets_from(OUTSIDE);
    let received = within(domain.packets_from(OUTSIDE).in_port(port).eth_dst(Mac::ROUTER.0));
    vec![
        to_kernel,
        arrived,
        Flow::new(table::STATION, check::FROM_KERNEL, from_subnet(match_from(OUTSIDE))),
        Flow::new(table::STATION, check::FROM_KERNEL_IN_VRF, from_subnet(of_vrf)).goto(table::CLAIM),
        Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, received).apply([Action::resubmit(table::IP)]),
        Flow::new(table::IP, rank::OTHER_VRF, within(routed(match_from(0)))),
        Flow::new(table::IP, rank::SAME_VRF, within(to_no_service(routed(domain.packets_from(0)))))
            .apply(leave()),
    ]
}

/// Returns the flow that drops packets for the gateway of a network, including expired ones. An earlier flow answers
/// pings. The kernel has no gateway address, unless an operator assigns it.
pub(super) fn gateway(domain: Domain, ip: IpAddr) -> Flow {
    Flow::new(table::IP, rank::GATEWAY, guard::destination(routed(domain.packets_from(0)), ip))
}

/// Returns the flows of the addresses of an endpoint on another node. The endpoint may have been on this node before. Its
/// neighbours keep its ARP or ND entry for a while, so that frames to its Ethernet address are also handled as for the
/// router.
pub(super) fn endpoint(segment: Segment, mac: Mac, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    let Segment { tag, domain, routed } = segment;
    addresses.iter().flat_map(move |ip| {
        let to = guard::destination(domain.packets_from(0), ip);
        let bridged = guard::destination(network_match_from(tag, 0).eth_dst(mac.0), ip);
        let received = Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, bridged)
            .apply([mark_routed(true), Action::resubmit(table::SERVICE_DNAT)]);
        let leaving = Flow::new(table::IP, priority::MATCH, to).apply(leave());
        [leaving].into_iter().chain(routed.has(ip).then_some(received))
    })
}
