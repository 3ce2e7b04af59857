//! The endpoint that opened a connection, and the service to which it opened it. An IP address can pass from one endpoint
//! to another. Replies to the first endpoint are not replies to the second, whose rules have not been evaluated for them.
//!
//! ```text
//!  18 ─┬─ original direction ── 59 to this service? ─┬─ yes ─ 55 opened by the sender? ─┬─ yes ─ 20
//!      │                                             │                                  └─ no, or new ─┐
//!      │                                             └─ no ──── 24 records the sender and the service ─┴─ 20
//!      │                                                        from outside: only if 57 finds the receiver on this node
//!      └─ reply ─ 37 receiver ─ 55 opened by the receiver? ─┬─ yes, or not on this node ─ 20
//!      └─ ICMP error to the opener ─ 19 ─ 37 ─┘             ├─ no ─ 56 evaluated as a packet of no connection ─ 20
//!                                                           └─ no, an error: marked, and dropped if its address has a record ─ 20
//! ```
//!
//! The label of a connection holds the number of the opener, above the service. Packets of the original direction are
//! evaluated anyway. Their sender takes the connection over, so that it can reuse the ports of a connection of its
//! predecessor.
//!
//! A client may send from one port to two services that have a backend in common, or to the backend itself. The packets
//! to the backend are then indistinguishable. They form one connection, labelled with the destination to which the client
//! sent last, and replies get the address of that destination. So a connection also continues when its address passes to
//! another service. A SYN in an established connection takes nothing over: it belongs to another connection, which the
//! backend does not accept.
//!
//! The label also holds the source address of the packet that opened the connection, and whether both ends are on one
//! link. The switch itself matches the addresses of a connection, but with the kernel datapath not for an ICMP error that
//! is not a reply (`is_ct_valid` in `lib/flow.h`).
//!
//! A frame from outside that is not for an endpoint of this node is flooded or dropped, and its connection is not
//! recorded. Otherwise one sender could exhaust connection tracking on all nodes with frames to an unknown Ethernet
//! address.

use std::net::IpAddr;

use contiv_model::name::EndpointId;
use openflow_rs::{Action, Field, Flow, Match, Slice, ct_state};

use super::{CLASS, OPENING, REPLY, SUCCESSOR};
use crate::datapath::ovs::pipeline::{
    family::{Family, address_bits},
    guard::{Place, STATION_PORT, find_station, with_station_at},
    metadata::{OUTSIDE, SENDER, SERVICE_MASK, match_from, sender_number, service_port_match, service_value},
    table::{self, priority},
};

/// Bit of the label, above the service: both ends of the connection are on one link.
const ON_LINK: Slice = Slice { field: Field::CtLabel, offset: 39, width: 1 };
/// Bits of the label: [`SENDER`].
const NUMBER: Slice = Slice { field: Field::CtLabel, offset: 40, width: SENDER.width };
/// Bit of the label, and of the metadata: the connection was opened from outside.
const IS_OUTSIDE: Slice = Slice { field: Field::CtLabel, offset: NUMBER.offset + NUMBER.width, width: 1 };
const ORIGIN: Slice = Slice { field: Field::Metadata, offset: OUTSIDE.trailing_zeros() as u16, width: 1 };
/// Mask of the opener in the label.
const MASK: u128 = ((1_u128 << (NUMBER.width + IS_OUTSIDE.width)) - 1) << NUMBER.offset;

/// A part of an address in the label.
struct Part {
    offset: u16,
    width: u16,
    in_label: u16,
}

impl Part {
    fn of(&self, address: u128) -> u128 {
        address >> self.offset & ((1 << self.width) - 1)
    }

    fn slice(&self) -> Slice {
        Slice::bits(Field::CtLabel, self.in_label, self.width)
    }
}

/// Parts of the address of the packet that opened a connection, above the other bits of the label. A whole IPv6 address
/// does not fit: the label holds the last bits of the 64-bit prefix and the last bits of the address. Endpoints that
/// agree in both are not distinguished.
const fn parts(family: Family) -> &'static [Part] {
    const AT: u16 = IS_OUTSIDE.offset + IS_OUTSIDE.width;
    const HOST: Part = Part { offset: 0, width: 20, in_label: AT };
    const PREFIX: Part = Part { offset: 64, width: 43, in_label: AT + HOST.width };
    match family {
        Family::V4 => &[Part { offset: 0, width: 32, in_label: AT }],
        Family::V6 => &[HOST, PREFIX],
    }
}

