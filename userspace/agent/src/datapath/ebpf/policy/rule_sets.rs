//! Rule sets and their search trees in the kernel: two arrays in the memory of the process. A new set is written to free
//! slots, and is complete before a group refers to it.

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use aya::maps::MapData;
use contiv_abi::{
    maps::{REVISION, REVISIONS, RULE_SETS, RULE_SETS_CAPACITY, RULES},
    policy::{Branch, RuleEntry, RuleSet},
};

use super::{compile::Compiled, slots::SlotAllocator};
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, sizes, writes::Writes},
    },
};

/// The parts of a rule set to which a group refers.
#[derive(Debug, Default)]
struct Parts {
    /// Number of the set, and of the sets to which it refers.
    sets: Vec<u32>,
    /// Slots of the tree nodes.
    nodes: Vec<u32>,
    /// Number of rules.
    rules: u32,
    /// A part is missing or shared with another set.
    corrupt: bool,
}

/// `ctv_rulesets` and `ctv_rules`. The agent is the only writer.
pub(crate) struct RuleSets {
    sets: MmapArray<RuleSet>,
    nodes: MmapArray<Branch>,
    /// Parts by the number of the set to which a group refers.
    known: HashMap<u32, Parts>,
    slots: SlotAllocator,
    /// Number of tree nodes.
    capacity: usize,
    /// Sets to which no group refers.
    orphans: BTreeSet<u32>,
    used_sets: usize,
    /// `ctv_revision`: the next number, also for later processes. A number is a policy revision: if it were reused, flows
    /// that were evaluated with the first set of that number would be considered current.
    next: MmapArray<u64>,
    writes: Writes,
}

