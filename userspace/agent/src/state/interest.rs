//! Networks whose endpoints a node needs.

use std::collections::BTreeSet;

use contiv_model::{
    key::Key,
    name::{HostName, NetworkId},
    network::Network,
    tag::Encap,
};

use super::snapshot::State;

impl State {
    /// Networks whose endpoints the node `host` needs: those with endpoints on it, those of its interfaces, those of `more`, and
    /// the networks that are routed to them.
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
                // Also one on another node by its record: without the network, it would be unknown again.
                Some(endpoint) => own.extend([endpoint.network.clone()]),
                None => own.extend(id.possible_networks().filter(exists)),
            }
        }
        self.reached_from(&own)
    }

    /// Networks whose endpoints a node with endpoints on `own` needs: these networks, and those that are routed to them.
    /// Includes networks that are inactive because of their tags.
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
}
