use std::net::{IpAddr, Ipv4Addr};

use contiv_model::{
    endpoint::Endpoint, global::Config, group::Group, network::Network, policy::Policy, service::Service,
};
use ipnet::Ipv4Net;

use super::vteps::Vtep;
use crate::datapath::Owner;

/// A validated object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterObject {
    /// Global settings.
    Config(Config),
    /// Network.
    Network(Network),
    /// Endpoint on any node.
    Endpoint(Endpoint),
    /// Group.
    Group(Group),
    /// Policy attached to a group.
    Policy(Policy),
    /// Service without its providers.
    Service(Service),
    /// Addresses of a service's providers, each once.
    Providers(Vec<IpAddr>),
    /// BGP speaker of a node.
    Bgp(BgpSpeaker),
    /// VTEP that a running agent has registered; the key has a lease.
    Registration(Vtep),
    /// VTEP in a node's record, which outlives the agent.
    Node(Vtep),
}

/// Settings of a node's BGP speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BgpSpeaker {
    /// Address of the router: source of the connection, and next hop of the announced routes. With the prefix length of its
    /// subnet.
    pub router: Ipv4Net,
    /// AS number of the node.
    pub asn: u32,
    /// Address of the neighbor.
    pub neighbor: Ipv4Addr,
    /// AS number of the neighbor.
    pub neighbor_as: u32,
}

/// An endpoint's interface on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the host end of the veth pair.
    pub port: String,
    /// Owner of the other end.
    pub owner: Owner,
}

impl Attachment {
    /// A pod's interface with the host end `port`.
    pub fn of_pod(port: impl Into<String>) -> Attachment {
        Attachment { port: port.into(), owner: Owner::Pod }
    }
}
