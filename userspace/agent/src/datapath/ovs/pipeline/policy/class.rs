//! Which frames are evaluated, and how.

use std::{net::IpAddr, ops::RangeInclusive};

use contiv_abi::dhcp_client;
use contiv_model::policy::{ICMP, ICMPV6, TCP, UDP};
use ipnet::IpNet;
use openflow_rs::{Action, Ct, Field, Flow, Match, Slice, Zone, ct_state};

use super::{
    CONNECTION, EVALUATED, IS_RECEIVER, PORT_BITS, PROTOCOL_AND_PORT, PROTOCOL_SHIFT, RECEIVER, REPLY,
    UNREADABLE, classify, identity, opener,
};
use crate::datapath::{
    Network,
    ovs::pipeline::{
        family::Family,
        guard,
        metadata::{Domain, bridge_and_tag, network_match, service_slice},
        released, retracted, slow_path,
        table::{self, priority, priority::policy as rank},
    },
};

/// IP protocol numbers of extension headers: hop-by-hop options, routing, fragment, authentication, destination options.
const EXTENSION_HEADERS: [u8; 5] = [0, 43, 44, 51, 60];
const ICMP_ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// All error types, also unassigned ones (RFC 4443 section 2.1): the kernel passes all of them to sockets.
const ICMPV6_ERRORS: RangeInclusive<u8> = 0..=127;
const SYN: u16 = 0x02;
const ACK: u16 = 0x10;
/// Fragment flag that is set in all fragments.
const ANY_FRAGMENT: u8 = 1;
/// Fragment flags that are set in all fragments except the first.
const LATER_FRAGMENT: u8 = 3;
/// IP protocol number of the IPv6 fragment header.
const FRAGMENT_HEADER: u8 = 44;
/// Priority step of [`untracked`] for packets without ports or protocol.
const UNREADABLE_STEP: u16 = 3;

/// Protocols that the switch tracks.
fn tracked_protocols(family: Family) -> [u8; 3] {
    match family {
        Family::V4 => [ICMP, TCP, UDP],
        Family::V6 => [ICMPV6, TCP, UDP],
    }
}

/// Evaluates a packet by its own addresses and protocol.
fn own() -> Vec<Action> {
    vec![protocol(Field::IpProto), classify(EVALUATED)]
}

/// Evaluates an ICMP error about a reply by the packet that opened the connection. Actions read the addresses, protocol
/// and ports of a connection only if the packet is new, established or a reply. Otherwise the switch treats it as a
/// packet without a connection (`is_ct_valid` in `lib/flow.h`). The error goes to the sender of the reply, which is the
/// destination of the connection. Its source is the source of the connection, or a router.
fn about_reply() -> [Action; 2] {
    let (packet, connection) = opened();
    [Action::Move { from: connection, to: packet }, classify(EVALUATED)]
}

/// Evaluates a packet by the addresses and the protocol of the packet that opened the connection.
fn original(is_reply: bool) -> [Action; 2] {
    let reply = if is_reply { REPLY } else { 0 };
    [protocol(Field::CtIpProto), classify(EVALUATED | CONNECTION | reply)]
}

/// Protocol and port of the packet that opened a connection: the bits in the register and those in the connection's mark.
fn opened() -> (Slice, Slice) {
    let bits = PROTOCOL_SHIFT as u16 + 8;
    (Slice::bits(PROTOCOL_AND_PORT, 0, bits), Slice::bits(Field::CtMark, 0, bits))
}

fn protocol(from: Field) -> Action {
    let to = Slice::bits(PROTOCOL_AND_PORT, PROTOCOL_SHIFT as u16, 8);
    Action::Move { from: Slice::whole(from), to }
}

fn port(from: Field) -> Action {
    Action::Move { from: Slice::whole(from), to: Slice::bits(PROTOCOL_AND_PORT, 0, PORT_BITS) }
}

