use std::net::{Ipv4Addr, Ipv6Addr};

use contiv_model::{mac::Mac, name::EndpointId};

use crate::datapath::Owner;

/// Configuration of the pod's end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodInterface {
    /// Name in the pod, e.g. `eth0`.
    pub name: String,
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address and prefix length.
    pub ip: (Ipv4Addr, u8),
    /// IPv6 address and prefix length, if any.
    pub ip6: Option<(Ipv6Addr, u8)>,
    /// Gateway of the IPv4 default route, if any.
    pub gateway: Option<Ipv4Addr>,
    /// Gateway of the IPv6 default route, if any.
    pub gateway6: Option<Ipv6Addr>,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// Pod or node.
    pub owner: Owner,
    /// Whether to disable TX checksum offload.
    pub disable_tx_offload: bool,
}

/// Expected state of the pod's end of a veth pair in a CHECK. Later plugins may have changed what ADD configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedLink {
    /// Ethernet address; `None` accepts any address.
    pub mac: Option<Mac>,
    /// Maximum MTU in bytes. Plugins that reduce it do not list the MTU.
    pub largest_mtu: u32,
}

impl From<&PodInterface> for ExpectedLink {
    fn from(made: &PodInterface) -> ExpectedLink {
        ExpectedLink { mac: Some(made.mac), largest_mtu: made.mtu }
    }
}

/// The default routes of the pod that lead through an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultRoutes {
    /// The IPv4 default route.
    pub ipv4: bool,
    /// The IPv6 default route.
    pub ipv6: bool,
}

/// A complete veth pair, as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedPort {
    /// Name of the host end.
    pub port: String,
    /// Endpoint that the pair belongs to.
    pub endpoint: EndpointId,
    /// Owner of the other end.
    pub owner: Owner,
}
