//! Services: an address and port that stand for any of a set of backends.

use crate::{Address, Be16, Mac, Segment};

/// A port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceKey {
    /// The network whose pods see the service.
    pub segment: Segment,
    /// Its address.
    pub ip: Address,
    /// The port.
    pub port: Be16,
    /// TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 5],
}

impl ServiceKey {
    /// The key of a port.
    #[inline(always)]
    pub const fn new(segment: Segment, ip: Address, port: Be16, protocol: u8) -> Self {
        ServiceKey { segment, ip, port, protocol, zero: [0; 5] }
    }
}

/// Where a service's connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceEntry {
    /// The first slot of its ring: the block of `ctv_ring` times [`RingBlock::LEN`].
    pub ring: u32,
    /// How many slots the ring has, a power of two; zero when there is no ready backend.
    pub slots: u32,
    /// The number by which flows, affinities and counters know this port of the service; never zero.
    pub number: u32,
    /// How long a client stays with its backend without a new connection, in seconds; zero for not at all.
    pub affinity: u32,
}

/// A piece of a ring: the numbers of backends. The kernel keeps the values of an array at multiples of 8 bytes,
/// so that a slot by itself would take twice its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RingBlock {
    /// The slots.
    pub slots: [u32; RingBlock::LEN],
}

impl RingBlock {
    /// Slots of a block, and of the smallest ring.
    pub const LEN: usize = 16;
}

/// Where connections of services arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Backend {
    /// The address; all zero in a free slot.
    pub ip: Address,
    /// The port.
    pub port: u16,
    /// Zero.
    pub zero: [u16; 3],
}

/// What clients of a port of a service have sent and were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceCount {
    /// Connections that began.
    pub connections: u64,
    /// Packets to the backends, and back.
    pub packets: [u64; 2],
    /// Their bytes, from the Ethernet header on.
    pub bytes: [u64; 2],
}

/// A client of a service that keeps clients with their backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct AffinityKey {
    /// The client.
    pub client: Address,
    /// The network of both.
    pub segment: Segment,
    /// [`ServiceEntry::number`].
    pub service: u32,
    /// Zero.
    pub zero: u32,
}

/// Whom a client is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct AffinityEntry {
    /// The slot in `ctv_backends`.
    pub backend: u32,
    /// When the last connection was made, in seconds since boot.
    pub seen: u32,
}

/// The Ethernet address of a service, as the original gives it: 02:02 and the last four bytes of the address.
#[inline(always)]
pub const fn service_mac(ip: &Address) -> Mac {
    let [a, b, c, d] = ip.low();
    [2, 2, a, b, c, d]
}
