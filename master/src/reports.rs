//! Operational state of objects, endpoints and nodes, as `inspect` and `/services` report it.

use std::collections::BTreeMap;

use contiv_model::api::{
    EndpointGroupOper, EndpointInspect, EndpointOper, NetworkOper, Node, Policy, PolicyOper, ServiceLbOper,
    Tenant, TenantOper,
};
use contiv_model::{endpoint, group, network, node, registry, service};

use crate::cache::{AllocationRecord, ClusterCache};
use crate::domain::attachment::state_key;
use crate::domain::network_record::network_record;
use crate::go_json;
use crate::ipam::{IpPool, Subnet};
use crate::problem::{Answer, Problem};

pub fn network(record: &AllocationRecord<network::State>, cache: &ClusterCache) -> NetworkOper {
    let body = &record.body;
    let mut oper = NetworkOper {
        allocated_addresses_count: body.ep_addr_count,
        endpoints: endpoints(cache, |endpoint| endpoint.net_id == body.id),
        external_pkt_tag: body.ext_pkt_tag,
        network_tag: body.network_tag.clone(),
        num_endpoints: body.ep_count,
        pkt_tag: body.pkt_tag,
        ..NetworkOper::default()
    };
    if let Ok(subnet) = Subnet::of_state(body) {
        let bits = record.pool.bits();
        oper.allocated_ip_addresses = subnet.allocated(bits, subnet.first, subnet.last);
        oper.available_ip_addresses = subnet.available(bits);
    }
    oper
}

pub fn group(record: &AllocationRecord<group::State>, cache: &ClusterCache) -> EndpointGroupOper {
    let body = &record.body;
    let mut oper = EndpointGroupOper {
        endpoints: endpoints(cache, |endpoint| endpoint.endpoint_group_key == body.id),
        external_pkt_tag: body.ext_pkt_tag,
        group_tag: body.group_tag.clone(),
        num_endpoints: body.ep_count,
        pkt_tag: body.pkt_tag,
        ..EndpointGroupOper::default()
    };
    let network = network_record(cache, &body.tenant_name, &body.network_name);
    let subnet = network.and_then(|network| Subnet::of_state(&network.body).ok());
    if let Some((subnet, pool)) = subnet.and_then(|s| Some((s, IpPool::read(&body.ip_pool, &s).ok()??))) {
        let bits = record.pool.bits();
        let (first, last) = (subnet.address(pool.first), subnet.address(pool.last));
        oper.allocated_ip_addresses = subnet.allocated(bits, first, last);
        oper.available_ip_addresses = subnet.available(bits);
    }
    oper
}

pub fn policy(policy: &Policy, cache: &ClusterCache) -> PolicyOper {
    let groups: Vec<String> = policy.link_sets.endpoint_groups.keys().map(|key| state_key(key)).collect();
    let endpoints = endpoints(cache, |endpoint| groups.contains(&endpoint.endpoint_group_key));
    PolicyOper { num_endpoints: endpoints.len() as i64, endpoints }
}

/// Like the original, this fills in the service name in each provider.
pub fn service(service: &service::State, cache: &ClusterCache) -> ServiceLbOper {
    let providers = service.providers.iter().flat_map(|providers| providers.values());
    let providers = providers.filter_map(|provider| cache.get::<endpoint::State>(&provider.endpoint));
    let name = &service.service_name;
    let providers: Vec<_> =
        providers.map(|e| EndpointOper { service_name: name.clone(), ..endpoint(e) }).collect();
    ServiceLbOper {
        num_providers: providers.len() as i64,
        providers,
        service_vip: service.ip_address.clone(),
    }
}

pub fn tenant(tenant: &Tenant, cache: &ClusterCache) -> TenantOper {
    let sets = &tenant.link_sets;
    let mut oper = TenantOper {
        total_app_profiles: sets.app_profiles.len() as i64,
        total_epgs: sets.endpoint_groups.len() as i64,
        total_netprofiles: sets.net_profiles.len() as i64,
        total_networks: sets.networks.len() as i64,
        total_policies: sets.policies.len() as i64,
        total_servicelbs: sets.servicelbs.len() as i64,
        ..TenantOper::default()
    };
    // Like the original, this omits names, tags and the addresses of groups.
    let name_of = |key: &String| key.split_once(':').map(|(_, name)| name.to_owned());
    for name in sets.endpoint_groups.keys().filter_map(name_of) {
        if let Some(record) = cache.allocation::<group::State>(&format!("{name}:{}", tenant.tenant_name)) {
            let full = group(record, cache);
            oper.endpoint_groups.push(EndpointGroupOper {
                allocated_ip_addresses: String::new(),
                available_ip_addresses: String::new(),
                group_tag: String::new(),
                ..full
            });
        }
    }
    for name in sets.networks.keys().filter_map(name_of) {
        if let Some(record) = network_record(cache, &tenant.tenant_name, &name) {
            let full = network(record, cache);
            oper.total_endpoints += full.num_endpoints;
            oper.networks.push(NetworkOper { network_tag: String::new(), ..full });
        }
    }
    oper
}

