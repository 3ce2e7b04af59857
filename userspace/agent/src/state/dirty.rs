use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{
    group::GroupNumber,
    name::{EndpointId, HostName, NetworkId, ServiceId, TenantName},
};

/// Ids of the objects that the plan must compute again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtySet {
    /// Networks, each including all of its endpoints.
    pub networks: BTreeSet<NetworkId>,
    /// Networks that were removed or replaced, each with the tenant that it had; `networks` has them, too.
    pub previous_networks: BTreeSet<(NetworkId, TenantName)>,
    /// Endpoints.
    pub endpoints: BTreeSet<EndpointId>,
    /// Groups, without their endpoints.
    pub groups: BTreeSet<GroupNumber>,
    /// Services.
    pub services: BTreeSet<ServiceId>,
    /// VTEP addresses.
    pub vteps: BTreeSet<IpAddr>,
    /// Nodes and networks for which the node now has its first endpoint, or no longer has an endpoint.
    pub first_or_last: BTreeSet<(HostName, NetworkId)>,
    /// The unreadable records, other than those of groups and policies, or the interfaces of their endpoints have
    /// changed. A full plan finds the other objects that this affects.
    pub unreadable: bool,
}

impl DirtySet {
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == DirtySet::default()
    }

    /// Adds all ids of `other`.
    pub fn merge(&mut self, other: DirtySet) {
        self.networks.extend(other.networks);
        self.previous_networks.extend(other.previous_networks);
        self.endpoints.extend(other.endpoints);
        self.groups.extend(other.groups);
        self.services.extend(other.services);
        self.vteps.extend(other.vteps);
        self.first_or_last.extend(other.first_or_last);
        self.unreadable |= other.unreadable;
    }
}
