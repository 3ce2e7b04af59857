//! Packet events: what the programs report to a monitor.

use crate::{Address, Be16, Mac, Segment};

/// A dropped packet, or the first packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Event {
    /// Time, in nanoseconds since boot (`CLOCK_MONOTONIC`).
    pub at: u64,
    /// Source address; all zero if the frame is not IP or too short.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Backend of a flow to a service, else as `destination`.
    pub backend: Address,
    /// Network; all zero if unknown.
    pub segment: Segment,
    /// Numbers in `ctv_rulecnt` of the rules that decided at the source and at the destination;
    /// zero for none.
    pub rules: [u32; 2],
    /// [`ServiceEntry::number`](crate::ServiceEntry::number), or zero.
    pub service: u32,
    /// Number of the [`DropReason`](crate::DropReason); zero for a new flow.
    pub reason: u32,
    /// Interface that the packet was received on; zero for a flow from outside.
    pub ifindex: u32,
    /// Length of the frame in bytes.
    pub len: u32,
    /// Source port; the identifier of an ICMP echo.
    pub source_port: Be16,
    /// Destination port.
    pub destination_port: Be16,
    /// Port of the backend.
    pub backend_port: Be16,
    /// EtherType.
    pub kind: Be16,
    /// Source Ethernet address.
    pub source_mac: Mac,
    /// Destination Ethernet address.
    pub destination_mac: Mac,
    /// IP protocol number; zero if the frame is not IP.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 3],
}

/// Whether events are requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Watch {
    /// End of the request, in seconds since boot; zero for none. The agent renews it while a client
    /// monitors, so that events stop if the agent dies.
    pub until: u32,
    /// Events per CPU and second; further ones are counted as lost.
    pub limit: u32,
}

/// Event reporting of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct EventState {
    /// Events that were lost: over the limit, or the ring was full.
    pub lost: u64,
    /// Second in which `reported` counts, since boot.
    pub second: u32,
    /// Events that were reported in this second.
    pub reported: u32,
    /// Scratch space for the event that is being built.
    pub event: Event,
}
