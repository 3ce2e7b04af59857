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
    /// Two groups with one number are a configuration error; the first by name applies.
    numbered: BTreeMap<GroupNumber, BTreeSet<GroupKey>>,
    policies: BTreeMap<PolicyId, Policy>,
    by_group: BTreeMap<GroupNumber, BTreeSet<PolicyId>>,
    /// Policies that exist in the store but have never been valid, by the group in their ids.
    invalid: BTreeMap<GroupKey, BTreeSet<PolicyId>>,
}

impl Groups {
    pub(super) fn get(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(self.numbered.get(&number)?.first()?)
    }

    pub(super) fn policies(&self, number: GroupNumber) -> impl Iterator<Item = &Policy> {
        self.by_group.get(&number).into_iter().flatten().filter_map(|id| self.policies.get(id))
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
        let mut affected: BTreeSet<_> = self.remove_invalid(id).into_iter().collect();
        if self.policies.get(id) == policy.as_ref() {
            return affected;
        }
        let before = self.policies.remove(id);
        affected.extend(before.iter().chain(&policy).map(|policy| policy.group));
        if let Some(before) = before {
            remove_from(&mut self.by_group, &before.group, id);
        }
        if let Some(policy) = policy {
            self.by_group.entry(policy.group).or_default().insert(id.clone());
            self.policies.insert(id.clone(), policy);
        }
        affected
    }

    /// Records that the policy is invalid and returns the number of the affected group. If a valid version is known, that
    /// version stays in effect and no group is affected.
    pub(super) fn reject_policy(&mut self, id: &PolicyId) -> Option<GroupNumber> {
        if self.policies.contains_key(id) {
            return None;
        }
        let key = id.group()?;
        let number = self.groups.get(&key).map(|group| group.number);
        self.invalid.entry(key).or_default().insert(id.clone()).then_some(number)?
    }

    fn remove_invalid(&mut self, id: &PolicyId) -> Option<GroupNumber> {
        let key = id.group()?;
        if !self.invalid.get(&key)?.contains(id) {
            return None;
        }
        remove_from(&mut self.invalid, &key, id);
        self.groups.get(&key).map(|group| group.number)
    }

    /// Groups with a policy that has never been valid, each with the first such policy.
    pub(super) fn invalid(&self) -> impl Iterator<Item = (GroupNumber, &PolicyId)> {
        self.invalid.iter().filter_map(|(key, ids)| Some((self.groups.get(key)?.number, ids.first()?)))
    }

    /// Whether the group has a policy that has never been valid.
    pub(super) fn has_invalid(&self, number: GroupNumber) -> bool {
        let keys = self.numbered.get(&number).into_iter().flatten();
        keys.into_iter().any(|key| self.invalid.contains_key(key))
    }
}
