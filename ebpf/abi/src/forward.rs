//! Keys and values of the forwarding maps.

use crate::{Address, Be16, Domain, Mac, Segment, ServiceCountRows, Timeouts, maps::PORT_SLOTS_CAPACITY};

/// The IP address of a VTEP; all zero for none.
pub type Vtep = Address;

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
    /// Domain of the pod's network.
    pub domain: Domain,
    /// Number in the name of the interface, by which the pod has an address towards the node's kernel
    /// ([`RouteEntry::private`]); zero for none.
    pub number: u32,
}

impl Port {
    /// Major number of the qdisc's handle; the minor number is [`Port::class`].
    pub const QUEUE: u16 = 0xc0;

    /// The `skb` priority that selects the port's class.
    #[inline(always)]
    pub const fn priority(&self) -> u32 {
        (Port::QUEUE as u32) << 16 | self.class as u32
    }

    /// The words of the pod's address in one family; a pod without an IPv6 address has its link-local one.
    #[inline(always)]
    pub const fn own(&self, ip6: bool) -> [u64; 2] {
        if !ip6 {
            Address::v4(self.ip).words()
        } else if self.ip6.is_zero() {
            Address::link_local(&self.mac).words()
        } else {
            self.ip6.words()
        }
    }
}

/// A port at an index that is computed from its interface index, for programs that cannot afford a lookup: a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct PortSlot {
    /// IPv4 address, zero for none.
    pub ip: Address,
    /// IPv6 address, zero for none.
    pub ip6: Address,
    /// Ethernet address, and two zeros.
    pub mac: [u8; 8],
    /// Domain of the network.
    pub domain: Domain,
    /// Number of the group.
    pub group: u32,
    /// As [`Port::queue`].
    pub queue: u32,
    /// Interface index; zero if the slot is free.
    pub ifindex: u32,
    /// The network.
    pub segment: Segment,
}

const _: () = assert!(size_of::<PortSlot>() == 64);

impl PortSlot {
    /// The slot of a port. If the interface indexes of ports differ by a multiple of the capacity, only one of them has the slot.
    #[inline(always)]
    pub const fn number(ifindex: u32) -> u32 {
        ifindex % PORT_SLOTS_CAPACITY as u32
    }

    /// The slot's content for a port.
    pub fn new(ifindex: u32, port: &Port) -> PortSlot {
        let [a, b, c, d, e, f] = port.mac;
        PortSlot {
            ip: if port.ip == [0; 4] { Address::default() } else { Address::v4(port.ip) },
            ip6: port.ip6,
            mac: [a, b, c, d, e, f, 0, 0],
            domain: port.domain,
            group: port.group,
            queue: port.queue,
            ifindex,
            segment: port.segment,
        }
    }
}

/// A network that this node has ports on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct SegmentEntry {
    /// Interface to other nodes: the VXLAN device; zero on VLANs, which leave by the active uplink
    /// ([`UPLINK`](crate::maps::UPLINK)).
    pub out: u32,
    /// Number of used slots in the flood list.
    pub ports: u32,
    /// Number of used slots in the list of peers that have the network; zero for a VLAN.
    pub members: u32,
    /// [`SegmentEntry::PROXY`] and [`SegmentEntry::ON_NODE`].
    pub flags: u32,
    /// Domain of the network.
    pub domain: Domain,
}

impl SegmentEntry {
    /// ARP requests and neighbour solicitations for known addresses are answered here (ARP mode
    /// `proxy`).
    pub const PROXY: u32 = 1;
    /// A VLAN network that the node routes: its frames stay on the node.
    pub const ON_NODE: u32 = 2;
}

/// A slot of a segment's flood list, whose value is an interface index, or of its list of peers, whose
/// value is a VTEP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FloodKey {
    /// The network.
    pub segment: Segment,
    /// 0 to [`SegmentEntry::ports`] - 1, or to [`SegmentEntry::members`] - 1.
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

/// Location of an Ethernet address: at most one of `ifindex` and `vtep` is not zero. Both are zero for an endpoint on another
/// node of a VLAN, to which the switches forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FdbEntry {
    /// VTEP of the pod's node.
    pub vtep: Vtep,
    /// Host end of the local pod's veth pair.
    pub ifindex: u32,
    /// Number of the endpoint's group, zero for none; and [`FdbEntry::NODE`].
    pub group: u32,
}