impl RuleSets {
    pub(crate) fn new(
        sets: MapData,
        nodes: MapData,
        next: MapData,
        capacity: u32,
        writes: Writes,
    ) -> Result<RuleSets, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(RuleSets {
            sets: MmapArray::new(sets, RULE_SETS_CAPACITY).map_err(|error| map(RULE_SETS, error))?,
            nodes: MmapArray::new(nodes, capacity as usize).map_err(|error| map(RULES, error))?,
            known: HashMap::new(),
            slots: SlotAllocator::new(capacity),
            capacity: capacity as usize,
            orphans: BTreeSet::new(),
            used_sets: 0,
            next: MmapArray::new(next, 1).map_err(|error| map(REVISION, error))?,
            writes,
        })
    }

    /// Reserves all numbers below `next`, which another ABI version has used: its flows are imported.
    pub(crate) fn reserve(&mut self, next: u64) {
        if next > self.next() && next <= REVISIONS.into() {
            self.writes.count();
            self.next.set(0, next);
        }
    }

    /// Reads the maps. `roots` are the sets to which groups refer. Returns the largest rule number.
    pub(crate) fn read(&mut self, roots: impl Iterator<Item = u32>) -> u32 {
        self.known.clear();
        let existing: Vec<u32> = self
            .sets
            .occupied()
            .into_iter()
            .filter_map(|index| self.sets.get(index))
            .map(|set| set.number)
            .filter(|number| *number != 0)
            .collect();
        self.orphans = existing.iter().copied().collect();
        self.used_sets = existing.len();
        let mut used = BTreeSet::new();
        let (mut last_set, mut last_rule) = (existing.iter().copied().max().unwrap_or(0), 0);
        for root in roots {
            last_set = root.max(last_set);
            let parts = self.collect(root, &mut used, &mut last_rule);
            self.known.insert(root, parts);
        }
        self.slots = SlotAllocator::with_used(self.capacity as u32, &used);
        // Greater only if the map was lost.
        if u64::from(last_set) >= self.next() {
            self.set_next(last_set.saturating_add(1));
        }
        last_rule
    }

    /// Collects the parts of a set. Parts of an earlier set make it corrupt.
    fn collect(&mut self, root: u32, used: &mut BTreeSet<u32>, last_rule: &mut u32) -> Parts {
        let mut parts = Parts::default();
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut entries = vec![RuleEntry::set(root)];
        while let Some(entry) = entries.pop() {
            if entry.is_set() {
                if parts.sets.contains(&entry.rule) {
                    continue;
                }
                match self.set(entry.rule) {
                    Some(set) if self.orphans.remove(&entry.rule) => {
                        parts.sets.push(entry.rule);
                        entries.extend(set.roots);
                    }
                    _ => parts.corrupt = true,
                }
            } else if entry.is_branch() {
                if !seen.insert(entry.rule) {
                    continue;
                }
                match self.nodes.get(entry.rule) {
                    Some(node) if used.insert(entry.rule) => {
                        parts.nodes.push(entry.rule);
                        entries.extend(node.ways);
                    }
                    _ => parts.corrupt = true,
                }
            } else if entry.is_some() {
                *last_rule = entry.rule.max(*last_rule);
            }
        }
        parts.rules = self.set(root).map_or(0, |set| set.rules);
        parts
    }

    fn set(&self, number: u32) -> Option<RuleSet> {
        self.sets.get(RuleSet::place(number)).filter(|set| set.number == number && number != 0)
    }

    /// Number of sets to which no group refers.
    pub(crate) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Sets to which a group referred when they were read or written.
    pub(crate) fn roots(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied()
    }

    /// Number of sets, tree nodes, and rules.
    pub(crate) fn usage(&self) -> [usize; 3] {
        let rules = self.known.values().map(|parts| parts.rules as usize).sum();
        [self.used_sets, self.slots.used(), rules]
    }

    /// Numbers of the rules in the kernel, if the set `set` equals the compiled one. Rules that never decide have
    /// number 0.
    pub(crate) fn numbers(&self, compiled: &Compiled, set: u32) -> Option<Vec<u32>> {
        if compiled.sets.is_empty() || set == 0 {
            return (compiled.sets.is_empty() && set == 0).then(Vec::new);
        }
        if self.known.get(&set).is_none_or(|parts| parts.corrupt) {
            return None;
        }
        let mut comparison = Comparison::new(compiled);
        comparison.entry(RuleEntry::set(0), RuleEntry::set(set))?;
        while let Some(pair) = comparison.open.pop() {
            match pair {
                Pair::Sets(expected, actual) => comparison.set(expected, &self.set(actual)?)?,
                Pair::Nodes(expected, actual) => comparison.node(expected, &self.nodes.get(actual)?)?,
            }
        }
        Some(comparison.rules)
    }

    /// Whether at most half of the tree nodes would be used after `nodes` more.
    pub(crate) fn has_spare_capacity(&self, nodes: usize) -> bool {
        self.slots.used() + nodes <= self.capacity / 2
    }

    /// Writes the compiled sets to free slots, or nothing after an error. `rules` are the numbers of the rules. Returns the
    /// number of the first set, to which the caller makes the group refer.
    pub(crate) fn install(&mut self, compiled: &Compiled, rules: &[u32]) -> Result<u32, Error> {
        let full =
            |map, capacity| failed(sizes::full(map, capacity), io::Error::from_raw_os_error(libc::E2BIG));
        let sets =
            self.free_numbers(compiled.sets.len()).ok_or_else(|| full(RULE_SETS, RULE_SETS_CAPACITY))?;
        let nodes = self.slots.allocate(compiled.nodes.len()).ok_or_else(|| full(RULES, self.capacity))?;
        let number = |numbers: &[u32], number: u32| numbers.get(number as usize).copied().unwrap_or(0);
        let entry = |entry: RuleEntry| {
            let numbers = match entry {
                entry if entry.is_branch() => &nodes,
                entry if entry.is_set() => &sets,
                entry if entry.is_some() => rules,
                entry => return entry,
            };
            RuleEntry { rule: number(numbers, entry.rule), ..entry }
        };
        // This comes first: if the process stops here, the numbers count as used.
        if let Some(last) = sets.last() {
            self.set_next(last + 1);
        }
        self.writes.count();
        for (slot, node) in nodes.iter().zip(&compiled.nodes) {
            self.nodes.set(*slot, Branch { ways: node.ways.map(entry), ..*node });
        }
        // In reverse order: the first set refers to the others.
        for (set, compiled) in sets.iter().zip(&compiled.sets).rev() {
            let roots = compiled.roots.map(entry);
            self.sets.set(RuleSet::place(*set), RuleSet { number: *set, roots, ..*compiled });
        }
        let first = number(&sets, 0);
        self.used_sets += sets.len();
        let rules = compiled.sets.first().map_or(0, |set| set.rules);
        self.known.insert(first, Parts { sets, nodes, rules, corrupt: false });
        Ok(first)
    }

    /// The next `count` set numbers whose entries are free. `None` if there are not so many, or all numbers were used.
    fn free_numbers(&self, count: usize) -> Option<Vec<u32>> {
        let free = |number: &u32| self.sets.get(RuleSet::place(*number)).is_some_and(|set| set.number == 0);
        let first = u32::try_from(self.next()).ok()?;
        let all = (first..REVISIONS).take(RULE_SETS_CAPACITY);
        let numbers: Vec<u32> = all.filter(free).take(count).collect();
        (numbers.len() == count).then_some(numbers)
    }

    fn next(&self) -> u64 {
        self.next.get(0).unwrap_or(0).max(1)
    }

    fn set_next(&mut self, number: u32) {
        self.next.set(0, number.into());
    }

    /// Removes sets and their parts. The caller has waited for an RCU grace period since the last reference.
    pub(crate) fn remove(&mut self, roots: &[u32]) {
        for root in roots {
            let Some(parts) = self.known.remove(root) else { continue };
            parts.sets.into_iter().for_each(|set| self.clear(set));
            self.slots.free(parts.nodes);
        }
    }

    /// Removes sets to which no group refers.
    pub(crate) fn collect_garbage(&mut self) {
        for set in std::mem::take(&mut self.orphans) {
            self.clear(set);
        }
    }

    fn clear(&mut self, set: u32) {
        self.writes.count();
        self.sets.set(RuleSet::place(set), RuleSet::EMPTY);
        self.used_sets = self.used_sets.saturating_sub(1);
    }
}

