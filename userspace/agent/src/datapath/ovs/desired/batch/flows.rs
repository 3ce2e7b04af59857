//! The flows of objects.

use contiv_model::{name::NetworkId, tag::Encap, vrf::Vrf};
use openflow_rs::{Flow, PackedFlow};

use super::Batch;
use crate::datapath::{
    Object, ObjectId, Service,
    ovs::{
        bridge::BridgeKind,
        desired::domain::{domain, domain_of_vrf, domains_of_service, routed},
        pipeline::{self, Domain, Routed, Segment, bridge_and_tag},
        tables::cookie::Cookie,
    },
};

impl Batch<'_> {
    /// Sets the flows of an object on the bridge of its network. On the other bridge, sets the flows of a subnet whose
    /// VRF has networks there, and removes other flows of the object.
    pub(super) fn update_flows(&mut self, id: &ObjectId) {
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
            // Both bridges share one copy: there may be tens of thousands of flows.
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
        let mut apart = vec![];
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
            (Object::Local(local), None) => {
                let segment = self.segment(&local.network, &local.vrf, local.encap);
                (segment.domain.bridge(), pipeline::unattached(local, segment))
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
                apart = pipeline::apart(subnet, segment.domain);
                (bridge, flows)
            }
            (Object::Route(route), _) => {
                let domain = domain_of_vrf(self.index, self.numbers, &route.id.vrf);
                let flows = domain.zip(self.host_access(&route.id.vrf, BridgeKind::Vxlan));
                let flows = flows.map(|(domain, host)| pipeline::host_route(domain, host));
                (BridgeKind::Vxlan, flows.unwrap_or_default())
            }
            // The flows of a network depend on its number of groups: see `update_network`.
            (Object::Network(_) | Object::Peer(_) | Object::Group(_) | Object::Service(_), _) => return,
        };
        self.set_flows(id, bridge, flows, apart);
    }

    fn update_service(&mut self, id: &ObjectId, service: &Service) {
        let Some(number) = self.numbers.services.get(&Cookie::of(id)) else { return };
        let domains = domains_of_service(self.index, self.numbers, service);
        if domains.is_empty() {
            return;
        }
        let has_bond = self.base.uplinks.len() > 1;
        for kind in BridgeKind::ALL {
            let domain = domains.iter().copied().find(|domain| domain.bridge() == kind);
            let edit = self.edits.get_mut(kind);
            match domain.filter(|domain| pipeline::has_selection(service, *domain)) {
                Some(domain) => edit.set_group(pipeline::selection(service, domain, number)),
                None => drop(edit.remove_group(pipeline::backend_group(number))),
            }
            let answers = self.index.is_answered(service);
            let flows = domain.into_iter().flat_map(|domain| {
                let outside = pipeline::external(service, domain, number, answers, has_bond);
                pipeline::service(service, domain, number).into_iter().chain(outside)
            });
            edit.set(Cookie::of(id), flows);
        }
    }

    /// Sets the flows of an object on a bridge, and `apart` on the other bridge.
    pub(super) fn set_flows(
        &mut self,
        id: &ObjectId,
        bridge: BridgeKind,
        flows: Vec<Flow>,
        on_other: Vec<Flow>,
    ) {
        let other = if bridge == BridgeKind::Vlan { BridgeKind::Vxlan } else { BridgeKind::Vlan };
        self.edits.get_mut(bridge).set(Cookie::of(id), flows);
        self.edits.get_mut(other).set(Cookie::of(id), on_other);
    }

    /// Returns the network's tag and the domain in which its addresses are unique.
    pub(super) fn segment(&self, network: &NetworkId, vrf: &Vrf, encap: Encap) -> Segment {
        let routed = self.routed(network);
        let domain = domain(self.index, self.numbers, vrf, (network, encap));
        Segment { tag: bridge_and_tag(encap).1, domain: domain.unwrap_or(Domain::Network(encap)), routed }
    }

    /// Returns the address families of a network that the nodes route.
    pub(super) fn routed(&self, network: &NetworkId) -> Routed {
        routed(self.index, network)
    }
}
