//! Endpoint groups.

mod links;

use std::collections::HashSet;

use contiv_model::api::{EndpointGroup, EndpointGroupOper, Link, Netprofile, Network};
use contiv_model::key::ObjectType;
use contiv_model::{group, network};

use links::Links as _;

use super::tenant::require_tenant;
use super::{Cluster, Object};
use crate::cache::{AllocationRecord, ClusterCache, GroupIds, ONLY, RecordBody as _, StagedTxn, Traffic};
use crate::domain::attachment::{check_link_rules, link_rules, rules_referencing, state_key};
use crate::domain::network_record::{left_over, network_id, network_record, require_network_record};
use crate::domain::tag_pools::{has_own_vlan, pools, put_vlans};
use crate::domain::{fabric, object_key};
use crate::ipam::{IpPool, RangeSet, Subnet};
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, Format, LINK, Schema, Type, format};
use crate::tags::Vlans;

static SCHEMA: Schema = Schema {
    go_type: "contivModel.EndpointGroup",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("cfgdTag", 128, format::NAME_OR_NOTHING),
        Field::any("extContractsGrps", Type::Texts),
        Field::text("groupName", 64, format::NAME),
        Field::text("ipPool", usize::MAX, format::ADDRESS_RANGE),
        Field::text("netProfile", 64, Format::Any),
        Field::text("networkName", 64, format::NAME),
        Field::any("policies", Type::Texts),
        Field::text("tenantName", 64, format::NAME),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema = Schema {
    go_type: "contivModel.EndpointGroupLinkSets",
    fields: &[
        Field::any("ExtContractsGrps", Type::StructMap(&LINK)),
        Field::any("MatchRules", Type::StructMap(&LINK)),
        Field::any("Policies", Type::StructMap(&LINK)),
        Field::any("Services", Type::StructMap(&LINK)),
    ],
};

static LINKS: Schema = Schema {
    go_type: "contivModel.EndpointGroupLinks",
    fields: &[
        Field::any("AppProfile", Type::Struct(&LINK)),
        Field::any("NetProfile", Type::Struct(&LINK)),
        Field::any("Network", Type::Struct(&LINK)),
        Field::any("Tenant", Type::Struct(&LINK)),
    ],
};

impl Object for EndpointGroup {
    const KIND: ObjectType = ObjectType::EndpointGroup;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "groupName"];
    type Oper = EndpointGroupOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        require_tenant(&self.tenant_name, staged)?;
        let network_key = object_key(&self.tenant_name, &self.network_name);
        let no_network = || Problem::not_found(format!("Network {} not found", self.network_name));
        staged.get::<Network>(&network_key).ok_or_else(no_network)?;
        if staged.committed::<network::State>(&self.network_id()).is_none() {
            return Err(no_network());
        }
        let record = require_network_record(staged, &self.tenant_name, &self.network_name)?;
        if staged.get::<Network>(&self.key).is_some() {
            let error = format!("Network {} conflicts with the endpointGroup name", self.group_name);
            return Err(Problem::conflict(error));
        }
        if let Some(record) = staged.committed::<group::State>(&self.state_key()) {
            let key = group::State::key(&record.body.id);
            return Err(left_over(&format!("group {}", self.group_name), &key));
        }
        let pool = self.pool(record)?;
        let own_vlan = own_vlan(record, staged)?;
        self.check_references(None, staged)?;
        // Rules may refer to a deleted group of the same name.
        let rules = rules_referencing(staged, &self.tenant_name, &self.group_name);
        check_link_rules(&self.group_name, &rules, staged)?;
        let traffic = self.profile(staged)?.map(|profile| Traffic::of(&profile)).unwrap_or_default();
        let (id, ids) = next_id(staged)?;

        staged.put(ONLY, ids);
        let mut state = self.state(id, record, pool.as_ref(), traffic);
        if let Some((vlans, tag)) = own_vlan {
            put_vlans(&vlans, staged);
            state.pkt_tag = tag;
        }
        staged.create_allocation(state);
        if let (Some(pool), Some((record, change))) =
            (pool, staged.allocation::<network::State>(&self.network_id()))
        {
            change.pool.take_range(&record.pool, pool.first, pool.last);
        }
        staged.guard_unchanged::<Network>(&network_key);
        // A profile links the groups that it names, and they exist.
        self.links.app_profile = Link::default();
        self.links.network = Link::to(ObjectType::Network, network_key);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        self.attach(None, staged);
        link_rules(staged, rules, Some(&self.key));
        Ok(self)
    }

    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let cannot =
            |what: &str| Err(Problem::conflict(format!("Cannot change {what} after epg is created.")));
        if self.network_name != old.network_name {
            return cannot("network association");
        }
        if self.ip_pool != old.ip_pool {
            return cannot("IP pool");
        }
        self.check_references(Some(old), staged)?;

        // Other fields of the request, including the tag, are accepted without effect.
        let mut new = EndpointGroup {
            policies: self.policies,
            net_profile: self.net_profile,
            ext_contracts_grps: self.ext_contracts_grps,
            ..old.clone()
        };
        new.attach(Some(old), staged);
        if new.links.net_profile != old.links.net_profile {
            let profile = staged.get::<Netprofile>(&new.links.net_profile.key);
            let traffic = profile.map(|profile| Traffic::of(&profile)).unwrap_or_default();
            if let Some((_, change)) = staged.allocation::<group::State>(&new.state_key()) {
                change.traffic = Some(traffic);
            }
        }
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let name = &self.group_name;
        let profile = &self.links.app_profile.key;
        if !profile.is_empty() {
            let error = format!("Cannot delete {name}, associated to appProfile {profile}");
            return Err(Problem::conflict(error));
        }
        let key = self.state_key();
        let record = staged.committed::<group::State>(&key);
        if record.is_some_and(|record| record.body.ep_count > 0) {
            return Err(Problem::conflict(format!("Error: EPG {name} has active endpoints")));
        }
        let rules = self.linked_rules(staged);
        check_link_rules(name, &rules, staged)?;

        let network = network_record(staged.cache(), &self.tenant_name, &self.network_name);
        let pool = network.and_then(|record| {
            let subnet = Subnet::of_state(&record.body).ok()?;
            IpPool::read(&self.ip_pool, &subnet).ok().flatten()
        });
        // A service, or an endpoint without a group, may have an address of the pool.
        let unused = match (pool, staged.allocation::<group::State>(&key)) {
            (Some(pool), Some((record, change))) => change.pool.untaken(&record.pool, pool.first, pool.last),
            _ => RangeSet::default(),
        };
        if let Some((record, change)) = staged.allocation::<network::State>(&self.network_id()) {
            for (first, last) in unused.ranges() {
                change.pool.free_range(&record.pool, first, last);
            }
        }
        self.free_own_vlan(staged);
        staged.delete_allocation::<group::State>(&key);
        staged.delete::<EndpointGroup>(&self.key);
        self.detach_all(rules, staged);
        Ok(())
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<EndpointGroupOper>> {
        let record = cache.allocation::<group::State>(&self.state_key());
        Some(match record {
            Some(record) => reports::group(record, cache),
            None => Box::new(EndpointGroupOper::default),
        })
    }
}

