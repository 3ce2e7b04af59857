//! Networks.

use std::collections::BTreeSet;
use std::sync::Arc;

use contiv_model::api::{EndpointGroup, Global, Link, Network, NetworkOper, Tenant};
use contiv_model::key::ObjectType;
use contiv_model::{endpoint, network};

use super::global::{self, ready};
use super::tenant::require_tenant;
use super::{Cluster, Object, Preset};
use crate::cache::{ClusterCache, StagedTxn};
use crate::domain::attachment::{check_refresh, policies_with_network, refresh_policy};
use crate::domain::network_record::{ensure_no_network_record, network_id, network_record};
use crate::domain::object_key;
use crate::domain::tag_pools::{pools, put_vlans, put_vxlans};
use crate::ipam::{Subnet, Subnet6, host_key};
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, LINK, Schema, Type, format};
use crate::tags::{Vlans, Vxlans};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Network",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("cfgdTag", 128, format::NAME_OR_NOTHING),
        Field::one_of("encap", &["vlan", "vxlan"]),
        Field::text("gateway", usize::MAX, format::IPV4_OR_EMPTY),
        Field::text("ipv6Gateway", usize::MAX, format::IPV6_OR_EMPTY),
        Field::text("ipv6Subnet", usize::MAX, format::IPV6_SUBNET_OR_EMPTY),
        Field::text("networkName", 64, format::NAME),
        Field::one_of("nwType", &["infra", "data"]),
        Field::int("pktTag", 16_777_216),
        Field::text("subnet", usize::MAX, format::SUBNET),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.NetworkLinkSets",
    fields: &[
        Field::any("EndpointGroups", Type::StructMap(&LINK)),
        Field::any("Servicelbs", Type::StructMap(&LINK)),
        Field::any("Services", Type::StructMap(&LINK)),
    ],
};

static LINKS: Schema =
    Schema { go_type: "contivModel.NetworkLinks", fields: &[Field::any("Tenant", Type::Struct(&LINK))] };

impl Object for Network {
    const KIND: ObjectType = ObjectType::Network;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "networkName"];
    const DEFAULTS: &'static [(&'static str, Preset)] = &[("nwType", Preset::Text("data"))];
    type Oper = NetworkOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        ready(staged)?;
        staged.guard_unchanged::<Global>(global::KEY);
        require_tenant(&self.tenant_name, staged)?;
        self.check_conflicts(staged)?;
        ensure_no_network_record(staged, &self.tenant_name, &self.network_name)?;
        self.check_interface_name()?;
        // Rules may refer to a deleted network of the same name.
        let policies = self.dependent_policies(staged)?;
        let mut state = self.state()?;
        let (mut vlans, mut vxlans) = pools(staged)?;
        take_tags(&mut state, self.pkt_tag, &mut vlans, &mut vxlans)?;
        adopt_endpoints(&mut state, staged)?;

        put_vlans(&vlans, staged);
        put_vxlans(&vxlans, staged);
        staged.create_allocation(state);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        staged.put(&self.key, self.clone());
        for policy in &policies {
            refresh_policy(staged, policy);
        }
        Ok(self)
    }

    fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("Cant change network parameters after its created"))
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        require_tenant(&self.tenant_name, staged)?;
        let name = &self.network_name;
        let refuse =
            |n: usize, what: &str| Err(Problem::conflict(format!("cannot delete {name} has {n} {what}")));
        let sets = staged.links_of::<Network>(&self.key).added_to(self).link_sets;
        match (sets.endpoint_groups.len(), sets.servicelbs.len()) {
            (0, 0) => {}
            (0, n) => return refuse(n, "services "),
            (n, _) => return refuse(n, "endpoint groups"),
        }
        let record = network_record(staged.cache(), &self.tenant_name, name);
        if record.is_some_and(|l| l.body.nw_type != "infra" && l.body.ep_count > 0) {
            return Err(Problem::conflict("Error: Network has active endpoints"));
        }
        let policies = self.dependent_policies(staged)?;
        let pools = record.and_then(|_| pools(staged).ok());

        if let (Some(record), Some((mut vlans, mut vxlans))) = (record, pools) {
            match record.body.pkt_tag_type.as_str() {
                "vlan" => vlans.free_id(record.body.pkt_tag),
                _ => vxlans.free_tags(record.body.ext_pkt_tag, record.body.pkt_tag),
            }
            put_vlans(&vlans, staged);
            put_vxlans(&vxlans, staged);
        }
        if let Some(record) = record {
            staged.delete_allocation::<network::State>(&record.body.id);
        }
        staged.delete::<Network>(&self.key);
        for policy in &policies {
            refresh_policy(staged, policy);
        }
        Ok(())
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<NetworkOper>> {
        let record = network_record(cache, &self.tenant_name, &self.network_name);
        Some(match record {
            Some(record) => reports::network(record, cache),
            None => Box::new(NetworkOper::default),
        })
    }
}

