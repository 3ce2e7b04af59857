//! Endpoint groups.

use contiv_model::api::{EndpointGroup, EndpointGroupOper, Link, Network, Tenant};
use contiv_model::bitset::Bitset;
use contiv_model::key::ObjectType;
use contiv_model::{group, network};

use super::global::ONLY;
use super::{Cluster, Object, inspect, not_built, object_key};
use crate::ipam::Subnet;
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type, is_address_range, is_name};
use crate::world::{Draft, GroupIds, Ledger, World};

static SHAPE: Shape = Shape {
    go_type: "contivModel.EndpointGroup",
    members: &[
        Member::any("key", Type::Text),
        Member::text("cfgdTag", 128, |t| t.is_empty() || is_name(t)),
        Member::any("extContractsGrps", Type::Texts),
        Member::text("groupName", 64, is_name),
        Member::text("ipPool", usize::MAX, is_address_range),
        Member::text("netProfile", 64, |_| true),
        Member::text("networkName", 64, is_name),
        Member::any("policies", Type::Texts),
        Member::text("tenantName", 64, is_name),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.EndpointGroupLinkSets",
    members: &[
        Member::any("ExtContractsGrps", Type::StructMap(&LINK)),
        Member::any("MatchRules", Type::StructMap(&LINK)),
        Member::any("Policies", Type::StructMap(&LINK)),
        Member::any("Services", Type::StructMap(&LINK)),
    ],
};

static LINKS: Shape = Shape {
    go_type: "contivModel.EndpointGroupLinks",
    members: &[
        Member::any("AppProfile", Type::Struct(&LINK)),
        Member::any("NetProfile", Type::Struct(&LINK)),
        Member::any("Network", Type::Struct(&LINK)),
        Member::any("Tenant", Type::Struct(&LINK)),
    ],
};

impl Object for EndpointGroup {
    const KIND: ObjectType = ObjectType::EndpointGroup;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "groupName"];
    type Oper = EndpointGroupOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        let tenant = draft.get::<Tenant>(&self.tenant_name);
        let tenant = tenant.ok_or_else(|| Problem::not_found("Tenant not found"))?;
        let network_key = object_key(&self.tenant_name, &self.network_name);
        let no_network = || Problem::not_found(format!("Network {} not found", self.network_name));
        let network = draft.get::<Network>(&network_key).ok_or_else(no_network)?;
        let ledger = draft.ledger_before::<network::State>(&self.network_id()).ok_or_else(no_network)?;
        if draft.get::<Network>(&self.key).is_some() {
            let error = format!("Network {} conflicts with the endpointGroup name", self.group_name);
            return Err(Problem::conflict(error));
        }
        let pool = self.pool(ledger)?;
        self.attachments(draft)?;
        let (id, ids) = next_id(draft)?;

        draft.put(ONLY, ids);
        draft.create_ledger(self.state(id, ledger, pool.as_ref()));
        if let (Some(pool), Some((ledger, change))) =
            (pool, draft.ledger::<network::State>(&self.network_id()))
        {
            pool.hosts().for_each(|host| {
                change.pool.take(&ledger.pool, host);
            });
        }
        let link = Link::to(ObjectType::EndpointGroup, &self.key);
        let mut tenant = (*tenant).clone();
        tenant.link_sets.endpoint_groups.insert(self.key.clone(), link.clone());
        draft.put(&self.tenant_name, tenant);
        let mut network = (*network).clone();
        network.link_sets.endpoint_groups.insert(self.key.clone(), link);
        draft.put(&network_key, network);
        self.links.network = Link::to(ObjectType::Network, network_key);
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let cannot =
            |what: &str| Err(Problem::conflict(format!("Cannot change {what} after epg is created.")));
        if self.network_name != old.network_name {
            return cannot("network association");
        }
        if self.ip_pool != old.ip_pool {
            return cannot("IP pool");
        }
        if self.attached() != old.attached() {
            self.attachments(draft)?;
            old.detachments()?;
        }
        // Everything else of the request, the tag among it, is accepted and has no effect.
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let name = &self.group_name;
        let profile = &self.links.app_profile.key;
        if !profile.is_empty() {
            let error = format!("Cannot delete {name}, associated to appProfile {profile}");
            return Err(Problem::conflict(error));
        }
        let key = self.state_key();
        let ledger = draft.ledger_before::<group::State>(&key);
        if ledger.is_some_and(|ledger| ledger.body.ep_count > 0) {
            return Err(Problem::conflict(format!("Error: EPG {name} has active endpoints")));
        }
        self.detachments()?;

        let pool = draft.ledger_before::<network::State>(&self.network_id()).and_then(|ledger| {
            let subnet = Subnet::of_state(&ledger.body).ok()?;
            IpPool::read(&self.ip_pool, &subnet).ok().flatten()
        });
        if let (Some(pool), Some((ledger, change))) =
            (pool, draft.ledger::<network::State>(&self.network_id()))
        {
            pool.hosts().for_each(|host| {
                change.pool.free(&ledger.pool, host);
            });
        }
        draft.delete_ledger::<group::State>(&key);
        let network_key = object_key(&self.tenant_name, &self.network_name);
        if let Some(network) = draft.get::<Network>(&network_key) {
            let mut network = (*network).clone();
            network.link_sets.endpoint_groups.remove(&self.key);
            draft.put(&network_key, network);
        }
        if let Some(tenant) = draft.get::<Tenant>(&self.tenant_name) {
            let mut tenant = (*tenant).clone();
            tenant.link_sets.endpoint_groups.remove(&self.key);
            draft.put(&self.tenant_name, tenant);
        }
        Ok(())
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> EndpointGroupOper {
        let ledger = world.ledger::<group::State>(&self.state_key());
        ledger.map(|ledger| inspect::group(ledger, world)).unwrap_or_default()
    }
}

