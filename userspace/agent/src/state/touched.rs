use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::name::{EndpointId, NetworkId};

/// What changes concern: what the plan has to look at again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Networks, each with all its endpoints.
    pub networks: BTreeSet<NetworkId>,
    /// Endpoints.
    pub endpoints: BTreeSet<EndpointId>,
    /// Addresses of VTEPs.
    pub vteps: BTreeSet<IpAddr>,
}

impl Touched {
    /// True when nothing is concerned.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.endpoints.is_empty() && self.vteps.is_empty()
    }

    /// Both together.
    pub fn merge(&mut self, other: Touched) {
        self.networks.extend(other.networks);
        self.endpoints.extend(other.endpoints);
        self.vteps.extend(other.vteps);
    }
}
