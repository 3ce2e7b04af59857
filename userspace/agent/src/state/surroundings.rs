use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

/// Destinations that this node reaches outside of the cluster's networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Addresses of netmaster and of default gateways.
    pub addresses: BTreeSet<IpAddr>,
    /// Networks of the node's interfaces, with the names of the interfaces.
    pub networks: BTreeSet<(String, IpNet)>,
}