/// Requires a connection that this address has opened.
pub(super) fn opened_by(matching: Match, ip: IpAddr) -> Match {
    let family = Family::of(ip);
    let label = |bits| parts(family).iter().fold(0, |label, part| label | part.of(bits) << part.in_label);
    family.packets(matching).masked(Field::CtLabel, label(address_bits(ip)), label(u128::MAX))
}

/// Requires a connection between two ends of one link.
pub(super) fn on_link(matching: Match) -> Match {
    let bit = 1_u128 << ON_LINK.offset;
    matching.masked(Field::CtLabel, bit, bit)
}

/// Records whether both ends of the connection are on one link.
pub(super) fn record_link(is_one: bool) -> Action {
    Action::load(is_one.into(), ON_LINK)
}

/// Opener of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    /// An earlier version of the agent, or another datapath, has recorded the connection. Its next packet in the original
    /// direction sets the opener.
    Unknown,
    /// The endpoint of this node with this number.
    Here(u32),
    /// Another node, the physical network or the node's kernel.
    Outside,
}

impl Opener {
    /// The endpoint of this node with this id.
    pub(crate) fn endpoint(id: &EndpointId) -> Opener {
        Opener::Here(sender_number(id))
    }

    /// Reads the label of a connection.
    pub(crate) fn of_label(label: u128) -> Opener {
        match label & MASK {
            0 => Opener::Unknown,
            bits if bits == Opener::Outside.label() => Opener::Outside,
            bits => Opener::Here((bits >> NUMBER.offset) as u32),
        }
    }

    /// The bits in [`MASK`] of the label.
    pub(crate) fn label(self) -> u128 {
        match self {
            Opener::Unknown => 0,
            Opener::Here(number) => u128::from(number) << NUMBER.offset,
            Opener::Outside => 1 << IS_OUTSIDE.offset,
        }
    }

    /// Returns the action that sends a packet of the agent as this sender; `None` without a sender.
    pub(crate) fn sends(self) -> Option<Action> {
        match self {
            Opener::Unknown => None,
            Opener::Here(number) => Some(Action::load(number.into(), SENDER)),
            Opener::Outside => Some(Action::load(1, ORIGIN)),
        }
    }
}

/// Requires a connection with this opener.
fn with_opener(matching: Match, opener: Opener) -> Match {
    matching.masked(Field::CtLabel, opener.label(), MASK)
}

/// Requires a packet that opens a connection or takes one over. The connection is recorded if rules accept the packet.
pub(super) fn opening(matching: Match) -> Match {
    matching.masked(CLASS, OPENING, OPENING)
}

/// Marks a packet that opens a connection or takes one over.
pub(super) fn mark_opening() -> Action {
    mark(OPENING)
}

/// Sets a bit of the class.
fn mark(bit: u8) -> Action {
    Action::load(1, Slice { field: CLASS, offset: bit.trailing_zeros() as u16, width: 1 })
}

/// Compares the receiver of an ICMP error to the opener with the opener of the connection.
pub(super) fn check_error(flow: Flow) -> Flow {
    flow.apply(find_port(true)).goto(table::OPENER)
}

/// Records the sender of the packet in the label of its connection.
pub(super) fn record_sender() -> [Action; 2] {
    [Action::Move { from: SENDER, to: NUMBER }, Action::Move { from: ORIGIN, to: IS_OUTSIDE }]
}

/// Records the source address of the packet in the label of its connection.
pub(super) fn record_source(family: Family) -> Vec<Action> {
    let source = |part: &Part| Slice::bits(family.source(), part.offset, part.width);
    parts(family).iter().map(|part| Action::Move { from: source(part), to: part.slice() }).collect()
}

/// Records the address in the label of a connection.
pub(super) fn record_address(ip: IpAddr) -> Vec<Action> {
    let bits = |part: &Part| part.of(address_bits(ip)) as u64;
    parts(Family::of(ip)).iter().map(|part| Action::load(bits(part), part.slice())).collect()
}

