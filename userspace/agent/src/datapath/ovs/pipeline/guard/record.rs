//! Records of endpoints, which other tables find by registers.
//!
//! OpenFlow compares fields with constants only. So the table of owners finds the Ethernet address of the endpoint that has an IP
//! address, and a flow of each endpoint recognises that address in two registers: an endpoint needs a flow for each address, and two
//! more, in whatever fields of a packet its addresses are. The records have what policies need to know of an endpoint, too.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac, policy::Identity};
use openflow_rs::{Action, Field, Flow, Match, Slice, matching::mac_bits};

use super::addresses;
use crate::datapath::ovs::pipeline::{
    family::{Family, with_address},
    metadata::{Segment, network_match, network_slice},
    table::{self, priority},
};

/// The Ethernet address of the owner in bits 0 to 47, its [`Place`] in the others; zero without an owner. The Ethernet address of the
/// station that is looked for. The switch reports a match on it as matches on its halves.
const OWNER: (Field, [Field; 2]) = (Field::XReg1, [Field::Reg2, Field::Reg3]);
const PLACE_SHIFT: u32 = 48;
/// Identity of the endpoint that was found; zero without one.
pub(in crate::datapath::ovs::pipeline) const IDENTITY: Field = Field::Reg12;
/// Behind a search for a station its port number, if it is an endpoint of this node, else zero.
pub(in crate::datapath::ovs::pipeline) const STATION_PORT: Field = Field::Reg11;
/// Before a search for an owner [`IS_V6`] or zero, behind it the tag of the owner's network. Behind a search for a station
/// [`IS_KNOWN`] and its [`Place`], or zero.
const FOUND: Field = Field::Reg13;
/// The address to look up is an IPv6 address.
const IS_V6: u32 = 1 << 31;
/// The Ethernet address is an endpoint's of the network.
const IS_KNOWN: u32 = 1 << 30;
/// An Ethernet address of the packet, for the comparison with the owner's.
const STATION: (Field, [Field; 2]) = (Field::XReg4, [Field::Reg8, Field::Reg9]);
/// One if the two are equal.
const IS_SAME: Field = Field::Reg10;
const MAC_BITS: u16 = 48;
/// Bits of an Ethernet address in the upper half.
const MAC_HIGH: u32 = 0xffff;

/// Where frames with the addresses of an endpoint come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datapath::ovs::pipeline) enum Place {
    /// This node.
    Here,
    /// This port, a tunnel or the node's kernel.
    Port(u16),
    /// An uplink: the physical network delivers.
    Anywhere,
    /// None, because there is no tunnel to the endpoint's node.
    Nowhere,
}

impl Place {
    pub(super) fn of(port: Option<u32>) -> Place {
        // The switch has no higher port numbers; from one that is none, nothing comes.
        port.map_or(Place::Anywhere, |port| u16::try_from(port).map_or(Place::Here, Place::Port))
    }

    fn bits(self) -> u16 {
        match self {
            Place::Here => u16::MAX,
            Place::Port(port) => port,
            Place::Anywhere => 0,
            // No tunnel has this number: it is that of the internal port of a bridge.
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
    /// Returns the flows of the endpoint. `of_address` tells where the router of its node sends packets from an address, `station`
    /// where its frames come from.
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

/// Table with the flow of an endpoint's record that has its Ethernet address.
pub(crate) const RECORD_TABLE: u8 = table::STATIONS;

/// The identity in the record of an endpoint. `flow` is that of its Ethernet address.
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

/// Finds the owner of the IP address in a field.
pub(in crate::datapath::ovs::pipeline) fn find_owner(family: Family, address: Field) -> [Action; 5] {
    [
        Action::set(OWNER.0, 0u8),
        Action::set(IDENTITY, 0u8),
        Action::set(FOUND, is_v6(family)),
        Action::copy(address, family.register()),
        Action::resubmit(table::OWNER),
    ]
}

/// Finds whether the owner has the Ethernet address in a field.
pub(in crate::datapath::ovs::pipeline) fn compare(station: Field) -> [Action; 3] {
    [Action::set(IS_SAME, 0u8), copy_mac(station, STATION.0), Action::resubmit(table::SAME)]
}

/// Finds the endpoint of the network that has the Ethernet address in a field.
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

/// Takes the station that was found for an owner.
pub(super) fn take_for_owner() -> [Action; 2] {
    let tag = network_slice();
    [Action::set(FOUND, 0u8), Action::Move { from: tag, to: Slice::bits(FOUND, 0, tag.width) }]
}

fn copy_mac(from: Field, to: Field) -> Action {
    Action::Move { from: Slice::whole(from), to: Slice::bits(to, 0, MAC_BITS) }
}

/// Clears the registers: later tables take them for theirs.
pub(in crate::datapath::ovs::pipeline) fn clear() -> [Action; 5] {
    [OWNER.0, Field::XXReg1, Field::XXReg2, IDENTITY, FOUND].map(|register| Action::set(register, 0u8))
}

/// Requires an address without an owner.
pub(in crate::datapath::ovs::pipeline) fn without_owner(matching: Match) -> Match {
    OWNER.1.into_iter().fold(matching, |m, half| m.field(half, 0u32))
}

/// Requires an owner that is there.
pub(in crate::datapath::ovs::pipeline) fn with_owner_at(matching: Match, place: Place) -> Match {
    let shift = PLACE_SHIFT - 32;
    let mask = u32::from(u16::MAX) << shift;
    matching.masked(OWNER.1[0], u32::from(place.bits()) << shift, mask)
}

/// Requires the owner's Ethernet address.
pub(in crate::datapath::ovs::pipeline) fn with_same(matching: Match) -> Match {
    matching.field(IS_SAME, 1u8)
}

/// Requires a station that is no known endpoint.
pub(super) fn with_unknown_station(matching: Match) -> Match {
    matching.field(FOUND, 0u32)
}

/// Requires a known endpoint that is there.
pub(in crate::datapath::ovs::pipeline) fn with_station_at(matching: Match, place: Place) -> Match {
    matching.field(FOUND, u32::from(place.bits()) | IS_KNOWN)
}
