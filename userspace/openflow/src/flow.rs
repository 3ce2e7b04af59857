//! Flow entries: their parts, modifications and statistics (OpenFlow 1.3.5 sections 5.2, 7.3.4.1 and 7.3.5.2).

use bytes::BufMut;

use crate::action::{Action, Instructions};
use crate::matching::Match;
use crate::port::Port;
use crate::wire::{DecodeError, EncodeError, Reader};

/// Flag: the switch sends a flow-removed message when the flow is deleted or expires (`OFPFF_SEND_FLOW_REM`).
pub const SEND_FLOW_REMOVED: u16 = 1;
/// Flag: the switch rejects an add that overlaps a flow of the same priority (`OFPFF_CHECK_OVERLAP`).
pub const CHECK_OVERLAP: u16 = 2;
/// Flag: a modification resets the counters of the flow (`OFPFF_RESET_COUNTS`).
pub const RESET_COUNTS: u16 = 4;
/// All tables, in a statistics request or a delete (`OFPTT_ALL`).
pub const ALL_TABLES: u8 = 0xff;
/// No restriction on the group, in a statistics request or a delete (`OFPG_ANY`).
pub const ANY_GROUP: u32 = 0xffff_ffff;
pub(crate) const NO_BUFFER: u32 = 0xffff_ffff;
/// Length of `ofp_flow_stats` without match and instructions, in bytes.
pub(crate) const STATS_FIXED: usize = 48;

/// A flow entry. The switch identifies it by table, priority and match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Table number, 0 to 254.
    pub table: u8,
    /// Priority within the table; the highest matching priority wins.
    pub priority: u16,
    /// Packets that the flow applies to.
    pub matching: Match,
    /// Opaque value of the controller; filters and deletes can select flows by it.
    pub cookie: u64,
    /// Treatment of matching packets.
    pub instructions: Instructions,
    /// Seconds without a matching packet after which the flow expires; 0 for never.
    pub idle_timeout: u16,
    /// Seconds after its installation at which the flow expires; 0 for never.
    pub hard_timeout: u16,
    /// [`SEND_FLOW_REMOVED`], [`CHECK_OVERLAP`], [`RESET_COUNTS`] (`ofp_flow_mod_flags`).
    pub flags: u16,
}

impl Flow {
    /// Returns a flow without instructions: it drops the packets that it matches.
    pub fn new(table: u8, priority: u16, matching: Match) -> Flow {
        Flow { table, priority, matching, ..Flow::default() }
    }

    /// Checks that the encoding has room for the values of the match and of the actions. Other flows cannot be sent.
    ///
    /// # Errors
    ///
    /// Returns [`EncodeError::Match`]; otherwise as [`Action::check`].
    pub fn check(&self) -> Result<(), EncodeError> {
        self.matching.check_values()?;
        self.instructions.check()
    }

    /// Sets the cookie.
    #[must_use]
    pub fn cookie(mut self, cookie: u64) -> Flow {
        self.cookie = cookie;
        self
    }

    /// Packets pass the meter `id` first, which may drop them.
    #[must_use]
    pub fn meter(mut self, id: u32) -> Flow {
        self.instructions.meter = Some(id);
        self
    }

    /// Appends actions to those that are executed immediately.
    #[must_use]
    pub fn apply(mut self, actions: impl IntoIterator<Item = Action>) -> Flow {
        self.instructions.apply.extend(actions);
        self
    }

    /// Writes the bits of `value` that are set in `mask` to the metadata.
    #[must_use]
    pub fn write_metadata(mut self, value: u64, mask: u64) -> Flow {
        self.instructions.metadata = Some((value & mask, mask));
        self
    }

    /// Continues with `table`, which must be higher than the flow's own.
    #[must_use]
    pub fn goto(mut self, table: u8) -> Flow {
        self.instructions.goto = Some(table);
        self
    }
}

/// Command of a flow modification (`ofp_flow_mod_command`, OpenFlow 1.3.5 section 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Adds a flow, or replaces the one of the same table, priority and match.
    Add,
    /// Changes the instructions of every flow that is equal to or more specific than the match.
    Modify,
    /// Changes the instructions of the flow with the same priority and match.
    ModifyStrict,
    /// Deletes every flow that is equal to or more specific than the match.
    Delete,
    /// Deletes the flow with the same priority and match.
    DeleteStrict,
}

