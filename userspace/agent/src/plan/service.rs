use contiv_model::name::ServiceId;

use super::{network::of_node, node::Node};
use crate::{
    datapath::{Backend, Scope, ScopeNetwork, Service},
    state::State,
};

/// The service, if its network is active and has endpoints on this node. Backends are the providers whose address is in a network of the tenant.
pub(super) fn service(state: &State, node: &Node, id: &ServiceId) -> Option<Service> {
    let service = state.service(id)?;
    let network = match &service.network {
        Some(network) => {
            let network = of_node(state, node, network)?;
            Some(ScopeNetwork { id: network.id.clone(), encap: network.encap })
        }
        None => None,
    };
    let scope = Scope { vrf: state.vrf_of_service(service), network };
    let backend = |ip| {
        let encap = state.encap_at(&service.tenant, service.network.as_ref(), ip)?;
        Some(Backend::on(encap, ip))
    };
    Some(Service {
        id: id.clone(),
        scope,
        vip: service.vip,
        ports: service.ports.clone(),
        backends: state.providers(id).iter().filter_map(|ip| backend(*ip)).collect(),
        affinity: service.affinity,
    })
}