/// Derived values and helpers.
trait Derived {
    fn network_id(&self) -> String;
    fn state_key(&self) -> String;
    fn pool(&self, network: &AllocationRecord<network::State>) -> Result<Option<IpPool>, Problem>;
    fn free_own_vlan(&self, staged: &mut StagedTxn<'_>);
    fn state(
        &self,
        id: i64,
        network: &AllocationRecord<network::State>,
        pool: Option<&IpPool>,
        traffic: Traffic,
    ) -> group::State;
}

impl Derived for EndpointGroup {
    fn network_id(&self) -> String {
        network_id(&self.tenant_name, &self.network_name)
    }

    /// State key `<group>:<tenant>`. The object key has the reverse order.
    fn state_key(&self) -> String {
        state_key(&self.key)
    }

    /// Addresses reserved for the group. They must be free addresses of the network.
    fn pool(&self, network: &AllocationRecord<network::State>) -> Result<Option<IpPool>, Problem> {
        let subnet = Subnet::of_state(&network.body)?;
        let Some(pool) = IpPool::read(&self.ip_pool, &subnet)? else { return Ok(None) };
        match network.pool.first_allocated(pool.first, pool.last) {
            Some(host) => {
                let error = format!("ip address {} is not available", subnet.address(host));
                Err(Problem::conflict(error))
            }
            None => Ok(Some(pool)),
        }
    }

