//! Records of endpoints, which other tables find by registers.
//!
//! OpenFlow compares fields with constants only. So the table of owners finds the Ethernet address of the endpoint that has an IP
//! address, and a flow of each endpoint recognises that address in two registers: an endpoint needs a flow for each address, and two
//! more, in whatever fields of a packet its addresses are.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac};
use openflow_rs::{Action, Field, Flow, Match, Slice, matching::mac_bits};

use super::addresses;
use crate::datapath::ovs::pipeline::{
    family::Family,
    metadata::{NETWORK_SHIFT, Segment, network_match},
    table::{self, priority},
};

/// The Ethernet address of the owner in bits 0 to 47, its [`Place`] in the others; zero without an owner. The switch reports a match
/// on it as matches on its halves.
const OWNER: (Field, [Field; 2]) = (Field::XReg4, [Field::Reg8, Field::Reg9]);
const PLACE_SHIFT: u32 = 48;
/// An Ethernet address of the packet.
const STATION: (Field, [Field; 2]) = (Field::XReg5, [Field::Reg10, Field::Reg11]);
/// Tag of the network of the owner.
const NETWORK: Field = Field::Reg13;
/// [`IS_V6`], [`IS_SAME`] and [`IS_KNOWN`]; the [`Place`] of the station in bits 16 to 31.
const FLAGS: Field = Field::Reg12;
/// The address to look up is an IPv6 address.
const IS_V6: u32 = 1;
/// The owner has the Ethernet address.
const IS_SAME: u32 = 2;
/// The Ethernet address is an endpoint's of the network.
const IS_KNOWN: u32 = 4;
const STATION_SHIFT: u32 = 16;
const MAC_BITS: u16 = 48;

/// Where frames with the addresses of an endpoint come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This node.
    Here,
    /// This port, a tunnel or the node's kernel.
    Port(u16),
    /// An uplink: the physical network delivers.
    Anywhere,
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
        }
    }
}

/// Returns the flows of an endpoint. `of_address` tells where the router of its node sends packets from an address, `station` where
/// its frames come from.
pub(super) fn endpoint(
    segment: Segment,
    mac: Mac,
    assigned: &Addresses,
    station: Place,
    of_address: impl Fn(IpAddr) -> Place,
) -> Vec<Flow> {
    let Segment { tag, domain, .. } = segment;
    let owner = |ip: IpAddr| {
        let owner = u64::from(of_address(ip).bits()) << PLACE_SHIFT | mac_bits(mac.0);
        Flow::new(table::OWNER, priority::MATCH, with_address(domain.packets(), ip))
            .apply([Action::set(OWNER.0, owner), Action::set(NETWORK, tag)])
    };
    let mut flows: Vec<Flow> = addresses(mac, assigned).map(owner).collect();
    let [high, low] = halves(mac);
    let is_owner = Match::new().field(NETWORK, tag).masked(OWNER.1[0], high, MAC_HIGH).field(OWNER.1[1], low);
    let same = with_station(is_owner, mac);
    flows.push(Flow::new(table::SAME, priority::MATCH, same).apply([set_flags(IS_SAME, IS_SAME)]));
    let known = u32::from(station.bits()) << STATION_SHIFT | IS_KNOWN;
    let known = set_flags(known, u32::from(u16::MAX) << STATION_SHIFT | IS_KNOWN);
    let station = with_station(network_match(tag), mac);
    flows.push(Flow::new(table::STATIONS, priority::MATCH, station).apply([known]));
    flows
}

/// Bits of an Ethernet address in the upper half.
const MAC_HIGH: u32 = 0xffff;

fn halves(mac: Mac) -> [u32; 2] {
    let bits = mac_bits(mac.0);
    [(bits >> 32) as u32, bits as u32]
}

fn with_station(matching: Match, mac: Mac) -> Match {
    let [high, low] = halves(mac);
    matching.field(STATION.1[0], high).field(STATION.1[1], low)
}

