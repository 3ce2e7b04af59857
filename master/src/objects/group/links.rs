//! Links of a group: policies, network profile and external contracts.

use std::collections::BTreeSet;
use std::sync::Arc;

use contiv_model::api::{EndpointGroup, ExtContractsGroup, Link, Netprofile, Network, Policy, Rule};
use contiv_model::key::ObjectType;

use crate::cache::StagedTxn;
use crate::domain::attachment::{
    MAX_EXPANDED_RULES, MAX_GROUP_RULES, check_attachable, count_rules, link_rules, refresh,
};
use crate::domain::{fabric, object_key};
use crate::problem::Problem;

/// Objects that a group is linked to.
pub(super) trait Links {
    fn profile_key(&self) -> Option<String>;
    fn profile(&self, staged: &StagedTxn<'_>) -> Result<Option<Arc<Netprofile>>, Problem>;
    fn check_references(&self, old: Option<&Self>, staged: &StagedTxn<'_>) -> Result<(), Problem>;
    fn attach(&mut self, old: Option<&Self>, staged: &mut StagedTxn<'_>);
    fn attach_policies(&mut self, staged: &mut StagedTxn<'_>);
    fn attach_profile(&mut self, staged: &mut StagedTxn<'_>);
    fn attach_contracts(&mut self, staged: &mut StagedTxn<'_>);
    fn linked_rules(&self, staged: &StagedTxn<'_>) -> Vec<Rule>;
    fn detach_all(&self, rules: Vec<Rule>, staged: &mut StagedTxn<'_>);
}

impl Links for EndpointGroup {
    fn profile_key(&self) -> Option<String> {
        (!self.net_profile.is_empty()).then(|| object_key(&self.tenant_name, &self.net_profile))
    }

    fn profile(&self, staged: &StagedTxn<'_>) -> Result<Option<Arc<Netprofile>>, Problem> {
        let find = |key: String| {
            staged.get::<Netprofile>(&key).ok_or_else(|| Problem::not_found("netprofile not found"))
        };
        self.profile_key().map(find).transpose()
    }

    /// Checks that everything the group refers to exists, and that its policies do not have too many
    /// rules. A stored group `old` with more rules keeps them.
    fn check_references(&self, old: Option<&Self>, staged: &StagedTxn<'_>) -> Result<(), Problem> {
        let limit = old.map_or(0, |old| count_rules(old, staged)).max(MAX_GROUP_RULES);
        let mut rules = 0;
        // A policy may have thousands of rules, and may be named more than once.
        let mut checked = BTreeSet::new();
        for name in self.policies.iter().filter(|name| checked.insert(name.as_str())) {
            let policy = staged.get::<Policy>(&object_key(&self.tenant_name, name));
            let policy = policy.ok_or_else(|| Problem::not_found("Policy not found"))?;
            let of_policy = staged.count_linked::<Policy, Rule>(&policy.key);
            let groups = staged.count_linked::<Policy, EndpointGroup>(&policy.key);
            let is_new = old.is_none_or(|old| !old.policies.contains(name));
            if is_new && (groups + 1) * of_policy > MAX_EXPANDED_RULES && !fabric::is_enabled(staged) {
                return Err(Problem::conflict(format!(
                    "policy {name} has {of_policy} rules and is on {groups} groups; with one more it would have more than {MAX_EXPANDED_RULES} rules on all of them, which is the limit; attach another policy"
                )));
            }
            rules += of_policy;
            if rules > limit {
                let name = &self.group_name;
                return Err(Problem::conflict(format!(
                    "the policies of group {name} have more than {MAX_GROUP_RULES} rules, which is the limit; attach fewer policies"
                )));
            }
            // A policy that the group has already stays while it cannot be derived, or while a network is missing.
            if is_new {
                check_attachable(&policy.key, &self.key, staged)?;
                check_rule_networks(&policy, staged)?;
            }
        }
        self.profile(staged)?;
        let missing =
            |name: &&String| staged.get::<ExtContractsGroup>(&object_key(&self.tenant_name, name)).is_none();
        match self.ext_contracts_grps.iter().find(missing) {
            Some(name) => Err(Problem::not_found(format!("External contracts group {name} not found"))),
            None => Ok(()),
        }
    }

    /// Creates the links that the fields require, puts the group, and removes obsolete links. The expansion of a policy
    /// depends on the key and the number of the group, its rules, and what they refer to: requests that change one of these
    /// expand the policy. An update of the group changes none of them, so it expands only policies that it adds or removes.
    fn attach(&mut self, old: Option<&Self>, staged: &mut StagedTxn<'_>) {
        self.attach_policies(staged);
        self.attach_profile(staged);
        self.attach_contracts(staged);
        staged.put(&self.key, self.clone());
        let (before, after) = (old.map(|old| &old.link_sets.policies), &self.link_sets.policies);
        let left =
            before.into_iter().flat_map(|before| before.keys()).filter(|key| !after.contains_key(*key));
        let is_new = |key: &&String| before.is_none_or(|before| !before.contains_key(*key));
        for policy in left.chain(after.keys().filter(is_new)) {
            refresh(staged, &self.key, policy);
        }
    }

    fn attach_policies(&mut self, staged: &mut StagedTxn<'_>) {
        self.link_sets.policies.clear();
        for name in &self.policies {
            let key = object_key(&self.tenant_name, name);
            if staged.get::<Policy>(&key).is_none() {
                continue;
            }
            staged.guard_unchanged::<Policy>(&key);
            self.link_sets.policies.insert(key.clone(), Link::to(ObjectType::Policy, key));
        }
    }

    fn attach_profile(&mut self, staged: &mut StagedTxn<'_>) {
        self.links.net_profile = Link::default();
        if let Some(key) = self.profile_key().filter(|key| staged.get::<Netprofile>(key).is_some()) {
            staged.guard_unchanged::<Netprofile>(&key);
            self.links.net_profile = Link::to(ObjectType::Netprofile, key);
        }
    }

    fn attach_contracts(&mut self, staged: &mut StagedTxn<'_>) {
        let key = |name: &String| object_key(&self.tenant_name, name);
        let link = |key: String| (key.clone(), Link::to(ObjectType::ExtContractsGroup, key));
        self.link_sets.ext_contracts_grps = self.ext_contracts_grps.iter().map(key).map(link).collect();
        for key in self.link_sets.ext_contracts_grps.keys() {
            staged.guard_unchanged::<ExtContractsGroup>(key);
        }
    }

    /// Rules whose peer is the group.
    fn linked_rules(&self, staged: &StagedTxn<'_>) -> Vec<Rule> {
        let rules = staged.linked::<EndpointGroup, Rule>(&self.key);
        let rules = rules.iter().filter_map(|key| staged.get::<Rule>(key));
        rules.map(|rule| (*rule).clone()).collect()
    }

    /// Removes what is derived from the group, which is deleted already, and its links from the rules.
    fn detach_all(&self, rules: Vec<Rule>, staged: &mut StagedTxn<'_>) {
        for policy in self.link_sets.policies.keys() {
            refresh(staged, &self.key, policy);
        }
        link_rules(staged, rules, None);
    }
}

/// Checks that the networks of the policy's rules exist: they are resolved to subnets.
fn check_rule_networks(policy: &Policy, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let rules = staged.linked::<Policy, Rule>(&policy.key);
    for rule in rules.iter().filter_map(|key| staged.get::<Rule>(key)) {
        let missing = |network: &str| {
            !network.is_empty() && staged.get::<Network>(&object_key(&rule.tenant_name, network)).is_none()
        };
        if missing(&rule.from_network) {
            return Err(Problem::not_found("from Network not found"));
        }
        if missing(&rule.to_network) {
            return Err(Problem::not_found("to Network not found"));
        }
    }
    Ok(())
}