/// Returns the flows that exist for any desired state.
pub(crate) fn base() -> Vec<Flow> {
    let class = |priority, m| Flow::new(table::DESTINATION_GROUP, priority, m);
    let mut flows = vec![class(rank::EXEMPT, Match::new().arp()).goto(table::DESTINATION)];
    let discovery = |kind| Match::new().icmpv6(kind).field(Field::IpTtl, 255u8);
    flows.extend([133, 135, 136].map(|kind| class(rank::EXEMPT, discovery(kind)).goto(table::DESTINATION)));
    for family in Family::ALL {
        let group = untracked(family, Match::new().multicast_dst());
        // Drops ICMP errors to a group: an error is meant for the sender of a packet, but a kernel would also act on an
        // error to a group.
        flows.extend(errors(family, Match::new().multicast_dst()).map(|m| class(rank::EXEMPT, m)));
        flows.extend(group.into_iter().map(|(step, m, actions)| {
            class(rank::GROUPS + step, m).apply(actions).goto(table::DESTINATION_IDENTITY)
        }));
        let rest = untracked(family, Match::new());
        flows.extend(rest.into_iter().map(|(step, m, actions)| {
            class(rank::UNTRACKED + step, m).apply(actions).goto(table::DESTINATION_IDENTITY)
        }));
        flows.extend(state(family));
    }
    let unreadable = class(priority::MISS, Match::new()).apply([classify(EVALUATED | UNREADABLE)]);
    flows.push(unreadable.goto(table::DESTINATION_IDENTITY));
    flows.extend(Family::ALL.into_iter().flat_map(anew));
    flows.extend(opener::base());
    flows.extend(identity::base());
    let lead = |from: u8, to: u8| Flow::new(from, priority::MISS, Match::new()).goto(to);
    flows.extend([lead(table::POLICY, table::POLICY_IN), lead(table::POLICY_IN, table::ACCEPT)]);
    let receiver = Match::new().masked(RECEIVER, IS_RECEIVER, IS_RECEIVER);
    let output = Action::OutputField { port: Slice::bits(RECEIVER, 0, 16), max_len: 0 };
    flows.push(Flow::new(table::ACCEPT, rank::RECEIVER, receiver).apply([output]));
    let on = Flow::new(table::ACCEPT, priority::MISS, Match::new());
    flows.push(on.apply([Action::resubmit(table::DSCP)]));
    flows
}

/// Returns the evaluation of packets without a connection by their own header: a step of the priority, match and actions.
/// The switch reads no ports from fragments and from truncated headers, and no protocol behind invalid extension headers.
/// It reads ICMP errors for IPv4 without a type as echo replies.
fn untracked(family: Family, base: Match) -> Vec<(u16, Match, Vec<Action>)> {
    let base = family.packets(base);
    let fragment = base.clone().masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT);
    let with_port = |field| [own(), vec![port(field)]].concat();
    let no_port = |m: Match, ports: [Field; 2]| ports.into_iter().fold(m, |m, port| m.field(port, 0u8));
    let truncated = [
        no_port(base.clone().tcp(), [Field::TcpSrc, Field::TcpDst]),
        no_port(base.clone().udp(), [Field::UdpSrc, Field::UdpDst]),
    ];
    let extensions = EXTENSION_HEADERS.into_iter().filter(|_| matches!(family, Family::V6));
    let extensions = extensions.map(|header| base.clone().ip_proto(header));
    let unreadable = [fragment]
        .into_iter()
        .chain(truncated)
        .chain(extensions)
        .map(|m| (UNREADABLE_STEP, m, [own(), vec![classify(EVALUATED | UNREADABLE)]].concat()));
    let readable = [
        (2, base.clone().tcp(), with_port(Field::TcpDst)),
        (2, base.clone().udp(), with_port(Field::UdpDst)),
        (0, base.clone(), own()),
    ];
    let mut packets: Vec<_> = unreadable.chain(readable).collect();
    if family == Family::V4 {
        let (kind, code) = slow_path::ECHO_REPLY;
        let reply = base.ip_proto(ICMP).field(Field::Icmpv4Type, kind).field(Field::Icmpv4Code, code);
        packets.push((1, reply, [own(), vec![slow_path::take(Field::Icmpv4Code)]].concat()));
    }
    packets
}

/// Returns the flows for packets to an endpoint with the addresses of a connection that its predecessor opened: they open
/// a connection of their own.
fn anew(family: Family) -> Vec<Flow> {
    let packets = untracked(family, Match::new()).into_iter();
    let flow = |(step, m, actions): (u16, Match, Vec<Action>)| {
        let opening = (step != UNREADABLE_STEP).then(opener::mark_opening);
        let flow = Flow::new(table::ANEW, rank::UNTRACKED + step, m).apply(actions).apply(opening);
        flow.apply([Action::resubmit(table::DESTINATION_IDENTITY)])
    };
    packets.map(flow).collect()
}

/// Returns the matches of ICMP errors, one per type: a match of the type has no mask.
fn errors(family: Family, base: Match) -> impl Iterator<Item = Match> {
    let (types, field) = match family {
        Family::V4 => (ICMP_ERRORS.to_vec(), Field::Icmpv4Type),
        Family::V6 => (ICMPV6_ERRORS.collect(), Field::Icmpv6Type),
    };
    let [icmp, ..] = tracked_protocols(family);
    let base = family.packets(base).ip_proto(icmp);
    types.into_iter().map(move |kind| base.clone().field(field, kind))
}

