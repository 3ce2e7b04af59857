//! What the programs tell of packets while somebody watches.

use crate::{Address, Be16, Mac, Segment};

/// A packet that was dropped, or the first of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Event {
    /// When, in nanoseconds since boot (`CLOCK_MONOTONIC`).
    pub at: u64,
    /// The sender; all zero when the frame is not IP, or too short to tell.
    pub source: Address,
    /// Whom it addresses.
    pub destination: Address,
    /// Of a flow to a service: the backend. Else as `destination`.
    pub backend: Address,
    /// The network; all zero when it is not known.
    pub segment: Segment,
    /// The rules that decided at the source and at the destination, by their numbers in `ctv_rulecnt`; zero for none.
    pub rules: [u32; 2],
    /// [`ServiceEntry::number`](crate::ServiceEntry::number), or zero.
    pub service: u32,
    /// The number of the [`DropReason`](crate::DropReason); zero of a flow that begins.
    pub reason: u32,
    /// The interface that it came in by; zero of a flow from outside.
    pub ifindex: u32,
    /// Bytes of the frame.
    pub len: u32,
    /// Port of the source; of an echo, its identifier.
    pub source_port: Be16,
    /// Port of the destination.
    pub destination_port: Be16,
    /// Port that belongs to `backend`.
    pub backend_port: Be16,
    /// Ethernet's type.
    pub kind: Be16,
    /// Ethernet address of the sender.
    pub source_mac: Mac,
    /// Ethernet address of the receiver.
    pub destination_mac: Mac,
    /// The number of IP's protocol; zero when the frame is not IP.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 3],
}

/// Who watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Watch {
    /// Until when, in seconds since boot; zero for nobody. Who goes on watching renews it, so that nothing is told to an
    /// agent that died.
    pub until: u32,
    /// What each CPU may tell in a second; more is counted as lost.
    pub limit: u32,
}

/// What one CPU has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct EventState {
    /// Events that were left out: over the limit, or no room in the ring.
    pub lost: u64,
    /// The second that `taken` is of.
    pub second: u32,
    /// Events in it.
    pub taken: u32,
    /// Room for the event that is being made.
    pub event: Event,
}