impl FdbEntry {
    /// Value of `group`: the other end of the veth pair is the node's own. Frames to it leave by
    /// the egress of the host end, because `bpf_redirect_peer` does not redirect within a
    /// namespace. Group numbers are smaller, and the lower half, which policy uses, is no group.
    pub const NODE: u32 = 1 << 31;
}

/// An IP address in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct NeighKey {
    /// The domain.
    pub domain: Domain,
    /// Zero.
    pub zero: u32,
    /// The address.
    pub ip: Address,
}

impl NeighKey {
    /// Bits of a key, as a prefix of `ctv_subnets`.
    pub const BITS: u32 = 8 * size_of::<NeighKey>() as u32;

    /// The key of `ip` in `domain`.
    #[inline(always)]
    pub const fn new(domain: Domain, ip: Address) -> Self {
        NeighKey { domain, zero: 0, ip }
    }
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

/// Addresses of a network's endpoints. IPv4 addresses are mapped, and their mask includes the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Subnet {
    /// First address.
    pub prefix: Address,
    /// Ones for the bits that all addresses share.
    pub mask: Address,
    /// Router on the network, which is no endpoint; all zero for none.
    pub gateway: Address,
    /// The network, if the nodes are its gateway; else all zero.
    pub routed: Segment,
}

/// Where packets to addresses in no subnet leave a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RouteEntry {
    /// Interface to the node's kernel; zero if the addresses are unreachable.
    pub out: u32,
    /// Private subnet, a /16: towards the kernel, pods have addresses in it.
    pub private: [u8; 4],
}

impl RouteEntry {
    /// The private address of a port by its [`Port::number`].
    #[inline(always)]
    pub const fn address(&self, number: u32) -> [u8; 4] {
        let [a, b, _, _] = self.private;
        let [_, _, c, d] = number.to_be_bytes();
        [a, b, c, d]
    }
}

/// Source and destination Ethernet address of packets from and to the node's kernel.
pub const KERNEL_MAC: Mac = [0x02, 0x00, 0x11, 0x11, 0x11, 0x11];

/// Ethernet address with which every node answers for the gateways of routed networks.
pub const ROUTER_MAC: Mac = [0x00, 0x00, 0x11, 0x11, 0x11, 0x11];

impl Subnet {
    /// Returns true if the nodes are the gateway of its endpoints.
    #[inline(always)]
    pub const fn is_routed(&self) -> bool {
        self.routed.vni().is_some() || self.is_on_node()
    }

    /// Returns true if that is a VLAN network: other nodes are reached through the kernel of the node.
    #[inline(always)]
    pub const fn is_on_node(&self) -> bool {
        self.routed.tag() != 0
    }

    /// Returns true for the address of the gateway if the nodes are the gateway.
    #[inline(always)]
    pub const fn is_router(&self, ip: &Address) -> bool {
        self.is_routed() && ip.same(&self.gateway)
    }

    /// Returns true for an address of the subnet that is not the gateway's. An IPv6 subnet has no mapped addresses, although the
    /// prefix may cover them.
    #[inline(always)]
    pub const fn contains(&self, ip: &Address) -> bool {
        let ([a, b], [c, d], [e, f]) = (ip.words(), self.mask.words(), self.prefix.words());
        a & c == e && b & d == f && ip.is_v4() == self.prefix.is_v4() && !ip.same(&self.gateway)
    }

    /// Returns true for the address with host bits that are all ones: in IPv4, the broadcast address.
    #[inline(always)]
    pub const fn is_last(&self, ip: &Address) -> bool {
        let ([a, b], [c, d], [e, f]) = (ip.words(), self.mask.words(), self.prefix.words());
        a == e | !c && b == f | !d
    }

    /// Returns true for the broadcast address of an IPv4 subnet, and for its first address, which Linux before 5.14 treats as a
    /// broadcast address, too. Subnets of one or two addresses have none (RFC 3021).
    #[inline(always)]
    pub const fn is_of_all(&self, ip: &Address) -> bool {
        let [_, mask] = self.mask.words();
        let hosts = !mask;
        ip.is_v4() && hosts & hosts.wrapping_sub(1) != 0 && (ip.same(&self.prefix) || self.is_last(ip))
    }
}