    /// Frees the group's own VLAN, also if the cluster has left ACI mode.
    fn free_own_vlan(&self, staged: &mut StagedTxn<'_>) {
        let group = staged.committed::<group::State>(&self.state_key());
        let network = network_record(staged.cache(), &self.tenant_name, &self.network_name);
        let own = group.zip(network).filter(|(group, network)| has_own_vlan(&group.body, &network.body));
        if let (Some((group, _)), Ok((mut vlans, _))) = (own, pools(staged)) {
            vlans.free_id(group.body.pkt_tag);
            put_vlans(&vlans, staged);
        }
    }

    fn state(
        &self,
        id: i64,
        network: &AllocationRecord<network::State>,
        pool: Option<&IpPool>,
        traffic: Traffic,
    ) -> group::State {
        let key = self.state_key();
        let tag = format!("{}.{}", self.group_name, self.tenant_name);
        let mut state = group::State {
            id: key,
            group_name: self.group_name.clone(),
            tenant_name: self.tenant_name.clone(),
            network_name: self.network_name.clone(),
            endpoint_group_id: id,
            pkt_tag_type: network.body.pkt_tag_type.clone(),
            pkt_tag: network.body.pkt_tag,
            ext_pkt_tag: network.body.ext_pkt_tag,
            ip_pool: self.ip_pool.clone(),
            group_tag: if self.cfgd_tag.is_empty() { tag } else { self.cfgd_tag.clone() },
            dscp: traffic.dscp,
            bandwidth: traffic.bandwidth,
            burst: traffic.burst,
            ..group::State::default()
        };
        state.set_pool_map(pool.map(|pool| pool.map(network.pool.size())).unwrap_or_default());
        state
    }
}

/// In ACI mode each group has a VLAN of its own, which identifies the group in the fabric.
fn own_vlan(
    network: &AllocationRecord<network::State>,
    staged: &StagedTxn<'_>,
) -> Result<Option<(Vlans, i64)>, Problem> {
    if !fabric::is_enabled(staged) {
        return Ok(None);
    }
    if network.body.pkt_tag_type != "vlan" {
        return Err(Problem::invalid("network type must be VLAN for ACI mode"));
    }
    let (mut vlans, _) = pools(staged)?;
    let tag = vlans.take(0)?;
    Ok(Some((vlans, tag as i64)))
}

/// Largest group id: the original's flows have 15 bits for it.
const MAX_ID: i64 = 0x7fff;

/// Id of a new group and the next counter value. An id is reused only after all ids were used.
fn next_id(staged: &StagedTxn<'_>) -> Result<(i64, GroupIds), Problem> {
    let used = staged.cache().allocations::<group::State>().map(|group| group.body.endpoint_group_id);
    let used: HashSet<i64> = used.collect();
    let next = match staged.get::<GroupIds>(ONLY) {
        Some(ids) => ids.next,
        // A store of the original netmaster has group ids and no counter.
        None => used.iter().max().unwrap_or(&0) + 1,
    };
    let id = (next.max(1)..=MAX_ID).chain(1..=MAX_ID).find(|id| !used.contains(id));
    let id = id.ok_or_else(|| Problem::conflict(format!("all {MAX_ID} endpoint group ids are in use")))?;
    Ok((id, GroupIds { id: "global".into(), next: id + 1 }))
}
