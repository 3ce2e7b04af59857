//! Delivery by IP address: the destination determines the network and the Ethernet address of a packet.
//!
//! ```text
//!  16 pod to router ─ routed ─ 3 service? ─ 7 ─┬─ endpoint: its network, its Ethernet address ─ 4 policy ... 9 TTL - 1, source ─ 9
//!                                              ├─ gateway: echo request ─ 4 policy ─ 24 ─ 11 reply
//!                                              ├─ TTL expired ─ 31
//!                                              └─ no such endpoint
//! ```
//!
//! The router is on every node. The node of the sender routes a packet once, so that it reaches another node on the
//! network of its destination. Rules and connection tracking see the endpoints; the TTL is decremented after them.

use std::net::IpAddr;

use contiv_model::{
    addresses::Addresses,
    mac::Mac,
    policy::{ICMP, ICMPV6},
};
use ipnet::IpNet;
use openflow_rs::{Action, Field, Flow, Match, Port, matching::mac_bits};

use super::{
    answer,
    family::Family,
    guard, kernel,
    metadata::{
        Domain, IS_ROUTED, OUTSIDE, Segment, enter_network, flagged, mark_routed, network_match, routed,
    },
    policy,
    table::{self, priority, priority::check, priority::router as rank},
};
use crate::datapath::Subnet;

/// TTL of echo replies.
const REPLY_TTL: u8 = 64;
/// Fragment flag that is set in all fragments.
const ANY_FRAGMENT: u8 = 1;

/// Requires an echo request that is not fragmented.
fn ping(family: Family, matching: Match) -> Match {
    let m = family.packets(matching).masked(Field::IpFragment, 0u8, ANY_FRAGMENT);
    match family {
        Family::V4 => m.ip_proto(ICMP).field(Field::Icmpv4Type, 8u8).field(Field::Icmpv4Code, 0u8),
        Family::V6 => m.ip_proto(ICMPV6).field(Field::Icmpv6Type, 128u8).field(Field::Icmpv6Code, 0u8),
    }
}

/// Turns an echo request into its reply (RFC 792, RFC 4443 section 4.2).
fn pong(family: Family) -> [Action; 4] {
    let (source, destination, between) = (family.source(), family.destination(), family.register());
    let reply = match family {
        Family::V4 => Action::set(Field::Icmpv4Type, 0u8),
        Family::V6 => Action::set(Field::Icmpv6Type, 129u8),
    };
    [
        Action::copy(source, between),
        Action::copy(destination, source),
        Action::copy(between, destination),
        reply,
    ]
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let received = || routed(Match::new());
    let mut flows =
        vec![Flow::new(table::SERVICE_DNAT, rank::RECEIVED, received()).goto(table::IP), no_route()];
    for family in Family::ALL {
        flows.extend(expired(family));
        let sent = family.packets(received());
        flows.push(Flow::new(table::DESTINATION, rank::SENT, sent).apply([
            Action::DecrementTtl,
            Action::set(Field::EthSrc, mac_bits(Mac::ROUTER.0)),
            mark_routed(false),
            Action::resubmit(table::DESTINATION),
        ]));
        let reply = Flow::new(table::REPLY, priority::MATCH, ping(family, Match::new()));
        let back =
            [Action::copy(Field::EthSrc, Field::EthDst), Action::set(Field::EthSrc, mac_bits(Mac::ROUTER.0))];
        let ttl = [Action::SetTtl(REPLY_TTL), Action::output(Port::IN_PORT)];
        flows.push(reply.apply(back).apply(pong(family)).apply(ttl));
    }
    flows
}

/// Returns the flow for packets whose destination the router does not know. It exists to count them.
fn no_route() -> Flow {
    Flow::new(table::IP, priority::MISS, routed(Match::new()))
}

fn expired(family: Family) -> [Flow; 2] {
    [0u8, 1].map(|ttl| {
        let m = family.packets(routed(Match::new())).field(Field::IpTtl, ttl);
        Flow::new(table::IP, rank::EXPIRED, m).apply(answer::expire())
    })
}

/// Tables of the flows that count dropped packets.
pub(crate) const DROP_TABLES: [u8; 2] = [table::IP, answer::ANSWER_TABLE];

/// Returns the flows that count dropped packets, with the reason.
pub(crate) fn counted_drops() -> Vec<(Flow, &'static str)> {
    let expired = Family::ALL.into_iter().flat_map(expired).map(|flow| (flow, "ttl-exceeded"));
    let refused = Family::ALL.into_iter().flat_map(answer::refused).map(|flow| (flow, "no-backend"));
    std::iter::once((no_route(), "no-route")).chain(expired).chain(refused).collect()
}

