//! Import of flows from the table of another ABI version, or of another size.
//!
//! The agent reads the other table by the names of its fields, fills a batch with flows of this layout,
//! and runs the program `ctv_import` for each. So there is one implementation of the insertion.

use crate::Flow;

/// Operation on an imported flow; a value of [`FlowImport::operation`].
pub struct ImportOperation;

impl ImportOperation {
    /// Insert the flow, or overwrite it: no packets have changed this table yet.
    pub const PUT: u32 = 0;
    /// Insert the flow unless its tuple has another flow, which is newer. If the flow exists, the newer values of both are kept.
    pub const MERGE: u32 = 1;
    /// Remove a flow that was imported, unless packets of it have been seen since.
    pub const REMOVE: u32 = 2;
}

/// Outcome of an operation; a value of [`FlowImport::result`]. A larger value is the generation of the
/// record in the upper half, and its number in the lower one.
pub struct ImportResult;

impl ImportResult {
    /// Not executed.
    pub const NONE: u64 = 0;
    /// The tuple has a newer flow, or there is nothing to remove.
    pub const KEPT: u64 = 1;
    /// The flow was removed.
    pub const REMOVED: u64 = 2;
    /// The table has no room.
    pub const FULL: u64 = 3;
    /// The replies of another flow have the same tuple.
    pub const TAKEN: u64 = 4;

    /// A flow in a record.
    #[inline(always)]
    pub const fn flow(number: u32, generation: u32) -> u64 {
        (generation as u64) << 32 | number as u64
    }
}

/// A flow to import, and the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowImport {
    /// The flow. Its generation does not count.
    pub flow: Flow,
    /// [`ImportOperation`].
    pub operation: u32,
    /// Zero.
    pub zero: u32,
    /// For [`ImportOperation::REMOVE`]: [`ImportResult::flow`] of an earlier import.
    pub record: u64,
    /// [`ImportResult`].
    pub result: u64,
}

/// A batch of flows; each run of the program imports one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowBatch {
    /// Index of the flow that the next run imports.
    pub next: u32,
    /// Number of flows.
    pub count: u32,
    /// The flows.
    pub imports: [FlowImport; FlowBatch::LEN],
}

impl FlowBatch {
    /// Flows of a batch: a power of two.
    pub const LEN: usize = 256;
}
