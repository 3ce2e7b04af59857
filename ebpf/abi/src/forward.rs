//! Keys and values of the forwarding maps.

use crate::{Address, Segment, Timeouts};

/// An Ethernet address, octets in transmission order.
pub type Mac = [u8; 6];

/// The IPv4 address of a VTEP, in network byte order.
pub type Vtep = [u8; 4];

/// A pod's port; the key is the interface index of the host end of its veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Port {
    /// Network of the pod.
    pub segment: Segment,
    /// Ethernet address of the pod.
    pub mac: Mac,
    /// Class of the port in the queue.
    pub class: u16,
    /// Slot of the port in the segment's flood list, so that it is removed in one step.
    pub slot: u32,
    /// Number of the pod's group; zero for none.
    pub group: u32,
    /// IPv4 address of the pod, in network byte order. Packets from other addresses are dropped.
    pub ip: [u8; 4],
    /// Interface with the queue for packets from the pod, if its group has a rate limit; zero for
    /// none.
    pub queue: u32,
    /// IPv6 address of the pod; all zero for none.
    pub ip6: Address,
}

impl Port {
    /// Major number of the qdisc's handle; the minor number is [`Port::class`].
    pub const QUEUE: u16 = 0xc0;

    /// The `skb` priority that selects the port's class.
    #[inline(always)]
    pub const fn priority(&self) -> u32 {
        (Port::QUEUE as u32) << 16 | self.class as u32
    }
}

/// A network that this node has ports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SegmentEntry {
    /// Interface to other nodes: the VXLAN device or the VLAN uplink; zero for none.
    pub out: u32,
    /// Number of used slots in the flood list.
    pub ports: u32,
    /// [`SegmentEntry::PROXY`] or zero.
    pub flags: u32,
}

impl SegmentEntry {
    /// ARP requests and neighbour solicitations for known addresses are answered here (ARP mode
    /// `proxy`).
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

/// Location of an Ethernet address: exactly one of `ifindex` and `vtep` is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FdbEntry {
    /// Host end of the local pod's veth pair.
    pub ifindex: u32,
    /// VTEP of the pod's node.
    pub vtep: Vtep,
    /// Number of a local pod's group, zero for none; or [`FdbEntry::NODE`].
    pub group: u32,
}

impl FdbEntry {
    /// Value of `group`: the other end of the veth pair is the node's own. Frames to it leave by
    /// the egress of the host end, because `bpf_redirect_peer` does not redirect within a
    /// namespace. Group numbers are smaller, and the lower half, which policy uses, is no group.
    pub const NODE: u32 = 1 << 31;
}

/// An IP address in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighKey {
    /// The network.
    pub segment: Segment,
    /// The address.
    pub ip: Address,
}

/// Owner of an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighEntry {
    /// Ethernet address of the owner.
    pub mac: Mac,
    /// [`NeighEntry::SERVICE`] or zero.
    pub flags: u16,
    /// Port of the owner, zero for an owner on another node. A pod gets no answer for its own
    /// address.
    pub ifindex: u32,
    /// Number of the owner's group; zero for none.
    pub group: u32,
}

impl NeighEntry {
    /// The address is a service's; no endpoint has it.
    pub const SERVICE: u16 = 1;
}

/// Settings of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Node {
    /// Secret of [`FlowHash`](crate::FlowHash), as old as the flow table.
    pub seed: u64,
    /// Number of used slots in the list of peers.
    pub peers: u32,
    /// Records of the flow table.
    pub flows: u32,
    /// Pages of the index of flows.
    pub flow_pages: u32,
    /// Maximum number of flows of an endpoint.
    pub flow_quota: u32,
    /// Timeouts of flows.
    pub timeouts: Timeouts,
    /// Zero.
    pub zero: u32,
}
