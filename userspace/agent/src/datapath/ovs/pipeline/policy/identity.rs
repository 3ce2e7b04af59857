//! The endpoints of a connection: their identities, and whether their rules apply on this node.
//!
//! ```text
//!  20 destination ─ 35 record? ─ 44 ─┬─ 21
//!                       none: 45 ─ 46┘
//!  21 source ────── 35 record? ─ 47 ─┬──────────────────────┬─ 5
//!                       none: 48 ─ 49┴─ none here: 50 subnet┘
//! ```
//!
//! The destination is looked up first, because the lookup of the source uses the registers that then keep the source's
//! address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use openflow_rs::{Action, Field, Flow, Match, ct_state};

use super::{
    CLASS, CONNECTION, DESTINATION_FLAGS, DESTINATION_IDENTITY, HERE, MISDIRECTED, REPLY, SOURCE_FLAGS,
    SOURCE_IDENTITY, SUCCESSOR, Side, UNKNOWN, destination_register, opener,
};
use crate::datapath::{
    Subnet,
    ovs::pipeline::{
        family::Family,
        guard::{
            self, IDENTITY, Place, Record, find_owner, find_station, with_owner_at, with_station_at,
            without_owner,
        },
        metadata::Domain,
        table::{self, priority, priority::policy as rank},
    },
};

/// Identity and flags of the destination during the lookup of the source. The destination's address replaces them
/// afterwards.
const KEPT: [Field; 2] = [Field::Reg8, Field::Reg9];

/// Location of the addresses of the packet that opened the connection.
#[derive(Clone, Copy)]
enum Addresses {
    Packet,
    Connection,
}

impl Addresses {
    fn of(self, family: Family) -> Match {
        let packets = family.packets(Match::new());
        match self {
            Addresses::Packet => packets.masked(CLASS, 0u8, CONNECTION),
            // Actions read these addresses only from valid connections.
            Addresses::Connection => packets
                .masked(CLASS, CONNECTION, CONNECTION)
                .ct_state(ct_state::TRACKED, ct_state::TRACKED | ct_state::INVALID),
        }
    }

    fn fields(self, family: Family) -> [Field; 2] {
        match (self, family) {
            (Addresses::Packet, family) => [family.source(), family.destination()],
            (Addresses::Connection, Family::V4) => [Field::CtIpv4Src, Field::CtIpv4Dst],
            (Addresses::Connection, Family::V6) => [Field::CtIpv6Src, Field::CtIpv6Dst],
        }
    }
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let mut flows = [searches(), destinations(), sources()].concat();
    // Link-local addresses, or addresses that no endpoint has.
    let reserved: [IpNet; 3] = [
        Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8).into(),
        Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128).into(),
        guard::LINK_LOCAL.into(),
    ];
    flows.extend(reserved.map(|prefix| unknown(Match::new(), prefix)));
    flows.extend(on_path_base());
    flows
}

/// Returns the flows that look up both ends of a frame, one after the other.
fn searches() -> Vec<Flow> {
    let nothing = || KEPT.map(|register| Action::set(register, 0u8));
    let destination = |priority, m| Flow::new(table::DESTINATION_IDENTITY, priority, m).apply(nothing());
    let source = |priority, m| Flow::new(table::SOURCE_IDENTITY, priority, m);
    let kept = || {
        let [identity, flags] = KEPT;
        [Action::copy(identity, DESTINATION_IDENTITY), Action::copy(flags, DESTINATION_FLAGS)]
    };
    // Each receiver is evaluated when the frame is replicated.
    let to_group = || Match::new().multicast_dst();
    let station = || [Action::resubmit(table::SOURCE_STATION)];
    let mut flows = vec![
        destination(rank::EXEMPT, to_group()).goto(table::SOURCE_IDENTITY),
        destination(priority::MISS, Match::new())
            .apply([Action::resubmit(table::DESTINATION_STATION)])
            .goto(table::SOURCE_IDENTITY),
        source(priority::MISS + 1, to_group())
            .apply(station())
            .apply(kept())
            .apply([Action::resubmit(table::DSCP)]),
        source(priority::MISS, Match::new())
            .apply(station())
            .apply(kept())
            .apply([Action::resubmit(table::POLICY)]),
    ];
    for family in Family::ALL {
        for addresses in [Addresses::Packet, Addresses::Connection] {
            let [from, to] = addresses.fields(family);
            let found = destination(priority::MATCH, addresses.of(family)).apply(find_owner(family, to));
            let found = found.apply([Action::resubmit(table::DESTINATION_OWNER)]);
            flows.push(found.goto(table::SOURCE_IDENTITY));
            let ends = |flow: Flow, next: u8| {
                flow.apply(find_owner(family, from))
                    .apply([Action::resubmit(table::SOURCE_OWNER)])
                    .apply(kept())
                    .apply([Action::copy(to, destination_register(family)), Action::resubmit(next)])
            };
            flows.push(ends(source(priority::MATCH, addresses.of(family)), table::POLICY));
            if matches!(addresses, Addresses::Packet) {
                let to_group = addresses.of(family).multicast_dst();
                flows.push(ends(source(rank::EXEMPT, to_group), table::DSCP));
            }
        }
    }
    flows
}

