//! One item in the kernel: a map entry, a list member, or an attached program.

use contiv_abi::{
    Domain, FdbEntry, FdbKey, NeighEntry, NeighKey, Port, RouteEntry, Segment, ServiceKey, Subnet, Vip,
    VipKey, Vtep,
};

use crate::datapath::ebpf::{forward::prefixes::DomainPrefix, service::ports::Target};

/// An item that belongs to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A tunnel peer.
    Peer(Vtep),
    /// A peer in the list of a VXLAN network.
    Member(Segment, Vtep),
    /// A network, without the lengths of its lists.
    Segment { segment: Segment, out: u32, flags: u32, domain: Domain },
    /// A port and its membership in the flood list, without slot, class and queue.
    Port { ifindex: u32, port: Port },
    /// A forwarding database entry.
    Fdb(FdbKey, FdbEntry),
    /// A neighbour entry, with which the programs answer ARP and ND.
    Neigh(NeighKey, NeighEntry),
    /// A subnet.
    Subnet(DomainPrefix, Subnet),
    /// A route to addresses in no subnet.
    Route(DomainPrefix, RouteEntry),
    /// The port of a pod by its number.
    Number { number: u32, ifindex: u32 },
    /// A service port.
    Service(ServiceKey, Target),
    /// A service address on the VLAN uplink.
    Vip(VipKey, Vip),
    /// The program on a pod's port.
    Hook { ifindex: u32, interface: String },
}

/// Key of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EntryKey {
    Peer(Vtep),
    Member(Segment, Vtep),
    Segment(Segment),
    Port(u32),
    Fdb(FdbKey),
    Neigh(NeighKey),
    Subnet(DomainPrefix),
    Route(DomainPrefix),
    Number(u32),
    Service(ServiceKey),
    Vip(VipKey),
    Hook(u32),
}

impl Entry {
    pub(crate) fn key(&self) -> EntryKey {
        match self {
            Entry::Peer(vtep) => EntryKey::Peer(*vtep),
            Entry::Member(segment, vtep) => EntryKey::Member(*segment, *vtep),
            Entry::Segment { segment, .. } => EntryKey::Segment(*segment),
            Entry::Port { ifindex, .. } => EntryKey::Port(*ifindex),
            Entry::Fdb(key, _) => EntryKey::Fdb(*key),
            Entry::Neigh(key, _) => EntryKey::Neigh(*key),
            Entry::Subnet(key, _) => EntryKey::Subnet(*key),
            Entry::Route(key, _) => EntryKey::Route(*key),
            Entry::Number { number, .. } => EntryKey::Number(*number),
            Entry::Service(key, _) => EntryKey::Service(*key),
            Entry::Vip(key, _) => EntryKey::Vip(*key),
            Entry::Hook { ifindex, .. } => EntryKey::Hook(*ifindex),
        }
    }
}
