//! Records of endpoints, which other tables look up through registers.
//!
//! OpenFlow compares fields only with constants. So the owner table maps an IP address to the Ethernet address of its
//! endpoint, and one flow per endpoint recognises that Ethernet address in two registers. An endpoint needs one flow per
//! address and two more, no matter which fields of a packet hold its addresses. The records also hold what policies need
//! to know about an endpoint.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac, policy::Identity};
use openflow_rs::{Action, Field, Flow, Match, Slice, matching::mac_bits};

use super::addresses;
use crate::datapath::ovs::pipeline::{
    family::{Family, with_address},
    metadata::{Segment, network_match, network_slice},
    table::{self, priority},
};

/// Owner of an address: its Ethernet address in bits 0 to 47, and its [`Place`] in the other bits; zero without an owner.
/// During a search for a station: the Ethernet address to look up. The switch reports a match on the register as matches
/// on its halves.
const OWNER: (Field, [Field; 2]) = (Field::XReg1, [Field::Reg2, Field::Reg3]);
const PLACE_SHIFT: u32 = 48;
/// Identity of the endpoint that was found, or zero.
pub(in crate::datapath::ovs::pipeline) const IDENTITY: Field = Field::Reg12;
/// After a search for a station: its port number if it is an endpoint of this node, or zero.
pub(in crate::datapath::ovs::pipeline) const STATION_PORT: Field = Field::Reg11;
/// Before a search for an owner: [`IS_V6`] or zero. After it: the tag of the owner's network. After a search for a
/// station: [`IS_KNOWN`] and its [`Place`], or zero.
const FOUND: Field = Field::Reg13;
/// The address to look up is an IPv6 address.
const IS_V6: u32 = 1 << 31;
/// The Ethernet address belongs to an endpoint of the network.
const IS_KNOWN: u32 = 1 << 30;
/// Ethernet address of the packet that is compared with the owner's.
const STATION: (Field, [Field; 2]) = (Field::XReg4, [Field::Reg8, Field::Reg9]);
/// One if the two addresses are equal.
const IS_SAME: Field = Field::Reg10;
const MAC_BITS: u16 = 48;
/// Mask of the part of an Ethernet address in the upper half.
const MAC_HIGH: u32 = 0xffff;

/// Ingress of frames with the addresses of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath::ovs::pipeline) enum Place {
    /// This node.
    Here,
    /// This port, a tunnel or the node's kernel.
    Port(u16),
    /// An uplink: the physical network delivers the frames.
    Anywhere,
    /// No port, because there is no tunnel to the endpoint's node.
    Nowhere,
}

impl Place {
    pub(super) fn of(port: Option<u32>) -> Place {
        // The switch has no higher port numbers. No frame arrives from a port that does not exist.
        port.map_or(Place::Anywhere, |port| u16::try_from(port).map_or(Place::Here, Place::Port))
    }

    fn bits(self) -> u16 {
        match self {
            Place::Here => u16::MAX,
            Place::Port(port) => port,
            Place::Anywhere => 0,
            // No tunnel has this number: it is the number of a bridge's internal port.
            Place::Nowhere => u16::MAX - 1,
        }
    }
}

/// An endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) segment: Segment,
    pub(crate) mac: Mac,
    pub(crate) addresses: &'a Addresses,
    pub(crate) identity: Option<Identity>,
    /// Port number of an endpoint of this node.
    pub(crate) port: Option<u32>,
}

impl Record<'_> {
    /// Returns the flows of the endpoint. `of_address` maps an address to the place from which the router of the
    /// endpoint's node sends packets from it. `station` is the place where the endpoint's frames come from.
    pub(super) fn flows(self, station: Place, of_address: impl Fn(IpAddr) -> Place) -> Vec<Flow> {
        let Record { segment: Segment { tag, domain, .. }, mac, .. } = self;
        let identity = || self.identity.map(|identity| Action::set(IDENTITY, identity.get()));
        let port = self.port.map(|port| Action::set(STATION_PORT, port));
        let owner = |ip: IpAddr| {
            let owner = u64::from(of_address(ip).bits()) << PLACE_SHIFT | mac_bits(mac.0);
            let searched = domain.packets().masked(FOUND, is_v6(Family::of(ip)), IS_V6);
            Flow::new(table::OWNER, priority::MATCH, with_address(searched, ip))
                .apply([Action::set(OWNER.0, owner), Action::set(FOUND, tag)])
                .apply(identity())
        };
        let mut flows: Vec<Flow> = addresses(mac, self.addresses).map(owner).collect();
        let same = with_mac(with_mac(Match::new().field(FOUND, tag), OWNER.1, mac), STATION.1, mac);
        flows.push(Flow::new(table::SAME, priority::MATCH, same).apply([Action::set(IS_SAME, 1u8)]));
        let known = Action::set(FOUND, u32::from(station.bits()) | IS_KNOWN);
        let station = with_mac(network_match(tag), OWNER.1, mac);
        let station = Flow::new(table::STATIONS, priority::MATCH, station).apply([known]);
        flows.push(station.apply(port).apply(identity()));
        flows
    }
}

