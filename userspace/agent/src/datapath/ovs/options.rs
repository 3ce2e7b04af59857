//! Configuration of the datapath.

use std::{net::IpAddr, path::PathBuf};

use contiv_abi::{Timeouts, maps};

/// Default path of the database socket, as in Debian.
pub const DEFAULT_SOCKET: &str = "/var/run/openvswitch/db.sock";

/// Packet processing of the bridges (`datapath_type` of ovs-vswitchd.conf.db(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DatapathType {
    /// In the kernel, with the module `openvswitch`.
    #[default]
    System,
    /// In userspace, by ovs-vswitchd.
    Netdev,
}

impl DatapathType {
    /// Value of the database column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DatapathType::System => "system",
            DatapathType::Netdev => "netdev",
        }
    }
}

/// Configuration of the datapath on this node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Socket of the database. The management sockets of the bridges are in the same directory.
    pub socket: PathBuf,
    /// Packet processing of the bridges.
    pub datapath_type: DatapathType,
    /// Interfaces that carry the VLAN networks. Several interfaces form one bond.
    pub uplinks: Vec<String>,
    /// Source address of tunnels. With `None`, the route to the peer determines the source address.
    pub vtep: Option<IpAddr>,
    /// Control address of this node, if known.
    pub control: Option<IpAddr>,
    /// New endpoints of VLAN networks are announced to the switches at the uplinks and to the bridge itself.
    pub announce: bool,
    /// Timeouts of connections, the same as those of flows on eBPF nodes.
    pub timeouts: Timeouts,
    /// Maximum number of connections on an eBPF node. The limit of a zone of the userspace datapath may be a multiple.
    pub connections: u32,
}

impl Options {
    /// Default number of connections.
    pub const CONNECTIONS: u32 = maps::FLOWS_CAPACITY as u32;
}
