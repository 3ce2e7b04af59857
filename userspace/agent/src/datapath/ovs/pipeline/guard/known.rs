//! Flows of a known endpoint that check the frames of other senders.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::mac::Mac;
use ipnet::Ipv4Net;
use openflow_rs::{
    Field, Flow, Match,
    matching::{ICMPV6_NEIGHBOUR_ADVERTISEMENT, ICMPV6_NEIGHBOUR_SOLICITATION},
};

use super::{
    GROUP_BIT, ND_HOP_LIMIT, advertised, advertisement, claims, destination, form, named, pass,
    record::{Place, Record, without_owner},
    source,
};
use crate::datapath::ovs::{
    bridge::BridgeKind,
    pipeline::{
        metadata::{self, Domain},
        table::{self, priority::check},
    },
};

/// Returns the flows of a local endpoint: frames from outside may not have its addresses.
pub(crate) fn local(record: Record<'_>) -> Vec<Flow> {
    record.flows(Place::Here, |_| Place::Here)
}

/// Returns the flows of a remote endpoint. Its frames, and packets that the router of its node sends, arrive through the
/// tunnel at `port` or from an uplink. On a VXLAN network without a tunnel, frames with its addresses are dropped.
pub(crate) fn remote(record: Record<'_>, port: Option<u32>) -> Vec<Flow> {
    let Record { segment, addresses, .. } = record;
    let station = match port {
        None if segment.domain.bridge() == BridgeKind::Vxlan => Place::Nowhere,
        port => Place::of(port),
    };
    let routed = |ip: IpAddr| addresses.contains(ip) && segment.routed.has(ip);
    record.flows(station, |ip| if routed(ip) { station } else { Place::Anywhere })
}

/// Returns the flows of a service: its address may not be a source, but another node may announce it.
pub(crate) fn service(domain: Domain, mac: Mac, vip: IpAddr) -> Vec<Flow> {
    let from_outside = || domain.packets_from(metadata::OUTSIDE);
    let mut flows: Vec<Flow> =
        claims(domain, vip).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)).collect();
    flows.extend(match vip {
        IpAddr::V4(vip) => arp_announced(from_outside().eth_src(mac.0), mac, vip),
        IpAddr::V6(vip) => nd_announced(domain, mac, vip),
    });
    let to = |m: Match| destination(m, vip);
    flows.push(Flow::new(table::TARGET, check::CLAIMED, to(domain.packets())));
    let by_address = to(domain.packets().eth_dst(mac.0));
    flows.push(pass(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, by_address)));
    if domain.is_learning() {
        let unicast = to(from_outside()).masked(Field::EthDst, 0u8, GROUP_BIT);
        flows.push(pass(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER + 1, unicast)));
    }
    flows
}

fn arp_announced(from_speaker: Match, mac: Mac, vip: Ipv4Addr) -> Vec<Flow> {
    let announced = named(from_speaker.arp_spa(vip), Field::ArpSha, mac.0);
    vec![Flow::new(table::CLAIM, check::CLAIMED_BY_OWNER, announced).goto(table::LINK)]
}

/// The forms of the messages are checked later.
fn nd_announced(domain: Domain, mac: Mac, vip: Ipv6Addr) -> Vec<Flow> {
    let from_speaker = || domain.packets_from(metadata::OUTSIDE).eth_src(mac.0);
    let message = |kind: u8| {
        let m = from_speaker().icmpv6(kind).field(Field::IpTtl, ND_HOP_LIMIT);
        Flow::new(table::CLAIM, check::CLAIMED_BY_OWNER, source(m, vip.into())).goto(table::TARGET)
    };
    let kinds = [ICMPV6_NEIGHBOUR_SOLICITATION, ICMPV6_NEIGHBOUR_ADVERTISEMENT];
    let mut flows: Vec<Flow> = kinds.map(message).into();
    flows.extend(advertised(domain, vip.into()).map(|m| Flow::new(table::LINK, check::CLAIMED, m)));
    // With the option and without it.
    flows.extend([mac.0, [0; 6]].map(|named_mac| {
        let m = named(advertisement(from_speaker()), Field::NdTll, named_mac);
        let m = m.field(Field::NdTarget, vip.to_bits());
        pass(Flow::new(table::LINK, check::CLAIMED_BY_OWNER, m))
    }));
    flows
}

/// Returns the flows that drop frames from outside with the broadcast address of a subnet as their source, and fragments
/// to it. They also drop packets to it in unicast frames: the station would accept them, and no rules about its address
/// would apply. The same holds for the first address, which Linux before 5.14 treats as a broadcast address, too.
pub(crate) fn broadcast(domain: Domain, subnet: Ipv4Net) -> Vec<Flow> {
    let (first, last) = (subnet.network(), subnet.broadcast());
    let mut flows: Vec<Flow> =
        claims(domain, last.into()).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)).collect();
    flows.push(form::fragments(destination(domain.packets(), last.into())));
    let unicast = || without_owner(domain.packets().masked(Field::EthDst, 0u64, GROUP_BIT));
    let to = |ip: Ipv4Addr| Flow::new(table::TARGET_CHECK, check::CLAIMED, destination(unicast(), ip.into()));
    flows.extend([first, last].map(to));
    flows
}
