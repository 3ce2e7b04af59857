//! Groups that output to the endpoints of a network or to all peers, and groups that select backends.

use std::collections::BTreeSet;

use contiv_model::name::NetworkId;

use super::Batch;
use crate::datapath::{
    Network, Object, ObjectId, Service,
    ovs::{
        bridge::BridgeKind,
        desired::{
            domain::{domain, domains_of_service},
            model::BaseConfig,
        },
        pipeline::{self, Domain, MAX_BUCKETS, Receiver, Spread, UPLINK_GROUP, bridge_and_tag, peer_group},
        tables::{
            cookie::Cookie,
            ids::ObjectNumbers,
            index::{FlowIndex, Installed},
        },
    },
};

impl Batch<'_> {
    /// Updates the groups, and the flows of networks that use them.
    pub(super) fn update_groups(&mut self) {
        for (bridge, tag) in std::mem::take(&mut self.removed_tags) {
            self.remove_groups(bridge, |index| pipeline::endpoint_group(tag, index), 0);
            self.remove_groups(bridge, |index| pipeline::receiver_group(tag, index), 0);
        }
        // Runs before the networks are updated, because their flows use the groups of peers.
        if std::mem::take(&mut self.dirty_peers) {
            self.update_peer_groups();
        }
        for network in std::mem::take(&mut self.dirty_networks) {
            self.update_network(&network);
        }
    }

    fn update_peer_groups(&mut self) {
        let ports: Vec<u32> = self.index.peers().values().copied().collect();
        let groups = group_count(ports.len());
        let was_sufficient = self.edits.vxlan.has_group(peer_group(groups - 1));
        for group in 0..groups {
            let members = ports.iter().copied().skip(group * MAX_BUCKETS).take(MAX_BUCKETS);
            let group = pipeline::all_group(peer_group(group), members);
            let group = self.with_retained(BridgeKind::Vxlan, group);
            self.edits.vxlan.set_group(group);
        }
        let excess = self.edits.vxlan.has_group(peer_group(groups));
        if excess || !was_sufficient {
            self.dirty_networks.extend(self.index.networks().map(|network| network.id.clone()));
        }
        self.remove_groups(BridgeKind::Vxlan, peer_group, groups);
    }

    fn update_network(&mut self, id: &NetworkId) {
        let id = ObjectId::Network(id.clone());
        let Some(Installed { object: Object::Network(network), .. }) = self.index.get(&id) else { return };
        let (bridge, tag) = bridge_and_tag(network.encap);
        let ports: Vec<u32> = self.index.locals_in(network).map(|(_, port)| port).collect();
        let groups = group_count(ports.len());
        // The rules of retained endpoints without an object are unknown, but the switch evaluated them.
        let are_evaluated = self.has_retained(bridge, pipeline::receiver_group(tag, 0));
        let has_rules = self.index.has_rules(network) || are_evaluated;
        let peer_groups = group_count(self.index.peers().len());
        let BaseConfig { uplinks, standby, .. } = &*self.base;
        let spread = Spread { groups, peer_groups, uplinks, standby, has_rules };
        let domain = self.segment(&network.id, &network.vrf, network.encap).domain;
        let flows = pipeline::network(network, domain, spread);
        let receivers: Vec<Receiver> = if has_rules {
            self.index.locals_in(network).map(|(local, port)| Receiver::new(local, port)).collect()
        } else {
            vec![]
        };
        let floods = if domain.is_learning() { 0 } else { groups };
        for group in 0..floods {
            let members = ports.iter().copied().skip(group * MAX_BUCKETS).take(MAX_BUCKETS);
            let group = pipeline::all_group(pipeline::endpoint_group(tag, group), members);
            let group = self.with_retained(bridge, group);
            self.edits.get_mut(bridge).set_group(group);
        }
        self.remove_groups(bridge, |index| pipeline::endpoint_group(tag, index), floods);
        let used = receivers.len().div_ceil(MAX_BUCKETS).max(usize::from(are_evaluated));
        for group in 0..used {
            let some = receivers.chunks(MAX_BUCKETS).nth(group).unwrap_or_default();
            let group = pipeline::receivers(pipeline::receiver_group(tag, group), some);
            let group = self.with_retained(bridge, group);
            self.edits.get_mut(bridge).set_group(group);
        }
        self.remove_groups(bridge, |index| pipeline::receiver_group(tag, index), used);
        self.set_flows(&id, bridge, flows, vec![]);
    }

    /// Removes the groups of a network, or those of peers, from index `first` on.
    fn remove_groups(&mut self, bridge: BridgeKind, id: impl Fn(usize) -> u32, first: usize) {
        let edit = self.edits.get_mut(bridge);
        let mut excess = (first..).map(id);
        while excess.next().is_some_and(|id| edit.remove_group(id)) {}
    }

    /// Returns the ids of the groups of both bridges.
    pub(super) fn expected_groups(&self) -> BTreeSet<(BridgeKind, u32)> {
        let peers = (0..group_count(self.index.peers().len())).map(|n| (BridgeKind::Vxlan, peer_group(n)));
        let uplinks = (self.base.uplinks.len() > 1).then_some((BridgeKind::Vlan, UPLINK_GROUP));
        let networks =
            self.index.networks().flat_map(|network| network_groups(self.index, self.numbers, network));
        let services = service_groups(self.index, self.numbers).into_iter();
        let services = services.map(|(group, _)| group);
        networks.chain(peers).chain(uplinks).chain(services).collect()
    }
}

/// Returns the groups of a network.
pub(crate) fn network_groups(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    network: &Network,
) -> Vec<(BridgeKind, u32)> {
    let (bridge, tag) = bridge_and_tag(network.encap);
    let groups = group_count(index.locals_in(network).count());
    let domain = domain(index, numbers, &network.vrf, (&network.id, network.encap));
    let is_learning = domain.unwrap_or(Domain::Network(network.encap)).is_learning();
    let flood = (0..groups).filter(|_| !is_learning);
    let flood = flood.map(|group| (bridge, pipeline::endpoint_group(tag, group)));
    let evaluated = (0..groups).filter(|_| index.has_rules(network));
    flood.chain(evaluated.map(|group| (bridge, pipeline::receiver_group(tag, group)))).collect()
}

/// Returns the groups of the services, which select backends.
pub(crate) fn service_groups(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
) -> Vec<((BridgeKind, u32), ObjectId)> {
    let groups = |service: &Service| {
        let id = ObjectId::Service(service.id.clone());
        let domains = domains_of_service(index, numbers, service).into_iter();
        let domains = domains.filter(|domain| pipeline::has_selection(service, *domain));
        let numbered = domains.filter_map(|domain| {
            let number = numbers.services.get(&Cookie::of(&id))?;
            Some(((domain.bridge(), pipeline::backend_group(number)), id.clone()))
        });
        numbered.collect::<Vec<_>>()
    };
    index.services().flat_map(groups).collect()
}

/// Number of groups for the local endpoints of a network, or for all peers: at least one.
pub(crate) fn group_count(members: usize) -> usize {
    members.div_ceil(MAX_BUCKETS).max(1)
}
