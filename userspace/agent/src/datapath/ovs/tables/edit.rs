//! Flow and group tables of one bridge, and changes to them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use openflow_rs::{Change, Flow, FlowMod, Group, GroupMod};

use super::cookie::Cookie;

/// A flow that is compared by its identity in the switch: table, priority and match.
#[derive(Clone, Debug)]
struct FlowEntry(Arc<Flow>);

impl FlowEntry {
    fn identity(&self) -> (u8, u16, &openflow_rs::Match) {
        (self.0.table, self.0.priority, &self.0.matching)
    }
}

impl PartialEq for FlowEntry {
    fn eq(&self, other: &FlowEntry) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for FlowEntry {}

impl Hash for FlowEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

/// Flows and groups of one bridge.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    flows: HashSet<FlowEntry>,
    /// Flows by cookie.
    owners: HashMap<Cookie, HashSet<FlowEntry>>,
    groups: BTreeMap<u32, Group>,
}

impl Tables {
    pub(crate) fn new(
        flows: impl IntoIterator<Item = Flow>,
        groups: impl IntoIterator<Item = Group>,
    ) -> Tables {
        let mut tables = Tables::default();
        for flow in flows {
            tables.insert(Arc::new(flow));
        }
        tables.groups = groups.into_iter().map(|group| (group.id, group)).collect();
        tables
    }

    /// Returns the flows that are missing or different in `other`.
    pub(crate) fn difference<'a>(&'a self, other: &'a Tables) -> impl Iterator<Item = &'a Flow> {
        self.flows
            .iter()
            .filter(|entry| other.flows.get(entry).is_none_or(|present| present.0 != entry.0))
            .map(|entry| &*entry.0)
    }