/// Derived values and helpers.
trait Derived {
    fn check_conflicts(&self, staged: &StagedTxn<'_>) -> Result<(), Problem>;
    fn check_interface_name(&self) -> Result<(), Problem>;
    fn dependent_policies(&self, staged: &StagedTxn<'_>) -> Result<BTreeSet<String>, Problem>;
    fn state(&self) -> Result<network::State, Problem>;
}

impl Derived for Network {
    /// Checks that the subnets overlap with no network of the tenant, and that no group has the
    /// same name.
    fn check_conflicts(&self, staged: &StagedTxn<'_>) -> Result<(), Problem> {
        let (mine, mine6) = (Subnet::parse(&self.subnet).ok(), Subnet6::parse(&self.ipv6_subnet));
        for key in staged.linked::<Tenant, Network>(&self.tenant_name).iter() {
            let Some(other) = staged.get::<Network>(key) else { continue };
            let conflicts = |with: &str, subnet: &str| {
                let error = format!("network {} conflicts with {with} {subnet}", other.network_name);
                Err(Problem::conflict(error))
            };
            let theirs6 = Subnet6::parse(&other.ipv6_subnet);
            if mine6.zip(theirs6).is_some_and(|(a, b)| a.overlaps(&b)) {
                return conflicts("subnetv6 ", &self.ipv6_subnet);
            }
            let theirs = Subnet::parse(&other.subnet).ok();
            if mine.zip(theirs).is_some_and(|(a, b)| a.overlaps(&b)) {
                return conflicts("subnet", &self.subnet);
            }
        }
        let name = &self.network_name;
        if staged.get::<EndpointGroup>(&object_key(&self.tenant_name, name)).is_some() {
            return Err(Problem::conflict(format!("EndpointGroup {name} conflicts with the network name")));
        }
        Ok(())
    }

    /// Checks the length of an infra network's name, which nodes use as an interface name.
    fn check_interface_name(&self) -> Result<(), Problem> {
        // IFNAMSIZ without the terminating zero.
        const MAX_LENGTH: usize = 15;
        let name = &self.network_name;
        if self.nw_type == "infra" && name.len() > MAX_LENGTH {
            let error = format!(
                "network name {name:?} is too long: the limit for infra networks is {MAX_LENGTH} characters (interface name)"
            );
            return Err(Problem::invalid(error));
        }
        Ok(())
    }

    /// Policies whose expansions have the subnets of the network. Fails if too much would be written.
    fn dependent_policies(&self, staged: &StagedTxn<'_>) -> Result<BTreeSet<String>, Problem> {
        let policies = policies_with_network(staged, &self.key);
        check_refresh("network", &self.network_name, &policies, staged)?;
        Ok(policies)
    }

    /// The network state without tags.
    fn state(&self) -> Result<network::State, Problem> {
        let subnet = Subnet::parse(&self.subnet)?;
        let mut map = subnet.initial_bitmap()?;
        if !self.gateway.is_empty() {
            map.insert(subnet.host(&self.gateway)?);
        }
        let subnet6 = Subnet6::parse(&self.ipv6_subnet);
        let mut map6 = subnet6.map(|_| std::collections::BTreeMap::new());
        if !self.ipv6_gateway.is_empty() {
            let of = subnet6.unwrap_or(Subnet6 { base: std::net::Ipv6Addr::UNSPECIFIED, len: 0 });
            let host = of.host(&self.ipv6_gateway, false)?;
            map6.get_or_insert_default().insert(host_key(host), true);
        }
        let id = network_id(&self.tenant_name, &self.network_name);
        let tag = if self.cfgd_tag.is_empty() { &id } else { &self.cfgd_tag };
        Ok(network::State {
            tenant: self.tenant_name.clone(),
            network_name: self.network_name.clone(),
            nw_type: self.nw_type.clone(),
            pkt_tag_type: self.encap.clone(),
            subnet_ip: subnet.base.to_string(),
            subnet_len: subnet.len,
            gateway: self.gateway.clone(),
            ip_addr_range: subnet.range(),
            ip_alloc_map: map,
            ipv6_subnet_ip: subnet6.map(|s| s.base.to_string()).unwrap_or_default(),
            ipv6_subnet_len: subnet6.map_or(0, |s| s.len),
            ipv6_gateway: self.ipv6_gateway.clone(),
            ipv6_alloc_map: map6,
            network_tag: tag.clone(),
            id,
            ..network::State::default()
        })
    }
}

/// Marks the addresses of endpoints that have outlived a network of this name: nodes on an infra network, until their agents
/// have seen that it was deleted. Fails if the network cannot allocate one of them.
fn adopt_endpoints(state: &mut network::State, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
    let mut refused = vec![];
    for endpoint in endpoints_on(&state.id, staged.cache()) {
        staged.guard_endpoint(&endpoint.id);
        let endpoint::State { id, homing_host, ip_address, ipv6_address, .. } = &*endpoint;
        let node = if homing_host.is_empty() { id } else { homing_host };
        // If the record cannot be decoded, its addresses may be unknown.
        for address in [ip_address, ipv6_address].into_iter().filter(|address| !address.is_empty()) {
            if !adopt_address(state, address) {
                refused.push(format!("{node} ({address})"));
            }
        }
        state.ep_count += 1;
    }
    if refused.is_empty() {
        return Ok(());
    }
    refused.sort();
    let error = format!(
        "nodes still have addresses that are outside of the subnet or reserved in it, on the network {} that was deleted: \
         {}; they give them back when their agents see the deletion",
        state.network_name,
        refused.join(", ")
    );
    Err(Problem::conflict(error))
}

/// Endpoints on the network, also those whose records cannot be decoded, as far as they are known.
fn endpoints_on(network: &str, cache: &ClusterCache) -> Vec<Arc<endpoint::State>> {
    let is_valid = |endpoint: &Arc<endpoint::State>| cache.unreadable_endpoint(&endpoint.id).is_none();
    let valid = cache.endpoints_of_network(network).filter(is_valid);
    let unreadable = cache.unreadable_endpoints().filter(|endpoint| endpoint.net_id == network);
    valid.chain(unreadable.cloned().map(Arc::new)).collect()
}

/// Marks the address as allocated. Returns false if the network cannot allocate it.
fn adopt_address(state: &mut network::State, address: &str) -> bool {
    let is_new = if address.contains(':') {
        let Some(subnet) = Subnet6::of_state(state) else { return false };
        let host = subnet.host(address, true).ok();
        let host = host.filter(|host| !subnet.is_reserved(*host, &state.ipv6_gateway));
        let Some(host) = host else { return false };
        state.ipv6_alloc_map.get_or_insert_default().insert(host_key(host), true).is_none()
    } else {
        let Ok(subnet) = Subnet::of_state(state) else { return false };
        let host = subnet.host(address).ok().filter(|host| !subnet.is_reserved(*host, &state.gateway));
        let Some(host) = host else { return false };
        state.ip_alloc_map.insert(host)
    };
    state.ep_addr_count += i64::from(is_new);
    true
}

fn take_tags(
    state: &mut network::State,
    requested: i64,
    vlans: &mut Vlans,
    vxlans: &mut Vxlans,
) -> Result<(), Problem> {
    if state.pkt_tag_type == "vlan" {
        state.pkt_tag = vlans.take(requested)? as i64;
    } else {
        let (vni, local) = vxlans.take(requested)?;
        (state.pkt_tag, state.ext_pkt_tag) = (local as i64, vni as i64);
    }
    Ok(())
}
