//! The networks whose endpoints a node needs, and the groups whose policies it needs.

use std::collections::BTreeSet;

use contiv_model::{
    group::GroupNumber,
    key::{Key, POLICIES},
    name::{GroupKey, HostName, NetworkId, PolicyId},
    network::Network,
    tag::Encap,
};

use super::{
    dirty::DirtySet,
    snapshot::{Membership, State},
    source::Source,
};

impl State {
    /// Returns the networks whose endpoints the node `host` needs: networks with endpoints on it, networks of its
    /// interfaces, `more`, and the networks that are routed to them.
    pub fn needed<'a>(
        &'a self,
        host: &HostName,
        more: impl IntoIterator<Item = &'a NetworkId>,
    ) -> BTreeSet<NetworkId> {
        let exists =
            |id: &NetworkId| self.network(id).is_some() || self.is_unreadable(&Key::Network(id.clone()));
        let mut own: BTreeSet<NetworkId> = self.networks_on(host).chain(more).cloned().collect();
        for (id, _) in self.attachments() {
            match self.endpoint(id) {
                // Included even if the record says that the endpoint is on another node: without the network, the
                // endpoint would be unknown again.
                Some(endpoint) => own.extend([endpoint.network.clone()]),
                None => own.extend(id.possible_networks().filter(exists)),
            }
        }
        self.reached_from(&own)
    }

    /// Returns the networks whose endpoints a node with endpoints on `own` needs: these networks, and those that are
    /// routed to them. Includes networks that are inactive because of their tags.
    pub fn reached_from<'a>(&self, own: impl IntoIterator<Item = &'a NetworkId>) -> BTreeSet<NetworkId> {
        let mut reached: BTreeSet<NetworkId> = own.into_iter().cloned().collect();
        if !self.is_routing() {
            return reached;
        }
        let is_vlan = |network: &Network| matches!(network.encap, Encap::Vlan(_));
        let domain = |network: &Network| (network.tenant.clone(), self.vrf(network), is_vlan(network));
        let routed =
            reached.iter().filter_map(|id| self.network(id)).filter(|network| self.is_routed(network));
        let domains: BTreeSet<_> = routed.map(domain).collect();
        let tenants: BTreeSet<_> = domains.iter().map(|(tenant, ..)| tenant).collect();
        let others = tenants.into_iter().flat_map(|tenant| self.networks_of(tenant));
        let others = others.filter_map(|id| self.network(id));
        let is_reached = |network: &&Network| self.is_routed(network) && domains.contains(&domain(network));
        reached.extend(others.filter(is_reached).map(|network| network.id.clone()));
        reached
    }

    /// Returns the groups whose policies the node `host` needs: groups of its endpoints, all groups that share a number
    /// with one of them, and `more`. Returns `None` if it needs all policies, because the key of a group is unknown or
    /// cannot be derived from the keys of its policies.
    pub fn needed_groups<'a>(
        &'a self,
        host: &HostName,
        more: impl IntoIterator<Item = &'a GroupKey>,
    ) -> Option<BTreeSet<GroupKey>> {
        let mut needed: BTreeSet<GroupKey> = more.into_iter().cloned().collect();
        for (number, key) in self.memberships_on(host) {
            let mut keys = self.groups.keys(*number).chain(key).peekable();
            keys.peek()?;
            needed.extend(keys.cloned());
        }
        needed.iter().all(|key| PolicyId::prefix_of(key).is_some()).then_some(needed)
    }

    /// Returns the groups with endpoints on the node `host` for which the state may lack policies.
    pub fn groups_without_policies(&self, host: &HostName) -> impl Iterator<Item = GroupNumber> {
        let lacks = |(number, key): &&Membership| self.lacks_policies(*number, key.as_ref());
        self.memberships_on(host).filter(lacks).map(|(number, _)| *number)
    }

    /// Records that a source has delivered a snapshot, and returns the affected objects.
    pub(super) fn learn(&mut self, source: &Source) -> DirtySet {
        let Some(group) = policies_in(source) else { return DirtySet::default() };
        self.groups.learn_policies(group);
        self.affected_by(group)
    }

    /// Records that a source is no longer watched, and returns the affected objects.
    pub(super) fn unlearn(&mut self, source: &Source) -> DirtySet {
        let Some(group) = policies_in(source) else { return DirtySet::default() };
        self.groups.forget_policies(group);
        self.affected_by(group)
    }

    /// Returns the objects that the policies of a group, or of all groups, may change.
    fn affected_by(&self, group: Option<&GroupKey>) -> DirtySet {
        let groups = match group {
            Some(group) => {
                let of_group = |(_, key): &&Membership| key.as_ref() == Some(group);
                let members = self.groups_on.all().filter(of_group).map(|(number, _)| *number);
                members.chain(self.groups.number(group)).collect()
            }
            None => self.groups_on.all().map(|(number, _)| *number).collect(),
        };
        DirtySet { groups, ..DirtySet::default() }
    }

    /// Reports whether the state may lack policies of a group with endpoints on the node `host`.
    pub fn lacks_policies_of(&self, number: GroupNumber, host: &HostName) -> bool {
        self.memberships_in(number, host).any(|(number, key)| self.lacks_policies(*number, key.as_ref()))
    }

    /// Reports whether the state may lack policies of a group with this number. `key` is the group's key, if known.
    pub fn lacks_policies(&self, number: GroupNumber, key: Option<&GroupKey>) -> bool {
        self.groups.lacks_policies(number, key)
    }
}

/// Returns the group whose policies the source delivers; the inner `None` if it delivers all.
fn policies_in(source: &Source) -> Option<Option<&GroupKey>> {
    match source {
        Source::Policies(group) => Some(Some(group)),
        Source::Prefix(POLICIES) => Some(None),
        _ => None,
    }
}