/// Finds the port of the endpoint of this node that sends in the original direction of the packet's connection.
pub(super) fn find_port(is_reply: bool) -> Vec<Action> {
    match is_reply {
        false => vec![Action::copy(Field::InPort, STATION_PORT)],
        true => find_station(Field::EthDst).into(),
    }
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let check = |priority, m| Flow::new(table::OPENER, priority, m);
    let to_other = |priority, m| Flow::new(table::OPENED_SERVICE, priority, m);
    let belongs = |flow: Flow| flow.apply([Action::resubmit(table::DESTINATION_IDENTITY)]);
    let opens = |flow: Flow| belongs(flow.apply([mark_opening()]));
    let arrives =
        |flow: Flow| flow.apply(find_station(Field::EthDst)).apply([Action::resubmit(table::LOCAL_RECEIVER)]);
    let received = |priority, m| Flow::new(table::LOCAL_RECEIVER, priority, m);
    let original = |m: Match| m.masked(CLASS, 0u8, REPLY);
    let reply = || Match::new().masked(CLASS, REPLY, REPLY);
    let (new, outside) = (ct_state::NEW, || match_from(OUTSIDE));
    let error = with_station_at(reply().ct_state(ct_state::RELATED, ct_state::RELATED), Place::Here);
    vec![
        known_service(0, 0),
        arrives(to_other(priority::MISS + 1, outside())),
        opens(to_other(priority::MISS, Match::new())),
        arrives(check(priority::MATCH + 2, outside().ct_state(new, new))),
        opens(check(priority::MATCH + 1, Match::new().ct_state(new, new))),
        belongs(check(priority::MATCH, with_opener(original(outside()), Opener::Outside))),
        belongs(check(priority::MATCH, with_opener(reply(), Opener::Unknown))),
        belongs(check(priority::MATCH - 1, error).apply([mark(SUCCESSOR)])),
        check(priority::MATCH - 2, with_station_at(reply(), Place::Here))
            .apply([Action::resubmit(table::ANEW)]),
        belongs(check(priority::MATCH - 3, reply())),
        arrives(check(priority::MISS + 1, outside())),
        opens(check(priority::MISS, Match::new())),
        opens(received(priority::MATCH, with_station_at(Match::new(), Place::Here))),
        belongs(received(priority::MISS, Match::new())),
    ]
}

/// Returns the flow that recognises the connections opened by the local endpoint at `port`.
pub(crate) fn known_opener(id: &EndpointId, port: u32) -> Flow {
    let opened = with_opener(Match::new().field(STATION_PORT, port), Opener::endpoint(id));
    Flow::new(table::OPENER, priority::MATCH, opened).apply([Action::resubmit(table::DESTINATION_IDENTITY)])
}

/// Returns the flow that recognises the connections to a port of a service. With number and port 0, it recognises those
/// to no service.
pub(crate) fn known_service(number: u32, port: u16) -> Flow {
    let opened = service_port_match(number, port);
    let opened = opened.masked(Field::CtLabel, service_value(number, port), SERVICE_MASK);
    Flow::new(table::OPENED_SERVICE, priority::MATCH, opened).apply([Action::resubmit(table::OPENER)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_who_has_opened_a_connection() {
        let one = Opener::endpoint(&"net.blue-pod1".into());
        for opener in [one, Opener::Outside, Opener::Unknown] {
            // The bits of the service do not change the result.
            assert_eq!(Opener::of_label(opener.label() | 0x7f_ffff_ffff), opener);
            assert_eq!(opener.label() & !MASK, 0);
        }
        assert_ne!(one, Opener::endpoint(&"net.blue-pod2".into()));
        assert!(matches!(one, Opener::Here(1..=0xff_ffff)), "{one:?}");
    }

    #[test]
    fn labels_tell_the_address_that_has_opened_a_connection() {
        let label = |ip: &str| {
            let actions = record_address(ip.parse().unwrap());
            actions.iter().fold(0, |label, action| match action {
                Action::Load { value, to } => label | u128::from(*value) << to.offset,
                other => panic!("{other:?}"),
            })
        };
        let is_of = |ip: &str, other: &str| {
            let wanted = opened_by(Match::new(), other.parse().unwrap());
            let wanted = wanted.get(Field::CtLabel).unwrap();
            // The other bits are not compared.
            let rest = MASK | u128::from(SERVICE_MASK) | 1 << ON_LINK.offset;
            assert_eq!(wanted.mask & rest, 0);
            label(ip) & wanted.mask == wanted.value
        };
        for (ip, others) in [
            ("10.1.0.1", ["10.1.0.2", "10.2.0.1", "11.1.0.1"]),
            ("2001:db8:0:7::1", ["2001:db8:0:7::2", "2001:db8:0:8::1", "2001:db9:0:7::1"]),
            ("fd00:1::5", ["fd00:2::5", "fd00:1:0:1::5", "fd00:1::1:5"]),
        ] {
            assert!(is_of(ip, ip));
            assert!(!others.into_iter().any(|other| is_of(ip, other)), "{ip}");
        }
    }
}