/// Table of the flow of an endpoint's record that matches its Ethernet address.
pub(crate) const RECORD_TABLE: u8 = table::STATIONS;

/// Returns the identity in the record of an endpoint. `flow` is the flow of its Ethernet address.
pub(crate) fn recorded_identity(flow: &Flow) -> Option<Identity> {
    let number = |action: &Action| match action {
        Action::SetField { field, value } if *field == IDENTITY => u32::try_from(*value).ok(),
        _ => None,
    };
    let number = flow.instructions.apply.iter().find_map(number)?;
    Identity::try_from(number).ok()
}

/// Requires an Ethernet address in the low bits of two registers.
fn with_mac(matching: Match, [high, low]: [Field; 2], mac: Mac) -> Match {
    let bits = mac_bits(mac.0);
    matching.masked(high, (bits >> 32) as u32, MAC_HIGH).field(low, bits as u32)
}

fn is_v6(family: Family) -> u32 {
    if family == Family::V6 { IS_V6 } else { 0 }
}

/// Finds the owner of the IP address in `address`.
pub(in crate::datapath::ovs::pipeline) fn find_owner(family: Family, address: Field) -> [Action; 5] {
    [
        Action::set(OWNER.0, 0u8),
        Action::set(IDENTITY, 0u8),
        Action::set(FOUND, is_v6(family)),
        Action::copy(address, family.register()),
        Action::resubmit(table::OWNER),
    ]
}

/// Compares the Ethernet address in `station` with that of the owner.
pub(in crate::datapath::ovs::pipeline) fn compare(station: Field) -> [Action; 3] {
    [Action::set(IS_SAME, 0u8), copy_mac(station, STATION.0), Action::resubmit(table::SAME)]
}

/// Finds the endpoint of the network that has the Ethernet address in `station`.
pub(in crate::datapath::ovs::pipeline) fn find_station(station: Field) -> [Action; 6] {
    [
        Action::set(OWNER.0, 0u8),
        Action::set(STATION_PORT, 0u8),
        Action::set(IDENTITY, 0u8),
        Action::set(FOUND, 0u8),
        copy_mac(station, OWNER.0),
        Action::resubmit(table::STATIONS),
    ]
}

/// Uses the station that was found as the owner.
pub(super) fn take_for_owner() -> [Action; 2] {
    let tag = network_slice();
    [Action::set(FOUND, 0u8), Action::Move { from: tag, to: Slice::bits(FOUND, 0, tag.width) }]
}

fn copy_mac(from: Field, to: Field) -> Action {
    Action::Move { from: Slice::whole(from), to: Slice::bits(to, 0, MAC_BITS) }
}

/// Clears the registers, because later tables use them for other values.
pub(in crate::datapath::ovs::pipeline) fn clear() -> [Action; 5] {
    [OWNER.0, Field::XXReg1, Field::XXReg2, IDENTITY, FOUND].map(|register| Action::set(register, 0u8))
}

/// Requires an address without an owner.
pub(in crate::datapath::ovs::pipeline) fn without_owner(matching: Match) -> Match {
    OWNER.1.into_iter().fold(matching, |m, half| m.field(half, 0u32))
}

/// Requires an owner at this place.
pub(in crate::datapath::ovs::pipeline) fn with_owner_at(matching: Match, place: Place) -> Match {
    let shift = PLACE_SHIFT - 32;
    let mask = u32::from(u16::MAX) << shift;
    matching.masked(OWNER.1[0], u32::from(place.bits()) << shift, mask)
}

/// Requires the owner's Ethernet address.
pub(in crate::datapath::ovs::pipeline) fn with_same(matching: Match) -> Match {
    matching.field(IS_SAME, 1u8)
}

/// Requires a station that is not a known endpoint.
pub(super) fn with_unknown_station(matching: Match) -> Match {
    matching.field(FOUND, 0u32)
}

/// Requires a known endpoint at this place.
pub(in crate::datapath::ovs::pipeline) fn with_station_at(matching: Match, place: Place) -> Match {
    matching.field(FOUND, u32::from(place.bits()) | IS_KNOWN)
}
