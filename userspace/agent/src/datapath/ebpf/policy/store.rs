//! The rule sets in the kernel, and which groups they are for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aya::maps::{MapData, PerCpuHashMap};
use contiv_abi::policy::{Group, IN, OUT, RuleCount, RuleEntry, RuleKey, RuleSet, shape};
use contiv_model::{
    name::RuleId,
    policy::{Direction, Rule},
};

use super::{
    compile::{Compiled, compile},
    groups::Groups,
};
use crate::datapath::{
    Error,
    ebpf::{
        batch::{BatchMap, wait_for_programs},
        failure::{errno, failed},
        names::RuleNames,
        table::Writes,
    },
};

const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

/// A group as it should be.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Wanted<'a> {
    /// Its number.
    pub(in super::super) number: u16,
    /// The rest of it; the numbers of its sets are ours to choose.
    pub(in super::super) group: Group,
    /// Of both directions.
    pub(in super::super) rules: &'a [Rule],
}

/// What the kernel holds of a set.
#[derive(Default)]
struct Contents {
    header: Option<RuleSet>,
    entries: Vec<(RuleKey, RuleEntry)>,
}

/// The policies of a node.
pub(in super::super) struct Policies {
    groups: Groups,
    sets: BatchMap<u32, RuleSet>,
    rules: BatchMap<RuleKey, RuleEntry>,
    counts: PerCpuHashMap<MapData, u32, RuleCount>,
    names: RuleNames,
    writes: Writes,
    /// What is in the kernel, by the number of the set. We are the only writer.
    known: HashMap<u32, Contents>,
    /// The numbers of the rules, by group. None of a group that is not as it should be.
    named: BTreeMap<(u16, Direction), BTreeMap<RuleId, u32>>,
    /// Groups that objects stand for.
    claimed: BTreeSet<u16>,
    /// Sets that no group leads to any more, each the first of its block.
    retired: Vec<u32>,
    /// Rules that are gone, by number.
    forgotten: Vec<u32>,
    next_set: u32,
    next_rule: u32,
}

impl Policies {
    pub(in super::super) fn new(
        groups: &MapData,
        sets: BatchMap<u32, RuleSet>,
        rules: BatchMap<RuleKey, RuleEntry>,
        counts: PerCpuHashMap<MapData, u32, RuleCount>,
        names: RuleNames,
        writes: Writes,
    ) -> Result<Self, Error> {
        Ok(Policies {
            groups: Groups::new(groups, writes.clone())?,
            sets,
            rules,
            counts,
            names,
            writes,
            known: HashMap::new(),
            named: BTreeMap::new(),
            claimed: BTreeSet::new(),
            retired: vec![],
            forgotten: vec![],
            next_set: 1,
            next_rule: 1,
        })
    }

    /// Reads what is in the kernel, and forgets who it is for.
    pub(in super::super) fn read(&mut self) -> Result<(), Error> {
        self.known.clear();
        self.named.clear();
        self.claimed.clear();
        self.retired.clear();
        self.forgotten.clear();
        let (mut last_set, mut last_rule) = (0, 0);
        for (number, header) in self.sets.read()? {
            self.known.entry(number).or_default().header = Some(header);
        }
        for (key, entry) in self.rules.read()? {
            self.known.entry(key.set).or_default().entries.push((key, entry));
            let last = if key.shape == shape::OWN { &mut last_set } else { &mut last_rule };
            *last = entry.rule.max(*last);
        }
        for number in self.counted()? {
            last_rule = number.max(last_rule);
        }
        let in_groups = self.groups.read().flat_map(|(_, group)| group.sets);
        last_set = in_groups.chain(self.known.keys().copied()).fold(last_set, u32::max);
        (self.next_set, self.next_rule) = (last_set.wrapping_add(1).max(1), last_rule.wrapping_add(1).max(1));
        Ok(())
    }

    /// Notes that an object stands for the group; true if it is as it should be.
    pub(in super::super) fn claim(&mut self, wanted: &Wanted<'_>) -> bool {
        self.claimed.insert(wanted.number);
        let there = self.groups.get(wanted.number);
        let mut same = Group { sets: [0; 2], ..there } == wanted.group;
        for direction in DIRECTIONS {
            let compiled = compile(wanted.rules, direction);
            match self.numbers(&compiled, there.sets[side(direction)]) {
                Some(numbers) => self.name(wanted.number, direction, &compiled, &numbers),
                None => same = false,
            }
        }
        same
    }

