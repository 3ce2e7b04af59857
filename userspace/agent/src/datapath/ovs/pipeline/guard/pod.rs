//! Checks of the frames of a local endpoint.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use openflow_rs::{Action, Field, Flow, Match, matching::ETH_TYPE_IPV6};

use super::{PROBE, addresses, advertisement, form, named, pass, solicitation, source};
use crate::datapath::{
    Local,
    ovs::pipeline::table::{self, priority::check},
};

const NONE: [u8; 6] = [0; 6];

/// Returns the flows for the frames of a local endpoint at `port`.
pub(crate) fn pod(local: &Local, port: u32) -> Vec<Flow> {
    let mut flows = packets(local, port);
    flows.extend(arp(local, port));
    flows.extend(discovery(local, port));
    let other = Match::new().in_port(port.into()).eth_src(local.mac.0);
    flows.push(pass(Flow::new(table::GUARD, check::OTHER, other)));
    flows
}

fn packets(local: &Local, port: u32) -> Vec<Flow> {
    let from = || Match::new().in_port(port.into()).eth_src(local.mac.0);
    let own = addresses(local.mac, &local.addresses).map(|ip| source(from(), ip));
    let accepted = own.chain(form::asking(from()));
    accepted.map(|m| Flow::new(table::GUARD, check::CLAIMED_BY_OWNER, m).goto(table::TARGET)).collect()
}

fn arp(local: &Local, port: u32) -> impl Iterator<Item = Flow> {
    let from = Match::new().in_port(port.into()).eth_src(local.mac.0);
    let sender = named(from.arp(), Field::ArpSha, local.mac.0);
    local.addresses.v4().chain([Ipv4Addr::UNSPECIFIED]).map(move |ip| {
        Flow::new(table::GUARD, check::CLAIMED_BY_OWNER, sender.clone().arp_spa(ip)).goto(table::LINK)
    })
}

/// Returns the flows for the contents of ND messages. The source address has been checked.
fn discovery(local: &Local, port: u32) -> Vec<Flow> {
    let from = || Match::new().in_port(port.into());
    let options = [local.mac.0, NONE];
    let mut flows: Vec<Flow> = options
        .into_iter()
        .map(|mac| named(solicitation(from()), Field::NdSll, mac))
        .map(|m| pass(Flow::new(table::LINK, check::CLAIMED_BY_OWNER, m)))
        .collect();
    // Duplicate address detection for the pod's own address is forwarded. For another address it is only answered.
    let detection = || named(solicitation(from()), Field::NdSll, NONE).ipv6_src(Ipv6Addr::UNSPECIFIED, 128);
    let foreign = Flow::new(table::LINK, check::FORM + 5, detection()).apply([Action::set(PROBE, 1u8)]);
    flows.push(pass(foreign));
    for ip in addresses(local.mac, &local.addresses) {
        let IpAddr::V6(ip) = ip else { continue };
        let own = detection().field(Field::NdTarget, ip.to_bits());
        flows.push(pass(Flow::new(table::LINK, check::VALID_FORM, own)));
        flows.extend(options.map(|mac| {
            let claim = named(advertisement(from()), Field::NdTll, mac).field(Field::NdTarget, ip.to_bits());
            pass(Flow::new(table::LINK, check::CLAIMED_BY_OWNER, claim))
        }));
    }
    debug_assert!(flows.iter().all(|flow| flow.matching.exact(Field::EthType) == Some(ETH_TYPE_IPV6.into())));
    flows
}
