//! Actions and instructions: what a switch does with a packet that a flow matches.
//!
//! Follows OpenFlow 1.3.5 sections 5.9 to 5.12 and 7.2.3 to 7.2.5. Nicira actions are encoded in [`crate::nicira`].

mod check;
pub mod nicira;

use bytes::BufMut;

pub(crate) use self::check::check_list;
use crate::field::Field;
use crate::port::Port;
use crate::wire::{DecodeError, EXPERIMENTER_NICIRA, Reader, put_tlv};
use nicira::{Ct, Learn, Multipath, Nat, Slice};

/// `max_len` of an output to the controller that sends the whole packet (`OFPCML_NO_BUFFER`).
pub const NO_BUFFER: u16 = 0xffff;

/// One action of an action list or action set (`ofp_action_header`, OpenFlow 1.3.5 section 7.2.5), or an Open vSwitch
/// extension (`nx_action_*` of `ofp-actions.c`).
///
/// Integers are in host byte order; the codec converts them to network byte order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Sends the packet to a port (`OFPAT_OUTPUT`).
    Output {
        /// Destination port.
        port: Port,
        /// Bytes of the packet to send; used only for [`Port::CONTROLLER`]. [`NO_BUFFER`] sends all of it.
        max_len: u16,
    },
    /// Sends the packet to the port whose number is in a field (`NXAST_OUTPUT_REG`).
    OutputField {
        /// Bits that contain the port number.
        port: Slice,
        /// As in [`Action::Output`].
        max_len: u16,
    },
    /// Processes the packet with the group of this id (`OFPAT_GROUP`).
    Group(u32),
    /// Selects the egress queue of this id for a later output (`OFPAT_SET_QUEUE`).
    SetQueue(u32),
    /// Pushes a VLAN tag of this EtherType, 0x8100 or 0x88a8 (`OFPAT_PUSH_VLAN`).
    PushVlan(u16),
    /// Removes the outermost VLAN tag (`OFPAT_POP_VLAN`).
    PopVlan,
    /// Decrements the IPv4 TTL or the IPv6 hop limit by one (`OFPAT_DEC_NW_TTL`).
    DecrementTtl,
    /// Sets the IPv4 TTL or the IPv6 hop limit (`OFPAT_SET_NW_TTL`).
    SetTtl(u8),
    /// Sets a whole field (`OFPAT_SET_FIELD`).
    SetField {
        /// Field to set.
        field: Field,
        /// New value, right-aligned; bits above the width of the field must be 0.
        value: u128,
    },
    /// Sets the bits of a field that are set in `mask` (`NXAST_REG_LOAD2`).
    SetMasked {
        /// Field to change.
        field: Field,
        /// New value, right-aligned; bits outside `mask` must be 0.
        value: u128,
        /// Bits to change.
        mask: u128,
    },
    /// Sets consecutive bits of a field (`load`, `NXAST_REG_LOAD`).
    Load {
        /// New value of the bits, right-aligned.
        value: u64,
        /// Bits to set; at most 64.
        to: Slice,
    },
    /// Copies bits of one field to another (`move`, `NXAST_REG_MOVE`).
    Move {
        /// Source bits.
        from: Slice,
        /// Destination bits; as many as in `from`.
        to: Slice,
    },
    /// Looks the packet up in a table and then continues with the next action (`NXAST_RESUBMIT_TABLE`).
    Resubmit {
        /// Ingress port for the lookup; `None` keeps that of the packet.
        port: Option<Port>,
        /// Table to search.
        table: u8,
    },
    /// Makes the flow one alternative of a clause of a conjunctive match (`NXAST_CONJUNCTION`, ovs-fields(7)).
    Conjunction {
        /// Conjunction id, the value of [`Field::ConjId`] when all clauses match.
        id: u32,
        /// Index of the clause, from 0.
        clause: u8,
        /// Number of clauses, 2 to 64.
        clauses: u8,
    },
    /// Does these with a copy of the packet (`NXAST_CLONE`). Needs Open vSwitch 2.7.
    Clone(Vec<Action>),
    /// Chooses one of several links by a hash of the packet (`NXAST_MULTIPATH`).
    Multipath(Multipath),
    /// Sends the packet through connection tracking (`NXAST_CT`).
    Ct(Ct),
    /// Translates addresses and ports (`NXAST_NAT`). Valid only inside [`Ct::exec`].
    Nat(Nat),
    /// Installs a flow that is derived from the packet (`NXAST_LEARN`).
    Learn(Learn),
    /// An action that this library does not decode.
    Other {
        /// Action type.
        kind: u16,
        /// Bytes after the type and length fields, padding included.
        body: Vec<u8>,
    },
}

