//! Flows that the switch derives from packets.

use bytes::BufMut;

use super::{LEARN, LEARN2, Slice};
use crate::field::Field;
use crate::wire::{DecodeError, Reader};

/// Template of a flow that the switch installs for a packet (`nx_action_learn`, with a limit `nx_action_learn2`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Learn {
    /// Idle timeout in seconds; 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds; 0 for none.
    pub hard_timeout: u16,
    /// Priority of the learned flow.
    pub priority: u16,
    /// Cookie of the learned flow.
    pub cookie: u64,
    /// `NX_LEARN_F_*`: 1 sends flow-removed messages, 2 deletes the learned flows together with this one.
    pub flags: u16,
    /// Table of the learned flow.
    pub table: u8,
    /// Idle timeout in seconds after a TCP FIN or RST; 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout in seconds after a TCP FIN or RST; 0 for no change.
    pub fin_hard_timeout: u16,
    /// Maximum number of flows with this cookie in the table; 0 for none. Needs Open vSwitch 2.8.
    pub limit: u32,
    /// Matches and actions of the learned flow.
    pub specs: Vec<LearnSpec>,
}

/// One match or action of a learned flow (`flow_mod_spec`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LearnSpec {
    /// The learned flow matches bits against the value that other bits have in the packet.
    MatchField {
        /// Bits of the packet.
        from: Slice,
        /// Matched bits; as many as in `from`.
        to: Slice,
    },
    /// The learned flow matches bits against a constant.
    MatchValue {
        /// Constant in network byte order, right-aligned in an even number of bytes.
        value: Vec<u8>,
        /// Matched bits.
        to: Slice,
    },
    /// The learned flow sets bits to the value that other bits have in the packet.
    LoadField {
        /// Bits of the packet.
        from: Slice,
        /// Bits to set; as many as in `from`.
        to: Slice,
    },
    /// The learned flow sets bits to a constant.
    LoadValue {
        /// Constant in network byte order, right-aligned in an even number of bytes.
        value: Vec<u8>,
        /// Bits to set.
        to: Slice,
    },
    /// The learned flow outputs to the port whose number is in the packet's bits.
    Output {
        /// Bits of the packet that contain the port number.
        from: Slice,
    },
}

const LEARN_IMMEDIATE: u16 = 1 << 13;
const LEARN_LOAD: u16 = 1 << 11;
const LEARN_OUTPUT: u16 = 2 << 11;
const LEARN_WIDTH: u16 = 0x7ff;

/// `NX_LEARN_F_WRITE_RESULT`: a field gets the result.
const LEARN_RESULT: u16 = 4;

/// Length of a constant of `width` bits, in bytes.
fn value_length(width: u16) -> usize {
    2 * usize::from(width).div_ceil(16)
}

impl Learn {
    /// Returns what the encoding has no room for.
    pub(crate) fn misfit(&self) -> Option<&'static str> {
        if self.limit != 0 && self.flags & LEARN_RESULT != 0 {
            return Some("a field for the result is not implemented");
        }
        self.specs.iter().find_map(LearnSpec::misfit)
    }
}

impl LearnSpec {
    fn misfit(&self) -> Option<&'static str> {
        let (width, fits, why) = match self {
            LearnSpec::MatchField { from, to } | LearnSpec::LoadField { from, to } => {
                (to.width, from.width == to.width, "source and destination have different widths")
            }
            LearnSpec::MatchValue { value, to } | LearnSpec::LoadValue { value, to } => {
                let fits = value.len() == value_length(to.width);
                (to.width, fits, "the length of a constant does not follow from its width")
            }
            LearnSpec::Output { from } => (from.width, true, ""),
        };
        if !(1..=LEARN_WIDTH).contains(&width) {
            return Some("1 to 2047 bits are possible");
        }
        (!fits).then_some(why)
    }
}

