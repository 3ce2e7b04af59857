//! Policy rules.

use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::api::{EndpointGroup, Link, Network, Policy, Rule};
use contiv_model::{endpoint, key::ObjectType, policy::is_reversed_range};

use super::{Cluster, Object, Preset};
use crate::cache::{ClusterCache, StagedTxn};
use crate::domain::attachment::{
    MAX_EXPANDED_RULES, MAX_GROUP_RULES, check_decodable, count_rules, refresh_rule, remote_name, state_key,
};
use crate::domain::{fabric, object_key};
use crate::problem::Problem;
use crate::reports::Report;
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Rule",
    fields: &[
        Field::any("key", Type::Text),
        Field::one_of("action", &["allow", "deny"]),
        Field::one_of("direction", &["in", "out"]),
        Field::text("fromEndpointGroup", 64, format::NAME_OR_EMPTY),
        Field::text("fromIpAddress", usize::MAX, format::RULE_ADDRESS_OR_EMPTY),
        Field::text("fromNetwork", 64, format::NAME_OR_EMPTY),
        Field::text("policyName", 64, format::NAME),
        Field::int("port", 65_535),
        Field::range("priority", 1, 100),
        Field::text("protocol", usize::MAX, format::PROTOCOL_OR_EMPTY),
        Field::text("ruleId", 64, format::NAME),
        Field::text("tenantName", 64, format::NAME),
        Field::text("toEndpointGroup", 64, format::NAME_OR_EMPTY),
        Field::text("toIpAddress", usize::MAX, format::RULE_ADDRESS_OR_EMPTY),
        Field::text("toNetwork", 64, format::NAME_OR_EMPTY),
        Field::any("link-sets", Type::Struct(&LINK_SETS)),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINK_SETS: Schema =
    Schema { go_type: "contivModel.RuleLinkSets", fields: &[Field::any("Policies", Type::StructMap(&LINK))] };

static LINKS: Schema = Schema {
    go_type: "contivModel.RuleLinks",
    fields: &[Field::any("MatchEndpointGroup", Type::Struct(&LINK))],
};

/// Largest number of rules of a policy. The store accepts about 2,000 if the policy is on a group.
/// Without a group nothing else limits what a later request about the policy evaluates.
const MAX_RULES: usize = 4096;

impl Object for Rule {
    const KIND: ObjectType = ObjectType::Rule;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "policyName", "ruleId"];
    const DEFAULTS: &'static [(&'static str, Preset)] = &[("priority", Preset::Int(1))];
    type Oper = ();
    /// Of what other rules and endpoints change, plans for rules read the numbers of rules of policies only.
    const EXCLUSIVE: bool = false;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        check_peers(&self).map_err(Problem::invalid)?;
        check_ranges(&self).map_err(Problem::invalid)?;
        let of_tenant = |name: &str| object_key(&self.tenant_name, name);
        let remote_key = of_tenant(remote_name(&self));
        let missing = |name: &str| !name.is_empty() && staged.get::<Network>(&of_tenant(name)).is_none();
        if !remote_name(&self).is_empty() && staged.get::<EndpointGroup>(&remote_key).is_none() {
            return Err(Problem::not_found("endpoint group not found"));
        }
        if missing(&self.from_network) {
            return Err(Problem::not_found("from Network not found"));
        }
        if missing(&self.to_network) {
            return Err(Problem::not_found("to Network not found"));
        }
        let policy_key = of_tenant(&self.policy_name);
        match staged.get::<Policy>(&policy_key) {
            None => return Err(Problem::not_found("Policy not found")),
            Some(policy) if self.direction == "in" && !self.to_ip_address.is_empty() => {
                check_single_group(&self, &policy, staged)?;
            }
            Some(_) => {}
        }
        let (name, rules) = (&self.policy_name, staged.count_linked::<Policy, Rule>(&policy_key));
        if rules >= MAX_RULES {
            return Err(Problem::conflict(format!(
                "policy {name} has reached the limit of {MAX_RULES} rules; distribute the rules over several policies"
            )));
        }
        let groups = staged.count_linked::<Policy, EndpointGroup>(&policy_key);
        if groups * (rules + 1) > MAX_EXPANDED_RULES && !fabric::is_enabled(staged) {
            return Err(Problem::conflict(format!(
                "policy {name} on {groups} groups has reached the limit of {MAX_EXPANDED_RULES} rules on all of them; distribute the groups over several policies"
            )));
        }
        check_groups(&policy_key, staged)?;
        check_decodable(&policy_key, None, staged)?;

        if staged.get::<EndpointGroup>(&remote_key).is_some() {
            staged.guard_unchanged::<EndpointGroup>(&remote_key);
            self.links.match_endpoint_group = Link::to(ObjectType::EndpointGroup, &remote_key);
        }
        staged.guard_unchanged::<Policy>(&policy_key);
        self.link_sets.policies.insert(policy_key.clone(), Link::to(ObjectType::Policy, &policy_key));
        staged.put(&self.key, self.clone());
        refresh_rule(staged, &policy_key, &self.key);
        // The stored rule has resolved subnets if the policy is attached to a group.
        Ok(staged.get::<Rule>(&self.key).map_or(self, |rule| (*rule).clone()))
    }

    fn update(self, _old: &Self, _draft: &mut StagedTxn<'_>) -> Result<(), Problem> {
        Err(Problem::conflict("can not update a rule after its created"))
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let policy_key = object_key(&self.tenant_name, &self.policy_name);
        // A group is deleted after the rules that refer to it, also while its state cannot be decoded.
        check_decodable(&policy_key, Some(&self.key), staged)?;
        staged.delete::<Rule>(&self.key);
        refresh_rule(staged, &policy_key, &self.key);
        Ok(())
    }

    fn oper(&self, _cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<()>> {
        None
    }
}

