//! Variants of a cluster, and its addresses.

use std::net::Ipv4Addr;

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Datapath {
    Ovs,
    Ebpf,
}

impl Datapath {
    pub fn name(self) -> &'static str {
        match self {
            Datapath::Ovs => "ovs",
            Datapath::Ebpf => "ebpf",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encap {
    Vxlan,
    Vlan,
}

impl Encap {
    pub fn name(self) -> &'static str {
        match self {
            Encap::Vxlan => "vxlan",
            Encap::Vlan => "vlan",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Datapaths of node1 and node2.
    pub datapaths: [Datapath; 2],
    pub encap: Encap,
    pub store: StoreKind,
}

/// Address on the management network.
pub(super) fn management_address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}
