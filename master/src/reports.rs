//! Operational state of objects, endpoints and nodes, as `inspect` and `/services` report it.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

use contiv_model::api::{
    BgpOper, EndpointGroup, EndpointGroupOper, EndpointInspect, EndpointOper, NetworkOper, Node, Policy,
    PolicyOper, ServiceLbOper, Tenant, TenantOper,
};
use contiv_model::{bgp, endpoint, group, network, node, registry, service};

use crate::access::Scope;
use crate::cache::{AllocationRecord, ClusterCache};
use crate::domain::attachment::state_key;
use crate::domain::network_record::network_record;
use crate::domain::services::ProviderSources;
use crate::go_json;
use crate::ipam::{IpPool, Pool, Subnet};
use crate::problem::{Answer, Problem};

/// A report over a snapshot of the cache. It is assembled without the cache.
pub type Report<T> = Box<dyn FnOnce() -> T + Send>;

pub fn network(record: &AllocationRecord<network::State>, cache: &ClusterCache) -> Report<NetworkOper> {
    let body = &record.body;
    let endpoints: Vec<_> = cache.endpoints_of_network(&body.id).collect();
    let oper = NetworkOper {
        allocated_addresses_count: body.ep_addr_count,
        external_pkt_tag: body.ext_pkt_tag,
        network_tag: body.network_tag.clone(),
        num_endpoints: body.ep_count,
        pkt_tag: body.pkt_tag,
        ..NetworkOper::default()
    };
    let addresses = Subnet::of_state(body).ok().map(|subnet| Addresses {
        first: subnet.first,
        last: subnet.last,
        subnet,
        pool: record.pool.clone(),
    });
    Box::new(move || {
        let Lists { allocated, available } = addresses.map(Addresses::lists).unwrap_or_default();
        NetworkOper {
            allocated_ip_addresses: allocated,
            available_ip_addresses: available,
            endpoints: reported(&endpoints),
            ..oper
        }
    })
}

pub fn group(record: &AllocationRecord<group::State>, cache: &ClusterCache) -> Report<EndpointGroupOper> {
    let body = &record.body;
    let endpoints: Vec<_> = cache.endpoints_of_group(&body.id).collect();
    let oper = EndpointGroupOper {
        external_pkt_tag: body.ext_pkt_tag,
        group_tag: body.group_tag.clone(),
        num_endpoints: body.ep_count,
        pkt_tag: body.pkt_tag,
        ..EndpointGroupOper::default()
    };
    let network = network_record(cache, &body.tenant_name, &body.network_name);
    let subnet = network.and_then(|network| Subnet::of_state(&network.body).ok());
    let pool = subnet.and_then(|subnet| Some((subnet, IpPool::read(&body.ip_pool, &subnet).ok()??)));
    let addresses = pool.map(|(subnet, pool)| Addresses {
        first: subnet.address(pool.first),
        last: subnet.address(pool.last),
        subnet,
        pool: record.pool.clone(),
    });
    Box::new(move || {
        let Lists { allocated, available } = addresses.map(Addresses::lists).unwrap_or_default();
        EndpointGroupOper {
            allocated_ip_addresses: allocated,
            available_ip_addresses: available,
            endpoints: reported(&endpoints),
            ..oper
        }
    })
}

/// Addresses of a network or of a group's pool.
struct Addresses {
    subnet: Subnet,
    pool: Pool,
    /// First and last address of which the allocated ones are listed.
    first: Ipv4Addr,
    last: Ipv4Addr,
}

#[derive(Default)]
struct Lists {
    allocated: String,
    available: String,
}

impl Addresses {
    fn lists(self) -> Lists {
        let Addresses { subnet, pool, first, last } = self;
        Lists { allocated: subnet.allocated(&pool, first, last), available: subnet.available(&pool) }
    }
}

pub fn policy(policy: &Policy, cache: &ClusterCache) -> Report<PolicyOper> {
    let groups = cache.linked::<Policy, EndpointGroup>(&policy.key).map(state_key);
    let mut endpoints: Vec<_> =
        groups.flat_map(|key| cache.endpoints_of_group(&key).collect::<Vec<_>>()).collect();
    Box::new(move || {
        endpoints.sort_by(|a, b| a.id.cmp(&b.id));
        PolicyOper { num_endpoints: endpoints.len() as i64, endpoints: reported(&endpoints) }
    })
}

