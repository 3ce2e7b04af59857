//! Flows as bytes, for programs that keep many.

use std::{fmt, sync::Arc};

use bytes::BufMut;

use crate::action::{Instructions, METER, group_ids};
use crate::flow::{ANY_GROUP, Flow, FlowCommand, FlowMod, NO_BUFFER};
use crate::matching::Match;
use crate::port::Port;
use crate::wire::{DecodeError, EncodeError, Reader};

/// Cookie (8 bytes), idle timeout, hard timeout, flags (2 bytes each).
const IDENTITY: usize = 14;
/// Table (1 byte), priority (2 bytes).
const MATCH: usize = IDENTITY + 3;
/// Follows the instructions of a flow that its encoding does not describe. All other parts after the priority are multiples of 8 bytes.
const UNENCODABLE: u8 = 0xff;

/// A flow entry in the encoding of its parts, about a quarter of the size of a [`Flow`]. Clones share the bytes. Two are equal if
/// the switch cannot tell them apart.
///
/// ```
/// use openflow_rs::{Flow, Match, PackedFlow};
/// let flow = Flow::new(3, 100, Match::new().in_port(1.into())).cookie(7);
/// let packed = PackedFlow::new(&flow);
/// assert_eq!((packed.table(), packed.cookie(), packed.unpack()), (3, 7, Ok(flow)));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PackedFlow(Arc<[u8]>);

impl PackedFlow {
    /// Encodes a flow. One that [`Flow::check`] rejects can be compared, but not sent.
    pub fn new(flow: &Flow) -> PackedFlow {
        let mut bytes = Vec::with_capacity(256);
        bytes.put_u64(flow.cookie);
        bytes.put_u16(flow.idle_timeout);
        bytes.put_u16(flow.hard_timeout);
        bytes.put_u16(flow.flags);
        bytes.put_u8(flow.table);
        bytes.put_u16(flow.priority);
        flow.matching.encode(&mut bytes);
        flow.instructions.encode(&mut bytes);
        if flow.check().is_err() {
            bytes.put_u8(UNENCODABLE);
        }
        PackedFlow(bytes.into())
    }

    /// Decodes the flow.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError`] if the flow does not fit into a message, or has a field or action that this library does not
    /// decode, or if [`Flow::check`] rejects it.
    pub fn unpack(&self) -> Result<Flow, DecodeError> {
        if self.is_encodable() {
            self.decode()
        } else {
            Err(DecodeError::Length { what: "packed flow", length: self.0.len() })
        }
    }

    /// Returns whether the bytes describe the flow.
    fn is_encodable(&self) -> bool {
        self.0.len() % 8 == MATCH % 8
    }

    /// Decodes what the bytes describe, also if that is not the flow.
    fn decode(&self) -> Result<Flow, DecodeError> {
        let end = self.0.len() - usize::from(!self.is_encodable());
        let mut r = Reader::new(self.0.get(..end).unwrap_or_default(), "flow");
        let (cookie, idle_timeout, hard_timeout, flags) = (r.u64()?, r.u16()?, r.u16()?, r.u16()?);
        let (table, priority, matching) = (r.u8()?, r.u16()?, Match::decode(&mut r)?);
        let instructions = Instructions::decode(Reader::new(r.rest(), "instructions"))?;
        Ok(Flow { table, priority, matching, cookie, instructions, idle_timeout, hard_timeout, flags })
    }

    /// Opaque value of the controller.
    pub fn cookie(&self) -> u64 {
        self.number(0..8)
    }

    /// Table number, 0 to 254.
    pub fn table(&self) -> u8 {
        self.number(IDENTITY..IDENTITY + 1) as u8
    }

    /// Table, priority and match, by which the switch identifies the flow: a key for maps, without further meaning.
    pub fn identity(&self) -> &[u8] {
        self.0.get(IDENTITY..self.match_end()).unwrap_or_default()
    }