/// Checks that the groups of the policy may have one more rule.
fn check_groups(policy_key: &str, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let groups = staged.linked::<Policy, EndpointGroup>(policy_key);
    let mut groups = groups.iter().filter_map(|key| staged.get::<EndpointGroup>(key));
    match groups.find(|group| count_rules(group, staged) >= MAX_GROUP_RULES) {
        Some(group) => Err(Problem::conflict(format!(
            "the policies of group {} have reached the limit of {MAX_GROUP_RULES} rules; attach fewer policies to it",
            group.group_name
        ))),
        None => Ok(()),
    }
}

/// Rejects conflicting combinations of fields.
fn check_peers(rule: &Rule) -> Result<(), &'static str> {
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

/// Rejects ranges without an address: the rule would match nothing, also a rule that denies.
fn check_ranges(rule: &Rule) -> Result<(), String> {
    let fields = [("fromIpAddress", &rule.from_ip_address), ("toIpAddress", &rule.to_ip_address)];
    match fields.into_iter().find(|(_, range)| is_reversed_range(range)) {
        Some((field, range)) => {
            Err(format!("{field} {range}: the last address of the range precedes the first"))
        }
        None => Ok(()),
    }
}

/// Validates a rule for a single endpoint address: the policy must be attached to exactly one
/// group, and the endpoint must be in it.
fn check_single_group(rule: &Rule, policy: &Policy, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let address = &rule.to_ip_address;
    let refuse = |why: String| Err(Problem::conflict(format!("failed to configure {address}, {why}")));
    let mut groups = staged.linked::<Policy, EndpointGroup>(&policy.key);
    if !policy.link_sets.endpoint_groups.is_empty() {
        Arc::make_mut(&mut groups).extend(policy.link_sets.endpoint_groups.keys().cloned());
    }
    let (Some(group), 1) = (groups.first(), groups.len()) else {
        let (n, name) = (groups.len(), &policy.policy_name);
        return refuse(format!("{n} endpoint groups linked to policy {name} "));
    };
    if staged.cache().all::<endpoint::State>().next().is_none() {
        return refuse("unable to read endpoint state".into());
    }
    let key = state_key(group);
    let wanted = host(address);
    let has = |text: &str| wanted.is_some() && text.parse().ok() == wanted;
    // None for a link that is not of the form of a key, which only administrators can store.
    let mut endpoints = staged.cache().endpoints_of_group(&key);
    match endpoints.any(|e| has(&e.ip_address) || has(&e.ipv6_address)) {
        true => Ok(()),
        false => refuse(format!("ip address is not in epg {key}")),
    }
}

/// The address if `text` is a single host.
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