/// Returns the flows that evaluate packets by their connection state.
fn state(family: Family) -> Vec<Flow> {
    let (tracked, invalid) = (ct_state::TRACKED, ct_state::INVALID);
    let broken = untracked(family, Match::new().ct_state(tracked | invalid, tracked | invalid));
    let mut flows: Vec<Flow> = broken
        .into_iter()
        .map(|(step, m, actions)| {
            Flow::new(table::STATE, rank::GROUPS + step, m).apply(actions).goto(table::DESTINATION_IDENTITY)
        })
        .collect();
    flows.extend(dhcp_servers(family));
    if matches!(family, Family::V6) {
        // Drops neighbour discovery. It is not tracked, and an earlier table checks its contents, so these messages were
        // in fragments that the switch has not parsed.
        let discovery = |kind| Match::new().icmpv6(kind).field(Field::IpTtl, guard::ND_HOP_LIMIT);
        flows.extend((133..=137).map(|kind| Flow::new(table::STATE, rank::EXEMPT, discovery(kind))));
    }
    // Drops ICMP errors that are about no connection.
    let broken = Match::new().ct_state(tracked | invalid, tracked | invalid);
    flows.extend(errors(family, broken.clone()).map(|m| Flow::new(table::STATE, rank::EXEMPT, m)));
    if matches!(family, Family::V4) {
        // Drops ICMP fragments that the userspace datapath does not reassemble: what they quote is unknown. The switch
        // reads no type from them, and their receiver reassembles them. Fragments of IPv6 are dropped together with
        // datagrams.
        let fragments = family.packets(broken).ip_proto(ICMP);
        let fragments = fragments.masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT);
        flows.push(retracted::drop(family, table::STATE, rank::EXEMPT, fragments));
    }
    let mask = tracked | invalid | ct_state::REPLY;
    // A SYN from the other end does not belong to the recorded connection: it opens a new one, with the ports of a
    // connection that ended or that both ends open. Before the first reply, the userspace datapath treats the SYN as the
    // original direction.
    let opening = |direction: u32| {
        let m = family.packets(Match::new()).ct_state(tracked | direction, mask).tcp();
        let flow = Flow::new(table::STATE, rank::EXEMPT, m.masked(Field::TcpFlags, SYN, SYN | ACK));
        flow.apply(own()).apply([port(Field::TcpDst)])
    };
    flows.push(opening(ct_state::REPLY).goto(table::DESTINATION_IDENTITY));
    flows.push(opening(0).apply(opener::find_port(false)).goto(table::OPENER));
    let related =
        family.packets(Match::new()).ct_state(tracked | ct_state::RELATED, mask | ct_state::RELATED);
    let related = Flow::new(table::STATE, rank::RELATED, related);
    flows.push(related.apply(about_reply()).goto(table::ON_PATH));
    for (priority, kind, is_reply, next) in [
        (rank::RELATED, ct_state::RELATED, true, table::ON_PATH),
        (rank::TRACKED, 0, false, table::OPENED_SERVICE),
        (rank::TRACKED, 0, true, table::OPENER),
    ] {
        let direction = if is_reply { ct_state::REPLY } else { 0 };
        let mask = mask | kind;
        let base = family.packets(Match::new()).ct_state(tracked | kind | direction, mask);
        let found = || if next == table::ON_PATH { vec![] } else { opener::find_port(is_reply) };
        let whole = Flow::new(table::STATE, priority, base.clone()).apply(original(is_reply));
        flows.push(whole.apply(found()).goto(next));
        flows.extend([TCP, UDP].map(|number| {
            let m = base.clone().field(Field::CtIpProto, number);
            let flow = Flow::new(table::STATE, priority + 2, m).apply(original(is_reply));
            flow.apply([port(Field::CtPortDst)]).apply(found()).goto(next)
        }));
    }
    flows
}

