//! Use of the pools that addresses and tags are allocated from.

use std::collections::HashMap;

use contiv_model::{global, group, network};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::{family::Family, gauge::Gauge};
use prometheus_client::registry::Registry;

use crate::cache::{AllocationRecord, ClusterCache, ONLY};
use crate::ipam::{IpPool, Subnet};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressPool {
    network: String,
    /// Empty for the pool of the network itself.
    group: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TagPool {
    kind: &'static str,
}

/// Networks and groups with series of their own: the first ones by name.
const MAX_SERIES: usize = 1000;

/// Number of allocatable values in a pool, and how many of them are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    size: usize,
    free: usize,
}

/// Use of all pools.
pub(super) struct Pools {
    addresses: Vec<(AddressPool, Usage)>,
    tags: Vec<(&'static str, Usage)>,
}

impl Pools {
    pub(super) fn of(cache: &ClusterCache) -> Pools {
        let groups = cache.allocations::<group::State>().filter_map(|group| of_group(group, cache));
        let groups: Vec<_> = groups.collect();
        let mut reserved = HashMap::<String, usize>::new();
        for (pool, usage) in &groups {
            *reserved.entry(pool.network.clone()).or_default() += usage.size;
        }
        let networks = cache.allocations::<network::State>();
        let mut addresses: Vec<_> = networks.filter_map(|network| of_network(network, &reserved)).collect();
        addresses.extend(groups);
        addresses.sort_by(|(a, _), (b, _)| (&a.network, &a.group).cmp(&(&b.network, &b.group)));
        addresses.truncate(MAX_SERIES);
        Pools { addresses, tags: tags(cache) }
    }

    /// A pool of each family, which an empty cluster does not have.
    pub(super) fn sample() -> Pools {
        let usage = Usage { size: 0, free: 0 };
        let pool = AddressPool { network: String::new(), group: String::new() };
        Pools { addresses: vec![(pool, usage)], tags: vec![("vlan", usage)] }
    }
}

pub(super) fn register(registry: &mut Registry, pools: &Pools) {
    let (sizes, free) = (Family::<AddressPool, Gauge>::default(), Family::<AddressPool, Gauge>::default());
    for (pool, usage) in &pools.addresses {
        sizes.get_or_create(pool).set(number(usage.size));
        free.get_or_create(pool).set(number(usage.free));
    }
    let help = "IPv4 addresses that can be allocated in a network outside of the pools of its groups, or in the pool of a group; the first 1,000 pools by name";
    registry.register("pool_addresses", help, sizes);
    let help =
        "Free IPv4 addresses of a network outside of the pools of its groups, or of the pool of a group";
    registry.register("pool_addresses_free", help, free);
    let (sizes, free) = (Family::<TagPool, Gauge>::default(), Family::<TagPool, Gauge>::default());
    for (kind, usage) in &pools.tags {
        sizes.get_or_create(&TagPool { kind }).set(number(usage.size));
        free.get_or_create(&TagPool { kind }).set(number(usage.free));
    }
    registry.register("pool_tags", "VLAN ids and VNIs of the cluster, by kind", sizes);
    registry.register("pool_tags_free", "Free VLAN ids and VNIs of the cluster, by kind", free);
}

fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// `reserved`: sizes of the pools of groups, by network. Their addresses are allocated in the network, whether the groups use them
/// or not, and so is the gateway: a network with nothing else is not exhausted.
fn of_network(
    record: &AllocationRecord<network::State>,
    reserved: &HashMap<String, usize>,
) -> Option<(AddressPool, Usage)> {
    let subnet = Subnet::of_state(&record.body).ok()?;
    let is_allocatable =
        |host: &usize| subnet.allocation_range().is_some_and(|(first, last)| (first..=last).contains(host));
    let gateway = subnet.host(&record.body.gateway).ok().filter(is_allocatable);
    let reserved = reserved.get(&record.body.id).copied().unwrap_or_default();
    let size = subnet.capacity().ok()?.saturating_sub(reserved + usize::from(gateway.is_some()));
    let pool = AddressPool { network: record.body.id.clone(), group: String::new() };
    Some((pool, Usage { size, free: record.pool.free_count() }))
}

fn of_group(record: &AllocationRecord<group::State>, cache: &ClusterCache) -> Option<(AddressPool, Usage)> {
    let body = &record.body;
    let id = format!("{}.{}", body.network_name, body.tenant_name);
    let subnet = Subnet::of_state(&cache.allocation::<network::State>(&id)?.body).ok()?;
    let range = IpPool::read(&body.ip_pool, &subnet).ok()??;
    let pool = AddressPool { network: id, group: body.id.clone() };
    // Addresses outside the pool are not free.
    Some((pool, Usage { size: range.last - range.first + 1, free: record.pool.free_count() }))
}

/// Pools of VLAN ids and VNIs; none before the global settings are written.
fn tags(cache: &ClusterCache) -> Vec<(&'static str, Usage)> {
    let vlans = cache.get::<global::VlanPool>(ONLY).zip(cache.get::<global::VlanPoolOper>(ONLY));
    let vxlans = cache.get::<global::VxlanPool>(ONLY).zip(cache.get::<global::VxlanPoolOper>(ONLY));
    let vlans = vlans.map(|(all, oper)| ("vlan", all.vlans.count(), oper.free_vlans.count()));
    let vxlans = vxlans.map(|(all, oper)| ("vxlan", all.vxlans.count(), oper.free_vxlans.count()));
    vlans.into_iter().chain(vxlans).map(|(kind, size, free)| (kind, Usage { size, free })).collect()
}
