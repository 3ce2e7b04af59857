//! Changes of the model that reach the switch together.

mod kernel;
mod retained;

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use contiv_model::{
    name::{NetworkId, ServiceId},
    tag::Encap,
    vrf::Vrf,
};
use openflow_rs::{Change, Flow, PackedFlow};

pub(crate) use retained::groups_of;

use super::{
    domain::{domain, domain_of_vrf, domains_of_service, routed},
    model::{BaseConfig, SwitchModel},
};
use crate::datapath::{
    Family, Network, Object, ObjectId, Service, SubnetId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{
            self, Domain, MAX_BUCKETS, Receiver, Routed, Segment, Spread, UPLINK_GROUP, bridge_and_tag,
            peer_group,
        },
        tables::{
            cookie::Cookie,
            edit::Edit,
            ids::ObjectNumbers,
            index::{BridgePort, FlowIndex, Installed, vrf_of},
        },
    },
};

/// UDP port of the node's own tunnels (RFC 7348 section 5).
const VXLAN_PORT: u16 = 4789;

/// Why an object cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSet {
    /// The node of a remote endpoint has no tunnel.
    #[error("no tunnel to {0}")]
    Tunnel(IpAddr),
    /// All numbers of services are in use.
    #[error("the switch has {0} services, and no number for another one")]
    ServiceNumber(u32),
    /// All numbers of VRFs are in use.
    #[error("the switch has {0} VRFs, and no number for another one")]
    VrfNumber(u32),
    /// A service of all networks of a VRF has none.
    #[error(
        "the service has no network, and no network that is routed in the {0} is on this node; give the service a network"
    )]
    Network(Vrf),
}

