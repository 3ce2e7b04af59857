//! Domains of networks and services.

use contiv_model::{name::NetworkId, tag::Encap, vrf::Vrf};

use super::model::BaseConfig;
use crate::datapath::{
    Family, Object, ObjectId, Service, SubnetId,
    ovs::{
        bridge::BridgeKind,
        pipeline::{Domain, Routed},
        tables::{ids::ObjectNumbers, index::FlowIndex},
    },
};

/// Where the address of an installed service is unique: on the bridge of its network, or on each that routes networks of its VRF.
pub(crate) fn domains_of_service(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    base: &BaseConfig,
    service: &Service,
) -> Vec<Domain> {
    let vrf = &service.scope.vrf;
    match &service.scope.network {
        Some(network) => domain(index, numbers, vrf, (&network.id, network.encap)).into_iter().collect(),
        None => {
            let vlan = base.kernel.vlan.map(|_| BridgeKind::Vlan);
            let bridges = [BridgeKind::Vxlan].into_iter().chain(vlan);
            bridges.filter_map(|bridge| numbered(numbers, vrf, bridge)).collect()
        }
    }
}

/// Families of addresses of a network to which the nodes route.
pub(super) fn routed(index: &FlowIndex, network: &NetworkId) -> Routed {
    let is_routed = |family| {
        let id = ObjectId::Subnet(SubnetId { network: network.clone(), family });
        match index.get(&id).map(|installed| &installed.object) {
            Some(Object::Subnet(subnet)) => subnet.is_routed(),
            _ => false,
        }
    };
    Routed { v4: is_routed(Family::V4), v6: is_routed(Family::V6) }
}

/// Where the addresses of a network are unique; `None` without a number. A VLAN network of a tenant's VRF may be only bridged.
pub(super) fn domain(
    index: &FlowIndex,
    numbers: &ObjectNumbers,
    vrf: &Vrf,
    (network, encap): (&NetworkId, Encap),
) -> Option<Domain> {
    match (vrf, encap) {
        (Vrf::Tenant(_), Encap::Vxlan { .. }) => numbered(numbers, vrf, BridgeKind::Vxlan),
        (Vrf::Tenant(_), Encap::Vlan(_)) if routed(index, network).is_any() => {
            numbered(numbers, vrf, BridgeKind::Vlan)
        }
        _ => Some(Domain::Network(encap)),
    }
}

/// Where the addresses of a VRF are unique on the VXLAN bridge; `None` without a number, or without a network.
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

/// The networks of a VRF on a bridge.
fn numbered(numbers: &ObjectNumbers, vrf: &Vrf, bridge: BridgeKind) -> Option<Domain> {
    let number = u16::try_from(numbers.vrfs.get(vrf)?).ok()?;
    Some(Domain::Vrf(bridge, number))
}
