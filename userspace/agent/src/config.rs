//! Command line flags and environment variables (INVENTORY 7.2, and additions).

mod address;
mod conntrack;
mod sizes;

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::{Args, Parser};
use contiv_abi::Timeouts;
use contiv_daemon::{
    flags::{Exit, parse},
    modes::{FwdMode, Mode, NetMode},
};
use contivk8s::wire;

pub use conntrack::ConntrackFlags;
pub use sizes::SizeFlags;

use crate::{
    datapath::{Kind, ebpf, ovs},
    plan::Node,
};

/// Agent of contiv-rs: keeps this node's datapath in sync with the cluster's state.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "netplugin",
    version,
    max_term_width = 100,
    after_help = "netplugin cleanup --help: remove everything that the datapath created"
)]
pub struct Flags {
    /// Orchestrator that requests endpoints: cni, test (docker, kubernetes and swarm-mode are not built yet)
    #[arg(long, aliases = ["plugin-mode", "cluster-mode"], env = "CONTIV_NETPLUGIN_MODE", value_enum)]
    pub mode: Mode,

    /// Encapsulation of the cluster's networks
    #[arg(long, env = "CONTIV_NETPLUGIN_NET_MODE", value_enum)]
    pub netmode: NetMode,

    /// Forwarding mode: bridge, or routing between networks; with --netmode vlan also between the nodes, by the routes of a leaf
    /// switch (netctl bgp)
    #[arg(long, env = "CONTIV_NETPLUGIN_FORWARD_MODE", value_enum)]
    pub fwdmode: FwdMode,

    /// Keep pods of routed VXLAN networks from reaching addresses outside of the cluster's networks by this node (host access)
    #[arg(long, env = "CONTIV_NETPLUGIN_NO_HOST_ACCESS")]
    pub no_host_access: bool,

    /// etcd endpoints, separated by commas [default: http://127.0.0.1:2379]
    #[arg(long, alias = "etcd-endpoints", env = "CONTIV_NETPLUGIN_ETCD_ENDPOINTS", value_name = "URL[,URL]")]
    pub etcd: Option<String>,

    #[command(flatten)]
    pub access: EtcdFlags,

    #[command(flatten)]
    pub master: MasterFlags,

    /// Consul endpoints (not built yet)
    #[arg(
        long,
        alias = "consul-endpoints",
        env = "CONTIV_NETPLUGIN_CONSUL_ENDPOINTS",
        value_name = "URL[,URL]"
    )]
    pub consul: Option<String>,

    /// Name of this node in the cluster [default: host name]
    #[arg(long, env = "CONTIV_NETPLUGIN_HOST")]
    pub host: Option<String>,

    /// Control address of this node [default: source address of the default route]
    #[arg(long, env = "CONTIV_NETPLUGIN_CONTROL_IP", value_name = "IP")]
    pub ctrl_ip: Option<IpAddr>,

    /// VTEP address of this node [default: --ctrl-ip]
    #[arg(long, env = "CONTIV_NETPLUGIN_VTEP_IP", value_name = "IP")]
    pub vtep_ip: Option<IpAddr>,

    /// UDP port of VXLAN, the same on all nodes
    #[arg(long, env = "CONTIV_NETPLUGIN_VXLAN_PORT", default_value_t = ebpf::Options::VXLAN_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,

    #[command(flatten)]
    pub datapath: DatapathFlags,

    /// Take this node's pods over from the other datapath, if that has them, instead of refusing to start
    #[arg(long, env = "CONTIV_NETPLUGIN_REPLACE_DATAPATH")]
    pub replace_datapath: bool,

    #[command(flatten)]
    pub conntrack: ConntrackFlags,

    #[command(flatten)]
    pub sizes: SizeFlags,

    /// Unix socket for requests of contivk8s
    #[arg(long, env = "CONTIV_NETPLUGIN_CNI_SOCKET", value_name = "PATH", default_value = wire::SOCKET)]
    pub cni_socket: PathBuf,

    /// Listening address for health checks, metrics and inspection, without authentication; netmaster's clean-up of
    /// interfaces and remote scrapes need an address that they reach
    #[arg(
        long,
        env = "CONTIV_NETPLUGIN_REST_ADDRESS",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:9090"
    )]
    pub rest_address: SocketAddr,

    /// Unix socket with the same API, mode 0600 [default: --cni-socket with the extension .rest.sock]
    #[arg(long, env = "CONTIV_NETPLUGIN_REST_SOCKET", value_name = "PATH")]
    pub rest_socket: Option<PathBuf>,

    #[command(flatten)]
    pub log: LogFlags,
}

/// Remove everything that the datapath created on this node
#[derive(Clone, Debug, Parser)]
#[command(name = "netplugin cleanup", bin_name = "netplugin cleanup", max_term_width = 100)]
pub struct Cleanup {
    #[command(flatten)]
    pub datapath: DatapathFlags,