/// Like the original, this fills in the service name in each provider.
pub fn service(service: Arc<service::State>, cache: &ClusterCache) -> Report<ServiceLbOper> {
    let sources = ProviderSources::of_service(&service, cache);
    Box::new(move || {
        let provider = |e| EndpointOper { service_name: service.service_name.clone(), ..endpoint(e) };
        let providers: Vec<_> = sources.endpoints_of(&service).into_iter().map(provider).collect();
        let service_vip = service.ip_address.clone();
        ServiceLbOper { num_providers: providers.len() as i64, providers, service_vip }
    })
}

pub fn tenant(tenant: &Tenant, cache: &ClusterCache) -> Report<TenantOper> {
    let tenant = cache.links_of::<Tenant>(&tenant.key).added_to(tenant);
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
    let (mut groups, mut networks) = (vec![], vec![]);
    // Like the original, this omits names, tags and the addresses of groups.
    let name_of = |key: &String| key.split_once(':').map(|(_, name)| name.to_owned());
    for name in sets.endpoint_groups.keys().filter_map(name_of) {
        if let Some(record) = cache.allocation::<group::State>(&format!("{name}:{}", tenant.tenant_name)) {
            groups.push(group(record, cache));
        }
    }
    for name in sets.networks.keys().filter_map(name_of) {
        if let Some(record) = network_record(cache, &tenant.tenant_name, &name) {
            oper.total_endpoints += record.body.ep_count;
            networks.push(network(record, cache));
        }
    }
    Box::new(move || {
        let group = |full: EndpointGroupOper| EndpointGroupOper {
            allocated_ip_addresses: String::new(),
            available_ip_addresses: String::new(),
            group_tag: String::new(),
            ..full
        };
        let network = |full: NetworkOper| NetworkOper { network_tag: String::new(), ..full };
        oper.endpoint_groups = groups.into_iter().map(|report| group(report())).collect();
        oper.networks = networks.into_iter().map(|report| network(report())).collect();
        oper
    })
}

pub fn bgp(session: &bgp::Oper) -> Report<BgpOper> {
    let bgp::Oper { admin_status, neighbor_status, num_routes, routes, failure, .. } = session.clone();
    Box::new(move || BgpOper {
        admin_status,
        neighbor_status,
        num_routes: num_routes.cast_signed(),
        routes,
        failure,
    })
}

/// Finds an endpoint by id, container id or name; otherwise the first endpoint with `search` as a
/// substring of one of them. Endpoints that are not in the scope are not found.
pub fn find_endpoint(cache: &ClusterCache, search: &str, scope: &Scope) -> Report<Answer> {
    let tenants = cache.allocations::<network::State>().map(|record| &record.body);
    let tenants: HashMap<String, String> =
        tenants.map(|network| (network.id.clone(), network.tenant.clone())).collect();
    let (endpoints, opers) = endpoints_for(cache, scope, &tenants);
    let (search, scope) = (search.to_owned(), scope.clone());
    Box::new(move || {
        let visible = |e: &endpoint::State| {
            scope.has_endpoint(|| tenants.get(&e.net_id).map(String::as_str), &e.homing_host)
        };
        let find = |matches: &dyn Fn(&str) -> bool| {
            let names = |e: &endpoint::State| {
                matches(&e.endpoint_id) || matches(&e.container_id) || matches(&e.ep_common_name)
            };
            endpoints.iter().find(|e| names(e) && visible(e))
        };
        let found = find(&|name| name == search).or_else(|| find(&|name| name.contains(&search)));
        let found = found.ok_or_else(|| Problem::not_found("endpoint not found"))?;
        // An agent records an endpoint before it has a port.
        let oper = opers.iter().find(|oper| oper.id == found.id && !oper.port_name.is_empty());
        let virtual_port = oper.map(|oper| format!("v{}", oper.port_name)).unwrap_or_default();
        let oper = EndpointOper { key: search.clone(), virtual_port, ..endpoint(found) };
        go_json::encode(&EndpointInspect { oper })
    })
}