/// The parts of a group that are not one of its fields.
trait Parts {
    fn network_id(&self) -> String;
    fn state_key(&self) -> String;
    fn pool(&self, network: &Ledger<network::State>) -> Result<Option<IpPool>, Problem>;
    fn attached(&self) -> (&[String], &str, &[String]);
    fn attachments(&self, draft: &Draft<'_>) -> Result<(), Problem>;
    fn detachments(&self) -> Result<(), Problem>;
    fn state(&self, id: i64, network: &Ledger<network::State>, pool: Option<&IpPool>) -> group::State;
}

impl Parts for EndpointGroup {
    fn network_id(&self) -> String {
        format!("{}.{}", self.network_name, self.tenant_name)
    }

    /// `<group>:<tenant>`: the other way round than the object's key.
    fn state_key(&self) -> String {
        format!("{}:{}", self.group_name, self.tenant_name)
    }

    /// The addresses that the group is to have for itself: they must be the network's, and free.
    fn pool(&self, network: &Ledger<network::State>) -> Result<Option<IpPool>, Problem> {
        let subnet = Subnet::of_state(&network.body)?;
        let Some(pool) = IpPool::read(&self.ip_pool, &subnet)? else { return Ok(None) };
        match pool.hosts().find(|host| network.pool.bits().contains(*host)) {
            Some(host) => {
                let error = format!("ip address {} is not available", subnet.address(host));
                Err(Problem::conflict(error))
            }
            None => Ok(Some(pool)),
        }
    }

    fn attached(&self) -> (&[String], &str, &[String]) {
        (&self.policies, &self.net_profile, &self.ext_contracts_grps)
    }

    /// What the group is to be attached to. None of it is built yet: what does not exist is not found, in the
    /// original's words, and what an original netmaster left in the store is refused.
    fn attachments(&self, draft: &Draft<'_>) -> Result<(), Problem> {
        let check = |kind, name: &str, error: String| match draft
            .has_unbuilt(kind, &object_key(&self.tenant_name, name))
        {
            true => Err(not_built(kind)),
            false => Err(Problem::not_found(error)),
        };
        if let Some(policy) = self.policies.first() {
            check(ObjectType::Policy, policy, "Policy not found".into())?;
        }
        if !self.net_profile.is_empty() {
            check(ObjectType::Netprofile, &self.net_profile, "netprofile not found".into())?;
        }
        if let Some(name) = self.ext_contracts_grps.first() {
            let error = format!("External contracts group {name} not found");
            check(ObjectType::ExtContractsGroup, name, error)?;
        }
        Ok(())
    }

