//! Keys and values of the forwarding maps.

use crate::Segment;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The IPv4 address of a tunnel end, in wire order.
pub type Vtep = [u8; 4];

/// A pod's port, by the interface index of the host end of its veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Port {
    /// The network that the pod is in.
    pub segment: Segment,
    /// The pod's own address.
    pub mac: Mac,
    /// Zero.
    pub zero: [u8; 2],
    /// Where the port stands in the segment's flood list, so that it leaves the list in one step.
    pub slot: u32,
}

/// A network that this node takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SegmentEntry {
    /// The interface towards other nodes: the VXLAN device or the VLAN uplink; zero when there is none.
    pub out: u32,
    /// How many slots of the flood list are in use.
    pub ports: u32,
    /// [`SegmentEntry::PROXY`].
    pub flags: u32,
}

impl SegmentEntry {
    /// Requests for known neighbours are answered here (arp mode `proxy`).
    pub const PROXY: u32 = 1;
}

/// A slot of a segment's flood list; the value is an interface index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FloodKey {
    /// The network.
    pub segment: Segment,
    /// 0 to [`SegmentEntry::ports`] - 1.
    pub slot: u32,
}

/// An Ethernet address in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FdbKey {
    /// The network.
    pub segment: Segment,
    /// The address.
    pub mac: Mac,
    /// Zero.
    pub zero: [u8; 2],
}

impl FdbKey {
    /// The key of `mac` in `segment`.
    pub const fn new(segment: Segment, mac: Mac) -> Self {
        FdbKey { segment, mac, zero: [0; 2] }
    }
}

/// Where an Ethernet address is: exactly one of the two is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FdbEntry {
    /// The host end of the local pod's veth pair.
    pub ifindex: u32,
    /// The node that the pod runs on.
    pub vtep: Vtep,
}

/// A network-layer address in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighKey {
    /// The network.
    pub segment: Segment,
    /// An IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`.
    pub ip: [u8; 16],
}

/// Whose a network-layer address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighEntry {
    /// The owner's Ethernet address.
    pub mac: Mac,
    /// Zero.
    pub zero: [u8; 2],
    /// The owner's port, zero for an owner on another node. A pod is never answered for its own address.
    pub ifindex: u32,
}

/// What there is once per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Node {
    /// How many slots of the list of peers are in use.
    pub peers: u32,
    /// Zero.
    pub zero: u32,
}

/// `::ffff:a.b.c.d`, the form in which IPv4 addresses are keys.
pub const fn v4_mapped(ip: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ip[0], ip[1], ip[2], ip[3]]
}
