//! Flows: what they are, how they are changed, what the switch tells of them.

use bytes::BufMut;

use crate::action::{Action, Instructions};
use crate::matching::Match;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

/// Asks for a flow-removed message when the flow goes.
pub const SEND_FLOW_REMOVED: u16 = 1;
/// Refuses an add that overlaps a flow of the same priority.
pub const CHECK_OVERLAP: u16 = 2;
pub const RESET_COUNTS: u16 = 4;
/// All tables, in a request or a delete.
pub const ALL_TABLES: u8 = 0xff;
/// All groups, in a request or a delete.
pub const ANY_GROUP: u32 = 0xffff_ffff;
const NO_BUFFER: u32 = 0xffff_ffff;

/// A row of a flow table. Table, priority and match are what identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    /// The owner's mark; nothing to the switch.
    pub cookie: u64,
    pub instructions: Instructions,
    /// Seconds; 0 for never.
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub flags: u16,
}

impl Flow {
    /// A flow that drops what it matches until it is told otherwise.
    pub fn new(table: u8, priority: u16, matching: Match) -> Flow {
        Flow { table, priority, matching, ..Flow::default() }
    }

    #[must_use]
    pub fn cookie(mut self, cookie: u64) -> Flow {
        self.cookie = cookie;
        self
    }

    #[must_use]
    pub fn apply(mut self, actions: impl IntoIterator<Item = Action>) -> Flow {
        self.instructions.apply.extend(actions);
        self
    }

    /// Replaces the bits of the metadata that are set in `mask`.
    #[must_use]
    pub fn write_metadata(mut self, value: u64, mask: u64) -> Flow {
        self.instructions.metadata = Some((value & mask, mask));
        self
    }

    #[must_use]
    pub fn goto(mut self, table: u8) -> Flow {
        self.instructions.goto = Some(table);
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Adds, or replaces the flow of the same table, priority and match.
    Add,
    Modify,
    ModifyStrict,
    /// Deletes every flow that is as narrow as the match or narrower.
    Delete,
    /// Deletes the flow of exactly this priority and match.
    DeleteStrict,
}

/// A change of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    pub command: FlowCommand,
    pub flow: Flow,
    /// For modify and delete: the bits of the cookie that must agree.
    pub cookie_mask: u64,
    /// For delete: only flows that send there.
    pub out_port: Port,
    pub out_group: u32,
}

impl FlowMod {
    fn new(command: FlowCommand, flow: Flow) -> FlowMod {
        FlowMod { command, flow, cookie_mask: 0, out_port: Port::ANY, out_group: ANY_GROUP }
    }

    pub fn add(flow: Flow) -> FlowMod {
        FlowMod::new(FlowCommand::Add, flow)
    }

    /// Deletes the flow that has this table, priority and match.
    pub fn delete_exactly(flow: &Flow) -> FlowMod {
        FlowMod::new(FlowCommand::DeleteStrict, Flow::new(flow.table, flow.priority, flow.matching.clone()))
    }

    /// Deletes all flows of `table` ([`ALL_TABLES`] for all) whose cookie agrees with `cookie` under `mask`.
    pub fn delete_by_cookie(table: u8, cookie: u64, mask: u64) -> FlowMod {
        let flow = Flow::new(table, 0, Match::new()).cookie(cookie);
        FlowMod { cookie_mask: mask, ..FlowMod::new(FlowCommand::Delete, flow) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let flow = &self.flow;
        out.put_u64(flow.cookie);
        out.put_u64(self.cookie_mask);
        out.put_u8(flow.table);
        out.put_u8(match self.command {
            FlowCommand::Add => 0,
            FlowCommand::Modify => 1,
            FlowCommand::ModifyStrict => 2,
            FlowCommand::Delete => 3,
            FlowCommand::DeleteStrict => 4,
        });
        out.put_u16(flow.idle_timeout);
        out.put_u16(flow.hard_timeout);
        out.put_u16(flow.priority);
        out.put_u32(NO_BUFFER);
        out.put_u32(self.out_port.0);
        out.put_u32(self.out_group);
        out.put_u16(flow.flags);
        out.put_bytes(0, 2);
        flow.matching.encode(out);
        flow.instructions.encode(out);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<FlowMod, DecodeError> {
        let (cookie, cookie_mask, table) = (r.u64()?, r.u64()?, r.u8()?);
        let command = match r.u8()? {
            0 => FlowCommand::Add,
            1 => FlowCommand::Modify,
            2 => FlowCommand::ModifyStrict,
            3 => FlowCommand::Delete,
            4 => FlowCommand::DeleteStrict,
            other => return Err(DecodeError::Value { what: "flow-mod command", value: other.into() }),
        };
        let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
        r.skip(4)?;
        let (out_port, out_group, flags) = (Port(r.u32()?), r.u32()?, r.u16()?);
        r.skip(2)?;
        let matching = Match::decode(r)?;
        let instructions = Instructions::decode(Reader::new(r.rest(), "instructions"))?;
        let flow =
            Flow { table, priority, matching, cookie, instructions, idle_timeout, hard_timeout, flags };
        Ok(FlowMod { command, flow, cookie_mask, out_port, out_group })
    }
}

/// Which flows to tell of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    pub table: u8,
    pub out_port: Port,
    pub out_group: u32,
    pub cookie: u64,
    /// The bits of the cookie that must agree.
    pub cookie_mask: u64,
    /// Flows as narrow as this or narrower.
    pub matching: Match,
}

impl Default for FlowFilter {
    fn default() -> Self {
        FlowFilter {
            table: ALL_TABLES,
            out_port: Port::ANY,
            out_group: ANY_GROUP,
            cookie: 0,
            cookie_mask: 0,
            matching: Match::new(),
        }
    }
}

impl FlowFilter {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.table);
        out.put_bytes(0, 3);
        out.put_u32(self.out_port.0);
        out.put_u32(self.out_group);
        out.put_bytes(0, 4);
        out.put_u64(self.cookie);
        out.put_u64(self.cookie_mask);
        self.matching.encode(out);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<FlowFilter, DecodeError> {
        let table = r.u8()?;
        r.skip(3)?;
        let (out_port, out_group) = (Port(r.u32()?), r.u32()?);
        r.skip(4)?;
        let (cookie, cookie_mask) = (r.u64()?, r.u64()?);
        Ok(FlowFilter { table, out_port, out_group, cookie, cookie_mask, matching: Match::decode(r)? })
    }
}