/// Endpoints among which are those in the scope, sorted by id, and what agents have recorded about them.
/// `tenants`: tenants of networks. Those of other tenants are left out, so that a tenant's search costs as
/// much as the tenant has endpoints.
fn endpoints_for(
    cache: &ClusterCache,
    scope: &Scope,
    tenants: &HashMap<String, String>,
) -> (Vec<Arc<endpoint::State>>, Vec<Arc<endpoint::Oper>>) {
    if !matches!(scope, Scope::Tenants(_)) {
        return (cache.all_shared(), cache.all_shared());
    }
    let networks = tenants.iter().filter(|(_, tenant)| scope.has_tenant(Some(tenant.as_str())));
    let mut endpoints: Vec<Arc<endpoint::State>> =
        networks.flat_map(|(network, _)| cache.endpoints_of_network(network)).collect();
    endpoints.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    let opers = endpoints.iter().filter_map(|endpoint| cache.shared::<endpoint::Oper>(&endpoint.id));
    let opers = opers.collect();
    (endpoints, opers)
}

/// Nodes that have run an agent, sorted by name.
pub fn nodes(cache: &ClusterCache) -> Report<Vec<Node>> {
    let statuses = cache.all_shared::<node::Status>();
    let services = cache.all_shared::<registry::ServiceInfo>();
    let gone = cache.all_shared::<node::Gone>();
    Box::new(move || join_nodes(&statuses, &services, &gone))
}

/// The node named `host`.
pub fn find_node(cache: &ClusterCache, host: &str) -> Report<Answer> {
    let statuses: Vec<_> = cache.shared::<node::Status>(host).into_iter().collect();
    let services = cache.table::<registry::ServiceInfo>().values().map(|entry| &entry.value);
    let services: Vec<_> = services.filter(|service| service.hostname == host).cloned().collect();
    let gone: Vec<_> = cache.shared::<node::Gone>(host).into_iter().collect();
    let host = host.to_owned();
    Box::new(move || {
        let node = join_nodes(&statuses, &services, &gone).into_iter().find(|node| node.status.host == host);
        go_json::encode(&node.ok_or_else(|| Problem::not_found("node not found"))?)
    })
}

/// Joins what is known of nodes.
fn join_nodes(
    statuses: &[Arc<node::Status>],
    services: &[Arc<registry::ServiceInfo>],
    gone: &[Arc<node::Gone>],
) -> Vec<Node> {
    let mut found: BTreeMap<&str, (node::Status, Option<&str>)> = BTreeMap::new();
    for status in statuses {
        found.insert(&status.host, ((**status).clone(), None));
    }
    for service in services {
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
    let gone: HashMap<&str, &str> = gone.iter().map(|g| (g.host.as_str(), g.since.as_str())).collect();
    let node = |(status, control): (node::Status, Option<&str>)| {
        let node = Node::new(status, control.map(str::to_owned));
        let gone_since = gone.get(node.status.host.as_str()).filter(|_| !node.registered);
        Node { gone_since: gone_since.copied().unwrap_or_default().to_owned(), ..node }
    };
    found.into_values().map(node).collect()
}

fn reported(endpoints: &[Arc<endpoint::State>]) -> Vec<EndpointOper> {
    endpoints.iter().map(|e| endpoint(e)).collect()
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

/// Body of `/services`: all service states in the scope.
pub fn service_states(cache: &ClusterCache, scope: &Scope) -> Report<Answer> {
    let (states, sources) = (cache.all_shared::<service::State>(), ProviderSources::of(cache));
    let scope = scope.clone();
    Box::new(move || {
        let mut providers = sources.providers(&states);
        let visible = states.iter().filter(|state| scope.has_tenant(Some(&state.tenant_name)));
        let with_providers = visible.map(|state| service::State {
            providers: Some(providers.remove(&state.id).unwrap_or_default()),
            ..(**state).clone()
        });
        listed(with_providers)
    })
}

/// Body of `/service/<service>:<tenant>`: a list with one element, or null.
pub fn service_state(cache: &ClusterCache, id: &str, scope: &Scope) -> Report<Answer> {
    let visible = |state: &Arc<service::State>| scope.has_tenant(Some(&state.tenant_name));
    let Some(state) = cache.shared::<service::State>(id).filter(visible) else {
        return Box::new(|| Ok(b"null".to_vec()));
    };
    let sources = ProviderSources::of_service(&state, cache);
    let states = cache.all_shared::<service::State>();
    Box::new(move || {
        let providers = sources.providers(&states).remove(&state.id).unwrap_or_default();
        listed(std::iter::once(service::State { providers: Some(providers), ..(*state).clone() }))
    })
}

fn listed(states: impl Iterator<Item = service::State>) -> Answer {
    let mut body = go_json::encode(&states.collect::<Vec<_>>())?;
    // These responses have no final newline.
    body.pop();
    Ok(body)
}