const OUTPUT: u16 = 0;
const PUSH_VLAN: u16 = 17;
const POP_VLAN: u16 = 18;
const SET_QUEUE: u16 = 21;
const GROUP: u16 = 22;
const SET_TTL: u16 = 23;
const DECREMENT_TTL: u16 = 24;
const SET_FIELD: u16 = 25;
const EXPERIMENTER: u16 = 0xffff;

impl Action {
    /// Returns an action that sends the packet to `port`.
    pub fn output(port: impl Into<Port>) -> Action {
        Action::Output { port: port.into(), max_len: 0 }
    }

    /// Returns an action that sends the whole packet to the controller.
    pub fn controller() -> Action {
        Action::Output { port: Port::CONTROLLER, max_len: NO_BUFFER }
    }

    /// Returns an action that sets `field` to `value`; bits above the width of the field are cut off.
    pub fn set(field: Field, value: impl Into<u128>) -> Action {
        Action::SetField { field, value: value.into() & field.mask() }
    }

    /// Returns an action that sets the VLAN id (1 to 4094) of a packet that has a VLAN tag. An id above 4095 cannot be encoded.
    pub fn set_vlan(vid: u16) -> Action {
        // The sum sets no other id: it exceeds the width of the field instead.
        let value = u128::from(vid) + u128::from(crate::matching::VLAN_PRESENT);
        Action::SetField { field: Field::VlanVid, value }
    }

    /// Returns an action that pushes an 802.1Q tag (EtherType 0x8100).
    pub fn push_vlan() -> Action {
        Action::PushVlan(crate::matching::ETH_TYPE_VLAN)
    }

    /// Returns an action that copies a whole field to another of the same width.
    pub fn copy(from: Field, to: Field) -> Action {
        Action::Move { from: Slice::whole(from), to: Slice::whole(to) }
    }

    /// Returns an action that sets the bits `to` to `value`.
    pub fn load(value: u64, to: impl Into<Slice>) -> Action {
        Action::Load { value, to: to.into() }
    }

    /// Returns an action that looks the packet up in `table` and then continues with the next action.
    pub fn resubmit(table: u8) -> Action {
        Action::Resubmit { port: None, table }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Action::Output { port, max_len } => put_tlv(out, OUTPUT, |out| {
                out.put_u32(port.0);
                out.put_u16(*max_len);
                out.put_bytes(0, 6);
            }),
            Action::Group(id) => put_tlv(out, GROUP, |out| out.put_u32(*id)),
            Action::SetQueue(id) => put_tlv(out, SET_QUEUE, |out| out.put_u32(*id)),
            Action::PushVlan(eth_type) => put_tlv(out, PUSH_VLAN, |out| out.put_u16(*eth_type)),
            Action::PopVlan => put_tlv(out, POP_VLAN, |_| ()),
            Action::DecrementTtl => put_tlv(out, DECREMENT_TTL, |_| ()),
            Action::SetTtl(ttl) => put_tlv(out, SET_TTL, |out| out.put_u8(*ttl)),
            Action::SetField { field, value } => put_tlv(out, SET_FIELD, |out| field.put(out, *value, None)),
            Action::Other { kind, body } => put_tlv(out, *kind, |out| out.extend_from_slice(body)),
            Action::OutputField { .. }
            | Action::SetMasked { .. }
            | Action::Load { .. }
            | Action::Move { .. }
            | Action::Resubmit { .. }
            | Action::Conjunction { .. }
            | Action::Clone(_)
            | Action::Multipath(_)
            | Action::Ct(_)
            | Action::Nat(_)
            | Action::Learn(_) => put_tlv(out, EXPERIMENTER, |out| {
                out.put_u32(EXPERIMENTER_NICIRA);
                nicira::encode(self, out);
            }),
        }
    }

    fn decode(kind: u16, mut r: Reader<'_>) -> Result<Action, DecodeError> {
        let whole = r;
        let known = match kind {
            OUTPUT => Action::Output { port: Port(r.u32()?), max_len: r.u16()? },
            GROUP => Action::Group(r.u32()?),
            SET_QUEUE => Action::SetQueue(r.u32()?),
            PUSH_VLAN => Action::PushVlan(r.u16()?),
            POP_VLAN => Action::PopVlan,
            DECREMENT_TTL => Action::DecrementTtl,
            SET_TTL => Action::SetTtl(r.u8()?),
            SET_FIELD => {
                let (field, value, mask) = Field::read(&mut r)?;
                if mask == field.mask() {
                    Action::SetField { field, value }
                } else {
                    Action::SetMasked { field, value, mask }
                }
            }
            EXPERIMENTER if r.u32()? == EXPERIMENTER_NICIRA => match nicira::decode(&mut r)? {
                Some(action) => action,
                None => Action::other(kind, whole),
            },
            _ => Action::other(kind, whole),
        };
        Ok(known)
    }

    fn other(kind: u16, mut body: Reader<'_>) -> Action {
        Action::Other { kind, body: body.rest().to_vec() }
    }
}

