//! Rules of policies.

use std::net::IpAddr;

use contiv_model::api::{EndpointGroup, Link, Network, Policy, Rule};
use contiv_model::{endpoint, key::ObjectType};

use super::{Cluster, Object, Preset};
use crate::cache::{Draft, World};
use crate::domain::attachment::{refresh_rule, remote_name, state_key};
use crate::domain::object_key;
use crate::problem::Problem;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Rule",
    members: &[
        Member::any("key", Type::Text),
        Member::one_of("action", &["allow", "deny"]),
        Member::one_of("direction", &["in", "out"]),
        Member::text("fromEndpointGroup", 64, format::NAME_OR_EMPTY),
        Member::text("fromIpAddress", usize::MAX, format::RULE_ADDRESS_OR_EMPTY),
        Member::text("fromNetwork", 64, format::NAME_OR_EMPTY),
        Member::text("policyName", 64, format::NAME),
        Member::int("port", 65_535),
        Member::range("priority", 1, 100),
        Member::text("protocol", usize::MAX, format::PROTOCOL_OR_EMPTY),
        Member::text("ruleId", 64, format::NAME),
        Member::text("tenantName", 64, format::NAME),
        Member::text("toEndpointGroup", 64, format::NAME_OR_EMPTY),
        Member::text("toIpAddress", usize::MAX, format::RULE_ADDRESS_OR_EMPTY),
        Member::text("toNetwork", 64, format::NAME_OR_EMPTY),
        Member::any("link-sets", Type::Struct(&LINK_SETS)),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Shape = Shape {
    go_type: "contivModel.RuleLinkSets",
    members: &[Member::any("Policies", Type::StructMap(&LINK))],
};

static LINKS: Shape = Shape {
    go_type: "contivModel.RuleLinks",
    members: &[Member::any("MatchEndpointGroup", Type::Struct(&LINK))],
};

impl Object for Rule {
    const KIND: ObjectType = ObjectType::Rule;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "policyName", "ruleId"];
    const DEFAULTS: &'static [(&'static str, Preset)] = &[("priority", Preset::Int(1))];
    type Oper = ();
    /// Rules look at nothing that other rules or endpoints change.
    const ALONE: bool = false;

    fn key(&self) -> &str {
        &self.key
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        sides(&self).map_err(Problem::invalid)?;
        let of_tenant = |name: &str| object_key(&self.tenant_name, name);
        let remote_key = of_tenant(remote_name(&self));
        let missing = |name: &str| !name.is_empty() && draft.get::<Network>(&of_tenant(name)).is_none();
        if !remote_name(&self).is_empty() && draft.get::<EndpointGroup>(&remote_key).is_none() {
            return Err(Problem::not_found("endpoint group not found"));
        }
        if missing(&self.from_network) {
            return Err(Problem::not_found("from Network not found"));
        }
        if missing(&self.to_network) {
            return Err(Problem::not_found("to Network not found"));
        }
        let policy_key = of_tenant(&self.policy_name);
        match draft.get::<Policy>(&policy_key) {
            None => return Err(Problem::not_found("Policy not found")),
            Some(policy) if self.direction == "in" && !self.to_ip_address.is_empty() => {
                of_one_group(&self, &policy, draft)?;
            }
            Some(_) => {}
        }

        let link = Link::to(ObjectType::Rule, &self.key);
        if let Some(remote) = draft.edit::<EndpointGroup>(&remote_key) {
            remote.link_sets.match_rules.insert(self.key.clone(), link.clone());
            self.links.match_endpoint_group = Link::to(ObjectType::EndpointGroup, &remote_key);
        }
        if let Some(policy) = draft.edit::<Policy>(&policy_key) {
            policy.link_sets.rules.insert(self.key.clone(), link);
        }
        self.link_sets.policies.insert(policy_key.clone(), Link::to(ObjectType::Policy, &policy_key));
        draft.put(&self.key, self.clone());
        refresh_rule(draft, &policy_key, &self.key);
        // With the addresses of the network that it names, if it is on a group.
        Ok(draft.get::<Rule>(&self.key).map_or(self, |rule| (*rule).clone()))
    }

    fn update(self, _old: &Self, _draft: &mut Draft<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("can not update a rule after its created"))
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        unlink_remote(draft, self);
        let policy_key = object_key(&self.tenant_name, &self.policy_name);
        if let Some(policy) = draft.edit::<Policy>(&policy_key) {
            policy.link_sets.rules.remove(&self.key);
        }
        refresh_rule(draft, &policy_key, &self.key);
        Ok(())
    }

    fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
        None
    }
}

/// The group that the rule names does not know it any more.
pub(super) fn unlink_remote(draft: &mut Draft<'_>, rule: &Rule) {
    let key = &rule.links.match_endpoint_group.key;
    if let Some(group) = draft.edit::<EndpointGroup>(key) {
        group.link_sets.match_rules.remove(&rule.key);
    }
}

/// What may not stand together.
fn sides(rule: &Rule) -> Result<(), &'static str> {
    let has = |text: &String| !text.is_empty();
    if rule.direction == "in" {
        if has(&rule.to_network) || has(&rule.to_endpoint_group) {
            return Err("can not specify 'to' parameters in incoming rule");
        }
        match (has(&rule.from_network), has(&rule.from_ip_address), has(&rule.from_endpoint_group)) {
            (true, true, _) => Err("can not specify both from network and from ip address"),
            (true, _, true) => Err("can not specify both from network and from EndpointGroup"),
            _ => Ok(()),
        }
    } else {
        if has(&rule.from_network) || has(&rule.from_endpoint_group) || has(&rule.from_ip_address) {
            return Err("can not specify 'from' parameters in outgoing rule");
        }
        match (has(&rule.to_network), has(&rule.to_ip_address), has(&rule.to_endpoint_group)) {
            (true, true, _) => Err("can not specify both to-network and to-ip address"),
            (true, _, true) => Err("can not specify both to-network and to-EndpointGroup"),
            _ => Ok(()),
        }
    }
}

/// A rule about one endpoint of the policy's group: the policy must be on one group, and the endpoint in it.
fn of_one_group(rule: &Rule, policy: &Policy, draft: &Draft<'_>) -> Result<(), Problem> {
    let address = &rule.to_ip_address;
    let refuse = |why: String| Err(Problem::conflict(format!("failed to configure {address}, {why}")));
    let groups: Vec<_> = policy.link_sets.endpoint_groups.keys().collect();
    let [group] = groups.as_slice() else {
        let (n, name) = (groups.len(), &policy.policy_name);
        return refuse(format!("{n} endpoint groups linked to policy {name} "));
    };
    if draft.world().all::<endpoint::State>().next().is_none() {
        return refuse("unable to read endpoint state".into());
    }
    let key = state_key(group);
    let wanted = host(address);
    let has = |text: &str| wanted.is_some() && text.parse().ok() == wanted;
    let mut endpoints = draft.world().all::<endpoint::State>().filter(|e| e.endpoint_group_key == key);
    match endpoints.any(|e| has(&e.ip_address) || has(&e.ipv6_address)) {
        true => Ok(()),
        false => refuse(format!("ip address is not in epg {key}")),
    }
}

/// The address, if it is one host's.
fn host(text: &str) -> Option<IpAddr> {
    match text.split_once('/') {
        None => text.parse().ok(),
        Some((address, length)) => {
            let address: IpAddr = address.parse().ok()?;
            let whole = if address.is_ipv4() { "32" } else { "128" };
            (length == whole).then_some(address)
        }
    }
}
