use std::net::IpAddr;

use contiv_model::{
    endpoint::Endpoint, global::Config, group::Group, network::Network, policy::Policy, service::Service,
};

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
    /// VTEP that a running agent has registered; the key has a lease.
    Registration(Vtep),
    /// VTEP in a node's record, which outlives the agent.
    Node(Vtep),
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
