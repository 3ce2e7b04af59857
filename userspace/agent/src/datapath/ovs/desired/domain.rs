//! Domains of networks and services.

use std::collections::BTreeMap;

use contiv_model::{name::NetworkId, tag::Encap, vrf::Vrf};

use crate::datapath::{
    Desired, Family, Network, Object, ObjectId, Service, SubnetId,
    ovs::{
        bridge::BridgeKind,
        pipeline::{Domain, Routed},
        tables::{ids::ObjectNumbers, index::FlowIndex},
    },
};

/// Returns the domains in which the address of an installed service is unique: on the bridge of its network, or on each
/// bridge that routes networks of its VRF.
pub(crate) fn domains_of_service(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    service: &Service,
) -> Vec<Domain> {
    let vrf = &service.scope.vrf;
    match &service.scope.network {
        Some(network) => domain(index, numbers, vrf, (&network.id, network.encap)).into_iter().collect(),
        None => {
            let vlan = index.has_routed_vlan().then_some(BridgeKind::Vlan);
            let bridges = [BridgeKind::Vxlan].into_iter().chain(vlan);
            bridges.filter_map(|bridge| numbered(numbers, vrf, bridge)).collect()
        }
    }
}

/// Returns the connection tracking zones of the installed networks, for their connections and for those of clients to
/// services, with the network or VRF of each zone.
pub(crate) fn zones(index: &FlowIndex, numbers: &ObjectNumbers) -> BTreeMap<u16, String> {
    let mut owners: BTreeMap<u16, String> = BTreeMap::new();
    for network in index.networks() {
        let Some(domain) = domain(index, numbers, &network.vrf, (&network.id, network.encap)) else {
            continue;
        };
        let owner = match domain {
            Domain::Network(_) | Domain::RoutedVlan(_) => format!("network {}", network.id),
            Domain::Vrf(..) => format!("VRF {}", network.vrf),
        };
        for zone in [domain.zone(), domain.clients_zone()] {
            // If two networks have one tag, the result is deterministic.
            let known = owners.entry(zone).or_insert_with(|| owner.clone());
            if owner < *known {
                known.clone_from(&owner);
            }
        }
    }
    owners
}

/// Returns the address families of a network that the nodes route.
pub(super) fn routed(index: &FlowIndex, network: &NetworkId) -> Routed {
    routed_by(|id| Some(&index.get(id)?.object), network)
}

fn routed_by<'a>(find: impl Fn(&ObjectId) -> Option<&'a Object>, network: &NetworkId) -> Routed {
    let is_routed = |family| {
        let id = ObjectId::Subnet(SubnetId { network: network.clone(), family });
        matches!(find(&id), Some(Object::Subnet(subnet)) if subnet.is_routed())
    };
    Routed { v4: is_routed(Family::V4), v6: is_routed(Family::V6) }
}

/// Returns the domain in which the addresses of a network are unique; `None` without a number. A VLAN network may be only
/// bridged, whatever its VRF is.
pub(crate) fn domain(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    vrf: &Vrf,
    (network, encap): (&NetworkId, Encap),
) -> Option<Domain> {
    domain_by(|| routed(index, network), numbers, vrf, encap)
}

/// Returns the domain of a network that need not be installed.
pub(crate) fn domain_of_network(
    desired: &Desired,
    numbers: &ObjectNumbers,
    network: &Network,
) -> Option<Domain> {
    domain_by(|| routed_by(|id| desired.get(id), &network.id), numbers, &network.vrf, network.encap)
}

fn domain_by(
    routed: impl FnOnce() -> Routed,
    numbers: &ObjectNumbers,
    vrf: &Vrf,
    encap: Encap,
) -> Option<Domain> {
    match (vrf, encap) {
        (_, Encap::Vlan(_)) if !routed().is_any() => Some(Domain::Network(encap)),
        (Vrf::Tenant(_), Encap::Vlan(_)) => numbered(numbers, vrf, BridgeKind::Vlan),
        (Vrf::Tenant(_), Encap::Vxlan { .. }) => numbered(numbers, vrf, BridgeKind::Vxlan),
        // Its tag alone identifies the domain: it needs no number.
        (Vrf::Network(_), Encap::Vlan(vlan)) => Some(Domain::RoutedVlan(vlan)),
        (Vrf::Network(_), Encap::Vxlan { .. }) => Some(Domain::Network(encap)),
    }
}

/// Returns the domain of a VRF on the VXLAN bridge; `None` without a number or without a network.
pub(super) fn domain_of_vrf(index: &FlowIndex, numbers: &ObjectNumbers, vrf: &Vrf) -> Option<Domain> {
    match vrf {
        Vrf::Tenant(_) => numbered(numbers, vrf, BridgeKind::Vxlan),
        Vrf::Network(id) => {
            match index.get(&ObjectId::Network(id.clone())).map(|installed| &installed.object) {
                Some(Object::Network(network)) => Some(Domain::Network(network.encap)),
                _ => None,
            }
        }
    }
}

/// Returns the domain of the networks of a VRF on a bridge.
fn numbered(numbers: &ObjectNumbers, vrf: &Vrf, bridge: BridgeKind) -> Option<Domain> {
    let number = u16::try_from(numbers.vrfs.get(vrf)?).ok()?;
    Some(Domain::Vrf(bridge, number))
}
