//! Garbage collection of flows by a timer of the kernel.

/// The kernel's `struct bpf_timer`, which it finds in a map's value by this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct bpf_timer {
    /// Opaque; reads as zero.
    pub opaque: [u64; 2],
}

/// State of the garbage collection. A write by the agent cancels the timer; the next insertion of a
/// flow arms it again, with the program that inserts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowCollector {
    /// Removes the expired flows of a part of the table, and re-arms itself.
    pub timer: bpf_timer,
    /// The record at which the next part begins.
    pub next: u32,
    /// Time of the last run, in seconds since boot.
    pub ran: u32,
    /// Number of complete passes over the table.
    pub passes: u64,
}

impl FlowCollector {
    /// Time between two runs, in nanoseconds.
    pub const INTERVAL: u64 = 200_000_000;
    /// Runs per pass over the table.
    pub const RUNS: u32 = 20;
    /// Seconds without a run after which an insertion arms the timer again.
    pub const OVERDUE: u32 = 5;
}
