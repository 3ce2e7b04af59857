//! Packets that the router of a domain receives and sends.

use std::net::{IpAddr, Ipv6Addr};

use contiv_model::mac::Mac;
use ipnet::{IpNet, Ipv6Net};
use openflow_rs::{Action, Field, Flow};

use super::{ND_HOP_LIMIT, advertised, claims, destination_within, source_within};
use crate::datapath::ovs::pipeline::{
    metadata::{self, Domain, mark_routed},
    table::{self, priority::check},
};

/// ND messages (RFC 4861 section 4). The checks drop router advertisements and redirects anyway.
const DISCOVERY: [u8; 3] = [133, 135, 136];
/// Link-local addresses (RFC 4291 section 2.5.6), which are not routed.
pub(crate) const LINK_LOCAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);

/// Returns the flows of a subnet for which the node is the gateway. A pod may send to the router if the source or the
/// destination is in a routed subnet. From outside, the router sends packets that it has routed, and no packet may have
/// the address of the gateway as its source.
pub(crate) fn subnet(domain: Domain, prefix: IpNet, gateway: IpAddr) -> Vec<Flow> {
    let to_router = || domain.packets_from(0).eth_dst(Mac::ROUTER.0);
    let receive = |m| {
        let actions = [mark_routed(true), Action::resubmit(table::SERVICE_DNAT)];
        Flow::new(table::TARGET, check::CLAIMED_BY_OWNER, m).apply(actions)
    };
    let mut flows =
        vec![receive(source_within(to_router(), prefix)), receive(destination_within(to_router(), prefix))];
    let from_router = || source_within(domain.packets_from(metadata::OUTSIDE).eth_src(Mac::ROUTER.0), prefix);
    flows.push(Flow::new(table::CLAIM, check::FORM, from_router().multicast_dst()));
    if prefix.addr().is_ipv6() {
        let link_local = destination_within(source_within(to_router(), LINK_LOCAL.into()), prefix);
        flows.push(Flow::new(table::TARGET, check::CLAIMED_BY_OWNER + 1, link_local));
        let discovery = |kind| from_router().icmpv6(kind).field(Field::IpTtl, ND_HOP_LIMIT);
        flows.extend(DISCOVERY.map(|kind| Flow::new(table::CLAIM, check::FORM, discovery(kind))));
    }
    flows.extend(claims(domain, gateway).map(|m| Flow::new(table::CLAIM, check::CLAIMED, m)));
    flows.extend(advertised(domain, gateway).map(|m| Flow::new(table::LINK, check::CLAIMED, m)));
    flows
}