/// Settings of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Node {
    /// Secret of [`FlowHash`](crate::FlowHash) and [`DsrKey::set`](crate::DsrKey::set), as old as the maps.
    pub seed: u64,
    /// VTEP of this node; all zero for none.
    pub vtep: Vtep,
    /// UDP port of the tunnels.
    pub tunnel_port: Be16,
    /// Zero.
    pub zero: [u8; 2],
    /// Broadcast, unknown unicast and multicast frames that a port may send in a second; zero for
    /// no limit.
    pub bum_rate: u32,
    /// Arrangement of the counters of services.
    pub service_counts: ServiceCountRows,
    /// Records of the flow table.
    pub flows: u32,
    /// Pages of the index of flows.
    pub flow_pages: u32,
    /// Maximum number of flows of an endpoint.
    pub flow_quota: u32,
    /// Timeouts of flows.
    pub timeouts: Timeouts,
    /// [`Phase`] of the replacement of the flow table.
    pub phase: u32,
    /// Number of slots with copies of services, a power of two.
    pub service_slots: u32,
}

/// Phase of the migration of flows to or from another table. A value of `Node::phase`; agents of other ABI versions find the
/// field by its name.
pub struct Phase;

impl Phase {
    /// The programs forward.
    pub const RUNNING: u32 = 0;
    /// Packets without a flow are dropped: they may belong to a flow of the other table. A packet that opens a connection to a
    /// backend on another node is forwarded: it opens no flow.
    pub const HOLDING: u32 = 1;
    /// As [`Phase::HOLDING`], except for packets that open flows in any case: TCP SYN, and packets to services.
    pub const IMPORTING: u32 = 2;
    /// The programs pass all frames to the next program on the interface, which is one of another
    /// ABI version.
    pub const RETIRED: u32 = 3;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_subnet_has_no_ipv4_addresses() {
        let [zero, ones] = [Address([0; 16]), Address([0xff; 16])];
        let routed = Segment::vxlan(0);
        let all = Subnet { prefix: zero, mask: zero, gateway: zero, routed };
        let v6 = Address([0xfd; 16]);
        assert!(all.contains(&v6) && !all.contains(&Address::v4([10, 1, 1, 1])));
        let mut prefix = Address::v4([0; 4]);
        let mut mask = ones;
        mask.0[12..].fill(0);
        let v4 = Subnet { prefix, mask, gateway: zero, routed };
        assert!(v4.contains(&Address::v4([10, 1, 1, 1])) && !v4.contains(&v6));
        prefix.0[12] = 10;
        mask.0[12] = 0xff;
        let ten = Subnet { prefix, mask, gateway: Address::v4([10, 0, 0, 1]), routed };
        assert!(ten.contains(&Address::v4([10, 1, 1, 1])) && !ten.contains(&Address::v4([11, 1, 1, 1])));
        assert!(!ten.contains(&ten.gateway) && ten.is_last(&Address::v4([10, 255, 255, 255])));
    }

    #[test]
    fn a_pod_without_an_ipv6_address_has_its_link_local_one() {
        let ip6 = Address([0xfd; 16]);
        let port = Port {
            segment: Segment::vxlan(1),
            mac: [2, 2, 10, 7, 0, 2],
            class: 0,
            slot: 0,
            group: 0,
            ip: [10, 7, 0, 2],
            queue: 0,
            ip6,
            domain: Domain::NONE,
            number: 0,
        };
        assert_eq!(port.own(false), Address::v4([10, 7, 0, 2]).words());
        assert_eq!(port.own(true), ip6.words());
        let port = Port { ip6: Address([0; 16]), ..port };
        assert_eq!(port.own(true), Address::link_local(&port.mac).words());
    }

    #[test]
    fn ipv4_subnets_have_addresses_of_all_hosts() {
        let ip = |last| Address::v4([10, 7, 0, last]);
        let subnet = |last, bits: u8| {
            let mut mask = Address([0xff; 16]);
            mask.0[15] = bits;
            Subnet { prefix: ip(last), mask, gateway: ip(254), routed: Segment::vxlan(0) }
        };
        let wide = subnet(0, 0);
        assert!(wide.is_of_all(&ip(0)) && wide.is_of_all(&ip(255)));
        assert!(![1, 127, 128, 254].iter().any(|last| wide.is_of_all(&ip(*last))));
        let four = subnet(8, 0b1111_1100);
        assert!(four.is_of_all(&ip(8)) && four.is_of_all(&ip(11)) && !four.is_of_all(&ip(9)));
        let (two, one) = (subnet(8, 0b1111_1110), subnet(8, 0xff));
        assert!(![two, one].iter().any(|few| few.is_of_all(&ip(8)) || few.is_of_all(&ip(9))));
        let v6 = Subnet { prefix: Address([0xfd; 16]), ..wide };
        assert!(!v6.is_of_all(&v6.prefix));
    }
}
