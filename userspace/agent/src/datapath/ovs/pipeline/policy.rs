//! Policies: each IP packet is evaluated as [`contiv_model::policy::decide`] does.
//!
//! ```text
//!  4 class ─┬─ unicast ── ct ── 18 state ─┬─ 59, 55 opener ─ 20 destination ─ 21 source ─ 5 out rules ─ 23 in rules ─ 24 accept ─ 6
//!           │                  ICMP error └─ 19 on path, 55 ┘    │
//!           ├─ groups, other protocols, not IP ── 20             └─ to a group: 6 ─ 9 ─ each receiver ─ 5 ─ 23 ─ 24 output
//!           └─ ARP, ND ── 9
//! ```
//!
//! Connection tracking records the direction of a connection and its opener. The verdict is not stored: every packet,
//! also a reply, is evaluated as the packet that opened its connection. Registers hold the addresses, protocol and port
//! of that packet. So a change of the rules or of an endpoint's identity applies to established connections as soon as
//! the switch has revalidated its cache, and no policy revision has to survive a restart.
//!
//! * [`class`]: which frames are evaluated, and how.
//! * [`opener`]: the endpoint that opened a connection, and the service to which it opened it.
//! * [`identity`]: the endpoints of a connection.
//! * [`rules`]: flows of a group's rules.
//! * [`replicate`]: evaluation for each receiver of a replicated frame.

mod class;
mod identity;
mod opener;
mod replicate;
mod rules;

use ipnet::IpNet;
use openflow_rs::{Action, Field, Match, Slice};

use super::{family::Family, guard, metadata};

pub(super) use self::{
    class::{base, commit, network, opened_by, within},
    identity::{endpoint, subnet},
    opener::{known_opener, known_service},
    replicate::{far, flood},
};
pub(crate) use self::{
    opener::Opener,
    replicate::{Receiver, receiver_port, receivers},
    rules::{RULE_TABLES, counted_rules, rules},
};

/// Port in bits 0 to 15, protocol in bits 16 to 23.
const PROTOCOL_AND_PORT: Field = Field::Reg0;
const PORT_BITS: u16 = 16;
const PROTOCOL_SHIFT: u32 = 16;
const DESTINATION_V4: Field = Field::Reg1;
/// [`HERE`], [`UNKNOWN`], [`MISDIRECTED`] or 0.
const SOURCE_FLAGS: Field = Field::Reg2;
/// [`HERE`], [`FAR`] or 0.
const DESTINATION_FLAGS: Field = Field::Reg3;
/// The endpoint is on this node and has an identity, whose rules apply.
const HERE: u8 = 1;
/// The source is in a subnet of the network, but its endpoint is unknown.
const UNKNOWN: u8 = 2;
/// The packet is a reply, or an ICMP error to the opener of its connection. It has a destination address without a
/// record, in a frame to an endpoint that has an identity: no endpoint opens a connection from such an address. Or it is
/// an error to a [`SUCCESSOR`].
const MISDIRECTED: u8 = 3;
/// The copy of a replicated frame that leaves the node.
const FAR: u8 = 2;
const SOURCE_V4: Field = Field::Reg4;
const SOURCE_V6: (Field, [Field; 4]) = (Field::XXReg1, [Field::Reg4, Field::Reg5, Field::Reg6, Field::Reg7]);
const DESTINATION_V6: (Field, [Field; 4]) =
    (Field::XXReg2, [Field::Reg8, Field::Reg9, Field::Reg10, Field::Reg11]);
const SOURCE_IDENTITY: Field = guard::IDENTITY;
const DESTINATION_IDENTITY: Field = Field::Reg13;
/// Port number of the receiver of a replicated frame, and [`IS_RECEIVER`].
const RECEIVER: Field = metadata::FLAGS;
const IS_RECEIVER: u32 = 1 << 16;
/// Bit of the same register: the packet returns to the pod that sent it.
const IS_RETURNING: u32 = 1 << 17;
/// Lower bits of the register: [`EVALUATED`], [`UNREADABLE`], [`REPLY`], [`CONNECTION`], [`OPENING`] and [`SUCCESSOR`].
const CLASS: Field = Field::Reg15;
const CLASS_BITS: u16 = 8;
/// The frame is not exempt from rules.
const EVALUATED: u8 = 1;
/// No rule can evaluate the frame: endpoints with rules may neither send nor receive it.
const UNREADABLE: u8 = 2;
/// The packet is a reply: it is evaluated as the packet that opened its connection.
const REPLY: u8 = 4;
/// The addresses are those of the packet that opened the connection, not the packet's own.
const CONNECTION: u8 = 8;
/// The connection is recorded if the rules accept the packet.
const OPENING: u8 = 16;
/// The packet is an ICMP error about a connection, and goes to an endpoint of this node that did not open this
/// connection.
const SUCCESSOR: u8 = 32;

fn destination_register(family: Family) -> Field {
    match family {
        Family::V4 => DESTINATION_V4,
        Family::V6 => DESTINATION_V6.0,
    }
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

impl Side {
    fn identity(self) -> Field {
        match self {
            Side::Source => SOURCE_IDENTITY,
            Side::Destination => DESTINATION_IDENTITY,
        }
    }

    fn flags(self) -> Field {
        match self {
            Side::Source => SOURCE_FLAGS,
            Side::Destination => DESTINATION_FLAGS,
        }
    }

    /// Requires an address in the prefix on this side of the connection.
    fn within(self, matching: Match, prefix: IpNet) -> Match {
        match (prefix, self) {
            (IpNet::V4(net), Side::Source) => {
                matching.ipv4().masked(SOURCE_V4, net.network().to_bits(), net.netmask().to_bits())
            }
            (IpNet::V4(net), Side::Destination) => {
                matching.ipv4().masked(DESTINATION_V4, net.network().to_bits(), net.netmask().to_bits())
            }
            (IpNet::V6(net), side) => {
                let registers = if side == Side::Source { SOURCE_V6.1 } else { DESTINATION_V6.1 };
                let words = |bits: u128| [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
                let (value, mask) = (words(net.network().to_bits()), words(net.netmask().to_bits()));
                // The switch reports a match on a wider register as matches on its parts.
                let parts = registers.into_iter().zip(value.into_iter().zip(mask));
                parts.fold(matching.ipv6(), |m, (register, (value, mask))| m.masked(register, value, mask))
            }
        }
    }
}

/// Requires a frame that is not exempt from rules.
fn evaluated(matching: Match) -> Match {
    matching.masked(CLASS, EVALUATED, EVALUATED)
}

fn classify(class: u8) -> Action {
    Action::load(class.into(), Slice::bits(CLASS, 0, CLASS_BITS))
}

/// Requires a packet that is evaluated as a reply.
pub(super) fn replied(matching: Match) -> Match {
    matching.masked(CLASS, REPLY, REPLY)
}

/// Matches packets that return to the pod that sent them.
pub(super) fn returning(matching: Match) -> Match {
    metadata::flagged(matching, IS_RETURNING, IS_RETURNING)
}

/// Marks a packet that returns to the pod that sent it.
pub(super) fn mark_returning() -> Action {
    Action::load(1, Slice::bits(RECEIVER, IS_RETURNING.trailing_zeros() as u16, 1))
}