    /// Whether packets pass a meter.
    pub fn has_meter(&self) -> bool {
        // The first instruction.
        let start = self.match_end();
        self.number(start..start + 2) == u64::from(METER)
    }

    /// Ids of the groups that the flow may send packets to: those of its group actions, and perhaps others, because a value can
    /// look like such an action.
    pub fn used_groups(&self) -> Vec<u32> {
        group_ids(self.0.get(self.match_end()..).unwrap_or_default())
    }

    /// Returns the number in these bytes; 0 outside the flow.
    fn number(&self, at: std::ops::Range<usize>) -> u64 {
        self.0.get(at).into_iter().flatten().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Where the match with its padding ends. Its length follows its type.
    fn match_end(&self) -> usize {
        MATCH + (self.number(MATCH + 2..MATCH + 4) as usize).next_multiple_of(8)
    }
}

impl fmt::Debug for PackedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Ok(flow) => flow.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

/// As [`Flow`]; the error of [`PackedFlow::unpack`] without one.
impl fmt::Display for PackedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decode() {
            Ok(flow) => flow.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

/// What a modification does with a packed flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedCommand {
    /// Adds it, or replaces the flow of the same table, priority and match.
    Add,
    /// Deletes the flow of the same table, priority and match.
    Delete,
}

/// Modification of a packed flow. It is the same message as that of [`FlowMod::add`] or [`FlowMod::delete_strict`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedMod {
    /// Operation.
    pub command: PackedCommand,
    /// Flow to add or to delete.
    pub flow: PackedFlow,
}

impl PackedMod {
    /// Returns a message that adds or replaces `flow`.
    pub fn add(flow: PackedFlow) -> PackedMod {
        PackedMod { command: PackedCommand::Add, flow }
    }

    /// Returns a message that deletes the flow with the table, priority and match of `flow`.
    pub fn delete(flow: PackedFlow) -> PackedMod {
        PackedMod { command: PackedCommand::Delete, flow }
    }

    /// Decodes the modification.
    ///
    /// # Errors
    ///
    /// As [`PackedFlow::unpack`].
    pub fn unpack(&self) -> Result<FlowMod, DecodeError> {
        Ok(self.with(self.flow.unpack()?))
    }

    fn with(&self, flow: Flow) -> FlowMod {
        match self.command {
            PackedCommand::Add => FlowMod::add(flow),
            PackedCommand::Delete => FlowMod::delete_strict(&flow),
        }
    }

    pub(crate) fn check(&self) -> Result<(), EncodeError> {
        if self.flow.is_encodable() { Ok(()) } else { Err(EncodeError::Packed) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (bytes, end) = (&self.flow.0, self.flow.match_end());
        let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        let table_and_priority = (part(IDENTITY..IDENTITY + 1), part(IDENTITY + 1..MATCH));
        let (command, timeouts, flags) = match self.command {
            PackedCommand::Add => {
                out.extend_from_slice(part(0..8));
                (FlowCommand::Add, part(8..12), part(12..14))
            }
            PackedCommand::Delete => {
                out.put_u64(0);
                (FlowCommand::DeleteStrict, &[0; 4][..], &[0; 2][..])
            }
        };
        out.put_u64(0);
        out.extend_from_slice(table_and_priority.0);
        out.put_u8(command.number());
        out.extend_from_slice(timeouts);
        out.extend_from_slice(table_and_priority.1);
        out.put_u32(NO_BUFFER);
        out.put_u32(Port::ANY.0);
        out.put_u32(ANY_GROUP);
        out.extend_from_slice(flags);
        out.put_bytes(0, 2);
        out.extend_from_slice(part(MATCH..end));
        if self.command == PackedCommand::Add {
            out.extend_from_slice(part(end..bytes.len()));
        }
    }
}

/// As [`FlowMod`]; the error of [`PackedFlow::unpack`] without one.
impl fmt::Display for PackedMod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.flow.decode() {
            Ok(flow) => self.with(flow).fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}
