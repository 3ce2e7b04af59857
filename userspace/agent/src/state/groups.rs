use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    group::{Group, GroupNumber},
    name::{GroupKey, PolicyId},
    policy::Policy,
};

use super::index::remove_from;

/// Groups, and the policies attached to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Groups {
    groups: BTreeMap<GroupKey, Group>,
    /// Two groups with the same number are a configuration error; the first by name applies.
    numbered: BTreeMap<GroupNumber, BTreeSet<GroupKey>>,
    policies: BTreeMap<PolicyId, Policy>,
    by_group: BTreeMap<GroupNumber, BTreeSet<PolicyId>>,
    known: KnownPolicies,
}

/// Groups whose policies, if any, are in the state.
#[derive(Clone, Debug, PartialEq)]
struct KnownPolicies {
    /// The state has the policies of all groups.
    all: bool,
    of: BTreeSet<GroupKey>,
}

impl Default for KnownPolicies {
    fn default() -> Self {
        KnownPolicies { all: true, of: BTreeSet::new() }
    }
}

impl Groups {
    pub(super) fn get(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(self.numbered.get(&number)?.first()?)
    }

    pub(super) fn policies(&self, number: GroupNumber) -> impl Iterator<Item = &Policy> {
        self.by_group.get(&number).into_iter().flatten().filter_map(|id| self.policies.get(id))
    }

    pub(super) fn number(&self, key: &GroupKey) -> Option<GroupNumber> {
        self.groups.get(key).map(|group| group.number)
    }

    /// Records that the state has the policies of a group, or of all groups.
    pub(super) fn learn_policies(&mut self, group: Option<&GroupKey>) {
        match group {
            Some(group) => _ = self.known.of.insert(group.clone()),
            None => self.known.all = true,
        }
    }

    /// Records that the policies of a group, or the common watch of all policies, are no longer watched.
    pub(super) fn forget_policies(&mut self, group: Option<&GroupKey>) {
        match group {
            Some(group) => _ = self.known.of.remove(group),
            None => self.known.all = false,
        }
    }

    /// Reports whether the state may lack policies of a group with this number. `key` is the group's key, if known.
    pub(super) fn lacks_policies(&self, number: GroupNumber, key: Option<&GroupKey>) -> bool {
        let mut keys = self.keys(number).chain(key).peekable();
        !self.known.all && (keys.peek().is_none() || keys.any(|key| !self.known.of.contains(key)))
    }

    /// Keys of the groups with a number.
    pub(super) fn keys(&self, number: GroupNumber) -> impl Iterator<Item = &GroupKey> {
        self.numbered.get(&number).into_iter().flatten()
    }

    pub(super) fn has_policy(&self, id: &PolicyId) -> bool {
        self.policies.contains_key(id)
    }

    /// Returns the numbers of the affected groups.
    pub(super) fn set_group(&mut self, key: &GroupKey, group: Option<Group>) -> BTreeSet<GroupNumber> {
        if self.groups.get(key) == group.as_ref() {
            return BTreeSet::new();
        }
        let before = self.groups.remove(key);
        let affected = before.iter().chain(&group).map(|group| group.number).collect();
        if let Some(before) = before {
            remove_from(&mut self.numbered, &before.number, key);
        }
        if let Some(group) = group {
            self.numbered.entry(group.number).or_default().insert(key.clone());
            self.groups.insert(key.clone(), group);
        }
        affected
    }

    /// Returns the numbers of the affected groups.
    pub(super) fn set_policy(&mut self, id: &PolicyId, policy: Option<Policy>) -> BTreeSet<GroupNumber> {
        if self.policies.get(id) == policy.as_ref() {
            return BTreeSet::new();
        }
        let before = self.policies.remove(id);
        let affected = before.iter().chain(&policy).map(|policy| policy.group).collect();
        if let Some(before) = before {
            remove_from(&mut self.by_group, &before.group, id);
        }
        if let Some(policy) = policy {
            self.by_group.entry(policy.group).or_default().insert(id.clone());
            self.policies.insert(id.clone(), policy);
        }
        affected
    }
}
