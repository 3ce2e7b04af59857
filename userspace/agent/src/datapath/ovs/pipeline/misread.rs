//! Drops packets that ovs-vswitchd parses differently from the kernel datapath.
//!
//! The kernel looks up a packet by the flow key that it has parsed. On a miss it sends the packet to ovs-vswitchd, which
//! parses it again. ovs-vswitchd reads nothing from a packet that is shorter than its header says, no protocol behind
//! invalid extension headers, and no ports or type if the length in the IP header leaves too little for the transport
//! header. The resulting datapath flow then applies to all packets with the same kernel flow key: valid ones would be
//! forwarded without the checks and evaluated without protocol and ports.
//!
//! The drop also applies to valid packets with that key, until it is [`retracted`].

use openflow_rs::{
    Field, Flow, Match, ct_state,
    matching::{IP_PROTO_TCP, IP_PROTO_UDP},
};

use super::{
    family::Family,
    retracted,
    table::{self, priority::MISREAD},
};

/// EtherType of frames without one (`OFP_DL_TYPE_NOT_ETH_TYPE`). The kernel does not check the control field of LLC: it
/// treats any frame with a SNAP header as a frame of the EtherType in that header.
const NO_ETHERTYPE: u16 = 0x05ff;
/// Groups of Cisco's switches, which send LLC frames to them every two seconds (PVST+). These frames must not cause a
/// revalidation each time.
const CISCO_GROUPS: (u64, u64) = (0x0100_0ccc_ccc0, 0xffff_ffff_fff0);
/// Type that the switch reads from a message without one: a reserved number (RFC 4443 section 2.1).
const NO_TYPE: u8 = 0;
/// Next header of a packet with no payload (RFC 8200 section 4.7). The kernel reads it from a packet with invalid
/// extension headers, also from a first fragment.
const NO_NEXT_HEADER: u8 = 59;

/// Tables that are reached only from connection tracking or from the group that selects by the kernel's hash.
const READ_ANEW: [u8; 3] = [table::SERVICE_STATE, table::CHOSEN, table::STATE];

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let without_type = || Match::new().eth_type(NO_ETHERTYPE);
    let (group, mask) = CISCO_GROUPS;
    let mut flows = vec![
        retracted::drop_frames(table::INPUT, MISREAD, without_type()),
        Flow::new(table::INPUT, MISREAD + 1, without_type().masked(Field::EthDst, group, mask)),
    ];
    // A frame that matches a flow key which the kernel already has is parsed by ovs-vswitchd only after connection
    // tracking.
    let tracked = without_type().ct_state(ct_state::TRACKED, ct_state::TRACKED);
    flows.push(retracted::drop_frames(table::SERVICE_DNAT, MISREAD, tracked));
    flows.extend(READ_ANEW.map(|table| retracted::drop_frames(table, MISREAD, without_type())));
    flows.extend(
        Family::ALL.into_iter().flat_map(|family| [first_reads(family), later_reads(family)].concat()),
    );
    flows
}

/// Reports whether flows of this priority drop misread packets.
pub(crate) fn is_misread(priority: u16) -> bool {
    priority == MISREAD
}

/// Returns the flows of the tables where frames of pods and frames from outside are first parsed.
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
        // Protocol 0 may be the value in the header.
        Family::V4 => vec![packets().ip_proto(0).field(family.source(), 0u8)],
        Family::V6 => {
            let unread = [0, NO_NEXT_HEADER].map(|protocol| packets().ip_proto(protocol));
            unread.into_iter().chain([whole(packets().icmpv6(NO_TYPE))]).collect()
        }
    });
    let tables = [table::GUARD, table::CLAIM];
    tables
        .into_iter()
        .flat_map(|table| misread.iter().map(move |m| retracted::drop(family, table, MISREAD, m.clone())))
        .collect()
}

/// Returns the flows of the tables where packets are parsed again: after connection tracking and after the group that
/// selects by the kernel's hash. Connection tracking does not track packets without a protocol.
fn later_reads(family: Family) -> Vec<Flow> {
    let unread = || family.packets(Match::new()).ip_proto(0);
    let tracked = unread().ct_state(ct_state::TRACKED, ct_state::TRACKED);
    [(table::SERVICE_DNAT, tracked)]
        .into_iter()
        .chain(READ_ANEW.map(|table| (table, unread())))
        .chain(
            (family == Family::V6)
                .then(|| (table::STATE, whole(family.packets(Match::new()).icmpv6(NO_TYPE)))),
        )
        .map(|(table, m)| retracted::drop(family, table, MISREAD, m))
        .collect()
}

/// Requires a packet that is not a fragment: the switch reads no ports and types from fragments.
fn whole(packets: Match) -> Match {
    packets.field(Field::IpFragment, 0u8)
}