/// Requires this address in the register.
fn with_address(matching: Match, ip: IpAddr) -> Match {
    match ip {
        IpAddr::V4(ip) => matching.masked(FLAGS, 0u32, IS_V6).field(Family::V4.register(), ip.to_bits()),
        IpAddr::V6(ip) => {
            let words = [96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32);
            let parts = Family::PARTS.into_iter().zip(words);
            parts.fold(matching.masked(FLAGS, IS_V6, IS_V6), |m, (register, word)| m.field(register, word))
        }
    }
}

fn set_flags(value: u32, mask: u32) -> Action {
    Action::SetMasked { field: FLAGS, value: value.into(), mask: mask.into() }
}

/// Finds the owner of the IP address in a field, and whether it has the Ethernet address in another.
pub(super) fn find_owner(family: Family, address: Field, station: Field) -> Vec<Action> {
    let is_v6 = if family == Family::V6 { IS_V6 } else { 0 };
    let mut actions = vec![
        Action::set(OWNER.0, 0u8),
        Action::set(FLAGS, is_v6),
        Action::copy(address, family.register()),
        Action::resubmit(table::OWNER),
    ];
    actions.extend(compare(station));
    actions
}

/// Finds whether the owner has the Ethernet address in a field.
pub(super) fn compare(station: Field) -> [Action; 3] {
    [set_flags(0, IS_SAME), copy_mac(station, STATION.0), Action::resubmit(table::SAME)]
}

/// Finds the endpoint of the network that has the Ethernet address in a field.
pub(super) fn find_station(station: Field) -> [Action; 3] {
    [Action::set(FLAGS, 0u8), copy_mac(station, STATION.0), Action::resubmit(table::STATIONS)]
}

/// Takes the Ethernet address in a field for that of an owner on the network of the frame.
pub(super) fn take_for_owner(station: Field) -> [Action; 3] {
    let tag = Slice::bits(Field::Metadata, NETWORK_SHIFT as u16, 24);
    let network = Action::Move { from: tag, to: Slice::bits(NETWORK, 0, tag.width) };
    [Action::set(OWNER.0, 0u8), copy_mac(station, OWNER.0), network]
}

/// The Ethernet address is one that only its owner may use.
pub(super) fn is_known() -> Action {
    set_flags(IS_KNOWN, IS_KNOWN)
}

fn copy_mac(from: Field, to: Field) -> Action {
    Action::Move { from: Slice::whole(from), to: Slice::bits(to, 0, MAC_BITS) }
}

/// Clears the registers: later tables take them for theirs.
pub(super) fn clear() -> [Action; 4] {
    [Field::XXReg1, Field::XXReg2, FLAGS, NETWORK].map(|register| Action::set(register, 0u8))
}

/// Requires an address without an owner.
pub(super) fn without_owner(matching: Match) -> Match {
    OWNER.1.into_iter().fold(matching, |m, half| m.field(half, 0u32))
}

/// Requires an owner that is there.
pub(super) fn with_owner_at(matching: Match, place: Place) -> Match {
    let shift = PLACE_SHIFT - 32;
    let mask = u32::from(u16::MAX) << shift;
    matching.masked(OWNER.1[0], u32::from(place.bits()) << shift, mask)
}

/// Requires the owner's Ethernet address.
pub(super) fn with_same(matching: Match) -> Match {
    matching.masked(FLAGS, IS_SAME, IS_SAME)
}

/// Requires a station that is no known endpoint.
pub(super) fn with_unknown_station(matching: Match) -> Match {
    matching.masked(FLAGS, 0u32, IS_KNOWN)
}

/// Requires a known endpoint that is there.
pub(super) fn with_station_at(matching: Match, place: Place) -> Match {
    let value = u32::from(place.bits()) << STATION_SHIFT | IS_KNOWN;
    matching.masked(FLAGS, value, u32::from(u16::MAX) << STATION_SHIFT | IS_KNOWN)
}