    /// What an original netmaster attached cannot be taken off yet.
    fn detachments(&self) -> Result<(), Problem> {
        let sets = &self.link_sets;
        if !sets.policies.is_empty() {
            return Err(not_built(ObjectType::Policy));
        }
        if !self.links.net_profile.key.is_empty() {
            return Err(not_built(ObjectType::Netprofile));
        }
        if !sets.ext_contracts_grps.is_empty() {
            return Err(not_built(ObjectType::ExtContractsGroup));
        }
        Ok(())
    }

    fn state(&self, id: i64, network: &Ledger<network::State>, pool: Option<&IpPool>) -> group::State {
        let key = self.state_key();
        let tag = format!("{}.{}", self.group_name, self.tenant_name);
        group::State {
            id: key,
            group_name: self.group_name.clone(),
            tenant_name: self.tenant_name.clone(),
            network_name: self.network_name.clone(),
            endpoint_group_id: id,
            pkt_tag_type: network.body.pkt_tag_type.clone(),
            pkt_tag: network.body.pkt_tag,
            ext_pkt_tag: network.body.ext_pkt_tag,
            ip_pool: self.ip_pool.clone(),
            epg_ip_alloc_map: pool.map(|pool| pool.map(network.pool.bits().len())).unwrap_or_default(),
            group_tag: if self.cfgd_tag.is_empty() { tag } else { self.cfgd_tag.clone() },
            ..group::State::default()
        }
    }
}

/// The host numbers from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPool {
    pub first: usize,
    pub last: usize,
}

impl IpPool {
    /// Reads `a-b`; the empty text is no pool.
    pub fn read(text: &str, subnet: &Subnet) -> Result<Option<IpPool>, Problem> {
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = || Problem::invalid(format!("invalid ip-pool {text}"));
        let (first, last) = text.split_once('-').ok_or_else(invalid)?;
        let outside = |_| {
            let error = format!("bad ip-pool {text}, EPG ip-pool must be a subset of network {subnet}");
            Problem::invalid(error)
        };
        let pool =
            IpPool { first: subnet.host(first).map_err(outside)?, last: subnet.host(last).map_err(outside)? };
        if pool.last < pool.first { Err(invalid()) } else { Ok(Some(pool)) }
    }

    pub fn hosts(&self) -> std::ops::RangeInclusive<usize> {
        self.first..=self.last
    }

    pub fn contains(&self, host: usize) -> bool {
        self.hosts().contains(&host)
    }

    /// The map of `len` hosts with everything outside the pool taken.
    fn map(&self, len: usize) -> Bitset {
        let mut map = Bitset::new(len);
        map.insert_range(0..self.first);
        map.insert_range(self.last + 1..len);
        map
    }
}

/// The original's flows have 15 bits for a group.
const MOST_IDS: i64 = 0x7fff;

/// The number of a new group, and the counter after it. A number is not used again before all have been.
fn next_id(draft: &Draft<'_>) -> Result<(i64, GroupIds), Problem> {
    let used = |id: &i64| draft.world().ledgers::<group::State>().any(|g| g.body.endpoint_group_id == *id);
    let next = match draft.get::<GroupIds>(ONLY) {
        Some(ids) => ids.next,
        // Groups of an original netmaster have numbers, and no counter.
        None => {
            let highest = draft.world().ledgers::<group::State>().map(|g| g.body.endpoint_group_id).max();
            highest.unwrap_or(0) + 1
        }
    };
    let id = (next.max(1)..=MOST_IDS).chain(1..=MOST_IDS).find(|id| !used(id));
    let id = id.ok_or_else(|| Problem::conflict(format!("all {MOST_IDS} endpoint group ids are in use")))?;
    Ok((id, GroupIds { id: "global".into(), next: id + 1 }))
}
