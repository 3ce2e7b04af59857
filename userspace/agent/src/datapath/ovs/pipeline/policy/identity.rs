//! The endpoints of a connection: their identities, and whether their rules apply on this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{addresses::Addresses, mac::Mac, policy::Identity};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use openflow_rs::{Action, Field, Flow, Match, ct_state};

use super::{CLASS, HERE, REPLY, Side, UNKNOWN, evaluated};
use crate::datapath::{
    Subnet,
    ovs::pipeline::{
        guard,
        metadata::{Domain, Segment, network_match},
        table::{self, priority, priority::policy as rank},
    },
};

/// An endpoint and its identity.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) segment: Segment,
    pub(crate) mac: Mac,
    pub(crate) addresses: &'a Addresses,
    pub(crate) identity: Option<Identity>,
    pub(crate) is_here: bool,
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let to = |flow: Flow| flow.goto(table::DESTINATION_IDENTITY);
    let mut flows = vec![to(Flow::new(table::SOURCE_IDENTITY, priority::MISS, Match::new()))];
    // Addresses of the link, or of no endpoint.
    let reserved: [IpNet; 3] = [
        Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8).into(),
        Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128).into(),
        link_local(),
    ];
    flows.extend(reserved.map(|prefix| unknown(Match::new(), prefix)));
    flows.extend([
        Flow::new(table::ON_PATH, rank::UNKNOWN, guard::source_within(Match::new(), link_local())),
        Flow::new(table::ON_PATH, priority::MISS, Match::new()).goto(table::SOURCE_IDENTITY),
        // Each receiver is evaluated when the frame is replicated.
        destination(rank::EXEMPT, evaluated(Match::new()).multicast_dst(), table::DSCP, vec![]),
        destination(priority::MISS, Match::new(), table::POLICY, vec![]),
    ]);
    flows
}

fn link_local() -> IpNet {
    Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10).into()
}

fn unknown(domain: Match, prefix: IpNet) -> Flow {
    Flow::new(table::SOURCE_IDENTITY, rank::UNKNOWN, Side::Source.within(domain, prefix))
        .apply([Action::set(Side::Source.flags(), UNKNOWN)])
        .goto(table::DESTINATION_IDENTITY)
}

fn destination(priority: u16, matching: Match, next: u8, mut actions: Vec<Action>) -> Flow {
    actions.push(Action::resubmit(next));
    Flow::new(table::DESTINATION_IDENTITY, priority, matching).apply(actions)
}

/// Returns the flows of a subnet: its other addresses are of endpoints that are not known.
pub(crate) fn subnet(subnet: &Subnet, domain: Domain) -> Vec<Flow> {
    let packets = || domain.packets();
    let inside = guard::source_within(packets(), subnet.prefix);
    let mut flows = vec![
        unknown(packets(), subnet.prefix),
        // A router on the path is no endpoint.
        Flow::new(table::ON_PATH, rank::UNKNOWN, inside),
    ];
    if let Some(gateway) = subnet.gateway {
        let gateway = IpNet::from(gateway.ip);
        flows.extend([
            Flow::new(table::SOURCE_IDENTITY, rank::GATEWAY, Side::Source.within(packets(), gateway))
                .goto(table::DESTINATION_IDENTITY),
            Flow::new(table::ON_PATH, rank::GATEWAY, guard::source_within(packets(), gateway))
                .goto(table::SOURCE_IDENTITY),
        ]);
    }
    flows
}

/// Returns the flows of an endpoint.
pub(crate) fn endpoint(member: Member<'_>) -> Vec<Flow> {
    let Member { segment: Segment { tag, domain, .. }, mac, addresses, identity, is_here } = member;
    let set = |side: Side| {
        let identity = identity.map(|identity| Action::set(side.identity(), identity.get()));
        let here = identity.as_ref().filter(|_| is_here).map(|_| Action::set(side.flags(), HERE));
        identity.into_iter().chain(here).collect::<Vec<_>>()
    };
    let mut flows = vec![];
    let source = |priority, m| {
        let flow = Flow::new(table::SOURCE_IDENTITY, priority, m).goto(table::DESTINATION_IDENTITY);
        flow.apply(set(Side::Source))
    };
    let to = |priority, m| destination(priority, m, table::POLICY, set(Side::Destination));
    for ip in guard::addresses(mac, addresses) {
        let address = IpNet::from(ip);
        flows.push(source(rank::KNOWN, Side::Source.within(domain.packets(), address)));
        if identity.is_some() {
            flows.push(to(rank::KNOWN, Side::Destination.within(domain.packets(), address)));
        }
        flows.extend(on_path(domain, ip));
    }
    if identity.is_some() {
        // An address without a record, at the Ethernet address of an endpoint.
        let original = || network_match(tag).masked(CLASS, 0u8, REPLY);
        let back = || network_match(tag).masked(CLASS, REPLY, REPLY);
        let by_source = if is_here { rank::STATION_HERE } else { rank::STATION };
        flows.extend([
            source(by_source, original().eth_src(mac.0)),
            source(by_source, back().eth_dst(mac.0)),
            to(rank::STATION_HERE, original().eth_dst(mac.0)),
            to(rank::STATION_HERE, back().eth_src(mac.0)),
        ]);
    }
    flows
}

/// An ICMP error from an endpoint is about a connection of that endpoint. That it is about a packet of its receiver is part
/// of the connection state.
fn on_path(domain: Domain, ip: IpAddr) -> [Flow; 3] {
    let from = || guard::source_within(domain.packets(), IpNet::from(ip));
    let end = |m| Flow::new(table::ON_PATH, rank::KNOWN, m).goto(table::SOURCE_IDENTITY);
    let (related, reply) = (ct_state::TRACKED | ct_state::RELATED, ct_state::REPLY);
    // A match reads the addresses of any connection, other than an action.
    let about_reply = from().ct_state(related, related | reply);
    let client = match ip {
        IpAddr::V4(ip) => about_reply.field(Field::CtIpv4Src, ip.to_bits()),
        IpAddr::V6(ip) => about_reply.field(Field::CtIpv6Src, ip.to_bits()),
    };
    let server = from().ct_state(related | reply, related | reply);
    [
        end(client),
        end(Side::Destination.within(server, IpNet::from(ip))),
        Flow::new(table::ON_PATH, rank::OTHER_END, from()),
    ]
}
