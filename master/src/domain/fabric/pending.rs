//! Profiles that a transaction changes in the fabric.
//!
//! Commits wait while the profiles are compared, and a profile may have hundreds of groups with hundreds of
//! rules each. So only the groups that the transaction may change are compared.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::api::{AciGw, AppProfile, EndpointGroup, ExtContractsGroup, Rule};
use contiv_model::key::ObjectType;

use super::{Contracts, Filter, GATEWAY, Group, Link, Spec, define, is_enabled};
use crate::cache::{Entry, Linked, Pending, StagedTxn};

/// Marks the profiles whose specification differs after this transaction as pending.
pub fn mark_pending(staged: &mut StagedTxn<'_>) {
    let cache = staged.cache();
    if !is_enabled(staged) || cache.table::<AppProfile>().is_empty() {
        return;
    }
    let before = StagedTxn::new(cache);
    // All specifications contain the settings of the gateway.
    let all = !is_enabled(&before) || before.get::<AciGw>(GATEWAY) != staged.get::<AciGw>(GATEWAY);
    let affected = Affected::by(staged);
    if !all && affected.is_empty() {
        return;
    }
    for profile in cache.all::<AppProfile>() {
        if all || affected.changes(profile, &before, staged) {
            staged.put(&profile.key, Pending { id: profile.key.clone() });
        }
    }
}

/// Objects that a transaction changes, and those with rules that it changes, by key.
struct Affected {
    profiles: BTreeSet<String>,
    groups: BTreeSet<String>,
    contracts: BTreeSet<String>,
    policies: BTreeSet<String>,
}

impl Affected {
    fn by(staged: &StagedTxn<'_>) -> Affected {
        let mut affected = Affected {
            profiles: changed::<AppProfile>(staged),
            groups: changed::<EndpointGroup>(staged),
            contracts: changed::<ExtContractsGroup>(staged),
            policies: BTreeSet::new(),
        };
        for id in staged.changed::<Rule>() {
            let (old, new) = (staged.cache().get::<Rule>(id), staged.get::<Rule>(id));
            let new = new.as_deref();
            if Part::of(old) == Part::of(new) {
                continue;
            }
            for (kind, key) in old.into_iter().chain(new).flat_map(Linked::references) {
                match kind {
                    ObjectType::Policy => affected.policies.insert(key),
                    ObjectType::EndpointGroup => affected.groups.insert(key),
                    _ => false,
                };
            }
        }
        affected
    }

    fn is_empty(&self) -> bool {
        let Affected { profiles, groups, contracts, policies } = self;
        [profiles, groups, contracts, policies].into_iter().all(BTreeSet::is_empty)
    }

    /// Whether the specification of the profile, as the cache has it, differs after the transaction.
    fn changes(&self, profile: &AppProfile, before: &StagedTxn<'_>, staged: &StagedTxn<'_>) -> bool {
        if self.profiles.contains(&profile.key) {
            return Spec::of(profile, before).ok() != Spec::of(profile, staged).ok();
        }
        let mut groups = profile.link_sets.endpoint_groups.keys();
        groups.any(|key| self.has_group(key, staged) && group(key, before) != group(key, staged))
    }

    /// Whether the group may differ after the transaction.
    fn has_group(&self, key: &str, staged: &StagedTxn<'_>) -> bool {
        if self.groups.contains(key) {
            return true;
        }
        let Some(group) = staged.get::<EndpointGroup>(key) else { return false };
        let has_any = |keys: &BTreeSet<String>, names: &[String]| {
            let key = |name: &String| format!("{}:{name}", group.tenant_name);
            !keys.is_empty() && names.iter().any(|name| keys.contains(&key(name)))
        };
        has_any(&self.policies, &group.policies) || has_any(&self.contracts, &group.ext_contracts_grps)
    }
}

fn changed<T: Entry>(staged: &StagedTxn<'_>) -> BTreeSet<String> {
    staged.changed::<T>().map(str::to_owned).collect()
}

/// The group in the specification of a profile, with its contracts; none if it is invalid. Specifications
/// are equal if those of all their groups are.
fn group(key: &str, staged: &StagedTxn<'_>) -> Option<(Group, BTreeMap<String, Vec<Filter>>)> {
    let group = staged.get::<EndpointGroup>(key)?;
    let mut contracts = Contracts::default();
    let group = Group::of(&group, staged, &mut contracts).ok()?;
    Some((group, contracts.filters))
}

/// What a rule adds to the specifications of groups. A rule that does not exist adds nothing, like a
/// deny rule.
#[derive(Default, PartialEq, Eq)]
struct Part {
    is_invalid: bool,
    /// Of the groups that have the policy.
    link: Option<Link>,
    filters: BTreeMap<String, Vec<Filter>>,
    /// Of the group that the rule refers to.
    matched: Option<Link>,
}

impl Part {
    fn of(rule: Option<&Rule>) -> Part {
        let Some(rule) = rule else { return Part::default() };
        let mut contracts = Contracts::default();
        let link = define(rule, &mut contracts);
        Part {
            is_invalid: link.is_err(),
            link: link.ok().flatten(),
            filters: contracts.filters,
            matched: (rule.action != "deny").then(|| Link::of_matched(rule)),
        }
    }
}