/// Finds the destination by address, otherwise by Ethernet address: a frame to the Ethernet address of an endpoint may
/// have a destination address without a record.
fn destinations() -> Vec<Flow> {
    let without_identity = || Match::new().field(IDENTITY, 0u32);
    let keep = || Action::copy(IDENTITY, KEPT[0]);
    let here = || [keep(), Action::set(KEPT[1], HERE)];
    let by_owner = |priority, m| Flow::new(table::DESTINATION_OWNER, priority, m);
    let by_station = |priority, m| Flow::new(table::DESTINATION_KNOWN, priority, m);
    let mut flows = vec![
        by_owner(priority::MATCH, without_identity()).apply([Action::resubmit(table::DESTINATION_STATION)]),
        by_owner(priority::MATCH - 1, with_owner_at(Match::new(), Place::Here)).apply(here()),
        by_owner(priority::MISS, Match::new()).apply([keep()]),
        by_station(priority::MATCH, without_identity()),
        by_station(priority::MATCH - 1, with_station_at(Match::new(), Place::Here)).apply(here()),
        by_station(priority::MISS, Match::new()).apply([keep()]),
    ];
    flows.extend(stations(
        table::DESTINATION_STATION,
        [Field::EthDst, Field::EthSrc],
        table::DESTINATION_KNOWN,
    ));
    flows
}

/// Finds the source in the same way. An address in a subnet is unknown if it has the Ethernet address of an endpoint of
/// another node and no record. A reply in a frame to an endpoint would be evaluated as if that endpoint had opened the
/// connection: its ingress rules, and the sender's rules about it, would not apply. ICMP errors to the opener of a
/// connection are checked as its replies are.
fn sources() -> Vec<Flow> {
    let without_identity = || Match::new().field(IDENTITY, 0u32);
    let reply = Match::new().masked(CLASS, REPLY, REPLY);
    let successor = with_owner_at(Match::new().masked(CLASS, SUCCESSOR, SUCCESSOR), Place::Here);
    let flags = |flags: u8| Action::set(SOURCE_FLAGS, flags);
    let by_subnet = || [flags(0), Action::resubmit(table::SOURCE_SUBNET)];
    let by_owner = |priority, m| Flow::new(table::SOURCE_OWNER, priority, m);
    let by_station = |priority, m| Flow::new(table::SOURCE_KNOWN, priority, m);
    let mut flows = vec![
        by_owner(priority::MATCH + 1, successor).apply([flags(MISDIRECTED)]),
        by_owner(priority::MATCH, without_owner(Match::new()))
            .apply([Action::resubmit(table::SOURCE_STATION)]),
        by_owner(priority::MATCH - 1, without_identity()).apply([flags(0)]),
        by_owner(priority::MATCH - 2, with_owner_at(Match::new(), Place::Here)).apply([flags(HERE)]),
        by_owner(priority::MISS, Match::new()).apply([flags(0)]),
        by_station(priority::MATCH, without_identity()).apply(by_subnet()),
        by_station(priority::MATCH - 1, reply).apply([flags(MISDIRECTED)]),
        by_station(priority::MATCH - 2, with_station_at(Match::new(), Place::Here)).apply([flags(HERE)]),
        by_station(priority::MISS, Match::new()).apply(by_subnet()),
        Flow::new(table::POLICY, rank::FIRST + 1, Match::new().field(SOURCE_FLAGS, MISDIRECTED)),
    ];
    flows.extend(stations(table::SOURCE_STATION, [Field::EthSrc, Field::EthDst], table::SOURCE_KNOWN));
    flows
}

/// Finds a station by an Ethernet address of the packet that opened the connection. For a reply it is the other Ethernet
/// address.
fn stations(table: u8, [original, reply]: [Field; 2], next: u8) -> [Flow; 2] {
    let find = |priority, m, field| {
        Flow::new(table, priority, m).apply(find_station(field)).apply([Action::resubmit(next)])
    };
    [
        find(priority::MATCH, Match::new().masked(CLASS, REPLY, REPLY), reply),
        find(priority::MISS, Match::new(), original),
    ]
}

fn unknown(domain: Match, prefix: IpNet) -> Flow {
    Flow::new(table::SOURCE_SUBNET, rank::UNKNOWN, Side::Source.within(domain, prefix))
        .apply([Action::set(SOURCE_IDENTITY, 0u8), Action::set(SOURCE_FLAGS, UNKNOWN)])
}

