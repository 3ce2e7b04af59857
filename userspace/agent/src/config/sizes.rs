use clap::Args;

use crate::datapath::ebpf::Sizes;

/// Sizes of the maps of the eBPF datapath, which do not depend on traffic. Existing maps keep theirs.
#[derive(Clone, Debug, Args)]
pub struct SizeFlags {
    /// Maximum number of endpoints, local and remote, on the networks of the node (eBPF)
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_ENDPOINTS", value_name = "ENDPOINTS",
          default_value_t = Sizes::default().endpoints, value_parser = clap::value_parser!(u32).range(1024..=1 << 20))]
    pub bpf_endpoints: u32,

    /// Maximum number of ports of services on the networks of the node (eBPF)
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_SERVICES", value_name = "PORTS",
          default_value_t = Sizes::default().services, value_parser = clap::value_parser!(u32).range(64..=1 << 18))]
    pub bpf_services: u32,

    /// Maximum number of IPv6 backends of services, and memory for sets of more than 8 backends in units of 64 bytes (eBPF)
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_BACKENDS", value_name = "BACKENDS",
          default_value_t = Sizes::default().backends, value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    pub bpf_backends: u32,

    /// Memory for policies, 128 bytes each (eBPF): a rule takes one third to three, twice while its group changes
    #[arg(long, env = "CONTIV_NETPLUGIN_BPF_RULES", value_name = "NODES",
          default_value_t = Sizes::default().rules, value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    pub bpf_rules: u32,
}

impl SizeFlags {
    /// The sizes.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            endpoints: self.bpf_endpoints,
            services: self.bpf_services,
            backends: self.bpf_backends,
            rules: self.bpf_rules,
        }
    }
}
