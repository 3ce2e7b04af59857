//! Keys and values of the forwarding maps.

use crate::{Address, Segment, Timeouts};

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
    /// Its class in that queue.
    pub class: u16,
    /// Where the port stands in the segment's flood list, so that it leaves the list in one step.
    pub slot: u32,
    /// The pod's group, for policy; zero for none.
    pub group: u32,
    /// The pod's IPv4 address, in wire order. It sends from no other.
    pub ip: [u8; 4],
    /// The interface that what the pod sends waits in front of, and comes back from, when its group has a rate; zero when
    /// it need not wait.
    pub queue: u32,
    /// The pod's IPv6 address; all zero when it has none.
    pub ip6: Address,
}

impl Port {
    /// What a class of a queue is called by the kernel's qdiscs, and in [`Port::class`]: this above, the class below.
    pub const QUEUE: u16 = 0xc0;

    /// The packet's priority that leads it to the port's class.
    #[inline(always)]
    pub const fn priority(&self) -> u32 {
        (Port::QUEUE as u32) << 16 | self.class as u32
    }
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
    /// The group of a local pod, for policy and its rate, zero for none; or [`FdbEntry::NODE`].
    pub group: u32,
}

impl FdbEntry {
    /// In place of a group: the other end of the veth pair is the node's own. Frames for it have to leave by the host end's
    /// sending side, because `bpf_redirect_peer` takes none to an interface of the same namespace. No group has so high a
    /// number, and it is none in the lower half, which policy goes by.
    pub const NODE: u32 = 1 << 31;
}

/// A network-layer address in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighKey {
    /// The network.
    pub segment: Segment,
    /// The address.
    pub ip: Address,
}

/// Whose a network-layer address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighEntry {
    /// The owner's Ethernet address.
    pub mac: Mac,
    /// [`NeighEntry::SERVICE`].
    pub flags: u16,
    /// The owner's port, zero for an owner on another node. A pod is never answered for its own address.
    pub ifindex: u32,
    /// The owner's group, for policy; zero for none.
    pub group: u32,
}

impl NeighEntry {
    /// The address is that of a service; no endpoint has it.
    pub const SERVICE: u16 = 1;
}

/// What there is once per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Node {
    /// How many slots of the list of peers are in use.
    pub peers: u32,
    /// How long flows are remembered.
    pub timeouts: Timeouts,
}