/// Returns the flows by which the gateway of a network answers pings, if rules allow them.
pub(super) fn gateway(domain: Domain, ip: IpAddr) -> [Flow; 2] {
    let ping = || guard::destination(ping(Family::of(ip), routed(domain.packets())), ip);
    let flow = |table, priority, next| Flow::new(table, priority, ping()).apply([Action::resubmit(next)]);
    [
        flow(table::IP, rank::PING, table::DESTINATION_GROUP),
        flow(table::ACCEPT, rank::ACCEPTED_PING, table::REPLY),
    ]
}

/// Returns the flows of a subnet on the bridge of the other networks of its VRF. VLAN and VXLAN networks are not routed
/// to each other; only the gateway answers pings.
pub(crate) fn apart(subnet: &Subnet, domain: Domain) -> Vec<Flow> {
    let Domain::Vrf(..) = domain else { return vec![] };
    let to = guard::destination_within(routed(domain.packets_from(0)), subnet.prefix);
    let mut flows = vec![Flow::new(table::IP, rank::OTHER_VRF, to)];
    if let Some(ip) = subnet.gateway.filter(|_| subnet.is_routed()).map(|gateway| gateway.ip) {
        let from_router = domain.packets_from(OUTSIDE).eth_src(Mac::ROUTER.0);
        flows.push(Flow::new(table::CLAIM, check::FORM, guard::source_within(from_router, subnet.prefix)));
        flows.push(kernel::gateway(domain, ip));
        flows.extend(gateway(domain, ip));
    }
    flows
}

/// Returns the flow that drops packets from link-local addresses to a subnet, unless they stay within its network.
/// Packets that a service has translated for a backend in the network were not sent to the router.
pub(super) fn link_local(domain: Domain, prefix: IpNet) -> Option<Flow> {
    let flow = || {
        let packets = guard::source_within(domain.packets(), guard::LINK_LOCAL.into());
        Flow::new(table::IP, priority::LINK_LOCAL, guard::destination_within(packets, prefix))
    };
    prefix.addr().is_ipv6().then(flow)
}

/// Returns the flows of an endpoint's addresses.
pub(super) fn endpoint(segment: Segment, mac: Mac, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    addresses.iter().flat_map(move |ip| to(segment, mac, ip))
}

/// Returns the flows of the addresses of the local endpoint at `port`, which may reach itself.
pub(super) fn local(
    segment: Segment,
    port: u32,
    mac: Mac,
    addresses: &Addresses,
) -> impl Iterator<Item = Flow> {
    addresses.iter().flat_map(move |ip| {
        // The Ethernet source is the address to which the pod sent the packet.
        let from = [policy::mark_returning(), Action::copy(Field::EthDst, Field::EthSrc)];
        let own = guard::destination(segment.domain.packets(), ip).in_port(port.into());
        let own = Flow::new(table::IP, priority::OWN_ADDRESS, own).apply(from).apply(deliver(mac));
        to(segment, mac, ip).into_iter().chain([own])
    })
}

fn to(segment: Segment, mac: Mac, ip: IpAddr) -> Vec<Flow> {
    let Segment { tag, domain, routed } = segment;
    let same = guard::destination(network_match(tag), ip);
    if !routed.has(ip) {
        return vec![Flow::new(table::IP, priority::MATCH, same).apply(deliver(mac))];
    }
    let same = Flow::new(table::IP, priority::SAME_NETWORK, flagged(same, 0, IS_ROUTED));
    let other = Flow::new(table::IP, priority::MATCH, guard::destination(domain.packets(), ip));
    let enter = [mark_routed(true), enter_network(tag)];
    let mut flows = vec![same.apply(deliver(mac)), other.apply(enter).apply(deliver(mac))];
    if domain.is_local() {
        flows.extend(expired_to_service(domain, ip));
    }
    flows
}

/// The kernel processes expired packets to a backend on another network: they were sent to the service, not to the
/// router.
fn expired_to_service(domain: Domain, ip: IpAddr) -> [Flow; 2] {
    [0u8, 1].map(|ttl| {
        let to = guard::destination(domain.packets_from(0), ip).field(Field::IpTtl, ttl);
        Flow::new(table::IP, priority::MATCH + 1, flagged(to, 0, IS_ROUTED)).apply(kernel::leave())
    })
}

fn deliver(mac: Mac) -> [Action; 2] {
    [Action::set(Field::EthDst, mac_bits(mac.0)), Action::resubmit(table::DESTINATION_GROUP)]
}
