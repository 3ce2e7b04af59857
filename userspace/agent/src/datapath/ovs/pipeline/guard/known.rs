//! Flows of a known endpoint for the frames of others.

use std::net::Ipv4Addr;

use contiv_model::{addresses::Addresses, mac::Mac};
use openflow_rs::{Field, Flow, Match};

use super::{
    GROUP_BIT, addresses, advertised, advertisement, claims, destination, named, pass, router, solicitation,
};
use crate::datapath::ovs::pipeline::{
    metadata::{self, Domain, Segment, network_match_from},
    table::{self, priority::check},
};

/// Returns the flows of a local endpoint: no frame from outside has its addresses.
pub(crate) fn local(segment: Segment, mac: Mac, assigned: &Addresses) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    let station = Flow::new(table::STATION, check::CLAIMED, outside(tag).eth_src(mac.0));
    let mut flows = vec![station];
    for ip in addresses(mac, assigned) {
        flows.extend(claims(domain, ip).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)));
        flows.extend(advertised(domain, ip).map(|m| Flow::new(table::LINK, check::CLAIMED, m)));
    }
    flows.extend(naming(tag, mac));
    flows.extend(destinations(domain, mac, assigned));
    flows
}

/// Returns the flows of a remote endpoint: its frames come through the tunnel at `port`, or from an uplink.
pub(crate) fn remote(segment: Segment, mac: Mac, assigned: &Addresses, port: Option<u32>) -> Vec<Flow> {
    let Segment { tag, domain, routed } = segment;
    let mut flows = vec![];
    if let Some(port) = port {
        let station = outside(tag).eth_src(mac.0);
        let there = station.clone().in_port(port.into());
        flows.push(Flow::new(table::STATION, check::CLAIMED, station));
        flows.push(Flow::new(table::STATION, check::CLAIMED_BY_OWNER, there).goto(table::CLAIM));
    }
    for ip in addresses(mac, assigned) {
        for claim in claims(domain, ip) {
            flows.push(Flow::new(table::CLAIM, check::CLAIMED, claim.clone()));
            let owner = claim.eth_src(mac.0);
            let is_arp = owner.get(Field::ArpSpa).is_some();
            let owner = if is_arp { named(owner, Field::ArpSha, mac.0) } else { owner };
            let next = if is_arp { table::LINK } else { table::TARGET };
            flows.push(Flow::new(table::CLAIM, check::CLAIMED_BY_OWNER, owner).goto(next));
        }
        for claim in advertised(domain, ip) {
            flows.push(Flow::new(table::LINK, check::CLAIMED, claim.clone()));
            let owner = claim.eth_src(mac.0);
            flows.extend([mac.0, [0; 6]].map(|option| {
                let option = named(owner.clone(), Field::NdTll, option);
                pass(Flow::new(table::LINK, check::CLAIMED_BY_OWNER, option))
            }));
        }
    }
    if let Some(port) = port {
        let assigned = assigned.iter().filter(|ip| routed.has(*ip));
        flows.extend(assigned.map(|ip| router::speaks_for(domain, ip, port)));
    }
    flows.extend(naming(tag, mac));
    let own = names(tag, mac).map(|m| m.eth_src(mac.0));
    flows.extend(own.into_iter().map(|m| {
        if m.get(Field::ArpSha).is_some() {
            Flow::new(table::CLAIM, check::NAMED_BY_OWNER, m).goto(table::LINK)
        } else {
            pass(Flow::new(table::LINK, check::NAMED_BY_OWNER, m))
        }
    }));
    flows.extend(destinations(domain, mac, assigned));
    flows
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

fn outside(tag: u32) -> Match {
    network_match_from(tag, metadata::OUTSIDE)
}

/// ARP and ND messages from outside with the Ethernet address in them.
fn names(tag: u32, mac: Mac) -> [Match; 3] {
    [
        named(outside(tag).arp(), Field::ArpSha, mac.0),
        named(solicitation(outside(tag)), Field::NdSll, mac.0),
        named(advertisement(outside(tag)), Field::NdTll, mac.0),
    ]
}

fn naming(tag: u32, mac: Mac) -> impl Iterator<Item = Flow> {
    names(tag, mac).into_iter().map(|m| {
        let table = if m.get(Field::ArpSha).is_some() { table::CLAIM } else { table::LINK };
        Flow::new(table, check::NAMED, m)
    })
}

/// Packets to an address go to the Ethernet address of its endpoint, because rules judge by the one and delivery by the
/// other. The kernel of a pod also accepts packets for its address from frames to groups.
fn destinations(domain: Domain, mac: Mac, assigned: &Addresses) -> Vec<Flow> {
    let mut flows = vec![];
    for ip in addresses(mac, assigned) {
        let to = destination(domain.packets(), ip);
        flows.push(Flow::new(table::TARGET, check::CLAIMED, to.clone()));
        flows.push(pass(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, to.eth_dst(mac.0))));
    }
    flows
}
