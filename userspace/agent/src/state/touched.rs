use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{
    group::GroupNumber,
    name::{EndpointId, NetworkId, ServiceId},
};

/// What changes concern: what the plan has to look at again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Networks, each with all its endpoints.
    pub networks: BTreeSet<NetworkId>,
    /// Endpoints.
    pub endpoints: BTreeSet<EndpointId>,
    /// Groups: what holds for their endpoints, not the endpoints.
    pub groups: BTreeSet<GroupNumber>,
    /// Services.
    pub services: BTreeSet<ServiceId>,
    /// Addresses of VTEPs.
    pub vteps: BTreeSet<IpAddr>,
}

impl Touched {
    /// True when nothing is concerned.
    pub fn is_empty(&self) -> bool {
        *self == Touched::default()
    }

    /// Both together.
    pub fn merge(&mut self, other: Touched) {
        self.networks.extend(other.networks);
        self.endpoints.extend(other.endpoints);
        self.groups.extend(other.groups);
        self.services.extend(other.services);
        self.vteps.extend(other.vteps);
    }
}