/// Uncommitted changes of a [`SwitchModel`].
///
/// The flows of an object are updated at once. Groups, and the flows of networks that use them, are updated in
/// [`changes`](Batch::changes) and [`commit`](Batch::commit), once for all objects that affect them.
pub(crate) struct Batch<'a> {
    index: &'a mut FlowIndex,
    base: &'a mut BaseConfig,
    edits: PerBridge<Edit<'a>>,
    numbers: &'a mut ObjectNumbers,
    /// Previous entries of the index, in the order of the changes.
    previous: Vec<(ObjectId, Option<Installed>)>,
    /// Networks whose groups and flows need an update.
    dirty_networks: BTreeSet<NetworkId>,
    /// Whether the group of all peers needs an update.
    dirty_peers: bool,
    /// Tags of removed networks, whose groups are removed.
    removed_tags: BTreeSet<(BridgeKind, u32)>,
    /// Removed services, whose numbers become free.
    removed_services: BTreeSet<ServiceId>,
    /// VRFs that objects were in, whose numbers become free if no object is.
    left_vrfs: BTreeSet<Vrf>,
    /// Port numbers of the node's kernel before the changes.
    previous_kernel: PerBridge<Option<u32>>,
    /// Groups and services whose flows were set or removed.
    counted: BTreeSet<ObjectId>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(model: &'a mut SwitchModel) -> Batch<'a> {
        let edits =
            PerBridge { vlan: Edit::new(&mut model.tables.vlan), vxlan: Edit::new(&mut model.tables.vxlan) };
        let previous_kernel = model.base.kernel;
        Batch {
            index: &mut model.index,
            base: &mut model.base,
            edits,
            numbers: &mut model.numbers,
            previous: vec![],
            dirty_networks: BTreeSet::new(),
            dirty_peers: false,
            removed_tags: BTreeSet::new(),
            removed_services: BTreeSet::new(),
            left_vrfs: BTreeSet::new(),
            previous_kernel,
            counted: BTreeSet::new(),
        }
    }

    /// Sets the flows and the group that exist for any desired state.
    pub(crate) fn set_base_flows(&mut self) {
        let BaseConfig { uplinks, vtep, kernel, .. } = &*self.base;
        for bridge in BridgeKind::ALL {
            let own = vtep.iter().flat_map(|address| pipeline::vtep(*address, VXLAN_PORT));
            let arrivals = uplinks.iter().filter(|_| bridge == BridgeKind::Vlan);
            let arrivals = arrivals.map(|port| pipeline::outside(*port));
            let host = match bridge {
                BridgeKind::Vlan => kernel.vlan.map(pipeline::from_network).unwrap_or_default(),
                BridgeKind::Vxlan => kernel.vxlan.map(pipeline::from_kernel).into_iter().collect(),
            };
            let flows = pipeline::base_flows(bridge).into_iter().chain(own).chain(arrivals).chain(host);
            self.edits.get_mut(bridge).set(Cookie::BASE, flows);
        }
        if let [_, _, ..] = &uplinks[..] {
            self.edits.vlan.set_group(pipeline::uplink_group(uplinks));
        }
        if !self.edits.vxlan.has_group(peer_group(0)) {
            self.edits.vxlan.set_group(pipeline::all_group(peer_group(0), []));
        }
    }

    /// Adds or replaces an object. Fails without a change if a remote endpoint has no tunnel, a service no network, or there is
    /// no number for the object.
    pub(crate) fn set(&mut self, object: Object, port: Option<BridgePort>) -> Result<(), NotSet> {
        if let Object::Remote(remote) = &object
            && let Some(vtep) = remote.vtep()
            && !self.index.peers().contains_key(&vtep)
        {
            return Err(NotSet::Tunnel(vtep));
        }
        let id = object.id();
        if let Object::Service(service) = &object
            && service.scope.network.is_none()
            && !self.index.has_network_in(&service.scope.vrf)
        {
            return Err(NotSet::Network(service.scope.vrf.clone()));
        }
        if let Some(vrf) = vrf_of(&object)
            && matches!(vrf, Vrf::Tenant(_))
        {
            self.left_vrfs.insert(vrf.clone());
            let assigned = self.numbers.vrfs.assign(vrf.clone(), pipeline::MAX_VRF);
            assigned.ok_or(NotSet::VrfNumber(pipeline::MAX_VRF))?;
        }
        if let ObjectId::Service(service) = &id {
            self.removed_services.remove(service);
            let assigned = self.numbers.services.assign(Cookie::of(&id), pipeline::MAX_SERVICE);
            assigned.ok_or(NotSet::ServiceNumber(pipeline::MAX_SERVICE))?;
        }
        self.mark_dirty(&id);
        let routed = self.routed_at(&id);
        let old = self.index.insert(Installed { object: object.clone(), port });
        self.mark_group_members(old.as_ref(), Some(&object));
        let before = old.as_ref().map(|installed| installed.object.clone());
        let old_port = old.as_ref().and_then(|installed| installed.port.as_ref()).map(|port| port.number);
        self.record(&id, old);
        self.update_flows(&id);
        self.update_members(&id);
        self.update_endpoints(&id, routed);
        self.update_spoken_for(before.as_ref(), Some(&object));
        self.update_host_access(&id);
        if let Object::Peer(peer) = &object
            && self.index.peers().get(&peer.vtep).copied() != old_port
        {
            for remote in self.index.remotes_at(peer.vtep) {
                self.update_flows(&ObjectId::Remote(remote));
            }
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, id: &ObjectId) {
        self.mark_dirty(id);
        let routed = self.routed_at(id);
        let old = self.index.remove(id);
        self.mark_group_members(old.as_ref(), None);
        let before = old.as_ref().map(|installed| installed.object.clone());
        self.record(id, old);
        if let ObjectId::Service(service) = id {
            if let Some(number) = self.numbers.services.get(&Cookie::of(id)) {
                let group = pipeline::backend_group(number);
                for bridge in BridgeKind::ALL {
                    self.edits.get_mut(bridge).remove_group(group);
                }
            }
            self.removed_services.insert(service.clone());
        }
        if matches!(id, ObjectId::Group(_) | ObjectId::Service(_)) {
            self.counted.insert(id.clone());
        }
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).set(Cookie::of(id), []);
        }
        self.update_members(id);
        self.update_endpoints(id, routed);
        self.update_spoken_for(before.as_ref(), None);
        self.update_host_access(id);
        // The port number of a removed tunnel can be assigned to another port.
        if let ObjectId::Peer(vtep) = id {
            for remote in self.index.remotes_at(*vtep) {
                self.update_flows(&ObjectId::Remote(remote));
            }
        }
    }

    /// Removes every flow and group that belongs to no installed object, if they do not stay.
    pub(crate) fn collect_garbage(&mut self) {
        if self.retains() {
            self.end_takeover();
            return;
        }
        self.set_base_flows();
        let owners: HashSet<_> = self.index.ids().map(Cookie::of).chain([Cookie::BASE]).collect();
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).retain_owners(|owner| owners.contains(&owner));
        }
        self.dirty_networks.extend(self.index.networks().map(|network| network.id.clone()));
        self.dirty_peers = true;
        self.update_groups();
        let groups = self.expected_groups();
        for bridge in BridgeKind::ALL {
            let orphans: Vec<_> =
                self.edits.get(bridge).group_ids().filter(|id| !groups.contains(&(bridge, *id))).collect();
            for id in orphans {
                self.edits.get_mut(bridge).remove_group(id);
            }
        }
    }

    /// Returns the modifications for each bridge.
    pub(crate) fn changes(&mut self) -> PerBridge<Vec<Change>> {
        self.update_groups();
        PerBridge { vlan: self.edits.vlan.changes(), vxlan: self.edits.vxlan.changes() }
    }

    /// Keeps the changes: the switch has accepted them. Returns the groups and services whose flows have changed.
    pub(crate) fn commit(mut self) -> BTreeSet<ObjectId> {
        self.update_groups();
        for service in std::mem::take(&mut self.removed_services) {
            self.numbers.services.remove(&Cookie::of(&ObjectId::Service(service)));
        }
        self.free_vrfs();
        self.counted
    }

    /// Reverts the changes after a rejection. The tables of the bridges in `applied` keep theirs.
    pub(crate) fn rollback(mut self, applied: &[BridgeKind]) {
        for (id, old) in std::mem::take(&mut self.previous).into_iter().rev() {
            match old {
                Some(installed) => drop(self.index.insert(installed)),
                None => drop(self.index.remove(&id)),
            }
        }
        self.free_vrfs();
        self.base.kernel = self.previous_kernel;
        let PerBridge { vlan, vxlan } = self.edits;
        for (bridge, edit) in [(BridgeKind::Vlan, vlan), (BridgeKind::Vxlan, vxlan)] {
            if !applied.contains(&bridge) {
                edit.rollback();
            }
        }
    }

    /// Keeps the previous entry of the index for a rollback.
    fn record(&mut self, id: &ObjectId, old: Option<Installed>) {
        self.left_vrfs.extend(old.as_ref().and_then(|installed| vrf_of(&installed.object)).cloned());
        self.previous.push((id.clone(), old));
    }

    fn free_vrfs(&mut self) {
        for vrf in std::mem::take(&mut self.left_vrfs) {
            if !self.index.has_vrf(&vrf) {
                self.numbers.vrfs.remove(&vrf);
            }
        }
    }

    /// Where the addresses of a network are unique.
    fn segment(&self, network: &NetworkId, vrf: &Vrf, encap: Encap) -> Segment {
        let routed = self.routed(network);
        let domain = domain(self.index, self.numbers, vrf, (network, encap));
        Segment { tag: bridge_and_tag(encap).1, domain: domain.unwrap_or(Domain::Network(encap)), routed }
    }

    /// Families of addresses of a network to which the nodes route.
    fn routed(&self, network: &NetworkId) -> Routed {
        routed(self.index, network)
    }

    /// As `routed` for the network of a subnet.
    fn routed_at(&self, id: &ObjectId) -> Option<Routed> {
        match id {
            ObjectId::Subnet(subnet) => Some(self.routed(&subnet.network)),
            _ => None,
        }
    }

    /// Updates the endpoints of a network, if a change of its subnet changes how they are reached.
    fn update_endpoints(&mut self, id: &ObjectId, before: Option<Routed>) {
        let ObjectId::Subnet(subnet) = id else { return };
        let (before, after) = (before.unwrap_or_default(), self.routed(&subnet.network));
        if before == after {
            return;
        }
        for endpoint in self.index.endpoints_on(&subnet.network) {
            self.update_flows(&endpoint);
        }
        // A VLAN is in another domain.
        if before.is_any() != after.is_any() {
            self.dirty_networks.insert(subnet.network.clone());
            for family in Family::ALL {
                self.update_flows(&ObjectId::Subnet(SubnetId { network: subnet.network.clone(), family }));
            }
            let services = self.index.services().filter(|service| {
                service.scope.network.as_ref().is_some_and(|network| network.id == subnet.network)
            });
            let services: Vec<ObjectId> =
                services.map(|service| ObjectId::Service(service.id.clone())).collect();
            services.iter().for_each(|service| self.update_flows(service));
        }
    }

    /// Updates the services for which this node begins or ends to answer requests when an endpoint comes or goes.
    fn update_spoken_for(&mut self, old: Option<&Object>, new: Option<&Object>) {
        let place = |object: Option<&Object>| match object {
            Some(Object::Local(local)) => Some((local.network.clone(), local.addresses.clone())),
            _ => None,
        };
        let (old, new) = (place(old), place(new));
        if old == new {
            return;
        }
        let addresses = old
            .iter()
            .chain(&new)
            .flat_map(|(network, addresses)| addresses.iter().map(move |ip| (network, ip)));
        let services: BTreeSet<ServiceId> =
            addresses.flat_map(|(network, ip)| self.index.spoken_for(network, ip)).cloned().collect();
        services.into_iter().for_each(|service| self.update_flows(&ObjectId::Service(service)));
    }

    /// Marks what depends on a peer or a network.
    fn mark_dirty(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Peer(_) => self.dirty_peers = true,
            ObjectId::Network(network) => {
                self.dirty_networks.insert(network.clone());
            }
            _ => {}
        }
    }

    /// Marks the networks of a local endpoint before and after its change, and the VNI that a network no longer uses.
    fn mark_group_members(&mut self, old: Option<&Installed>, new: Option<&Object>) {
        for object in old.map(|installed| &installed.object).into_iter().chain(new) {
            if let Object::Local(local) = object {
                self.dirty_networks.insert(local.network.clone());
            }
        }
        if let Some(Installed { object: Object::Network(old), .. }) = old {
            let unchanged = matches!(new, Some(Object::Network(new)) if new.encap == old.encap);
            if !unchanged {
                self.removed_tags.insert(bridge_and_tag(old.encap));
            }
        }
    }

    /// Updates what depends on the rules of a group: the flows of its local endpoints and their networks.
    fn update_members(&mut self, id: &ObjectId) {
        let ObjectId::Group(identity) = id else { return };
        for member in self.index.members(*identity) {
            let member = ObjectId::Local(member);
            if let Some(Installed { object: Object::Local(local), .. }) = self.index.get(&member) {
                self.dirty_networks.insert(local.network.clone());
            }
            self.update_flows(&member);
        }
    }

    /// Sets the flows of an object on the bridge of its network, and removes them from the other bridge.
    fn update_flows(&mut self, id: &ObjectId) {
        let Some(installed) = self.index.get(id) else { return };
        let number = installed.port.as_ref().map(|port| port.number);
        if let (Object::Peer(peer), Some(port)) = (&installed.object, number) {
            let to_vtep = pipeline::vtep(peer.vtep, peer.port);
            self.edits.vlan.set(Cookie::of(id), to_vtep.clone());
            self.edits.vxlan.set(Cookie::of(id), to_vtep.into_iter().chain(pipeline::tunnel(port)));
            return;
        }
        if let Object::Group(group) = &installed.object {
            let owner = Cookie::of(id);
            let flows = pipeline::rules(group).into_iter().map(|flow| PackedFlow::new(&flow.cookie(owner.0)));
            // In one copy: there may be tens of thousands.
            let flows: Vec<PackedFlow> = flows.collect();
            self.edits.vlan.set_packed(owner, flows.iter().cloned());
            self.edits.vxlan.set_packed(owner, flows);
            self.counted.insert(id.clone());
            return;
        }
        if let Object::Service(service) = &installed.object {
            let service = service.clone();
            self.counted.insert(id.clone());
            self.update_service(id, &service);
            return;
        }
        let (bridge, flows) = match (&installed.object, number) {
            (Object::Local(local), Some(port)) => {
                let dscp = local.identity.and_then(|identity| self.index.group(identity)?.dscp);
                let segment = self.segment(&local.network, &local.vrf, local.encap);
                let mut flows = pipeline::local(local, segment, port, dscp);
                let bridge = segment.domain.bridge();
                if let Some(host) = self.host_access(&local.vrf, bridge) {
                    flows.extend(pipeline::host_local(local, segment, port, host));
                }
                (bridge, flows)
            }
            (Object::Remote(remote), _) => {
                let segment = self.segment(&remote.network, &remote.vrf, remote.encap);
                let port = match segment.domain.is_local() {
                    true => self.base.kernel.vlan,
                    false => remote.vtep().and_then(|vtep| self.index.peers().get(&vtep).copied()),
                };
                (segment.domain.bridge(), pipeline::remote(remote, segment, port))
            }
            (Object::Subnet(subnet), _) => {
                let segment = self.segment(&subnet.network, &subnet.vrf, subnet.encap);
                let mut flows = pipeline::subnet(subnet, segment, self.base.kernel.vlan);
                let bridge = segment.domain.bridge();
                if let Some(host) = self.host_access(&subnet.vrf, bridge) {
                    flows.extend(pipeline::host_subnet(subnet, segment.domain, host));
                }
                (bridge, flows)
            }
            (Object::Route(route), _) => {
                let domain = domain_of_vrf(self.index, self.numbers, &route.id.vrf);
                let flows = domain.zip(self.host_access(&route.id.vrf, BridgeKind::Vxlan));
                let flows = flows.map(|(domain, host)| pipeline::host_route(domain, host));
                (BridgeKind::Vxlan, flows.unwrap_or_default())
            }
            // The flows of a network depend on its number of groups: see `update_network`.
            (Object::Network(_) | Object::Peer(_) | Object::Local(_), _)
            | (Object::Group(_) | Object::Service(_), _) => return,
        };
        self.set_flows(id, bridge, flows);
    }

    fn update_service(&mut self, id: &ObjectId, service: &Service) {
        let Some(number) = self.numbers.services.get(&Cookie::of(id)) else { return };
        let domains = domains_of_service(self.index, self.numbers, self.base, service);
        if domains.is_empty() {
            return;
        }
        for kind in BridgeKind::ALL {
            let domain = domains.iter().copied().find(|domain| domain.bridge() == kind);
            let edit = self.edits.get_mut(kind);
            match domain.filter(|domain| pipeline::has_selection(service, *domain)) {
                Some(domain) => edit.set_group(pipeline::selection(service, domain, number)),
                None => drop(edit.remove_group(pipeline::backend_group(number))),
            }
            let answers = self.index.is_answered(service);
            let flows = domain.into_iter().flat_map(|domain| {
                let outside = pipeline::external(service, domain, number, answers);
                pipeline::service(service, domain, number).into_iter().chain(outside)
            });
            edit.set(Cookie::of(id), flows);
        }
    }

    fn set_flows(&mut self, id: &ObjectId, bridge: BridgeKind, flows: Vec<Flow>) {
        let other = if bridge == BridgeKind::Vlan { BridgeKind::Vxlan } else { BridgeKind::Vlan };
        self.edits.get_mut(bridge).set(Cookie::of(id), flows);
        self.edits.get_mut(other).set(Cookie::of(id), []);
    }

    /// Updates the groups, and the flows of networks that use them.
    fn update_groups(&mut self) {
        for (bridge, tag) in std::mem::take(&mut self.removed_tags) {
            self.remove_groups(bridge, |index| pipeline::endpoint_group(tag, index), 0);
            self.remove_groups(bridge, |index| pipeline::receiver_group(tag, index), 0);
        }
        // Before the networks, whose flows name the groups of peers.
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
        let ports: Vec<_> = self.index.local_ports(&network.id).collect();
        let groups = group_count(ports.len());
        // Of endpoints that stay without an object the rules are unknown, but were evaluated.
        let are_evaluated = self.has_retained(bridge, pipeline::receiver_group(tag, 0));
        let has_rules = self.index.has_rules(&network.id) || are_evaluated;
        let peer_groups = group_count(self.index.peers().len());
        let spread = Spread { groups, peer_groups, uplinks: &self.base.uplinks, has_rules };
        let domain = self.segment(&network.id, &network.vrf, network.encap).domain;
        let flows = pipeline::network(network, domain, spread);
        let receivers: Vec<Receiver> = if has_rules {
            self.index.locals(&network.id).map(|(local, port)| Receiver::new(local, port)).collect()
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
        self.set_flows(&id, bridge, flows);
    }

    /// Removes the groups of a network, or those of peers, from index `first` on.
    fn remove_groups(&mut self, bridge: BridgeKind, id: impl Fn(usize) -> u32, first: usize) {
        let edit = self.edits.get_mut(bridge);
        let mut excess = (first..).map(id);
        while excess.next().is_some_and(|id| edit.remove_group(id)) {}
    }

    /// The groups of both bridges.
    fn expected_groups(&self) -> BTreeSet<(BridgeKind, u32)> {
        let peers = (0..group_count(self.index.peers().len())).map(|n| (BridgeKind::Vxlan, peer_group(n)));
        let uplinks = (self.base.uplinks.len() > 1).then_some((BridgeKind::Vlan, UPLINK_GROUP));
        let networks =
            self.index.networks().flat_map(|network| network_groups(self.index, self.numbers, network));
        let services = service_groups(self.index, self.numbers, self.base).into_iter();
        let services = services.map(|(group, _)| group);
        networks.chain(peers).chain(uplinks).chain(services).collect()
    }
}

/// Groups of a network.
pub(crate) fn network_groups(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    network: &Network,
) -> Vec<(BridgeKind, u32)> {
    let (bridge, tag) = bridge_and_tag(network.encap);
    let groups = group_count(index.local_ports(&network.id).len());
    let domain = domain(index, numbers, &network.vrf, (&network.id, network.encap));
    let is_learning = domain.unwrap_or(Domain::Network(network.encap)).is_learning();
    let flood = (0..groups).filter(|_| !is_learning);
    let flood = flood.map(|group| (bridge, pipeline::endpoint_group(tag, group)));
    let evaluated = (0..groups).filter(|_| index.has_rules(&network.id));
    flood.chain(evaluated.map(|group| (bridge, pipeline::receiver_group(tag, group)))).collect()
}

/// Groups of the services, which select backends.
pub(crate) fn service_groups(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    base: &BaseConfig,
) -> Vec<((BridgeKind, u32), ObjectId)> {
    let groups = |service: &Service| {
        let id = ObjectId::Service(service.id.clone());
        let domains = domains_of_service(index, numbers, base, service).into_iter();
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
