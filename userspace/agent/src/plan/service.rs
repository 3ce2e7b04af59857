use contiv_model::{name::ServiceId, service::Readiness};

use crate::{
    datapath::{Backend, Scope, Service},
    state::State,
};

/// The service, if its network is active. Backends are the providers whose address is in a network of the tenant.
pub(super) fn service(state: &State, id: &ServiceId) -> Option<Service> {
    let service = state.service(id)?;
    let scope = match &service.network {
        Some(network) => {
            let network = state.active_network(network)?;
            Some(Scope { network: network.id.clone(), encap: network.encap })
        }
        None => None,
    };
    let backend = |ip| {
        let encap = state.encap_at(&service.tenant, service.network.as_ref(), ip)?;
        Some(Backend { ip, encap, readiness: Readiness::Ready })
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
