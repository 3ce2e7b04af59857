//! Endpoint groups.

use std::sync::Arc;

use contiv_model::api::{
    EndpointGroup, EndpointGroupOper, ExtContractsGroup, Link, Netprofile, Network, Policy, Rule, Tenant,
};
use contiv_model::key::ObjectType;
use contiv_model::{group, network};

use super::{Cluster, Object};
use crate::cache::{Draft, GroupIds, Ledger, ONLY, Traffic, World};
use crate::domain::attachment::{link_rules, refresh, rules_naming, state_key};
use crate::domain::tag_pools::{has_own_vlan, pools, put_vlans};
use crate::domain::{fabric, object_key};
use crate::ipam::{IpPool, Subnet};
use crate::problem::Problem;
use crate::reports;
use crate::schema::{Form, LINK, Member, Shape, Type, format};
use crate::tags::Vlans;

static SHAPE: Shape = Shape {
    go_type: "contivModel.EndpointGroup",
    members: &[
        Member::any("key", Type::Text),
        Member::text("cfgdTag", 128, format::NAME_OR_NOTHING),
        Member::any("extContractsGrps", Type::Texts),
        Member::text("groupName", 64, format::NAME),
        Member::text("ipPool", usize::MAX, format::ADDRESS_RANGE),
        Member::text("netProfile", 64, Form::Any),
        Member::text("networkName", 64, format::NAME),
        Member::any("policies", Type::Texts),
        Member::text("tenantName", 64, format::NAME),
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
        let own_vlan = own_vlan(ledger, draft)?;
        self.attachable(draft)?;
        let traffic = self.profile(draft)?.map(|profile| Traffic::of(&profile)).unwrap_or_default();
        let (id, ids) = next_id(draft)?;

        draft.put(ONLY, ids);
        let mut state = self.state(id, ledger, pool.as_ref(), traffic);
        if let Some((vlans, tag)) = own_vlan {
            put_vlans(&vlans, draft);
            state.pkt_tag = tag;
        }
        draft.create_ledger(state);
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
        // Rules may have outlived a group of this name.
        let naming = rules_naming(draft, &self.tenant_name, &self.group_name);
        let matching = |rule: &Rule| (rule.key.clone(), Link::to(ObjectType::Rule, &rule.key));
        self.link_sets.match_rules.extend(naming.iter().map(matching));
        self.attach(None, draft);
        link_rules(draft, naming, Some(&self.key));
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
        self.attachable(draft)?;

        // Everything else of the request, the tag among it, is accepted and has no effect.
        let mut new = EndpointGroup {
            policies: self.policies,
            net_profile: self.net_profile,
            ext_contracts_grps: self.ext_contracts_grps,
            ..old.clone()
        };
        new.attach(Some(old), draft);
        if new.links.net_profile != old.links.net_profile {
            let profile = draft.get::<Netprofile>(&new.links.net_profile.key);
            let traffic = profile.map(|profile| Traffic::of(&profile)).unwrap_or_default();
            if let Some((_, change)) = draft.ledger::<group::State>(&new.state_key()) {
                change.traffic = Some(traffic);
            }
        }
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
        self.give_own_vlan(draft);
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
        draft.delete::<EndpointGroup>(&self.key);
        self.leave(draft);
        Ok(())
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> Option<EndpointGroupOper> {
        let ledger = world.ledger::<group::State>(&self.state_key());
        Some(ledger.map(|ledger| reports::group(ledger, world)).unwrap_or_default())
    }
}

/// The parts of a group that are not one of its fields.
trait Parts {
    fn network_id(&self) -> String;
    fn state_key(&self) -> String;
    fn pool(&self, network: &Ledger<network::State>) -> Result<Option<IpPool>, Problem>;
    fn profile_key(&self) -> Option<String>;
    fn profile(&self, draft: &Draft<'_>) -> Result<Option<Arc<Netprofile>>, Problem>;
    fn attachable(&self, draft: &Draft<'_>) -> Result<(), Problem>;
    fn attach(&mut self, old: Option<&Self>, draft: &mut Draft<'_>);
    fn attach_policies(&mut self, draft: &mut Draft<'_>);
    fn attach_profile(&mut self, old: Option<&str>, draft: &mut Draft<'_>);
    fn attach_contracts(&mut self, old: Option<&Self>, draft: &mut Draft<'_>);
    fn leave(&self, draft: &mut Draft<'_>);
    fn give_own_vlan(&self, draft: &mut Draft<'_>);
    fn state(
        &self,
        id: i64,
        network: &Ledger<network::State>,
        pool: Option<&IpPool>,
        traffic: Traffic,
    ) -> group::State;
}

impl Parts for EndpointGroup {
    fn network_id(&self) -> String {
        format!("{}.{}", self.network_name, self.tenant_name)
    }

    /// `<group>:<tenant>`: the other way round than the object's key.
    fn state_key(&self) -> String {
        state_key(&self.key)
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

    fn profile_key(&self) -> Option<String> {
        (!self.net_profile.is_empty()).then(|| object_key(&self.tenant_name, &self.net_profile))
    }

    fn profile(&self, draft: &Draft<'_>) -> Result<Option<Arc<Netprofile>>, Problem> {
        let find = |key: String| {
            draft.get::<Netprofile>(&key).ok_or_else(|| Problem::not_found("netprofile not found"))
        };
        self.profile_key().map(find).transpose()
    }

    /// Is there all that the group is to be attached to?
    fn attachable(&self, draft: &Draft<'_>) -> Result<(), Problem> {
        for name in &self.policies {
            let policy = draft.get::<Policy>(&object_key(&self.tenant_name, name));
            let policy = policy.ok_or_else(|| Problem::not_found("Policy not found"))?;
            networks_of_rules(&policy, draft)?;
        }
        self.profile(draft)?;
        let missing =
            |name: &&String| draft.get::<ExtContractsGroup>(&object_key(&self.tenant_name, name)).is_none();
        match self.ext_contracts_grps.iter().find(missing) {
            Some(name) => Err(Problem::not_found(format!("External contracts group {name} not found"))),
            None => Ok(()),
        }
    }

    /// Makes the links that the fields ask for, and puts the group; what is no longer asked for goes.
    fn attach(&mut self, old: Option<&Self>, draft: &mut Draft<'_>) {
        let left: Vec<String> = match old {
            Some(old) => old.link_sets.policies.keys().cloned().collect(),
            None => vec![],
        };
        self.attach_policies(draft);
        self.attach_profile(old.map(|old| old.links.net_profile.key.as_str()), draft);
        self.attach_contracts(old, draft);
        draft.put(&self.key, self.clone());
        for policy in left.iter().filter(|key| !self.link_sets.policies.contains_key(*key)) {
            detach_policy(policy, &self.key, draft);
        }
        for policy in self.link_sets.policies.keys() {
            refresh(draft, &self.key, policy);
        }
    }

    fn attach_policies(&mut self, draft: &mut Draft<'_>) {
        self.link_sets.policies.clear();
        for name in &self.policies {
            let key = object_key(&self.tenant_name, name);
            let Some(policy) = draft.get::<Policy>(&key) else { continue };
            if !policy.link_sets.endpoint_groups.contains_key(&self.key) {
                let mut policy = (*policy).clone();
                let link = Link::to(ObjectType::EndpointGroup, &self.key);
                policy.link_sets.endpoint_groups.insert(self.key.clone(), link);
                draft.put(&key, policy);
            }
            self.link_sets.policies.insert(key.clone(), Link::to(ObjectType::Policy, key));
        }
    }

    /// Of the profile that it had, and that it has now.
    fn attach_profile(&mut self, old: Option<&str>, draft: &mut Draft<'_>) {
        let new = self.profile_key();
        if let Some(old) = old.filter(|old| !old.is_empty() && Some(*old) != new.as_deref()) {
            detach_profile(old, &self.key, draft);
        }
        self.links.net_profile = Link::default();
        if let Some((key, profile)) = new.and_then(|key| Some((key.clone(), draft.get::<Netprofile>(&key)?)))
        {
            if !profile.link_sets.endpoint_groups.contains_key(&self.key) {
                let mut profile = (*profile).clone();
                let link = Link::to(ObjectType::EndpointGroup, &self.key);
                profile.link_sets.endpoint_groups.insert(self.key.clone(), link);
                draft.put(&key, profile);
            }
            self.links.net_profile = Link::to(ObjectType::Netprofile, key);
        }
    }

    /// Of the groups of contracts that it had, and that it has now.
    fn attach_contracts(&mut self, old: Option<&Self>, draft: &mut Draft<'_>) {
        let key = |name: &String| object_key(&self.tenant_name, name);
        let link = |key: String| (key.clone(), Link::to(ObjectType::ExtContractsGroup, key));
        self.link_sets.ext_contracts_grps = self.ext_contracts_grps.iter().map(key).map(link).collect();
        let new = &self.link_sets.ext_contracts_grps;
        for left in old.iter().flat_map(|old| old.link_sets.ext_contracts_grps.keys()) {
            if !new.contains_key(left) {
                detach_contracts(left, &self.key, draft);
            }
        }
        for key in new.keys() {
            if let Some(contracts) = draft.edit::<ExtContractsGroup>(key) {
                let link = Link::to(ObjectType::EndpointGroup, &self.key);
                contracts.link_sets.endpoint_groups.insert(self.key.clone(), link);
            }
        }
    }

    /// Takes the group, which is deleted in the draft, off everything, and clears what names it.
    fn leave(&self, draft: &mut Draft<'_>) {
        for policy in self.link_sets.policies.keys() {
            detach_policy(policy, &self.key, draft);
        }
        if !self.links.net_profile.key.is_empty() {
            detach_profile(&self.links.net_profile.key, &self.key, draft);
        }
        for contracts in self.link_sets.ext_contracts_grps.keys() {
            detach_contracts(contracts, &self.key, draft);
        }
        let naming = self.link_sets.match_rules.keys().filter_map(|key| draft.get::<Rule>(key));
        let naming = naming.map(|rule| (*rule).clone()).collect();
        link_rules(draft, naming, None);
    }

    /// A VLAN that is not the network's is the group's alone, whatever the fabric is now.
    fn give_own_vlan(&self, draft: &mut Draft<'_>) {
        let group = draft.ledger_before::<group::State>(&self.state_key());
        let network = draft.ledger_before::<network::State>(&self.network_id());
        let own = group.zip(network).filter(|(group, network)| has_own_vlan(&group.body, &network.body));
        if let (Some((group, _)), Ok((mut vlans, _))) = (own, pools(draft)) {
            vlans.give(group.body.pkt_tag);
            put_vlans(&vlans, draft);
        }
    }

    fn state(
        &self,
        id: i64,
        network: &Ledger<network::State>,
        pool: Option<&IpPool>,
        traffic: Traffic,
    ) -> group::State {
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
            dscp: traffic.dscp,
            bandwidth: traffic.bandwidth,
            burst: traffic.burst,
            ..group::State::default()
        }
    }
}

/// At an ACI fabric each group has a VLAN of its own, by which the fabric tells it from the others.
fn own_vlan(network: &Ledger<network::State>, draft: &Draft<'_>) -> Result<Option<(Vlans, i64)>, Problem> {
    if !fabric::is_on(draft) {
        return Ok(None);
    }
    if network.body.pkt_tag_type != "vlan" {
        return Err(Problem::invalid("network type must be VLAN for ACI mode"));
    }
    let (mut vlans, _) = pools(draft)?;
    let tag = vlans.take(0)?;
    Ok(Some((vlans, tag as i64)))
}

/// Rules that name networks are about their addresses from when the policy is first on a group.
fn networks_of_rules(policy: &Policy, draft: &Draft<'_>) -> Result<(), Problem> {
    for rule in policy.link_sets.rules.keys().filter_map(|key| draft.get::<Rule>(key)) {
        let missing = |network: &str, address: &str| {
            let key = object_key(&rule.tenant_name, network);
            !network.is_empty() && address.is_empty() && draft.get::<Network>(&key).is_none()
        };
        if missing(&rule.from_network, &rule.from_ip_address) {
            return Err(Problem::not_found("from Network not found"));
        }
        if missing(&rule.to_network, &rule.to_ip_address) {
            return Err(Problem::not_found("to Network not found"));
        }
    }
    Ok(())
}

fn detach_policy(policy_key: &str, group: &str, draft: &mut Draft<'_>) {
    if let Some(policy) = draft.get::<Policy>(policy_key) {
        let mut policy = (*policy).clone();
        policy.link_sets.endpoint_groups.remove(group);
        draft.put(policy_key, policy);
    }
    refresh(draft, group, policy_key);
}

fn detach_profile(profile_key: &str, group: &str, draft: &mut Draft<'_>) {
    if let Some(profile) = draft.get::<Netprofile>(profile_key) {
        let mut profile = (*profile).clone();
        profile.link_sets.endpoint_groups.remove(group);
        draft.put(profile_key, profile);
    }
}

fn detach_contracts(contracts_key: &str, group: &str, draft: &mut Draft<'_>) {
    if let Some(contracts) = draft.edit::<ExtContractsGroup>(contracts_key) {
        contracts.link_sets.endpoint_groups.remove(group);
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
