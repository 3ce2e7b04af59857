//! Flow and group tables of one bridge, and changes to them.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{Hash, Hasher},
};

use openflow_rs::{Change, Flow, Group, GroupMod, PackedFlow, PackedMod};

use super::cookie::Cookie;

/// A flow, compared by its identity in the switch: table, priority and match.
#[derive(Clone, Debug)]
struct FlowEntry(PackedFlow);

impl PartialEq for FlowEntry {
    fn eq(&self, other: &FlowEntry) -> bool {
        self.0.identity() == other.0.identity()
    }
}

impl Eq for FlowEntry {}

impl Hash for FlowEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.identity().hash(state);
    }
}

impl Borrow<[u8]> for FlowEntry {
    fn borrow(&self) -> &[u8] {
        self.0.identity()
    }
}

/// Flows and groups of one bridge.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    flows: HashSet<FlowEntry>,
    /// Flows by cookie.
    owners: HashMap<Cookie, Box<[PackedFlow]>>,
    groups: BTreeMap<u32, Group>,
    /// Ids of the groups that flows of other programs use.
    foreign_groups: BTreeSet<u32>,
}

impl Tables {
    pub(crate) fn new(
        flows: impl IntoIterator<Item = PackedFlow>,
        groups: impl IntoIterator<Item = Group>,
    ) -> Tables {
        let flows: HashSet<FlowEntry> = flows.into_iter().map(FlowEntry).collect();
        let mut owners: HashMap<Cookie, Vec<PackedFlow>> = HashMap::new();
        for FlowEntry(flow) in &flows {
            owners.entry(Cookie(flow.cookie())).or_default().push(flow.clone());
        }
        let owners = owners.into_iter().map(|(owner, flows)| (owner, flows.into())).collect();
        let groups = groups.into_iter().map(|group| (group.id, group)).collect();
        Tables { flows, owners, groups, foreign_groups: BTreeSet::new() }
    }

    /// Sets the ids of the groups that flows of other programs use.
    pub(crate) fn with_foreign_groups(self, foreign_groups: BTreeSet<u32>) -> Tables {
        Tables { foreign_groups, ..self }
    }

    /// Reports whether flows of other programs use the group. If the group is deleted, the switch also deletes these
    /// flows.
    pub(crate) fn is_foreign_group(&self, id: u32) -> bool {
        self.foreign_groups.contains(&id)
    }

    /// Returns the flows that are missing or different in `other`.
    pub(crate) fn difference<'a>(&'a self, other: &'a Tables) -> impl Iterator<Item = &'a PackedFlow> {
        let differs = |flow: &&PackedFlow| other.get(flow) != Some(*flow);
        self.flows().filter(differs)
    }

