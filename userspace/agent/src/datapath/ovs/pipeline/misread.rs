//! Packets that ovs-vswitchd reads otherwise than the kernel's datapath: they are dropped.
//!
//! The kernel looks a packet up by what it reads of it, and asks ovs-vswitchd about those that it does not know, which reads them anew:
//! nothing of one that is shorter than its header says, no protocol behind false extension headers, and no ports or type of one that its
//! header makes shorter than that of its protocol. What it decides is then in force for all packets that are alike to the kernel: sound
//! ones would be forwarded without the checks, and evaluated without protocol and ports.
//!
//! The drop is in force for sound packets, too, until it is [`retracted`].

use openflow_rs::{
    Field, Flow, Match, ct_state,
    matching::{IP_PROTO_TCP, IP_PROTO_UDP},
};

use super::{
    family::Family,
    retracted,
    table::{self, priority::MISREAD},
};

/// EtherType of frames without one (`OFP_DL_TYPE_NOT_ETH_TYPE`). The kernel does not look at the control field of LLC, and takes any
/// frame with the header of SNAP for one of the EtherType there.
const NO_ETHERTYPE: u16 = 0x05ff;
/// Groups of Cisco's switches, which send LLC to them every two seconds (PVST+): nothing needs to be decided again for that.
const CISCO_GROUPS: (u64, u64) = (0x0100_0ccc_ccc0, 0xffff_ffff_fff0);
/// What is read as the type of a message without one: a reserved number (RFC 4443 section 2.1).
const NO_TYPE: u8 = 0;
/// Next header of a packet with nothing behind it (RFC 8200 section 4.7). The kernel reads it of a packet with false extension headers,
/// also of a first fragment.
const NO_NEXT_HEADER: u8 = 59;

/// Tables that only connection tracking, or the group that chooses by the kernel's hash, leads to.
const READ_ANEW: [u8; 3] = [table::SERVICE_STATE, table::CHOSEN, table::STATE];

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let without_type = || Match::new().eth_type(NO_ETHERTYPE);
    let (group, mask) = CISCO_GROUPS;
    let mut flows = vec![
        retracted::drop_frames(table::INPUT, MISREAD, without_type()),
        Flow::new(table::INPUT, MISREAD + 1, without_type().masked(Field::EthDst, group, mask)),
    ];
    // One that the kernel takes for a packet that it knows is read only behind connection tracking.
    let tracked = without_type().ct_state(ct_state::TRACKED, ct_state::TRACKED);
    flows.push(retracted::drop_frames(table::SERVICE_DNAT, MISREAD, tracked));
    flows.extend(READ_ANEW.map(|table| retracted::drop_frames(table, MISREAD, without_type())));
    flows.extend(
        Family::ALL.into_iter().flat_map(|family| [first_reads(family), later_reads(family)].concat()),
    );
    flows
}

/// Whether flows of this priority drop what is misread.
pub(crate) fn is_misread(priority: u16) -> bool {
    priority == MISREAD
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

/// Where packets are read anew, behind connection tracking and behind the group that chooses by the kernel's hash. No packet without a
/// protocol is tracked.
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

/// No ports and types are read of fragments.
fn whole(packets: Match) -> Match {
    packets.field(Field::IpFragment, 0u8)
}