impl FlowCommand {
    pub(crate) fn number(self) -> u8 {
        match self {
            FlowCommand::Add => 0,
            FlowCommand::Modify => 1,
            FlowCommand::ModifyStrict => 2,
            FlowCommand::Delete => 3,
            FlowCommand::DeleteStrict => 4,
        }
    }
}

/// Flow modification message (`ofp_flow_mod`, OpenFlow 1.3.5 section 7.3.4.1). It is sent without a packet buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// Operation.
    pub command: FlowCommand,
    /// Flow to add, or the selection for the other commands. Strict commands use the priority too.
    pub flow: Flow,
    /// Modify and delete affect only flows whose cookie equals that of `flow` in these bits; 0 for no restriction.
    pub cookie_mask: u64,
    /// Delete affects only flows with an output to this port; [`Port::ANY`] for no restriction.
    pub out_port: Port,
    /// Delete affects only flows with this group action; [`ANY_GROUP`] for no restriction.
    pub out_group: u32,
}

impl FlowMod {
    fn new(command: FlowCommand, flow: Flow) -> FlowMod {
        FlowMod { command, flow, cookie_mask: 0, out_port: Port::ANY, out_group: ANY_GROUP }
    }

    /// Returns a message that adds or replaces `flow`.
    pub fn add(flow: Flow) -> FlowMod {
        FlowMod::new(FlowCommand::Add, flow)
    }

    /// Returns a message that deletes the flow with the table, priority and match of `flow`.
    pub fn delete_strict(flow: &Flow) -> FlowMod {
        FlowMod::new(FlowCommand::DeleteStrict, Flow::new(flow.table, flow.priority, flow.matching.clone()))
    }

    /// Returns a message that deletes the flows of `table` (or [`ALL_TABLES`]) whose cookie equals `cookie` in the bits of
    /// `mask`.
    pub fn delete_by_cookie(table: u8, cookie: u64, mask: u64) -> FlowMod {
        let flow = Flow::new(table, 0, Match::new()).cookie(cookie);
        FlowMod { cookie_mask: mask, ..FlowMod::new(FlowCommand::Delete, flow) }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let flow = &self.flow;
        out.put_u64(flow.cookie);
        out.put_u64(self.cookie_mask);
        out.put_u8(flow.table);
        out.put_u8(self.command.number());
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

/// Selection of flows for statistics (`ofp_flow_stats_request`). The default selects all flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// Table number, or [`ALL_TABLES`].
    pub table: u8,
    /// Only flows with an output to this port; [`Port::ANY`] for no restriction.
    pub out_port: Port,
    /// Only flows with this group action; [`ANY_GROUP`] for no restriction.
    pub out_group: u32,
    /// Cookie to compare with.
    pub cookie: u64,
    /// Bits of the cookie to compare; 0 for no restriction.
    pub cookie_mask: u64,
    /// Only flows that are equal to or more specific than this match.
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

/// A flow entry with its counters (`ofp_flow_stats`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStats {
    /// Flow entry.
    pub flow: Flow,
    /// Whole seconds since the installation of the flow.
    pub seconds: u32,
    /// Nanoseconds beyond `seconds`.
    pub nanoseconds: u32,
    /// Packets that matched.
    pub packets: u64,
    /// Bytes of the packets that matched.
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

    /// Decodes the whole structure, as [`Reader::sized`] returns it.
    pub(crate) fn decode(mut r: Reader<'_>) -> Result<FlowStats, DecodeError> {
        r.skip(2)?;
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

/// Reason for the removal of a flow (`ofp_flow_removed_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalReason {
    /// The idle timeout expired.
    IdleTimeout,
    /// The hard timeout expired.
    HardTimeout,
    /// A flow modification deleted the flow.
    Deleted,
    /// A group that the flow uses was deleted.
    GroupDeleted,
    /// A reason that this library does not know.
    Other(u8),
}

/// Flow-removed message (`ofp_flow_removed`, OpenFlow 1.3.5 section 7.4.2), sent for flows with [`SEND_FLOW_REMOVED`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    /// Cause of the removal.
    pub reason: RemovalReason,
    /// The removed flow. Instructions and flags are empty: the message does not contain them.
    pub flow: Flow,
    /// Whole seconds between installation and removal.
    pub seconds: u32,
    /// Nanoseconds beyond `seconds`.
    pub nanoseconds: u32,
    /// Packets that matched.
    pub packets: u64,
    /// Bytes of the packets that matched.
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