    /// Makes the group be as it should be. On a failure it stays as it is.
    pub(in super::super) fn set(&mut self, wanted: &Wanted<'_>) -> Result<(), Error> {
        self.claimed.insert(wanted.number);
        let before = self.groups.get(wanted.number);
        let mut group = wanted.group;
        let mut made: Vec<(Direction, u32, Compiled, Vec<u32>)> = vec![];
        for direction in DIRECTIONS {
            let compiled = compile(wanted.rules, direction);
            let old = before.sets[side(direction)];
            let (set, numbers) = match self.numbers(&compiled, old) {
                Some(numbers) => (old, numbers),
                None => match self.install(wanted.number, direction, &compiled) {
                    Ok((set, numbers)) => (set, numbers),
                    Err(error) => {
                        self.retired.extend(made.iter().map(|(_, set, ..)| *set));
                        return Err(error);
                    }
                },
            };
            if set != old {
                made.push((direction, set, compiled, numbers));
            } else {
                self.name(wanted.number, direction, &compiled, &numbers);
            }
            group.sets[side(direction)] = set;
        }
        self.groups.set(wanted.number, group);
        for (direction, _, compiled, numbers) in made {
            self.retired.extend(Some(before.sets[side(direction)]).filter(|set| *set != 0));
            self.name(wanted.number, direction, &compiled, &numbers);
        }
        Ok(())
    }

    /// Makes the group be without rules, rate and DSCP.
    pub(in super::super) fn delete(&mut self, number: u16) {
        let before = self.groups.get(number);
        self.groups.set(number, Group::default());
        self.retired.extend(before.sets.into_iter().filter(|set| *set != 0));
        for direction in DIRECTIONS {
            let named = self.named.remove(&(number, direction)).unwrap_or_default();
            self.forgotten.extend(named.into_values());
        }
        self.claimed.remove(&number);
    }

    /// Removes what no group leads to any more. After the last change of a batch.
    pub(in super::super) fn settle(&mut self) -> Result<(), Error> {
        if self.retired.is_empty() && self.forgotten.is_empty() {
            return Ok(());
        }
        wait_for_programs();
        let gone: BTreeSet<u32> = self.retired.iter().flat_map(|set| self.block(*set)).collect();
        self.retired.clear();
        self.remove(&gone)?;
        for number in std::mem::take(&mut self.forgotten) {
            self.forget(number)?;
        }
        Ok(())
    }

    /// How many groups and sets no object accounts for.
    pub(in super::super) fn strays(&self) -> usize {
        let groups = self.groups.read().filter(|(number, _)| !self.claimed.contains(number)).count();
        groups + self.stray_sets().len()
    }

    /// Removes what no object accounts for.
    pub(in super::super) fn sweep(&mut self) -> Result<(), Error> {
        for (number, _) in self.groups.read() {
            if !self.claimed.contains(&number) {
                self.groups.set(number, Group::default());
            }
        }
        let strays = self.stray_sets();
        if !strays.is_empty() {
            wait_for_programs();
            self.remove(&strays)?;
        }
        self.retired.clear();
        let named: BTreeSet<u32> = self.named.values().flat_map(BTreeMap::values).copied().collect();
        for number in self.counted()? {
            if !named.contains(&number) {
                self.forget(number)?;
            }
        }
        Ok(())
    }

    /// How many groups, sets, and entries of sets there are.
    pub(in super::super) fn sizes(&self) -> [usize; 3] {
        let entries = self.known.values().map(|contents| contents.entries.len()).sum();
        [self.groups.read().count(), self.known.len(), entries]
    }

    fn name(&mut self, number: u16, direction: Direction, compiled: &Compiled, numbers: &[u32]) {
        let names = compiled.rules.iter().cloned().zip(numbers.iter().copied());
        let new: BTreeMap<RuleId, u32> = names.filter(|(_, number)| *number != 0).collect();
        self.names.learn(&new);
        let old = self.named.insert((number, direction), new).unwrap_or_default();
        if let Some(new) = self.named.get(&(number, direction)) {
            self.forgotten
                .extend(old.into_iter().filter(|(name, _)| !new.contains_key(name)).map(|(_, n)| n));
        }
    }

    /// The numbers that the rules have in the kernel if the set there is what has been compiled; 0 for those that never
    /// decide.
    fn numbers(&self, compiled: &Compiled, set: u32) -> Option<Vec<u32>> {
        let mut numbers = vec![0; compiled.rules.len()];
        if compiled.sets.is_empty() || set == 0 {
            return (compiled.sets.is_empty() && set == 0).then_some(numbers);
        }
        let mut there: HashMap<RuleKey, RuleEntry> = HashMap::new();
        for (number, header) in (set..).zip(&compiled.sets) {
            let contents = self.known.get(&number)?;
            if contents.header.as_ref() != Some(header) {
                return None;
            }
            there.extend(contents.entries.iter().copied());
        }
        if there.len() != compiled.entries.len() {
            return None;
        }
        for (key, wanted) in &compiled.entries {
            let found = there.get(&RuleKey { set: set + key.set, ..*key })?;
            if found.order != wanted.order {
                return None;
            }
            if key.shape == shape::OWN {
                if wanted.is_some() && found.rule != set + wanted.rule {
                    return None;
                }
            } else if wanted.is_some() {
                let number = numbers.get_mut(wanted.rule as usize)?;
                if found.rule == 0 || (*number != 0 && *number != found.rule) {
                    return None;
                }
                *number = found.rule;
            }
        }
        Some(numbers)
    }

