//! ARP and ND requests answered where they are asked.
//!
//! Whose address it is, is one flow an address; how an answer is made of a request, the same for all.

use std::net::{Ipv4Addr, Ipv6Addr};

use openflow_rs::{
    Action, Field, Flow, Match, Port, Slice,
    matching::{ICMPV6_NEIGHBOUR_ADVERTISEMENT, ICMPV6_NEIGHBOUR_SOLICITATION, mac_bits},
};

use super::{ANSWER_MAC, Side, of_network, of_network_from, priority, table};

const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u8 = 2;
/// "This is the target's link-layer address": a solicitation brings the sender's, of the same length.
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
const SOLICITED: u32 = 0x4000_0000;
const OVERRIDE: u32 = 0x2000_0000;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// Sends the requests of pods on a network to the answering tables.
pub(crate) fn asked(tag: u32) -> [Flow; 2] {
    let from_pods = || of_network_from(tag, 0);
    [
        Flow::new(table::SERVICE_DNAT, priority::FIRST, from_pods().arp_op(ARP_REQUEST)),
        Flow::new(table::SERVICE_DNAT, priority::FIRST, from_pods().icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION)),
    ]
    .map(|flow| flow.goto(table::NEIGHBOUR))
}

fn request4(matching: Match, ip: Ipv4Addr) -> Match {
    matching.arp_op(ARP_REQUEST).arp_tpa(ip)
}

fn request6(matching: Match, ip: Ipv6Addr) -> Match {
    matching.neighbour_solicitation(ip)
}

/// An address that somebody on the network has.
pub(crate) fn known(
    tag: u32,
    mac: [u8; 6],
    ip: Ipv4Addr,
    ip6: Option<Ipv6Addr>,
) -> impl Iterator<Item = Flow> {
    let six = ip6.map(|ip| request6(of_network(tag), ip));
    std::iter::once(request4(of_network(tag), ip)).chain(six).map(move |request| {
        Flow::new(table::NEIGHBOUR, priority::MATCH, request)
            .apply([Action::set(ANSWER_MAC, mac_bits(mac))])
            .goto(table::ANSWER)
    })
}

/// A pod that asks for its own address looks for a duplicate, or tells all where it is. Of those we know nobody
/// else has the address; a VLAN may have others, and switches that learn from it.
pub(crate) fn own(
    side: Side,
    tag: u32,
    port: u32,
    ip: Ipv4Addr,
    ip6: Option<Ipv6Addr>,
) -> impl Iterator<Item = Flow> {
    let from_pod = move || of_network(tag).in_port(port.into());
    let six = ip6.map(|ip| request6(from_pod(), ip));
    std::iter::once(request4(from_pod(), ip)).chain(six).map(move |request| {
        let flow = Flow::new(table::NEIGHBOUR, priority::OWN, request);
        if side == Side::Vlan { flow.apply([Action::output(Port::NORMAL)]) } else { flow }
    })
}

fn put_mac(to: Field) -> Action {
    Action::Move { from: Slice::bits(ANSWER_MAC, 0, 48), to: Slice::whole(to) }
}

/// An ARP request turned into its reply.
pub(crate) fn arp_answer() -> Flow {
    Flow::new(table::ANSWER, priority::MATCH, Match::new().arp_op(ARP_REQUEST)).apply([
        Action::copy(Field::EthSrc, Field::EthDst),
        put_mac(Field::EthSrc),
        Action::set(Field::ArpOp, ARP_REPLY),
        Action::copy(Field::ArpSha, Field::ArpTha),
        put_mac(Field::ArpSha),
        // The two addresses change places.
        Action::copy(Field::ArpTpa, Field::Reg2),
        Action::copy(Field::ArpSpa, Field::ArpTpa),
        Action::copy(Field::Reg2, Field::ArpSpa),
        Action::output(Port::IN_PORT),
    ])
}

fn solicitation() -> Match {
    Match::new().icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION).field(Field::Icmpv6Code, 0u8)
}

/// A neighbour solicitation turned into its advertisement.
pub(crate) fn nd_answers() -> Vec<Flow> {
    let back = Action::output(Port::IN_PORT);
    let advertise = |flags: u32| {
        [
            Action::copy(Field::NdTarget, Field::Ipv6Src),
            Action::set(Field::Icmpv6Type, ICMPV6_NEIGHBOUR_ADVERTISEMENT),
            Action::set(Field::NdReserved, flags),
        ]
    };
    let answer = Flow::new(table::ANSWER, priority::MATCH, solicitation())
        .apply([Action::copy(Field::EthSrc, Field::EthDst), put_mac(Field::EthSrc)])
        .apply([Action::copy(Field::Ipv6Src, Field::Ipv6Dst)])
        .apply(advertise(SOLICITED | OVERRIDE))
        .apply([Action::set(Field::NdOptionsType, TARGET_LINK_LAYER_ADDRESS)])
        .goto(table::ND_OPTION);
    let advertisement = Match::new().icmpv6(ICMPV6_NEIGHBOUR_ADVERTISEMENT);
    let option = Flow::new(table::ND_OPTION, priority::MATCH, advertisement)
        .apply([put_mac(Field::NdTll), back.clone()]);
    // Who asks from no address looks for a duplicate: all must hear that the address is taken. Such a
    // request has no link-layer address that could be turned into that of the answer.
    let duplicate = solicitation().ipv6_src(Ipv6Addr::UNSPECIFIED, 128);
    let taken = Flow::new(table::ANSWER, priority::OWN, duplicate)
        .apply([Action::set(Field::EthDst, mac_bits(ALL_NODES_MAC)), put_mac(Field::EthSrc)])
        .apply([Action::set(Field::Ipv6Dst, ALL_NODES.to_bits())])
        .apply(advertise(OVERRIDE))
        .apply([back]);
    vec![answer, option, taken]
}

/// A neighbour solicitation sent to the one who has the address.
pub(crate) fn nd_to_owner() -> Flow {
    let actions = [put_mac(Field::EthDst), Action::resubmit(table::DESTINATION)];
    Flow::new(table::ANSWER, priority::MATCH, solicitation()).apply(actions)
}