pub(super) fn encode_learn(learn: &Learn, out: &mut Vec<u8>) {
    out.put_u16(if learn.limit == 0 { LEARN } else { LEARN2 });
    for value in [learn.idle_timeout, learn.hard_timeout, learn.priority] {
        out.put_u16(value);
    }
    out.put_u64(learn.cookie);
    out.put_u16(learn.flags);
    out.put_u8(learn.table);
    out.put_u8(0);
    out.put_u16(learn.fin_idle_timeout);
    out.put_u16(learn.fin_hard_timeout);
    if learn.limit != 0 {
        out.put_u32(learn.limit);
        // No field for the result.
        out.put_bytes(0, 4);
    }
    let put_slice = |out: &mut Vec<u8>, slice: &Slice| {
        slice.field.put_short_header(out);
        out.put_u16(slice.offset);
    };
    for spec in &learn.specs {
        match spec {
            LearnSpec::MatchField { from, to } | LearnSpec::LoadField { from, to } => {
                let kind = if matches!(spec, LearnSpec::LoadField { .. }) { LEARN_LOAD } else { 0 };
                out.put_u16(kind | to.width);
                put_slice(out, from);
                put_slice(out, to);
            }
            LearnSpec::MatchValue { value, to } | LearnSpec::LoadValue { value, to } => {
                let kind = if matches!(spec, LearnSpec::LoadValue { .. }) { LEARN_LOAD } else { 0 };
                out.put_u16(kind | LEARN_IMMEDIATE | to.width);
                out.extend_from_slice(value);
                put_slice(out, to);
            }
            LearnSpec::Output { from } => {
                out.put_u16(LEARN_OUTPUT | from.width);
                put_slice(out, from);
            }
        }
    }
}

/// `None` for one whose result a field gets.
pub(super) fn decode_learn(r: &mut Reader<'_>, is_limited: bool) -> Result<Option<Learn>, DecodeError> {
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (cookie, flags, table) = (r.u64()?, r.u16()?, r.u8()?);
    r.skip(1)?;
    let (fin_idle_timeout, fin_hard_timeout) = (r.u16()?, r.u16()?);
    let limit = if is_limited { r.u32()? } else { 0 };
    if is_limited {
        if flags & LEARN_RESULT != 0 {
            return Ok(None);
        }
        r.skip(4)?;
    }
    let mut specs = vec![];
    // A header of zero begins the padding.
    while r.len() >= 2 {
        let header = r.u16()?;
        if header == 0 {
            break;
        }
        let width = header & LEARN_WIDTH;
        if width == 0 {
            return Err(DecodeError::Value { what: "learn part", value: header.into() });
        }
        let slice = |r: &mut Reader<'_>| -> Result<Slice, DecodeError> {
            let field = Field::read_short_header(r)?;
            Ok(Slice::bits(field, r.u16()?, width))
        };
        let value = |r: &mut Reader<'_>| r.bytes(value_length(width)).map(<[u8]>::to_vec);
        let immediate = header & LEARN_IMMEDIATE != 0;
        specs.push(match header & !(LEARN_WIDTH | LEARN_IMMEDIATE) {
            0 if immediate => LearnSpec::MatchValue { value: value(r)?, to: slice(r)? },
            0 => LearnSpec::MatchField { from: slice(r)?, to: slice(r)? },
            LEARN_LOAD if immediate => LearnSpec::LoadValue { value: value(r)?, to: slice(r)? },
            LEARN_LOAD => LearnSpec::LoadField { from: slice(r)?, to: slice(r)? },
            LEARN_OUTPUT => LearnSpec::Output { from: slice(r)? },
            other => return Err(DecodeError::Value { what: "learn part", value: other.into() }),
        });
    }
    Ok(Some(Learn {
        idle_timeout,
        hard_timeout,
        priority,
        cookie,
        flags,
        table,
        fin_idle_timeout,
        fin_hard_timeout,
        limit,
        specs,
    }))
}