pub(crate) fn encode_list(actions: &[Action], out: &mut Vec<u8>) {
    for action in actions {
        action.encode(out);
    }
}

pub(crate) fn decode_list(mut r: Reader<'_>) -> Result<Vec<Action>, DecodeError> {
    let mut actions = vec![];
    while !r.is_empty() {
        let (kind, body) = r.padded_tlv("action")?;
        actions.push(Action::decode(kind, body)?);
    }
    Ok(actions)
}

/// Returns the ids of the group actions in instructions or actions, also of those in other actions (`clone`). Actions and what contains
/// them are multiples of 8 bytes.
pub(crate) fn group_ids(bytes: &[u8]) -> Vec<u32> {
    const HEADER: [u8; 4] = [0, GROUP as u8, 0, 8];
    let (units, _) = bytes.as_chunks::<8>();
    let ids = units.iter().filter_map(|unit| unit.strip_prefix(&HEADER));
    ids.filter_map(|id| Some(u32::from_be_bytes(id.try_into().ok()?))).collect()
}

/// Instructions of a flow (`ofp_instruction`, OpenFlow 1.3.5 sections 5.9 and 7.2.4).
///
/// A flow has at most one instruction of each type; the switch executes them in the order of the fields below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instructions {
    /// Id of the meter that the packet passes (`OFPIT_METER`).
    pub meter: Option<u32>,
    /// Actions that are executed immediately, in order (`OFPIT_APPLY_ACTIONS`).
    pub apply: Vec<Action>,
    /// Clears the action set (`OFPIT_CLEAR_ACTIONS`).
    pub clear: bool,
    /// Actions that are merged into the action set, which is executed at the end of the pipeline (`OFPIT_WRITE_ACTIONS`).
    pub write: Vec<Action>,
    /// Value and mask of the metadata bits to write (`OFPIT_WRITE_METADATA`).
    pub metadata: Option<(u64, u64)>,
    /// Table that processes the packet next, of a higher number than the flow's own (`OFPIT_GOTO_TABLE`).
    pub goto: Option<u8>,
    /// Instructions that this library does not decode: type and the bytes after type and length.
    pub other: Vec<(u16, Vec<u8>)>,
}

const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
pub(crate) const METER: u16 = 6;

impl Instructions {
    /// Returns whether there is no instruction: the flow drops the packets that it matches.
    pub fn is_empty(&self) -> bool {
        *self == Instructions::default()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if let Some(meter) = self.meter {
            put_tlv(out, METER, |out| out.put_u32(meter));
        }
        let list = |kind: u16, actions: &[Action], out: &mut Vec<u8>| {
            put_tlv(out, kind, |out| {
                out.put_bytes(0, 4);
                encode_list(actions, out);
            });
        };
        if !self.apply.is_empty() {
            list(APPLY_ACTIONS, &self.apply, out);
        }
        if self.clear {
            list(CLEAR_ACTIONS, &[], out);
        }
        if !self.write.is_empty() {
            list(WRITE_ACTIONS, &self.write, out);
        }
        if let Some((value, mask)) = self.metadata {
            put_tlv(out, WRITE_METADATA, |out| {
                out.put_bytes(0, 4);
                out.put_u64(value);
                out.put_u64(mask);
            });
        }
        for (kind, body) in &self.other {
            put_tlv(out, *kind, |out| out.extend_from_slice(body));
        }
        if let Some(table) = self.goto {
            put_tlv(out, GOTO_TABLE, |out| out.put_u8(table));
        }
    }

    pub(crate) fn decode(mut r: Reader<'_>) -> Result<Instructions, DecodeError> {
        let mut found = Instructions::default();
        while !r.is_empty() {
            let (kind, mut body) = r.padded_tlv("instruction")?;
            match kind {
                METER => found.meter = Some(body.u32()?),
                GOTO_TABLE => found.goto = Some(body.u8()?),
                CLEAR_ACTIONS => found.clear = true,
                WRITE_METADATA => {
                    body.skip(4)?;
                    found.metadata = Some((body.u64()?, body.u64()?));
                }
                APPLY_ACTIONS => {
                    body.skip(4)?;
                    found.apply = decode_list(body)?;
                }
                WRITE_ACTIONS => {
                    body.skip(4)?;
                    found.write = decode_list(body)?;
                }
                other => found.other.push((other, body.rest().to_vec())),
            }
        }
        Ok(found)
    }
}