/// A flow of the switch with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    pub flow: Flow,
    pub seconds: u32,
    pub nanoseconds: u32,
    pub packets: u64,
    pub bytes: u64,
}

impl FlowStats {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let flow = &self.flow;
        out.put_u16(0);
        out.put_u8(flow.table);
        out.put_u8(0);
        out.put_u32(self.seconds);
        out.put_u32(self.nanoseconds);
        for value in [flow.priority, flow.idle_timeout, flow.hard_timeout, flow.flags] {
            out.put_u16(value);
        }
        out.put_bytes(0, 4);
        out.put_u64(flow.cookie);
        out.put_u64(self.packets);
        out.put_u64(self.bytes);
        flow.matching.encode(out);
        flow.instructions.encode(out);
        crate::wire::patch_length(out, start, 0);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<FlowStats, DecodeError> {
        let length = usize::from(r.u16()?);
        let body = length.checked_sub(2).ok_or(DecodeError::Length { what: "flow", length })?;
        let mut r = r.take(body, "flow")?;
        let table = r.u8()?;
        r.skip(1)?;
        let (seconds, nanoseconds) = (r.u32()?, r.u32()?);
        let (priority, idle_timeout, hard_timeout, flags) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
        r.skip(4)?;
        let (cookie, packets, bytes) = (r.u64()?, r.u64()?, r.u64()?);
        let matching = Match::decode(&mut r)?;
        let instructions = Instructions::decode(r)?;
        let flow =
            Flow { table, priority, matching, cookie, instructions, idle_timeout, hard_timeout, flags };
        Ok(FlowStats { flow, seconds, nanoseconds, packets, bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    IdleTimeout,
    HardTimeout,
    Deleted,
    GroupDeleted,
    Other(u8),
}

/// A flow went that asked for this message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    pub reason: RemovalReason,
    /// Without instructions: the switch does not tell them.
    pub flow: Flow,
    pub seconds: u32,
    pub nanoseconds: u32,
    pub packets: u64,
    pub bytes: u64,
}

impl FlowRemoved {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.flow.cookie);
        out.put_u16(self.flow.priority);
        out.put_u8(match self.reason {
            RemovalReason::IdleTimeout => 0,
            RemovalReason::HardTimeout => 1,
            RemovalReason::Deleted => 2,
            RemovalReason::GroupDeleted => 3,
            RemovalReason::Other(reason) => reason,
        });
        out.put_u8(self.flow.table);
        out.put_u32(self.seconds);
        out.put_u32(self.nanoseconds);
        out.put_u16(self.flow.idle_timeout);
        out.put_u16(self.flow.hard_timeout);
        out.put_u64(self.packets);
        out.put_u64(self.bytes);
        self.flow.matching.encode(out);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<FlowRemoved, DecodeError> {
        let (cookie, priority) = (r.u64()?, r.u16()?);
        let reason = match r.u8()? {
            0 => RemovalReason::IdleTimeout,
            1 => RemovalReason::HardTimeout,
            2 => RemovalReason::Deleted,
            3 => RemovalReason::GroupDeleted,
            other => RemovalReason::Other(other),
        };
        let table = r.u8()?;
        let (seconds, nanoseconds) = (r.u32()?, r.u32()?);
        let (idle_timeout, hard_timeout) = (r.u16()?, r.u16()?);
        let (packets, bytes) = (r.u64()?, r.u64()?);
        let matching = Match::decode(r)?;
        let flow = Flow { table, priority, matching, cookie, idle_timeout, hard_timeout, ..Flow::default() };
        Ok(FlowRemoved { reason, flow, seconds, nanoseconds, packets, bytes })
    }
}