/// Finds an endpoint by id, container id or name; otherwise the first endpoint with `search` as a
/// substring of one of them.
pub fn find_endpoint(cache: &ClusterCache, search: &str) -> Answer {
    let names =
        |e: &endpoint::State| [e.endpoint_id.clone(), e.container_id.clone(), e.ep_common_name.clone()];
    let all = || cache.all::<endpoint::State>();
    let found = all()
        .find(|e| names(e).iter().any(|name| name == search))
        .or_else(|| all().find(|e| names(e).iter().any(|name| name.contains(search))))
        .ok_or_else(|| Problem::not_found("endpoint not found"))?;
    let oper = cache.get::<endpoint::Oper>(&found.id);
    let virtual_port = oper.map(|oper| format!("v{}", oper.port_name)).unwrap_or_default();
    go_json::encode(&EndpointInspect {
        oper: EndpointOper { key: search.to_owned(), virtual_port, ..endpoint(found) },
    })
}

/// Nodes that have run an agent, sorted by name.
pub fn nodes(cache: &ClusterCache) -> Vec<Node> {
    let mut found: BTreeMap<&str, (node::Status, Option<&str>)> = BTreeMap::new();
    for status in cache.all::<node::Status>() {
        found.insert(&status.host, (status.clone(), None));
    }
    for service in cache.all::<registry::ServiceInfo>() {
        let entry = || (node::Status { host: service.hostname.clone(), ..node::Status::default() }, None);
        match service.service_name.as_str() {
            registry::NETPLUGIN => {
                found.entry(&service.hostname).or_insert_with(entry).1 = Some(&service.host_addr);
            }
            registry::VTEP => {
                let (status, _) = found.entry(&service.hostname).or_insert_with(entry);
                status.vtep_ip.clone_from(&service.host_addr);
                status.vxlan_port = service.port;
            }
            _ => {}
        }
    }
    let gone_since = |host: &str| cache.get::<node::Gone>(host).map(|gone| gone.since.clone());
    let node = |(status, control): (node::Status, Option<&str>)| {
        let node = Node::new(status, control.map(str::to_owned));
        Node {
            gone_since: gone_since(&node.status.host).filter(|_| !node.registered).unwrap_or_default(),
            ..node
        }
    };
    found.into_values().map(node).collect()
}

/// The node named `host`.
pub fn find_node(cache: &ClusterCache, host: &str) -> Answer {
    let node = nodes(cache).into_iter().find(|node| node.status.host == host);
    go_json::encode(&node.ok_or_else(|| Problem::not_found("node not found"))?)
}

fn endpoints(cache: &ClusterCache, pick: impl Fn(&endpoint::State) -> bool) -> Vec<EndpointOper> {
    cache.all::<endpoint::State>().filter(|e| pick(e)).map(endpoint).collect()
}

fn endpoint(e: &endpoint::State) -> EndpointOper {
    let labels = e.labels.iter().flatten().map(|(name, value)| format!("{name}:{value}"));
    EndpointOper {
        key: String::new(),
        container_id: e.container_id.clone(),
        container_name: e.ep_common_name.clone(),
        endpoint_group_id: e.endpoint_group_id,
        endpoint_group_key: e.endpoint_group_key.clone(),
        endpoint_id: e.endpoint_id.clone(),
        homing_host: e.homing_host.clone(),
        intf_name: e.intf_name.clone(),
        ip_address: [e.ip_address.clone(), e.ipv6_address.clone()],
        labels: format!("map[{}]", labels.collect::<Vec<_>>().join(" ")),
        mac_address: e.mac_address.clone(),
        network: e.net_id.clone(),
        service_name: e.service_name.clone(),
        virtual_port: String::new(),
        vtep_ip: e.vtep_ip.clone(),
    }
}

/// Body of `/services`: all service states.
pub fn service_states(cache: &ClusterCache) -> Answer {
    listed(cache.all::<service::State>())
}

/// Body of `/service/<service>:<tenant>`: a list with one element, or null.
pub fn service_state(cache: &ClusterCache, id: &str) -> Answer {
    match cache.get::<service::State>(id) {
        Some(state) => listed(std::iter::once(state)),
        None => Ok(b"null".to_vec()),
    }
}

fn listed<'w>(states: impl Iterator<Item = &'w service::State>) -> Answer {
    let mut body = go_json::encode(&states.collect::<Vec<_>>())?;
    // These responses have no final newline.
    body.pop();
    Ok(body)
}
