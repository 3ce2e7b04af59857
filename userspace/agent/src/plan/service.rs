use std::{collections::BTreeSet, net::IpAddr};

use contiv_abi::dhcp_client;
use contiv_model::{
    key::Key,
    name::{NetworkId, ServiceId},
    policy::UDP,
    service::{Port, Providers},
    tag::Encap,
};

use super::{network::of_node, node::Node};
use crate::{
    datapath::{Backend, Scope, ScopeNetwork, Service},
    state::State,
};

/// Returns the service if its network is active and has endpoints on this node. Backends are the providers whose address
/// is in a network of the tenant that the clients reach: the network of the service, or one that is routed to it.
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
    let own = service.network.as_ref().and_then(|network| state.active_network(network));
    let backend = |ip| {
        let at = state.network_at(&service.tenant, service.network.as_ref(), ip)?;
        let is_reached = own.is_none_or(|own| own.id == at.id || state.is_routed_between(own, at));
        is_reached.then(|| Backend::on(at.encap, ip))
    };
    Some(Service {
        id: id.clone(),
        scope,
        vip: service.vip,
        ports: service.ports.iter().copied().filter(|port| !is_for_dhcp_client(service.vip, port)).collect(),
        backends: state.providers(id).iter().filter_map(|ip| backend(*ip)).collect(),
        affinity: service.affinity,
    })
}

/// Reports whether the port is that of DHCP clients, which only a DHCP server sends to. Such datagrams are never
/// delivered to endpoints, whatever their destination address was.
fn is_for_dhcp_client(vip: IpAddr, port: &Port) -> bool {
    port.protocol.number() == UDP && port.target == dhcp_client(vip.is_ipv6())
}

/// Returns the services whose plan is incomplete because of an unreadable record: backends are missing because of a list
/// of providers or a network of the tenant, or answers on a VLAN are missing because of an endpoint on this node.
pub(super) fn incomplete(state: &State) -> impl Iterator<Item = &ServiceId> {
    let mut lists = BTreeSet::new();
    let mut networks: Vec<&NetworkId> = vec![];
    for key in state.unreadable() {
        match key {
            Key::Providers(list) => _ = lists.insert(Providers::service_of(list.as_str())),
            Key::Network(network) => networks.push(network),
            _ => {}
        }
    }
    let lacks_network = move |service: &contiv_model::service::Service| {
        // Names may contain dots.
        let suffix = format!(".{}", service.tenant);
        let network = |ip| state.network_at(&service.tenant, service.network.as_ref(), ip);
        networks.iter().any(|network| network.as_str().ends_with(&suffix))
            && state.providers(&service.id).iter().any(|ip| network(*ip).is_none())
    };
    let lacks_endpoint = move |service: &contiv_model::service::Service| {
        let network = service.network.as_ref().and_then(|id| state.network(id));
        let network = network.filter(|network| matches!(network.encap, Encap::Vlan(_)));
        network.is_some_and(|network| state.has_unreadable_interface(&network.id))
    };
    let is_incomplete = move |service: &contiv_model::service::Service| {
        lists.contains(service.id.as_str()) || lacks_network(service) || lacks_endpoint(service)
    };
    state.services().filter(move |service| is_incomplete(service)).map(|service| &service.id)
}
