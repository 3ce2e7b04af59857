//! Nicira extension actions of Open vSwitch.
//!
//! Follows `enum ofp_raw_action_type` and the `nx_action_*` structures of `lib/ofp-actions.c` (experimenter 0x2320),
//! described in ovs-actions(7).

mod conntrack;
mod learn;
mod multipath;
mod nat;
mod slice;

use bytes::BufMut;

pub use self::conntrack::{Ct, Zone};
use self::conntrack::{decode_ct, encode_ct};
pub use self::learn::{Learn, LearnSpec};
use self::learn::{decode_learn, encode_learn};
pub use self::multipath::{HashFields, LinkAlgorithm, Multipath};
use self::multipath::{decode_multipath, encode_multipath};
pub use self::nat::{Nat, NatKind, NatRange};
use self::nat::{decode_nat, encode_nat};
pub use self::slice::Slice;
use crate::action::{Action, decode_list, encode_list};
use crate::field::Field;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

const MOVE: u16 = 6;
const LOAD: u16 = 7;
const MULTIPATH: u16 = 10;
const RESUBMIT_TABLE: u16 = 14;
const OUTPUT_REG: u16 = 15;
const LEARN: u16 = 16;
const LOAD_MASKED: u16 = 33;
const CONJUNCTION: u16 = 34;
const CT: u16 = 35;
const NAT: u16 = 36;
const CLONE: u16 = 42;
const LEARN2: u16 = 45;

/// Encodes what follows the experimenter id.
pub(crate) fn encode(action: &Action, out: &mut Vec<u8>) {
    match action {
        Action::OutputField { port, max_len } => {
            out.put_u16(OUTPUT_REG);
            out.put_u16(port.packed());
            port.field.put_short_header(out);
            out.put_u16(*max_len);
            out.put_bytes(0, 6);
        }
        Action::SetMasked { field, value, mask } => {
            out.put_u16(LOAD_MASKED);
            field.put(out, *value, Some(*mask));
        }
        Action::Load { value, to } => {
            out.put_u16(LOAD);
            out.put_u16(to.packed());
            to.field.put_short_header(out);
            out.put_u64(*value);
        }
        Action::Move { from, to } => {
            out.put_u16(MOVE);
            out.put_u16(from.width);
            out.put_u16(from.offset);
            out.put_u16(to.offset);
            from.field.put_header(out);
            to.field.put_header(out);
        }
        Action::Resubmit { port, table } => {
            out.put_u16(RESUBMIT_TABLE);
            out.put_u16(port.unwrap_or(Port::IN_PORT).short());
            out.put_u8(*table);
            out.put_bytes(0, 3);
        }
        Action::Conjunction { id, clause, clauses } => {
            out.put_u16(CONJUNCTION);
            out.put_u8(*clause);
            out.put_u8(*clauses);
            out.put_u32(*id);
        }
        Action::Clone(actions) => {
            out.put_u16(CLONE);
            out.put_bytes(0, 6);
            encode_list(actions, out);
        }
        Action::Multipath(multipath) => encode_multipath(multipath, out),
        Action::Ct(ct) => encode_ct(ct, out),
        Action::Nat(nat) => encode_nat(nat, out),
        Action::Learn(learn) => encode_learn(learn, out),
        _ => {}
    }
}

/// Decodes what follows the experimenter id; `None` for an unknown subtype.
pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<Action>, DecodeError> {
    Ok(Some(match r.u16()? {
        OUTPUT_REG => {
            let packed = r.u16()?;
            let field = Field::read_short_header(r)?;
            Action::OutputField { port: Slice::unpack(field, packed), max_len: r.u16()? }
        }
        LOAD_MASKED => {
            let (field, value, mask) = Field::read(r)?;
            Action::SetMasked { field, value, mask }
        }
        LOAD => {
            let packed = r.u16()?;
            let field = Field::read_short_header(r)?;
            Action::Load { to: Slice::unpack(field, packed), value: r.u64()? }
        }
        MOVE => {
            let (width, from_offset, to_offset) = (r.u16()?, r.u16()?, r.u16()?);
            let from = Field::read_header(r)?;
            let to = Field::read_header(r)?;
            Action::Move {
                from: Slice::bits(from, from_offset, width),
                to: Slice::bits(to, to_offset, width),
            }
        }
        RESUBMIT_TABLE => {
            let port = Port::from_short(r.u16()?);
            Action::Resubmit { port: (port != Port::IN_PORT).then_some(port), table: r.u8()? }
        }
        CONJUNCTION => Action::Conjunction { clause: r.u8()?, clauses: r.u8()?, id: r.u32()? },
        MULTIPATH => match decode_multipath(r)? {
            Some(multipath) => Action::Multipath(multipath),
            None => return Ok(None),
        },
        CT => Action::Ct(decode_ct(r)?),
        NAT => Action::Nat(decode_nat(r)?),
        CLONE => {
            r.skip(6)?;
            Action::Clone(decode_list(r.nested("clone actions")?)?)
        }
        subtype @ (LEARN | LEARN2) => match decode_learn(r, subtype == LEARN2)? {
            Some(learn) => Action::Learn(learn),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}
