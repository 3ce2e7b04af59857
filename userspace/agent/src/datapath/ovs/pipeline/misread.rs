//! Packets that ovs-vswitchd reads otherwise than the kernel's datapath: they are dropped.
//!
//! The kernel looks a packet up by what it reads of it, and asks ovs-vswitchd about those that it does not know, which reads them anew:
//! nothing of one that is shorter than its header says, no protocol behind false extension headers, and no ports or type of one that its
//! header makes shorter than that of its protocol. What it decides is then in force for all packets that are alike to the kernel: sound
//! ones would be forwarded without the checks, and evaluated without protocol and ports.
//!
//! The drop is in force for sound packets, too. So it is one for packets between these two addresses: the flows read them. And they learn
//! a flow that expires, whatever comes: each change of the tables makes the switch look at its datapath flows again, which it else does
//! not while they are in use.

use openflow_rs::{
    Action, Field, Flow, Match, Slice, ct_state,
    matching::{IP_PROTO_TCP, IP_PROTO_UDP},
    nicira::Learn,
};

use super::{
    family::Family,
    service::LEARNED,
    table::{
        self,
        priority::{self, MISREAD},
    },
};

/// Seconds after which the flow that is learned from a packet expires. No packet meets it.
const EXPIRES_AFTER: u16 = 2;
/// What is read as the type of a message without one: a reserved number (RFC 4443 section 2.1), or that of an echo reply.
const NO_TYPE: u8 = 0;

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    Family::ALL.into_iter().flat_map(|family| [first_reads(family), later_reads(family)].concat()).collect()
}

/// Where frames of pods, and those from outside, are read first.
fn first_reads(family: Family) -> Vec<Flow> {
    let packets = || family.packets(Match::new());
    let ports =
        [(IP_PROTO_TCP, [Field::TcpSrc, Field::TcpDst]), (IP_PROTO_UDP, [Field::UdpSrc, Field::UdpDst])];
    let mut misread: Vec<Match> = ports
        .into_iter()
        .map(|(protocol, [source, destination])| {
            let m = whole(packets().ip_proto(protocol));
            m.field(source, 0u8).field(destination, 0u8)
        })
        .collect();
    misread.extend(match family {
        // Protocol 0 may be what the header says.
        Family::V4 => vec![packets().ip_proto(0).field(family.source(), 0u8)],
        Family::V6 => vec![packets().ip_proto(0), whole(packets().icmpv6(NO_TYPE))],
    });
    let tables = [table::GUARD, table::CLAIM];
    tables
        .into_iter()
        .flat_map(|table| misread.iter().map(move |m| drop(family, table, m.clone())))
        // A packet of the kernel's type would pass as an echo reply; those are for one station.
        .chain(
            untyped(family, Match::new().multicast_dst()).map(|m| drop(family, table::DESTINATION_GROUP, m)),
        )
        .collect()
}

/// Where packets are read anew, behind connection tracking and behind the group that chooses by the kernel's hash. No packet without a
/// protocol is tracked.
fn later_reads(family: Family) -> Vec<Flow> {
    let unread = || family.packets(Match::new()).ip_proto(0);
    let tracked = unread().ct_state(ct_state::TRACKED, ct_state::TRACKED);
    let invalid = ct_state::TRACKED | ct_state::INVALID;
    [(table::SERVICE_DNAT, tracked)]
        .into_iter()
        .chain([table::SERVICE_STATE, table::CHOSEN, table::STATE].map(|table| (table, unread())))
        // It would be an echo reply to no request, and those alike to the kernel may be errors about no connection.
        .chain(untyped(family, Match::new().ct_state(invalid, invalid)).map(|m| (table::STATE, m)))
        .map(|(table, m)| drop(family, table, m))
        .collect()
}

/// No ports and types are read of fragments.
fn whole(packets: Match) -> Match {
    packets.field(Field::IpFragment, 0u8)
}

/// Messages of ICMP whose type is not read. Those of ICMPv6 are dropped where they are read first.
fn untyped(family: Family, packets: Match) -> impl Iterator<Item = Match> {
    let messages = || whole(packets.ipv4().ip_proto(family.icmp())).field(Field::Icmpv4Type, NO_TYPE);
    (family == Family::V4).then(messages).into_iter()
}

fn drop(family: Family, table: u8, packets: Match) -> Flow {
    let expiring = Learn {
        idle_timeout: EXPIRES_AFTER,
        priority: priority::MISS,
        cookie: LEARNED,
        table: table::EXPIRING,
        ..Learn::default()
    };
    let read = |field| Action::Move { from: Slice::whole(field), to: Slice::whole(family.register()) };
    Flow::new(table, MISREAD, packets).apply([
        read(family.source()),
        read(family.destination()),
        Action::Learn(expiring),
    ])
}