/// Numbers of a compiled part and of the part in the kernel.
enum Pair {
    Sets(u32, u32),
    Nodes(u32, u32),
}

/// Comparison of compiled sets with sets in the kernel, up to the numbers.
struct Comparison<'a> {
    compiled: &'a Compiled,
    sets: Vec<u32>,
    nodes: Vec<Option<u32>>,
    rules: Vec<u32>,
    /// Pairs that remain to be compared. Each compiled part is compared once.
    open: Vec<Pair>,
}

impl<'a> Comparison<'a> {
    fn new(compiled: &'a Compiled) -> Comparison<'a> {
        Comparison {
            compiled,
            sets: vec![0; compiled.sets.len()],
            nodes: vec![None; compiled.nodes.len()],
            rules: vec![0; compiled.rules.len()],
            open: vec![],
        }
    }

    /// `None` if the entries differ.
    fn entry(&mut self, expected: RuleEntry, actual: RuleEntry) -> Option<()> {
        if expected.order != actual.order {
            return None;
        }
        let index = expected.rule as usize;
        let known = if expected.is_branch() {
            let known = self.nodes.get_mut(index)?;
            if known.is_none() {
                self.open.push(Pair::Nodes(expected.rule, actual.rule));
            }
            *known.get_or_insert(actual.rule)
        } else if expected.is_some() {
            let set = expected.is_set();
            let known = if set { self.sets.get_mut(index)? } else { self.rules.get_mut(index)? };
            if *known == 0 && set {
                self.open.push(Pair::Sets(expected.rule, actual.rule));
            }
            if *known == 0 {
                *known = actual.rule;
            }
            // Zero is not a valid number.
            if *known == 0 {
                return None;
            }
            *known
        } else {
            actual.rule
        };
        (known == actual.rule).then_some(())
    }

    fn set(&mut self, expected: u32, actual: &RuleSet) -> Option<()> {
        let expected = *self.compiled.sets.get(expected as usize)?;
        let flags = |set: &RuleSet| (set.rules, set.by_group, set.by_peer);
        if flags(&expected) != flags(actual) {
            return None;
        }
        expected
            .roots
            .iter()
            .zip(actual.roots)
            .try_for_each(|(expected, actual)| self.entry(*expected, actual))
    }

    fn node(&mut self, expected: u32, actual: &Branch) -> Option<()> {
        let expected = *self.compiled.nodes.get(expected as usize)?;
        if expected.starts != actual.starts {
            return None;
        }
        expected.ways.iter().zip(actual.ways).try_for_each(|(expected, actual)| self.entry(*expected, actual))
    }
}