/// Drops fragments that DHCP servers send. They have no ports before connection tracking. The kernel's connection
/// tracking reassembles them. Fragments that the userspace datapath's connection tracking has reassembled have the ports
/// of their connection. Fragments that it finds invalid have none and may come from a server: those smaller than it
/// accepts, and those of a packet that was not complete in time.
fn dhcp_servers(family: Family) -> [Flow; 4] {
    let drop = |m| Flow::new(table::STATE, rank::EXEMPT, m);
    let packets = || family.packets(Match::new());
    // The match on fragments keeps the switch from distinguishing other packets by the ports of their connections.
    let fragments = |m: Match| m.masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT);
    let invalid_ones = match family {
        Family::V4 => packets().udp(),
        // The switch reads no protocol from later fragments.
        Family::V6 => packets(),
    };
    let client = dhcp_client(family == Family::V6);
    let (tracked, invalid, reply) = (ct_state::TRACKED, ct_state::INVALID, ct_state::REPLY);
    let mask = tracked | invalid | reply | ct_state::RELATED;
    // A reply goes to the source port of the connection.
    let of_connection = |direction, port| {
        let m = fragments(packets()).ct_state(tracked | direction, mask).field(Field::CtIpProto, UDP);
        drop(m.field(port, client))
    };
    [
        drop(packets().udp().field(Field::UdpDst, client)),
        of_connection(0, Field::CtPortDst),
        of_connection(reply, Field::CtPortSrc),
        retracted::drop(
            family,
            table::STATE,
            rank::EXEMPT,
            fragments(invalid_ones).ct_state(tracked | invalid, tracked | invalid),
        ),
    ]
}

/// Returns the flows of a network that track its connections, in the zone of its domain.
pub(crate) fn network(network: &Network, domain: Domain) -> Vec<Flow> {
    let (_, tag) = bridge_and_tag(network.encap);
    let zone = Zone::Number(domain.zone());
    let mut flows = vec![];
    for family in Family::ALL {
        let packet = || family.packets(network_match(tag));
        let protocols = tracked_protocols(family).map(|protocol| packet().ip_proto(protocol));
        // The switch reads the protocol of later IPv6 fragments as the fragment header. They take the same path as the
        // first one.
        let later =
            packet().ip_proto(FRAGMENT_HEADER).masked(Field::IpFragment, LATER_FRAGMENT, LATER_FRAGMENT);
        let later = matches!(family, Family::V6).then_some(later);
        flows.extend(protocols.into_iter().chain(later).map(|m| {
            let track = Action::Ct(Ct { zone, table: Some(table::STATE), ..Ct::default() });
            Flow::new(table::DESTINATION_GROUP, rank::TRACKED, m).apply([track])
        }));
        flows.extend(accepted(domain, family, packet(), false));
    }
    // The owner of a link-local address is on the link.
    let from_link_local = guard::source_within(network_match(tag), guard::LINK_LOCAL.into());
    flows.extend(accepted(domain, Family::V6, from_link_local, true));
    flows
}

/// Returns the flows that record connections within a subnet. Their endpoints are on one link.
pub(crate) fn within(domain: Domain, prefix: IpNet) -> [Flow; 2] {
    let packets = guard::destination_within(guard::source_within(domain.packets(), prefix), prefix);
    accepted(domain, Family::of(prefix.addr()), packets, true)
}

/// Returns the flows that record connections that rules accept. A packet to a successor of the opener opens a connection
/// in its own direction.
fn accepted(domain: Domain, family: Family, packets: Match, is_on_link: bool) -> [Flow; 2] {
    let record = Ct { force: true, ..record(domain, opener::record_source(family), is_on_link) };
    let priority = rank::TRACKED + u16::from(is_on_link);
    let opening = opener::opening(packets);
    let fragments = opening.clone().masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT);
    let joined = Ct { table: Some(table::RECORDED), ..record.clone() };
    [
        Flow::new(table::ACCEPT, priority, opening)
            .apply([released::record(record), Action::resubmit(table::DSCP)]),
        // The userspace datapath holds the fragments until they are complete: the first one may have been dropped.
        Flow::new(table::ACCEPT, priority + 2, fragments).apply([Action::Ct(joined)]),
    ]
}

/// Records a connection that `client` has opened, for a packet in either direction. The label of the connection is used to
/// translate the replies and to deliver them to the endpoint in it.
pub(crate) fn commit(domain: Domain, client: IpAddr, is_on_link: bool) -> Action {
    released::record(record(domain, opener::record_address(client), is_on_link))
}

fn record(domain: Domain, address: Vec<Action>, is_on_link: bool) -> Ct {
    let label = Slice::bits(Field::CtLabel, 0, service_slice().width);
    let (packet, connection) = opened();
    let mut exec = vec![
        Action::Move { from: service_slice(), to: label },
        Action::Move { from: packet, to: connection },
        opener::record_link(is_on_link),
    ];
    exec.extend(opener::record_sender());
    exec.extend(address);
    Ct { commit: true, zone: Zone::Number(domain.zone()), exec, ..Ct::default() }
}

/// Sets the protocol and port of the packet that opens the connection.
pub(crate) fn opened_by(protocol: u8, port: u16) -> Action {
    Action::set(PROTOCOL_AND_PORT, u32::from(protocol) << PROTOCOL_SHIFT | u32::from(port))
}