/// Returns the flows of a subnet. Its addresses without a record belong to unknown endpoints.
pub(crate) fn subnet(subnet: &Subnet, domain: Domain) -> Vec<Flow> {
    let packets = || domain.packets();
    // On the physical network, the gateway may be a virtual address of several routers (RFC 5798), which send from their
    // own addresses in the subnet. The flow for connections on one link has a higher priority than this one.
    let errors = if domain.is_learning() { domain.packets_from(0) } else { packets() };
    let mut flows = vec![
        unknown(packets(), subnet.prefix),
        // A router on the path is not an endpoint.
        Flow::new(table::ON_PATH_SUBNET, rank::UNKNOWN, guard::source_within(errors, subnet.prefix)),
    ];
    // Other nodes are reached through their kernels.
    if !subnet.is_routed_vlan() {
        // The gateway has no record, but it has connections.
        flows.extend(subnet.gateway.into_iter().flat_map(|gateway| on_path(domain, gateway.ip)));
    }
    if let Some(gateway) = subnet.gateway {
        let gateway = IpNet::from(gateway.ip);
        flows.extend([
            Flow::new(table::SOURCE_SUBNET, rank::GATEWAY, Side::Source.within(packets(), gateway))
                .apply([Action::set(SOURCE_IDENTITY, 0u8)]),
            Flow::new(table::ON_PATH_SUBNET, rank::GATEWAY, guard::source_within(packets(), gateway))
                .apply([Action::resubmit(table::DESTINATION_IDENTITY)]),
            opener::check_error(Flow::new(
                table::ON_PATH_SUBNET,
                rank::GATEWAY + 1,
                to_opener(guard::source_within(packets(), gateway)),
            )),
        ]);
    }
    flows
}

/// Connection state of an ICMP error about a connection.
const ABOUT_CONNECTION: u32 = ct_state::TRACKED | ct_state::RELATED;
/// Connection state of an ICMP error to the endpoint that opened the connection, about a packet of that endpoint.
const TO_OPENER: u32 = ABOUT_CONNECTION | ct_state::REPLY;

/// Requires an ICMP error to the endpoint that opened the connection.
fn to_opener(matching: Match) -> Match {
    matching.ct_state(TO_OPENER, TO_OPENER)
}

/// Requires an ICMP error to the other endpoint, about a reply. The switch does not report the addresses of such
/// connections: see [`opener`].
fn about_a_reply(matching: Match) -> Match {
    matching.ct_state(ABOUT_CONNECTION, TO_OPENER)
}

/// Requires this address at the end of the connection that did not open it.
fn connection_to(matching: Match, ip: IpAddr) -> Match {
    match ip {
        IpAddr::V4(ip) => matching.ipv4().field(Field::CtIpv4Dst, ip.to_bits()),
        IpAddr::V6(ip) => matching.ipv6().field(Field::CtIpv6Dst, ip.to_bits()),
    }
}

/// Returns the flows that drop invalid ICMP errors: errors from endpoints that are not at an end of the connection,
/// errors from other addresses of the subnets, and errors about connections without a router on their path.
fn on_path_base() -> Vec<Flow> {
    let find = |family: Family| {
        Flow::new(table::ON_PATH, rank::UNKNOWN, family.packets(Match::new()))
            .apply(find_owner(family, family.source()))
            .apply([Action::resubmit(table::ON_PATH_OWNER)])
    };
    let subnet = |priority, m| Flow::new(table::ON_PATH_SUBNET, priority, m);
    let mut flows: Vec<Flow> = Family::ALL.map(find).into();
    flows.extend([
        Flow::new(table::ON_PATH_OWNER, priority::MATCH, without_owner(Match::new()))
            .apply([Action::resubmit(table::ON_PATH_SUBNET)]),
        subnet(rank::UNKNOWN, guard::source_within(Match::new(), guard::LINK_LOCAL.into())),
        subnet(rank::ON_LINK, opener::on_link(Match::new().ct_state(ABOUT_CONNECTION, ABOUT_CONNECTION))),
        subnet(priority::MISS, Match::new()).apply([Action::resubmit(table::DESTINATION_IDENTITY)]),
        opener::check_error(subnet(priority::MISS + 1, to_opener(Match::new()))),
    ]);
    flows
}

/// Returns the flows of an endpoint, in addition to those of its record. An ICMP error from an endpoint must be about a
/// connection of that endpoint. The connection state already implies that it is about a packet of its receiver.
pub(crate) fn endpoint(record: Record<'_>) -> Vec<Flow> {
    let domain = record.segment.domain;
    guard::addresses(record.mac, record.addresses).flat_map(|ip| on_path(domain, ip)).collect()
}

fn on_path(domain: Domain, ip: IpAddr) -> [Flow; 2] {
    let from = || guard::source_within(domain.packets(), ip.into());
    let to_opener = connection_to(to_opener(from()), ip);
    let about_reply = opener::opened_by(about_a_reply(from()), ip);
    let known = |m| Flow::new(table::ON_PATH, rank::KNOWN, m);
    [known(about_reply).goto(table::DESTINATION_IDENTITY), opener::check_error(known(to_opener))]
}
