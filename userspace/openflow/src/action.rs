//! What is done to a packet.

use bytes::BufMut;

use crate::field::Field;
use crate::nicira::{self, Ct, Learn, Nat, Slice};
use crate::port::Port;
use crate::wire::{DecodeError, EXPERIMENTER_NICIRA, Reader, put_tlv};

/// The largest packet-in: the whole packet.
pub const NO_BUFFER: u16 = 0xffff;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the packet; `max_len` counts only for [`Port::CONTROLLER`].
    Output {
        port: Port,
        max_len: u16,
    },
    /// Sends the packet to the port whose number a field holds.
    OutputField {
        port: Slice,
        max_len: u16,
    },
    Group(u32),
    SetQueue(u32),
    /// Adds a tag of this Ethernet type.
    PushVlan(u16),
    PopVlan,
    DecrementTtl,
    SetTtl(u8),
    /// Sets a whole field.
    SetField {
        field: Field,
        value: u128,
    },
    /// Sets the bits of a field that are set in `mask`.
    SetMasked {
        field: Field,
        value: u128,
        mask: u128,
    },
    /// Sets some bits of a field (`load`).
    Load {
        value: u64,
        to: Slice,
    },
    /// Copies bits from field to field.
    Move {
        from: Slice,
        to: Slice,
    },
    /// Searches a table and comes back; with `port`, as if the packet had come in there.
    Resubmit {
        port: Option<Port>,
        table: u8,
    },
    /// This flow is alternative of dimension `clause` (from 0) of `clauses` of conjunction `id`.
    Conjunction {
        id: u32,
        clause: u8,
        clauses: u8,
    },
    /// Through the connection tracker.
    Ct(Ct),
    /// Inside [`Ct`]: translate addresses.
    Nat(Nat),
    /// Adds a flow made from this packet.
    Learn(Learn),
    /// An action this library does not know, kept as it came (type and body).
    Other {
        kind: u16,
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
    /// Sends the packet out of `port`.
    pub fn output(port: impl Into<Port>) -> Action {
        Action::Output { port: port.into(), max_len: 0 }
    }

    /// Sends the whole packet to the controller.
    pub fn controller() -> Action {
        Action::Output { port: Port::CONTROLLER, max_len: NO_BUFFER }
    }

    pub fn set(field: Field, value: impl Into<u128>) -> Action {
        Action::SetField { field, value: value.into() & field.mask() }
    }

    /// Sets the tag's number on a packet that has a tag.
    pub fn set_vlan(vid: u16) -> Action {
        Action::set(Field::VlanVid, vid | crate::matching::VLAN_PRESENT)
    }

    /// Adds an 802.1Q tag.
    pub fn push_vlan() -> Action {
        Action::PushVlan(crate::matching::ETH_TYPE_VLAN)
    }

    /// Copies the whole of a field to one as wide.
    pub fn copy(from: Field, to: Field) -> Action {
        Action::Move { from: Slice::whole(from), to: Slice::whole(to) }
    }

    pub fn load(value: u64, to: impl Into<Slice>) -> Action {
        Action::Load { value, to: to.into() }
    }

    /// Searches `table` and comes back.
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
        let (kind, body) = r.tlv("action")?;
        actions.push(Action::decode(kind, body)?);
    }
    Ok(actions)
}

/// What happens when a flow matches. Each instruction can be there once, in this fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instructions {
    pub meter: Option<u32>,
    /// Done at once, in order.
    pub apply: Vec<Action>,
    /// Empties the action set.
    pub clear: bool,
    /// Put into the action set, done when the pipeline ends.
    pub write: Vec<Action>,
    /// New value and the bits it replaces.
    pub metadata: Option<(u64, u64)>,
    pub goto: Option<u8>,
    /// Instructions this library does not know, kept as they came (type and body).
    pub other: Vec<(u16, Vec<u8>)>,
}

const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
const METER: u16 = 6;

impl Instructions {
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
            let (kind, mut body) = r.tlv("instruction")?;
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
