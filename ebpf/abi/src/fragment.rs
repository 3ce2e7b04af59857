//! Fragmented packets: only the first fragment has ports.

use crate::{Address, Be16, Domain};

/// A fragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentKey {
    /// Domain of the packet.
    pub domain: Domain,
    /// Identification in the IPv4 header or in the IPv6 fragment header.
    pub identification: u32,
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Protocol in the IPv4 header, or the next header in the IPv6 fragment header: the same in all
    /// fragments of a packet, also if the first one has further extension headers.
    pub protocol: u32,
    /// Zero.
    pub zero: u32,
}

/// Fields that only the first fragment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentPorts {
    /// Source port.
    pub source: Be16,
    /// Destination port.
    pub destination: Be16,
    /// IP protocol number; for IPv6 that of the last header.
    pub protocol: u32,
}