    /// Also remove the pods' interfaces
    #[arg(long)]
    pub ports: bool,

    /// The agent's --cni-socket: what the agent remembers of the store is in a file beside it
    #[arg(long, env = "CONTIV_NETPLUGIN_CNI_SOCKET", value_name = "PATH", default_value = wire::SOCKET)]
    pub cni_socket: PathBuf,

    #[command(flatten)]
    pub log: LogFlags,
}

#[derive(Clone, Debug, Args)]
pub struct DatapathFlags {
    /// Datapath: ovs (Open vSwitch), ebpf (TC and XDP programs)
    #[arg(long, env = "CONTIV_NETPLUGIN_DATAPATH", value_enum, default_value = "ovs")]
    pub datapath: Kind,

    /// Uplink interfaces for VLAN networks, separated by commas; of several, ovs makes a bond, and ebpf uses the first one with
    /// a carrier until it loses it
    #[arg(long, env = "CONTIV_NETPLUGIN_VLAN_UPLINKS", value_name = "NAME[,NAME]", value_delimiter = ',')]
    pub vlan_uplinks: Vec<String>,

    /// Datapath type of Open vSwitch: system (kernel module), netdev (userspace, in ovs-vswitchd)
    #[arg(long, env = "CONTIV_NETPLUGIN_OVS_DATAPATH_TYPE", value_enum, default_value = "system")]
    pub ovs_datapath_type: ovs::DatapathType,

    /// Socket of Open vSwitch's database server
    #[arg(long, env = "CONTIV_NETPLUGIN_OVSDB", value_name = "unix:PATH", value_parser = unix_path,
          default_value = "unix:/var/run/openvswitch/db.sock")]
    pub ovsdb: PathBuf,

    /// Directory for pinned eBPF programs and maps, on a BPF file system or where one can be mounted
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_ROOT", value_name = "PATH", default_value = ebpf::Options::BPF_ROOT)]
    pub bpf_root: PathBuf,

    /// XDP mode on the VLAN uplink, for external clients of services: native (in the driver), generic, auto, off
    #[arg(long, env = "CONTIV_NETPLUGIN_XDP", value_enum, default_value = "auto")]
    pub xdp: ebpf::XdpPreference,

    /// Storm control of the eBPF datapath: broadcast, unknown unicast and multicast frames that a pod may send in a second; 0 for
    /// no limit
    #[arg(long, env = "CONTIV_NETPLUGIN_STORM_CONTROL", value_name = "FRAMES", default_value_t = ebpf::Options::BUM_RATE)]
    pub storm_control: u32,

    /// Log packets dropped by eBPF programs and new flows (limited to some hundreds per second and CPU; the others are counted)
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_LOG")]
    pub bpf_log: bool,

    /// Endpoint (IP address or interface of its port) for whose frames the eBPF programs log the result of each stage; loads
    /// slower programs, for debugging
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_LOG_STAGES", value_name = "ENDPOINT")]
    pub bpf_log_stages: Option<String>,
}

contiv_daemon::log_flags!("CONTIV_NETPLUGIN_");
contiv_daemon::etcd_flags!("CONTIV_NETPLUGIN_");

/// Access to netmaster.
#[derive(Clone, Debug, Default, Args)]
pub struct MasterFlags {
    /// CA bundle (PEM) to verify netmaster's certificate; enables HTTPS
    #[arg(long, env = "CONTIV_NETPLUGIN_MASTER_CA", value_name = "FILE")]
    pub master_ca: Option<PathBuf>,

    /// Client certificate (PEM) for netmaster
    #[arg(long, env = "CONTIV_NETPLUGIN_MASTER_CERT", value_name = "FILE", requires_all = ["master_key", "master_ca"])]
    pub master_cert: Option<PathBuf>,

    /// Private key (PEM) of --master-cert
    #[arg(long, env = "CONTIV_NETPLUGIN_MASTER_KEY", value_name = "FILE", requires = "master_cert")]
    pub master_key: Option<PathBuf>,

    /// File with an API token of the role agent:HOST of this node, or agent:*, on its first line; mode 0600
    #[arg(long, env = "CONTIV_NETPLUGIN_MASTER_TOKEN_FILE", value_name = "FILE")]
    pub master_token_file: Option<PathBuf>,
}

/// Parsed command line.
#[derive(Clone, Debug)]
pub enum Command {
    /// Run the agent.
    Run(Box<Flags>),
    /// Remove the datapath's state from this node.
    Cleanup(Cleanup),
}

const DEFAULT_STORE: &str = "http://127.0.0.1:2379";

impl Command {
    /// Parses the command line and the environment.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        if arguments.get(1).is_some_and(|word| word == "cleanup") {
            arguments.remove(1);
            let cleanup: Cleanup = parse(arguments)?;
            return Ok(Command::Cleanup(cleanup));
        }
        let flags: Flags = parse(arguments)?;
        flags.check().map_err(Exit::Usage)?;
        Ok(Command::Run(Box::new(flags)))
    }
}

