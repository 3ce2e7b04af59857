//! Options of the datapath.

use std::{net::IpAddr, path::PathBuf};

use contiv_abi::{ABI_VERSION, Timeouts, maps::FLOWS_CAPACITY};

use super::{
    maps::sizes::Sizes,
    programs::{stage_log::LogEndpoint, tc::AttachMode, xdp::XdpPreference},
};

/// Options of a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins, on a BPF file system or where the agent may mount one.
    pub bpf_root: PathBuf,
    /// Name of the node's directory in `bpf_root`, for several nodes on one machine.
    pub instance: String,
    /// Name of the VXLAN device.
    pub vxlan_device: String,
    /// UDP port of the tunnels, equal on all nodes of the cluster.
    pub vxlan_port: u16,
    /// Tunnel address of this node. The agent uses it to find the underlay interface. If that is a veth, as in tests and
    /// demos, the agent disables TX checksum offload of the VXLAN device.
    pub vtep: Option<IpAddr>,
    /// Interfaces that carry the VLAN networks, in the order of preference. One of those with a carrier is active, the
    /// others are standby.
    pub uplinks: Vec<String>,
    /// How TC programs are attached.
    pub attach_mode: AttachMode,
    /// XDP mode on the uplink.
    pub xdp: XdpPreference,
    /// Timeouts of tracked flows.
    pub timeouts: Timeouts,
    /// Broadcast, unknown unicast and multicast frames that a port may send in a second; zero for no limit.
    pub bum_rate: u32,
    /// Capacity of the flow table. A table of another capacity is replaced, with its flows, if they fit.
    pub flows: u32,
    /// Endpoint for whose frames the programs log the result of each stage. Logging needs other programs, which are
    /// slower.
    pub log_stages: Option<LogEndpoint>,
    /// Sizes of the maps that the agent fills. Existing maps keep their size.
    pub sizes: Sizes,
    /// New endpoints of VLAN networks are announced on the active uplink.
    pub announce: bool,
    /// ABI version of the pins, for tests of upgrades: the maps have the layout of this build.
    #[doc(hidden)]
    pub abi_version: u32,
}

impl Options {
    /// Default of `bpf_root`.
    pub const BPF_ROOT: &'static str = "/sys/fs/bpf/contiv";
    /// Default of `vxlan_device`.
    pub const VXLAN_DEVICE: &'static str = "contivvx0";
    /// Default of `vxlan_port`, assigned by IANA.
    pub const VXLAN_PORT: u16 = 4789;
    /// Default of `bum_rate`: far above what address resolution and discovery need.
    pub const BUM_RATE: u32 = 1000;
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bpf_root: Options::BPF_ROOT.into(),
            instance: "default".into(),
            vxlan_device: Options::VXLAN_DEVICE.into(),
            vxlan_port: Options::VXLAN_PORT,
            vtep: None,
            uplinks: vec![],
            attach_mode: AttachMode::default(),
            xdp: XdpPreference::default(),
            timeouts: Timeouts::default(),
            bum_rate: Options::BUM_RATE,
            flows: FLOWS_CAPACITY as u32,
            log_stages: None,
            sizes: Sizes::default(),
            announce: false,
            abi_version: ABI_VERSION,
        }
    }
}