    pub(crate) fn groups(&self) -> &BTreeMap<u32, Group> {
        &self.groups
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().map(|entry| &*entry.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Adds or replaces a flow; returns the replaced one.
    fn insert(&mut self, flow: Arc<Flow>) -> Option<Arc<Flow>> {
        let entry = FlowEntry(flow);
        let old = self.flows.replace(entry.clone()).map(|old| old.0);
        if let Some(old) = &old {
            self.remove_owner(Cookie(old.cookie), old);
        }
        self.owners.entry(Cookie(entry.0.cookie)).or_default().replace(entry);
        old
    }

    fn remove(&mut self, flow: &Arc<Flow>) -> Option<Arc<Flow>> {
        let old = self.flows.take(&FlowEntry(flow.clone()))?.0;
        self.remove_owner(Cookie(old.cookie), &old);
        Some(old)
    }

    fn remove_owner(&mut self, owner: Cookie, flow: &Arc<Flow>) {
        if let Some(flows) = self.owners.get_mut(&owner) {
            flows.remove(&FlowEntry(flow.clone()));
            if flows.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }
}

/// Uncommitted changes of [`Tables`]. The tables change at once; [`Edit::changes`] returns the modifications for the
/// switch, and [`Edit::rollback`] reverts the tables if the switch rejects them.
pub(crate) struct Edit<'a> {
    tables: &'a mut Tables,
    /// Previous flow for each changed identity.
    flows: HashMap<FlowEntry, Option<Arc<Flow>>>,
    /// Previous group for each changed id.
    groups: BTreeMap<u32, Option<Group>>,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(tables: &'a mut Tables) -> Edit<'a> {
        Edit { tables, flows: HashMap::new(), groups: BTreeMap::new() }
    }

    fn insert(&mut self, flow: Flow) {
        let flow = Arc::new(flow);
        if self.tables.flows.get(&FlowEntry(flow.clone())).is_some_and(|entry| *entry.0 == *flow) {
            return;
        }
        let old = self.tables.insert(flow.clone());
        self.flows.entry(FlowEntry(flow)).or_insert(old);
    }

    fn remove(&mut self, flow: &Arc<Flow>) {
        if let Some(old) = self.tables.remove(flow) {
            self.flows.entry(FlowEntry(flow.clone())).or_insert(Some(old));
        }
    }

    /// Replaces all flows of `owner` with `flows`. A flow that another owner has taken over stays.
    pub(crate) fn set(&mut self, owner: Cookie, flows: impl IntoIterator<Item = Flow>) {
        let mut old = self.tables.owners.get(&owner).cloned().unwrap_or_default();
        for flow in flows {
            let flow = flow.cookie(owner.0);
            old.remove(&FlowEntry(Arc::new(flow.clone())));
            self.insert(flow);
        }
        for entry in old {
            self.remove(&entry.0);
        }
    }

    /// Removes the flows of all owners for which `keep` returns false.
    pub(crate) fn retain_owners(&mut self, keep: impl Fn(Cookie) -> bool) {
        let orphans: Vec<_> = self.tables.owners.keys().copied().filter(|owner| !keep(*owner)).collect();
        for owner in orphans {
            self.set(owner, []);
        }
    }

    pub(crate) fn set_group(&mut self, group: Group) {
        if self.tables.groups.get(&group.id) != Some(&group) {
            let id = group.id;
            let old = self.tables.groups.insert(id, group);
            self.groups.entry(id).or_insert(old);
        }
    }

    pub(crate) fn remove_group(&mut self, id: u32) {
        if let Some(old) = self.tables.groups.remove(&id) {
            self.groups.entry(id).or_insert(Some(old));
        }
    }

    pub(crate) fn group_ids(&self) -> impl Iterator<Item = u32> + use<'_, 'a> {
        self.tables.groups.keys().copied()
    }

    /// Returns the modifications for the switch, in an order that never leaves a gap: groups before the flows that use
    /// them, additions before deletions.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let (mut first, mut add, mut delete, mut last) = (vec![], vec![], vec![], vec![]);
        for (id, old) in &self.groups {
            match self.tables.groups.get(id) {
                Some(new) if old.as_ref() != Some(new) => {
                    first.push(GroupMod::add_or_modify(new.clone()).into());
                }
                Some(_) => {}
                None if old.is_some() => last.push(GroupMod::delete(*id).into()),
                None => {}
            }
        }
        for (entry, old) in &self.flows {
            match self.tables.flows.get(entry) {
                Some(new) if old.as_ref().is_none_or(|old| **old != *new.0) => {
                    add.push(FlowMod::add((*new.0).clone()).into());
                }
                Some(_) => {}
                None if old.is_some() => delete.push(FlowMod::delete_strict(&entry.0).into()),
                None => {}
            }
        }
        [first, add, delete, last].concat()
    }

    /// Restores the previous contents of the tables.
    pub(crate) fn rollback(self) {
        for (entry, old) in self.flows {
            match old {
                Some(old) => drop(self.tables.insert(old)),
                None => drop(self.tables.remove(&entry.0)),
            }
        }
        for (id, old) in self.groups {
            match old {
                Some(old) => drop(self.tables.groups.insert(id, old)),
                None => drop(self.tables.groups.remove(&id)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow_rs::{Action, GroupKind, Match};

    const A: Cookie = Cookie(1);
    const B: Cookie = Cookie(2);

    fn flow(port: u32, out: u32) -> Flow {
        Flow::new(1, 10, Match::new().in_port(port.into())).apply([Action::output(out)])
    }

    fn change_lines(edit: &Edit<'_>) -> Vec<String> {
        let mut lines: Vec<_> = edit.changes().iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    }

    #[test]
    fn only_differences_are_written() {
        let mut tables = Tables::default();
        let mut edit = Edit::new(&mut tables);
        edit.set(A, [flow(1, 5), flow(2, 5)]);
        assert_eq!(edit.changes().len(), 2);
        let mut edit = Edit::new(&mut tables);
        edit.set(A, [flow(2, 5), flow(1, 5)]);
        assert!(edit.changes().is_empty());
        edit.set(A, [flow(1, 5), flow(2, 6)]);
        edit.set(A, [flow(1, 5), flow(2, 7)]);
        assert_eq!(change_lines(&edit), ["add flow table=1, priority=10,in_port=2 actions=output:7"]);
    }

    #[test]
    fn a_flow_taken_over_by_another_owner_stays() {
        let mut tables = Tables::default();
        Edit::new(&mut tables).set(A, [flow(1, 5)]);
        let mut edit = Edit::new(&mut tables);
        edit.set(B, [flow(1, 6)]);
        edit.set(A, []);
        assert_eq!(change_lines(&edit), ["add flow table=1, priority=10,in_port=1 actions=output:6"]);
        assert_eq!(tables.len(), 1);
    }

    #[test]
    fn groups_are_added_before_and_deleted_after_their_flows() {
        let group = Group { id: 7, kind: GroupKind::All, buckets: vec![] };
        let to_group = Flow::new(1, 10, Match::new()).apply([Action::Group(7)]);
        let mut tables = Tables::default();
        let mut edit = Edit::new(&mut tables);
        edit.set(A, [to_group]);
        edit.set_group(group);
        assert!(matches!(edit.changes()[..], [Change::Group(_), Change::Flow(_)]));
        let mut edit = Edit::new(&mut tables);
        edit.remove_group(7);
        edit.set(A, []);
        assert!(matches!(edit.changes()[..], [Change::Flow(_), Change::Group(_)]));
        edit.rollback();
        assert_eq!((tables.len(), tables.groups().len()), (1, 1));
    }

    #[test]
    fn flows_of_other_owners_are_removed() {
        let mut tables = Tables::new([flow(1, 5).cookie(A.0), flow(2, 5).cookie(B.0), flow(3, 5)], []);
        let mut edit = Edit::new(&mut tables);
        edit.retain_owners(|owner| owner == A);
        assert_eq!(edit.changes().len(), 2);
        assert_eq!(tables.len(), 1);
    }
}
