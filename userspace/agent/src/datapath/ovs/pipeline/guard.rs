//! Anti-spoofing. The specification is `fake::guard`, which all datapaths share.
//!
//! ```text
//!  pod ─ 13 source addresses ──────────────────┬─ IP ─ 16 destination ─┬─ 3
//!  tunnel, uplink ─ 14 Ethernet ─ 15 addresses ┤                  ND ─ 17 contents ─ 3
//!                                              └─ ARP ──────────────── 17
//! ```
//!
//! Tables 35 to 43 hold the records of endpoints and decide by them. The addresses of an endpoint include the link-local
//! address that the kernel derives from the Ethernet address.
//!
//! * [`form`]: what is valid for any endpoint.
//! * [`pod`]: what a local endpoint may send.
//! * [`record`]: the records of endpoints, keyed by their addresses.
//! * [`lookup`]: which addresses other senders may not use, and which destination addresses belong together.
//! * [`known`]: endpoints and services with a record.
//! * [`router`]: what pods send to the router, and what it sends from other nodes.

mod form;
mod known;
mod lookup;
mod pod;
mod record;
mod router;

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac};
use ipnet::IpNet;
use openflow_rs::{
    Action, Field, Flow, Match,
    matching::{ICMPV6_NEIGHBOUR_ADVERTISEMENT, ICMPV6_NEIGHBOUR_SOLICITATION, mac_bits},
};

use super::{
    metadata::{self, Domain},
    table,
};

pub(crate) use self::record::{RECORD_TABLE, recorded_identity};
pub(super) use self::{
    form::{base, to_vtep},
    known::{broadcast, local as known_local, remote as known_remote, service as known_service},
    lookup::port,
    pod::pod,
    record::{
        IDENTITY, Place, Record, STATION_PORT, clear, compare, find_owner, find_station, with_owner_at,
        with_same, with_station_at, without_owner,
    },
    router::{LINK_LOCAL, subnet as router},
};

/// Register that is not zero in frames that may be answered but not forwarded.
pub(super) const PROBE: Field = Field::Reg3;
/// Hop limit of ND. The value proves that no router has forwarded the packet (RFC 4861 section 11.2).
pub(super) const ND_HOP_LIMIT: u8 = 255;

/// The group bit of an Ethernet address.
const GROUP_BIT: u64 = 1 << 40;

/// Completes a flow whose frames have passed the checks.
fn pass(flow: Flow) -> Flow {
    // A goto instruction leads only to tables with higher numbers.
    flow.apply([Action::resubmit(table::SERVICE_DNAT)])
}

/// Returns the assigned addresses and the link-local one.
pub(crate) fn addresses(mac: Mac, assigned: &Addresses) -> impl Iterator<Item = IpAddr> {
    assigned.iter().chain([mac.link_local().into()])
}

fn source(matching: Match, ip: IpAddr) -> Match {
    source_within(matching, ip.into())
}

/// Requires an IP source in the prefix.
pub(super) fn source_within(matching: Match, prefix: IpNet) -> Match {
    match prefix {
        IpNet::V4(net) => matching.ipv4_src(net.network(), net.prefix_len()),
        IpNet::V6(net) => matching.ipv6_src(net.network(), net.prefix_len()),
    }
}

/// Requires an IP destination in the prefix.
pub(super) fn destination_within(matching: Match, prefix: IpNet) -> Match {
    match prefix {
        IpNet::V4(net) => matching.ipv4_dst(net.network(), net.prefix_len()),
        IpNet::V6(net) => matching.ipv6_dst(net.network(), net.prefix_len()),
    }
}

pub(super) fn destination(matching: Match, ip: IpAddr) -> Match {
    match ip {
        IpAddr::V4(ip) => matching.ipv4_dst(ip, 32),
        IpAddr::V6(ip) => matching.ipv6_dst(ip, 128),
    }
}

fn solicitation(matching: Match) -> Match {
    matching.icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION)
}

fn advertisement(matching: Match) -> Match {
    matching.icmpv6(ICMPV6_NEIGHBOUR_ADVERTISEMENT)
}

/// Requires this Ethernet address in a field. Zero matches a message without the option.
fn named(matching: Match, field: Field, mac: [u8; 6]) -> Match {
    matching.field(field, mac_bits(mac))
}

/// Matches frames from outside whose source is the address.
fn claims(domain: Domain, ip: IpAddr) -> impl Iterator<Item = Match> {
    let from_outside = || domain.packets_from(metadata::OUTSIDE);
    let arp = match ip {
        IpAddr::V4(ip) => Some(from_outside().arp_spa(ip)),
        IpAddr::V6(_) => None,
    };
    [source(from_outside(), ip)].into_iter().chain(arp)
}

/// Matches advertisements from outside for the address.
fn advertised(domain: Domain, ip: IpAddr) -> impl Iterator<Item = Match> {
    let from_outside = domain.packets_from(metadata::OUTSIDE);
    let target = match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(advertisement(from_outside).field(Field::NdTarget, ip.to_bits())),
    };
    target.into_iter()
}