    pub(crate) fn groups(&self) -> &BTreeMap<u32, Group> {
        &self.groups
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &PackedFlow> {
        self.flows.iter().map(|entry| &entry.0)
    }

    /// Returns the flows with this cookie.
    pub(crate) fn flows_of(&self, owner: Cookie) -> &[PackedFlow] {
        self.owners.get(&owner).map_or(&[], |flows| flows)
    }

    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns the flow with the same identity.
    fn get(&self, flow: &PackedFlow) -> Option<&PackedFlow> {
        self.flows.get(flow.identity()).map(|entry| &entry.0)
    }

    /// Sets the flows with a cookie; returns the previous ones.
    fn set_owned(&mut self, owner: Cookie, flows: Box<[PackedFlow]>) -> Box<[PackedFlow]> {
        let old = match flows.is_empty() {
            true => self.owners.remove(&owner),
            false => self.owners.insert(owner, flows),
        };
        old.unwrap_or_default()
    }
}

/// Uncommitted changes of [`Tables`]. The tables change at once; [`Edit::changes`] returns the modifications for the
/// switch, and [`Edit::rollback`] reverts the tables if the switch rejects them.
pub(crate) struct Edit<'a> {
    tables: &'a mut Tables,
    /// Previous flow for each changed identity.
    flows: HashMap<FlowEntry, Option<PackedFlow>>,
    /// Previous flows of each changed owner.
    owners: HashMap<Cookie, Box<[PackedFlow]>>,
    /// Previous group for each changed id.
    groups: BTreeMap<u32, Option<Group>>,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(tables: &'a mut Tables) -> Edit<'a> {
        Edit { tables, flows: HashMap::new(), owners: HashMap::new(), groups: BTreeMap::new() }
    }

    /// Adds or replaces a flow, even if it belongs to another owner. Returns the flow in the tables.
    fn insert(&mut self, flow: PackedFlow) -> PackedFlow {
        match self.tables.get(&flow) {
            Some(present) if *present == flow => return present.clone(),
            Some(other) if other.cookie() != flow.cookie() => {
                let owner = Cookie(other.cookie());
                let left = self.tables.flows_of(owner).iter();
                let left = left.filter(|other| other.identity() != flow.identity()).cloned().collect();
                self.set_owned(owner, left);
            }
            _ => {}
        }
        let old = self.tables.flows.replace(FlowEntry(flow.clone()));
        self.flows.entry(FlowEntry(flow.clone())).or_insert(old.map(|entry| entry.0));
        flow
    }

    fn set_owned(&mut self, owner: Cookie, flows: Box<[PackedFlow]>) {
        let old = self.tables.set_owned(owner, flows);
        self.owners.entry(owner).or_insert(old);
    }

    /// Replaces all flows of `owner` with `flows`. A flow that another owner has taken over is kept.
    pub(crate) fn set(&mut self, owner: Cookie, flows: impl IntoIterator<Item = Flow>) {
        self.set_packed(owner, flows.into_iter().map(|flow| PackedFlow::new(&flow.cookie(owner.0))));
    }

    /// Like [`set`](Self::set), with flows that already have the owner's cookie.
    pub(crate) fn set_packed(&mut self, owner: Cookie, flows: impl IntoIterator<Item = PackedFlow>) {
        let flows: Box<[PackedFlow]> = flows.into_iter().map(|flow| self.insert(flow)).collect();
        let kept: HashSet<&[u8]> = flows.iter().map(PackedFlow::identity).collect();
        let old = self.tables.flows_of(owner).iter().filter(|flow| !kept.contains(flow.identity()));
        let old: Vec<PackedFlow> = old.cloned().collect();
        for flow in old {
            if let Some(FlowEntry(old)) = self.tables.flows.take(flow.identity()) {
                self.flows.entry(FlowEntry(flow)).or_insert(Some(old));
            }
        }
        if self.tables.flows_of(owner) != &*flows {
            self.set_owned(owner, flows);
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

    /// Removes a group, unless flows of another program use it. It becomes an orphan when they no longer do. Returns
    /// whether the group existed.
    pub(crate) fn remove_group(&mut self, id: u32) -> bool {
        if self.tables.is_foreign_group(id) {
            return self.has_group(id);
        }
        let old = self.tables.groups.remove(&id);
        let existed = old.is_some();
        if existed {
            self.groups.entry(id).or_insert(old);
        }
        existed
    }

    pub(crate) fn has_group(&self, id: u32) -> bool {
        self.tables.groups.contains_key(&id)
    }

    pub(crate) fn groups(&self) -> &BTreeMap<u32, Group> {
        self.tables.groups()
    }

    /// Returns the ids of the groups that no flow of another program uses.
    pub(crate) fn own_group_ids(&self) -> impl Iterator<Item = u32> + use<'_, 'a> {
        let tables = &*self.tables;
        tables.groups.keys().copied().filter(move |id| !tables.is_foreign_group(*id))
    }

    /// Returns the modifications for the switch, in an order that never interrupts forwarding: groups before the flows
    /// that use them, additions before deletions.
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
        for (FlowEntry(flow), old) in &self.flows {
            match self.tables.get(flow) {
                Some(new) if old.as_ref() != Some(new) => add.push(PackedMod::add(new.clone()).into()),
                Some(_) => {}
                None if old.is_some() => delete.push(PackedMod::delete(flow.clone()).into()),
                None => {}
            }
        }
        for mut later in [add, delete, last] {
            first.append(&mut later);
        }
        first
    }

    /// Restores the previous contents of the tables.
    pub(crate) fn rollback(self) {
        for (entry, old) in self.flows {
            match old {
                Some(old) => drop(self.tables.flows.replace(FlowEntry(old))),
                None => drop(self.tables.flows.remove(&entry)),
            }
        }
        for (owner, flows) in self.owners {
            drop(self.tables.set_owned(owner, flows));
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
    fn a_rejected_change_leaves_no_trace() {
        let mut tables = Tables::default();
        Edit::new(&mut tables).set(A, [flow(1, 5), flow(2, 5)]);
        Edit::new(&mut tables).set(B, [flow(3, 5)]);
        let mut edit = Edit::new(&mut tables);
        edit.set(B, [flow(1, 6), flow(4, 5)]);
        edit.set(A, [flow(2, 7)]);
        edit.set(A, []);
        edit.rollback();
        // The owners are restored, too: setting the same flows writes nothing, and deleting the owners deletes all flows.
        let mut edit = Edit::new(&mut tables);
        edit.set(A, [flow(1, 5), flow(2, 5)]);
        edit.set(B, [flow(3, 5)]);
        assert_eq!(change_lines(&edit), [""; 0]);
        edit.set(A, []);
        edit.set(B, []);
        assert_eq!((edit.changes().len(), tables.len()), (3, 0));
    }

    #[test]
    fn groups_are_added_before_and_deleted_after_their_flows() {
        let group = Group { id: 7, kind: GroupKind::All, buckets: vec![] };
        let to_group = Flow::new(1, 10, Match::new()).apply([Action::Group(7)]);
        let mut tables = Tables::default();
        let mut edit = Edit::new(&mut tables);
        edit.set(A, [to_group]);
        edit.set_group(group);
        assert!(matches!(edit.changes()[..], [Change::Group(_), Change::Packed(_)]));
        let mut edit = Edit::new(&mut tables);
        edit.remove_group(7);
        edit.set(A, []);
        assert!(matches!(edit.changes()[..], [Change::Packed(_), Change::Group(_)]));
        edit.rollback();
        assert_eq!((tables.len(), tables.groups().len()), (1, 1));
    }

    #[test]
    fn groups_that_other_programs_use_are_not_removed() {
        let group = Group { id: 7, kind: GroupKind::All, buckets: vec![] };
        let mut tables = Tables::new([], [group]).with_foreign_groups([7].into());
        let mut edit = Edit::new(&mut tables);
        assert!(edit.remove_group(7) && edit.has_group(7));
        assert!(edit.changes().is_empty());
    }

    #[test]
    fn flows_of_other_owners_are_removed() {
        let flows = [flow(1, 5).cookie(A.0), flow(2, 5).cookie(B.0), flow(3, 5)];
        let mut tables = Tables::new(flows.map(|flow| PackedFlow::new(&flow)), []);
        let mut edit = Edit::new(&mut tables);
        edit.retain_owners(|owner| owner == A);
        assert_eq!(edit.changes().len(), 2);
        assert_eq!(tables.len(), 1);
    }
}
