use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{name::NetworkId, network::Network};
use ipnet::IpNet;

use super::index::remove_from;

/// Networks whose subnets overlap those of others in the same scope.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Overlaps<S: Ord> {
    subnets: BTreeMap<S, BTreeMap<IpNet, BTreeSet<NetworkId>>>,
    /// Networks that overlap a network with a lower id.
    later: BTreeSet<NetworkId>,
}

impl<S: Ord> Default for Overlaps<S> {
    fn default() -> Self {
        Overlaps { subnets: BTreeMap::new(), later: BTreeSet::new() }
    }
}

impl<S: Ord> Overlaps<S> {
    /// Reports whether the network overlaps a network of its scope with a lower id.
    pub(super) fn is_later(&self, id: &NetworkId) -> bool {
        self.later.contains(id)
    }

    /// Networks for which [`is_later`](Self::is_later) is true.
    pub(super) fn later(&self) -> impl Iterator<Item = &NetworkId> {
        self.later.iter()
    }

    /// The subnets of the networks of a scope.
    pub(super) fn subnets(&self, scope: &S) -> impl Iterator<Item = IpNet> {
        self.subnets.get(scope).into_iter().flat_map(|subnets| subnets.keys().copied())
    }

    /// The first network of the scope that overlaps a network.
    pub(super) fn first(&self, network: &Network, scope: &S) -> Option<&NetworkId> {
        self.overlapping(network, scope).min()
    }

    /// Updates the overlaps after `networks` has changed at `id`; `before` is the previous version of the network. A network
    /// without a scope overlaps none. Returns the networks for which [`is_later`](Self::is_later) changes.
    pub(super) fn update(
        &mut self,
        networks: &BTreeMap<NetworkId, Network>,
        id: &NetworkId,
        before: Option<&Network>,
        scope: impl Fn(&Network) -> Option<S>,
    ) -> BTreeSet<NetworkId> {
        let mut affected = BTreeSet::from([id.clone()]);
        if let Some((network, scope)) = before.and_then(|network| Some((network, scope(network)?))) {
            affected.extend(self.overlapping(network, &scope).cloned());
            if let Some(subnets) = self.subnets.get_mut(&scope) {
                network.subnets().for_each(|subnet| remove_from(subnets, &subnet, id));
                if subnets.is_empty() {
                    self.subnets.remove(&scope);
                }
            }
        }
        if let Some((network, scope)) = networks.get(id).and_then(|network| Some((network, scope(network)?)))
        {
            let subnets = self.subnets.entry(scope).or_default();
            for subnet in network.subnets() {
                subnets.entry(subnet).or_default().insert(id.clone());
            }
        }
        if let Some((network, scope)) = networks.get(id).and_then(|network| Some((network, scope(network)?)))
        {
            affected.extend(self.overlapping(network, &scope).cloned());
        }
        affected.retain(|id| {
            let network = networks.get(id).and_then(|network| Some((network, scope(network)?)));
            let is_later = network
                .is_some_and(|(network, scope)| self.overlapping(network, &scope).any(|other| other < id));
            match is_later {
                true => self.later.insert(id.clone()),
                false => self.later.remove(id),
            }
        });
        affected
    }

    /// The networks of the scope, with repetitions, that have an address in common with `network`, itself included.
    fn overlapping<'a>(
        &'a self,
        network: &Network,
        scope: &S,
    ) -> impl Iterator<Item = &'a NetworkId> + use<'a, S> {
        let of_network: Vec<IpNet> = network.subnets().collect();
        let of_scope = self.subnets.get(scope);
        of_scope.into_iter().flat_map(move |of_scope| {
            of_network.clone().into_iter().flat_map(move |subnet| {
                let around = std::iter::successors(subnet.supernet(), IpNet::supernet);
                let around = around.filter_map(move |subnet| of_scope.get(&subnet));
                // Prefixes are ordered by their first address, and the shorter first.
                let inside = of_scope.range(subnet..=IpNet::from(subnet.broadcast())).map(|(_, ids)| ids);
                around.chain(inside).flatten()
            })
        })
    }
}