impl Flags {
    fn check(&self) -> Result<(), String> {
        let not_built = |flag: &str, now: &str| Err(format!("{flag} is not built yet; {now}"));
        self.mode.check()?;
        let is_routing = self.fwdmode == FwdMode::Routing;
        match (&self.etcd, &self.consul) {
            (Some(_), Some(_)) => return Err("--etcd and --consul exclude each other".into()),
            (None, Some(_)) => return not_built("--consul", "use --etcd"),
            _ => {}
        }
        contiv_store::Config::parse(self.store()).map_err(|e| format!("--etcd: {e}"))?;
        // Frames of routed networks stay on the node.
        if self.netmode == NetMode::Vlan && !is_routing && self.datapath.uplinks().next().is_none() {
            return Err(
                "--netmode vlan requires --vlan-uplinks NAME, the uplink interface for VLAN networks".into(),
            );
        }
        if self.datapath.datapath == Kind::Fake && self.mode != Mode::Test {
            return Err(
                "--datapath fake forwards no packets and requires --mode test; accepted: ovs, ebpf".into()
            );
        }
        if self.host.as_deref().is_some_and(|host| host.is_empty() || host.contains('/')) {
            return Err("--host: expected a name without '/'".into());
        }
        Ok(())
    }

    /// Whether this node is the gateway of VLAN networks in forward mode `routing`, which can change later.
    pub fn routes_vlans(&self) -> bool {
        self.netmode == NetMode::Vlan
    }

    /// Whether pods of routed VXLAN networks reach addresses outside of the cluster's networks by this node.
    pub fn has_host_access(&self) -> bool {
        self.datapath.datapath != Kind::Fake && !self.no_host_access
    }

    /// Address of the store.
    pub fn store(&self) -> &str {
        self.etcd.as_deref().unwrap_or(DEFAULT_STORE)
    }

    /// Socket of the API.
    pub fn rest_socket(&self) -> PathBuf {
        self.rest_socket.clone().unwrap_or_else(|| self.cni_socket.with_extension("rest.sock"))
    }

    /// Control address of this node.
    pub fn control_address(&self) -> IpAddr {
        self.ctrl_ip.unwrap_or_else(address::default_address)
    }

    /// Options of the eBPF datapath.
    pub fn ebpf(&self, vtep: IpAddr) -> ebpf::Options {
        ebpf::Options {
            timeouts: self.conntrack.timeouts(),
            flows: self.conntrack.conntrack_max,
            sizes: self.sizes.sizes(),
            ..self.datapath.ebpf(Some(vtep), self.vxlan_port)
        }
    }

    /// Options of the OVS datapath.
    pub fn ovs(&self, vtep: IpAddr) -> ovs::Options {
        ovs::Options {
            control: Some(self.control_address()),
            timeouts: self.conntrack.timeouts(),
            connections: self.conntrack.conntrack_max,
            ..self.datapath.ovs(Some(vtep))
        }
    }

    /// This node's name and VTEP.
    pub fn node(&self) -> Result<Node, std::io::Error> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => std::fs::read_to_string("/proc/sys/kernel/hostname")?.trim().to_owned(),
        };
        Ok(Node { host: host.as_str().into(), vtep: self.vtep_ip.unwrap_or_else(|| self.control_address()) })
    }
}

impl DatapathFlags {
    /// Uplink interfaces for VLAN networks.
    pub fn uplinks(&self) -> impl Iterator<Item = &str> {
        self.vlan_uplinks.iter().map(|name| name.trim()).filter(|name| !name.is_empty())
    }

    /// Options of the OVS datapath.
    pub fn ovs(&self, vtep: Option<IpAddr>) -> ovs::Options {
        ovs::Options {
            socket: self.ovsdb.clone(),
            datapath_type: self.ovs_datapath_type,
            uplinks: self.uplinks().map(str::to_owned).collect(),
            vtep,
            control: None,
            announce: true,
            timeouts: Timeouts::default(),
            connections: ovs::Options::CONNECTIONS,
        }
    }

    /// Options of the eBPF datapath.
    pub fn ebpf(&self, vtep: Option<IpAddr>, vxlan_port: u16) -> ebpf::Options {
        ebpf::Options {
            announce: true,
            bpf_root: self.bpf_root.clone(),
            vxlan_port,
            vtep,
            uplinks: self.uplinks().map(str::to_owned).collect(),
            xdp: self.xdp,
            bum_rate: self.storm_control,
            log_stages: self.bpf_log_stages.as_deref().map(Into::into),
            ..ebpf::Options::default()
        }
    }
}

fn unix_path(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:").map(Path::new) {
        Some(path) if path.is_absolute() => Ok(path.to_owned()),
        _ => Err("expected unix:/PATH of ovsdb-server's socket".into()),
    }
}

#[cfg(test)]
mod tests;
