//! What one bridge holds in its flow and group tables, and how it changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use openflow_rs::{Change, Flow, FlowMod, Group, GroupMod};

use super::cookie::Cookie;

/// A flow, known by what identifies it to the switch: table, priority and match.
#[derive(Clone, Debug)]
struct Row(Arc<Flow>);

impl Row {
    fn identity(&self) -> (u8, u16, &openflow_rs::Match) {
        (self.0.table, self.0.priority, &self.0.matching)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Row {}

impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

/// The flows and groups of one bridge, by owner.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    rows: HashSet<Row>,
    owners: HashMap<Cookie, HashSet<Row>>,
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

    /// The flows that `other` does not hold just so.
    pub(crate) fn beyond<'a>(&'a self, other: &'a Tables) -> impl Iterator<Item = &'a Flow> {
        self.rows
            .iter()
            .filter(|row| other.rows.get(row).is_none_or(|held| held.0 != row.0))
            .map(|row| &*row.0)
    }

    pub(crate) fn groups(&self) -> &BTreeMap<u32, Group> {
        &self.groups
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Puts a flow in; what it replaces is returned.
    fn insert(&mut self, flow: Arc<Flow>) -> Option<Arc<Flow>> {
        let row = Row(flow);
        let old = self.rows.replace(row.clone()).map(|old| old.0);
        if let Some(old) = &old {
            self.disown(Cookie(old.cookie), old);
        }
        self.owners.entry(Cookie(row.0.cookie)).or_default().replace(row);
        old
    }

    fn remove(&mut self, flow: &Arc<Flow>) -> Option<Arc<Flow>> {
        let old = self.rows.take(&Row(flow.clone()))?.0;
        self.disown(Cookie(old.cookie), &old);
        Some(old)
    }

    fn disown(&mut self, owner: Cookie, flow: &Arc<Flow>) {
        if let Some(rows) = self.owners.get_mut(&owner) {
            rows.remove(&Row(flow.clone()));
            if rows.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }
}

/// Tables in the making: nothing reaches the switch before [`Edit::changes`] does, and an edit that failed there
/// is undone here.
pub(crate) struct Edit<'a> {
    tables: &'a mut Tables,
    /// What stood there before, for each flow touched.
    flows: HashMap<Row, Option<Arc<Flow>>>,
    groups: BTreeMap<u32, Option<Group>>,
}

impl<'a> Edit<'a> {
    pub(crate) fn of(tables: &'a mut Tables) -> Edit<'a> {
        Edit { tables, flows: HashMap::new(), groups: BTreeMap::new() }
    }

    fn put(&mut self, flow: Flow) {
        let flow = Arc::new(flow);
        if self.tables.rows.get(&Row(flow.clone())).is_some_and(|row| *row.0 == *flow) {
            return;
        }
        let old = self.tables.insert(flow.clone());
        self.flows.entry(Row(flow)).or_insert(old);
    }

    fn take(&mut self, flow: &Arc<Flow>) {
        if let Some(old) = self.tables.remove(flow) {
            self.flows.entry(Row(flow.clone())).or_insert(Some(old));
        }
    }

    /// Makes `flows` be all that the owner has. A flow that another owner took over stays with it.
    pub(crate) fn set(&mut self, owner: Cookie, flows: impl IntoIterator<Item = Flow>) {
        let mut old = self.tables.owners.get(&owner).cloned().unwrap_or_default();
        for flow in flows {
            let flow = flow.cookie(owner.0);
            old.remove(&Row(Arc::new(flow.clone())));
            self.put(flow);
        }
        for row in old {
            self.take(&row.0);
        }
    }

    /// Removes every flow whose owner does not count.
    pub(crate) fn sweep(&mut self, counts: impl Fn(Cookie) -> bool) {
        let strays: Vec<_> = self.tables.owners.keys().copied().filter(|owner| !counts(*owner)).collect();
        for owner in strays {
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

    /// What the switch must be told, in an order in which nothing is missing at any time: groups before the
    /// flows that send to them, what is new before what goes.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let (mut first, mut add, mut delete, mut last) = (vec![], vec![], vec![], vec![]);
        for (id, old) in &self.groups {
            match self.tables.groups.get(id) {
                Some(new) if old.as_ref() != Some(new) => {
                    first.push(GroupMod::add_or_modify(new.clone()).into())
                }
                Some(_) => {}
                None if old.is_some() => last.push(GroupMod::delete(*id).into()),
                None => {}
            }
        }
        for (row, old) in &self.flows {
            match self.tables.rows.get(row) {
                Some(new) if old.as_ref().is_none_or(|old| **old != *new.0) => {
                    add.push(FlowMod::add((*new.0).clone()).into());
                }
                Some(_) => {}
                None if old.is_some() => delete.push(FlowMod::delete_strict(&row.0).into()),
                None => {}
            }
        }
        [first, add, delete, last].concat()
    }

    /// The tables become what they were.
    pub(crate) fn undo(self) {
        for (row, old) in self.flows {
            match old {
                Some(old) => drop(self.tables.insert(old)),
                None => drop(self.tables.remove(&row.0)),
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

    fn told(edit: &Edit<'_>) -> Vec<String> {
        let mut told: Vec<_> = edit.changes().iter().map(ToString::to_string).collect();
        told.sort();
        told
    }

    #[test]
    fn only_what_changed_is_told() {
        let mut tables = Tables::default();
        let mut edit = Edit::of(&mut tables);
        edit.set(A, [flow(1, 5), flow(2, 5)]);
        assert_eq!(edit.changes().len(), 2);
        let mut edit = Edit::of(&mut tables);
        edit.set(A, [flow(2, 5), flow(1, 5)]);
        assert!(edit.changes().is_empty());
        edit.set(A, [flow(1, 5), flow(2, 6)]);
        edit.set(A, [flow(1, 5), flow(2, 7)]);
        assert_eq!(told(&edit), ["add flow table=1, priority=10,in_port=2 actions=output:7"]);
    }

    #[test]
    fn a_flow_that_moved_to_another_owner_stays() {
        let mut tables = Tables::default();
        Edit::of(&mut tables).set(A, [flow(1, 5)]);
        let mut edit = Edit::of(&mut tables);
        edit.set(B, [flow(1, 6)]);
        edit.set(A, []);
        assert_eq!(told(&edit), ["add flow table=1, priority=10,in_port=1 actions=output:6"]);
        assert_eq!(tables.len(), 1);
    }

    #[test]
    fn groups_come_before_their_flows_and_go_after() {
        let group = Group { id: 7, kind: GroupKind::All, buckets: vec![] };
        let to_group = Flow::new(1, 10, Match::new()).apply([Action::Group(7)]);
        let mut tables = Tables::default();
        let mut edit = Edit::of(&mut tables);
        edit.set(A, [to_group]);
        edit.set_group(group);
        assert!(matches!(edit.changes()[..], [Change::Group(_), Change::Flow(_)]));
        let mut edit = Edit::of(&mut tables);
        edit.remove_group(7);
        edit.set(A, []);
        assert!(matches!(edit.changes()[..], [Change::Flow(_), Change::Group(_)]));
        edit.undo();
        assert_eq!((tables.len(), tables.groups().len()), (1, 1));
    }

    #[test]
    fn a_sweep_takes_what_nobody_owns() {
        let mut tables = Tables::new([flow(1, 5).cookie(A.0), flow(2, 5).cookie(B.0), flow(3, 5)], []);
        let mut edit = Edit::of(&mut tables);
        edit.sweep(|owner| owner == A);
        assert_eq!(edit.changes().len(), 2);
        assert_eq!(tables.len(), 1);
    }
}
