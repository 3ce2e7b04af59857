//! Flows of a known endpoint for the frames of others.

use std::net::{IpAddr, Ipv4Addr};

use contiv_model::mac::Mac;
use openflow_rs::{Field, Flow, Match};

use super::{
    GROUP_BIT, claims, destination, named, pass,
    record::{Place, Record},
};
use crate::datapath::ovs::pipeline::{
    metadata::{self, Domain},
    table::{self, priority::check},
};

/// Returns the flows of a local endpoint: no frame from outside has its addresses.
pub(crate) fn local(record: Record<'_>) -> Vec<Flow> {
    record.flows(Place::Here, |_| Place::Here)
}

/// Returns the flows of a remote endpoint: its frames, and what the router of its node sends, come through the tunnel at `port`, or
/// from an uplink.
pub(crate) fn remote(record: Record<'_>, port: Option<u32>) -> Vec<Flow> {
    let Record { segment, addresses, .. } = record;
    let routed = |ip: IpAddr| addresses.contains(ip) && segment.routed.has(ip);
    record.flows(Place::of(port), |ip| Place::of(port.filter(|_| routed(ip))))
}

/// Returns the flows of a service: its address is no source, but another node may announce it.
pub(crate) fn service(domain: Domain, mac: Mac, vip: Ipv4Addr) -> Vec<Flow> {
    let from_outside = || domain.packets_from(metadata::OUTSIDE);
    let mut flows: Vec<Flow> =
        claims(domain, vip.into()).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)).collect();
    let announced = named(from_outside().arp_spa(vip).eth_src(mac.0), Field::ArpSha, mac.0);
    flows.push(Flow::new(table::CLAIM, check::CLAIMED_BY_OWNER, announced).goto(table::LINK));
    let to = |m: Match| destination(m, vip.into());
    flows.push(Flow::new(table::TARGET, check::CLAIMED, to(domain.packets())));
    let by_address = to(domain.packets().eth_dst(mac.0));
    flows.push(pass(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, by_address)));
    if domain.is_learning() {
        let unicast = to(from_outside()).masked(Field::EthDst, 0u8, GROUP_BIT);
        flows.push(pass(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER + 1, unicast)));
    }
    flows
}

/// Returns the flows that drop frames from outside with the broadcast address of a subnet as their source.
pub(crate) fn broadcast(domain: Domain, address: Ipv4Addr) -> Vec<Flow> {
    claims(domain, address.into()).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)).collect()
}
