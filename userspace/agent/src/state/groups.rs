use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    group::{Group, GroupNumber},
    name::{GroupKey, HostName, PolicyId},
    policy::Policy,
};

use super::take_out;

/// Groups by their numbers, the policies on them, and where they have endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Groups {
    groups: BTreeMap<GroupKey, Group>,
    /// Two groups with one number are a mistake that only the operator can mend; the first by name is believed.
    numbered: BTreeMap<GroupNumber, BTreeSet<GroupKey>>,
    policies: BTreeMap<PolicyId, Policy>,
    on: BTreeMap<GroupNumber, BTreeSet<PolicyId>>,
    /// Policies that stand in the store and were never understood, by the group that their ids tell.
    unread: BTreeMap<GroupKey, BTreeSet<PolicyId>>,
    /// How many endpoints of a group each node has.
    members: BTreeMap<HostName, BTreeMap<GroupNumber, usize>>,
}

impl Groups {
    pub(super) fn get(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(self.numbered.get(&number)?.first()?)
    }

    pub(super) fn policies(&self, number: GroupNumber) -> impl Iterator<Item = &Policy> {
        self.on.get(&number).into_iter().flatten().filter_map(|id| self.policies.get(id))
    }

    pub(super) fn on_host(&self, host: &HostName) -> impl Iterator<Item = GroupNumber> {
        self.members.get(host).into_iter().flat_map(|counts| counts.keys().copied())
    }

    pub(super) fn is_on_host(&self, number: GroupNumber, host: &HostName) -> bool {
        self.members.get(host).is_some_and(|counts| counts.contains_key(&number))
    }

    /// The numbers that this concerns.
    pub(super) fn set_group(&mut self, key: &GroupKey, group: Option<Group>) -> BTreeSet<GroupNumber> {
        if self.groups.get(key) == group.as_ref() {
            return BTreeSet::new();
        }
        let before = self.groups.remove(key);
        let concerned = before.iter().chain(&group).map(|group| group.number).collect();
        if let Some(before) = before {
            take_out(&mut self.numbered, &before.number, key);
        }
        if let Some(group) = group {
            self.numbered.entry(group.number).or_default().insert(key.clone());
            self.groups.insert(key.clone(), group);
        }
        concerned
    }

    /// The numbers of the groups that this concerns.
    pub(super) fn set_policy(&mut self, id: &PolicyId, policy: Option<Policy>) -> BTreeSet<GroupNumber> {
        let mut concerned: BTreeSet<_> = self.forget_unread(id).into_iter().collect();
        if self.policies.get(id) == policy.as_ref() {
            return concerned;
        }
        let before = self.policies.remove(id);
        concerned.extend(before.iter().chain(&policy).map(|policy| policy.group));
        if let Some(before) = before {
            take_out(&mut self.on, &before.group, id);
        }
        if let Some(policy) = policy {
            self.on.entry(policy.group).or_default().insert(id.clone());
            self.policies.insert(id.clone(), policy);
        }
        concerned
    }

    /// The policy stands in the store, and is not understood. The number of the group that this concerns, unless a good
    /// version is known, which stays.
    pub(super) fn reject_policy(&mut self, id: &PolicyId) -> Option<GroupNumber> {
        if self.policies.contains_key(id) {
            return None;
        }
        let key = id.group()?;
        let number = self.groups.get(&key).map(|group| group.number);
        self.unread.entry(key).or_default().insert(id.clone()).then_some(number)?
    }

    fn forget_unread(&mut self, id: &PolicyId) -> Option<GroupNumber> {
        let key = id.group()?;
        if !self.unread.get(&key)?.contains(id) {
            return None;
        }
        take_out(&mut self.unread, &key, id);
        self.groups.get(&key).map(|group| group.number)
    }

    /// The groups with a policy that was never understood, and the first such policy.
    pub(super) fn unread(&self) -> impl Iterator<Item = (GroupNumber, &PolicyId)> {
        self.unread.iter().filter_map(|(key, ids)| Some((self.groups.get(key)?.number, ids.first()?)))
    }

    /// Whether the group has a policy that was never understood.
    pub(super) fn has_unread(&self, number: GroupNumber) -> bool {
        let keys = self.numbered.get(&number).into_iter().flatten();
        keys.into_iter().any(|key| self.unread.contains_key(key))
    }

    /// An endpoint is on the node; whether it is the first of its group there.
    pub(super) fn join(&mut self, number: GroupNumber, host: &HostName) -> bool {
        let count = self.members.entry(host.clone()).or_default().entry(number).or_default();
        *count += 1;
        *count == 1
    }

    /// An endpoint has left the node; whether it was the last of its group there.
    pub(super) fn part(&mut self, number: GroupNumber, host: &HostName) -> bool {
        let Some(counts) = self.members.get_mut(host) else { return false };
        let Some(count) = counts.get_mut(&number) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            counts.remove(&number);
            if counts.is_empty() {
                self.members.remove(host);
            }
        }
        last
    }
}
