//! Routing domains.

use std::fmt;

use crate::name::{NetworkId, TenantName};

/// A routing domain (VRF): addresses are unique in it, and its subnets can be routed to each other.
///
/// A tenant has one VRF, if the nodes route. A network of the tenant whose subnets overlap those of
/// another one cannot share it, and has a VRF of its own; so has each network that is only bridged,
/// because its addresses need not be unique beyond it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vrf {
    /// The VRF of a tenant.
    Tenant(TenantName),
    /// The VRF of one network.
    Network(NetworkId),
}

impl From<TenantName> for Vrf {
    fn from(tenant: TenantName) -> Self {
        Vrf::Tenant(tenant)
    }
}

impl From<NetworkId> for Vrf {
    fn from(network: NetworkId) -> Self {
        Vrf::Network(network)
    }
}

impl fmt::Display for Vrf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Vrf::Tenant(tenant) => write!(f, "tenant {tenant}"),
            Vrf::Network(network) => write!(f, "network {network}"),
        }
    }
}