    /// Writes a new set, or new sets with numbers in a row, which nothing leads to yet.
    fn install(
        &mut self,
        group: u16,
        direction: Direction,
        compiled: &Compiled,
    ) -> Result<(u32, Vec<u32>), Error> {
        if compiled.sets.is_empty() {
            return Ok((0, vec![]));
        }
        let set = self.next_set;
        self.next_set += compiled.sets.len() as u32;
        let old = self.named.get(&(group, direction));
        let mut next = self.next_rule;
        let numbers: Vec<u32> = compiled
            .rules
            .iter()
            .map(|name| {
                old.and_then(|old| old.get(name)).copied().unwrap_or_else(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect();
        self.next_rule = next;
        let entries: Vec<(RuleKey, RuleEntry)> = compiled
            .entries
            .iter()
            .map(|(key, entry)| {
                let rule = match key.shape {
                    _ if !entry.is_some() => 0,
                    shape::OWN => set + entry.rule,
                    _ => numbers.get(entry.rule as usize).copied().unwrap_or(0),
                };
                (RuleKey { set: set + key.set, ..*key }, RuleEntry { rule, ..*entry })
            })
            .collect();
        let headers: Vec<(u32, RuleSet)> = (set..).zip(compiled.sets.iter().copied()).collect();
        for (number, header) in &headers {
            self.known.insert(*number, Contents { header: Some(*header), entries: vec![] });
        }
        for (key, entry) in &entries {
            self.known.entry(key.set).or_default().entries.push((*key, *entry));
        }
        let written = self.rules.insert(&entries).and_then(|()| self.sets.insert(&headers));
        match written {
            Ok(()) => Ok((set, numbers)),
            Err(error) => {
                let gone = headers.iter().map(|(number, _)| *number).collect();
                // The first failure is the one to tell; what is left of the set is swept with the strays.
                let _removed = self.remove(&gone);
                Err(error)
            }
        }
    }

    /// A set, and those that it leads to.
    fn block(&self, set: u32) -> Vec<u32> {
        let entries = self.known.get(&set).map(|contents| &contents.entries[..]).unwrap_or_default();
        let narrow = entries.iter().filter(|(key, entry)| key.shape == shape::OWN && entry.is_some());
        std::iter::once(set).chain(narrow.map(|(_, entry)| entry.rule)).collect()
    }

    /// Sets that no group of an object leads to.
    fn stray_sets(&self) -> BTreeSet<u32> {
        let groups = self.groups.read().filter(|(number, _)| self.claimed.contains(number));
        let roots = groups.flat_map(|(_, group)| group.sets);
        let used: BTreeSet<u32> = roots.flat_map(|set| self.block(set)).collect();
        self.known.keys().filter(|set| !used.contains(set)).copied().collect()
    }

    fn remove(&mut self, sets: &BTreeSet<u32>) -> Result<(), Error> {
        let there: Vec<u32> = sets.iter().filter(|set| self.known.contains_key(set)).copied().collect();
        self.sets.remove(&there)?;
        let contents = there.iter().filter_map(|set| self.known.get(set));
        let keys: Vec<RuleKey> = contents.flat_map(|c| c.entries.iter().map(|(key, _)| *key)).collect();
        self.rules.remove(&keys)?;
        for set in there {
            self.known.remove(&set);
        }
        Ok(())
    }

    fn counted(&self) -> Result<Vec<u32>, Error> {
        self.counts.keys().collect::<Result<_, _>>().map_err(unreadable)
    }

    fn forget(&mut self, rule: u32) -> Result<(), Error> {
        self.names.forget(rule);
        self.writes.count();
        match self.counts.remove(&rule) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                Err(failed(format!("remove from the map {}", contiv_abi::maps::RULE_COUNTS), error))
            }
            _ => Ok(()),
        }
    }
}

fn unreadable(error: aya::maps::MapError) -> Error {
    failed(format!("read the map {}", contiv_abi::maps::RULE_COUNTS), error)
}

fn side(direction: Direction) -> usize {
    match direction {
        Direction::In => IN,
        Direction::Out => OUT,
    }
}
