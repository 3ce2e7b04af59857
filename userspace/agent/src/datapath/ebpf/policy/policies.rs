//! The rule sets of each group.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{MapData, PerCpuHashMap};
use contiv_abi::policy::{Group, IN, OUT, RuleCount};
use contiv_model::{
    name::RuleId,
    policy::{Direction, Rule},
};

use super::{
    compile::{Compiled, Limit, compile},
    groups::Groups,
    rule_sets::RuleSets,
};
use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{names::RuleNames, rcu, writes::Writes},
    },
};

const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

/// Desired state of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DesiredGroup<'a> {
    /// Number of the group.
    pub(crate) number: u16,
    /// The entry of the group, without the numbers of its rule sets.
    pub(crate) group: Group,
    /// Rules of both directions.
    pub(crate) rules: &'a [Rule],
}

/// The policies in the kernel.
pub(crate) struct Policies {
    groups: Groups,
    sets: RuleSets,
    counts: PerCpuHashMap<MapData, u32, RuleCount>,
    names: RuleNames,
    writes: Writes,
    /// Rule numbers by group and direction, if the rule set in the kernel is current.
    rule_numbers: BTreeMap<(u16, Direction), BTreeMap<RuleId, u32>>,
    /// Groups that an object owns.
    owned: BTreeSet<u16>,
    /// Sets to which no group refers any longer.
    retired: Vec<u32>,
    /// Numbers of removed rules.
    removed_rules: Vec<u32>,
    next_rule: u32,
}

impl Policies {
    pub(crate) fn new(
        groups: &MapData,
        sets: RuleSets,
        counts: PerCpuHashMap<MapData, u32, RuleCount>,
        names: RuleNames,
        writes: Writes,
    ) -> Result<Self, Error> {
        Ok(Policies {
            groups: Groups::new(groups, writes.clone())?,
            sets,
            counts,
            names,
            writes,
            rule_numbers: BTreeMap::new(),
            owned: BTreeSet::new(),
            retired: vec![],
            removed_rules: vec![],
            next_rule: 1,
        })
    }

    /// Reads the maps, and clears the owners of groups.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.rule_numbers.clear();
        self.owned.clear();
        self.retired.clear();
        self.removed_rules.clear();
        let in_groups = self.groups.read().flat_map(|(_, group)| group.sets).filter(|set| *set != 0);
        let last_rule = self.sets.read(in_groups);
        let last_rule = self.counter_numbers()?.into_iter().fold(last_rule, u32::max);
        self.next_rule = last_rule.wrapping_add(1).max(1);
        if self.sets.orphans() > 0 {
            // After this, the tree nodes of orphaned sets are free.
            rcu::synchronize();
        }
        Ok(())
    }

    /// Records that an object owns the group. True if the group is current.
    pub(crate) fn adopt(&mut self, desired: &DesiredGroup<'_>) -> bool {
        self.owned.insert(desired.number);
        let current = self.groups.get(desired.number);
        let mut same = Group { sets: [0; 2], ..current } == desired.group;
        for direction in DIRECTIONS {
            match self.compiled(desired.rules, direction, current.sets[side(direction)]) {
                (compiled, Some(numbers)) => {
                    self.record_rules(desired.number, direction, &compiled, &numbers);
                }
                (_, None) => same = false,
            }
        }
        same
    }

    /// Writes the group. After an error the group is unchanged.
    pub(crate) fn set(&mut self, desired: &DesiredGroup<'_>) -> Result<(), Error> {
        self.owned.insert(desired.number);
        let before = self.groups.get(desired.number);
        let mut group = desired.group;
        let mut created: Vec<(Direction, u32, Compiled, Vec<u32>)> = vec![];
        for direction in DIRECTIONS {
            let old = before.sets[side(direction)];
            let (compiled, numbers) = self.compiled(desired.rules, direction, old);
            let (set, numbers) = match numbers {
                Some(numbers) => (old, numbers),
                None => match self.install(desired.number, direction, &compiled) {
                    Ok((set, numbers)) => (set, numbers),
                    Err(error) => {
                        self.retired.extend(created.iter().map(|(_, set, ..)| *set));
                        return Err(error);
                    }
                },
            };
            if set != old {
                created.push((direction, set, compiled, numbers));
            } else {
                self.record_rules(desired.number, direction, &compiled, &numbers);
            }
            group.sets[side(direction)] = set;
        }
        self.groups.set(desired.number, group);
        for (direction, _, compiled, numbers) in created {
            self.retired.extend(Some(before.sets[side(direction)]).filter(|set| *set != 0));
            self.record_rules(desired.number, direction, &compiled, &numbers);
        }
        Ok(())
    }

    /// The compiled rules, and the numbers of the rules in the kernel if the set `set` is current. Prefers large trees, which
    /// are faster to search, while the array has spare capacity.
    fn compiled(&self, rules: &[Rule], direction: Direction, set: u32) -> (Compiled, Option<Vec<u32>>) {
        let fast = compile(rules, direction, Limit::DEFAULT);
        let numbers = self.sets.numbers(&fast, set);
        if numbers.is_some() || !fast.address_first {
            return (fast, numbers);
        }
        let small = compile(rules, direction, Limit::COMPACT);
        let numbers = self.sets.numbers(&small, set);
        if numbers.is_none() && self.sets.has_spare_capacity(fast.nodes.len()) {
            return (fast, None);
        }
        (small, numbers)
    }

    /// Records that an object owns the group, although the kernel has other rules of it.
    pub(crate) fn keep(&mut self, number: u16) {
        self.owned.insert(number);
    }

    /// Removes the rules, rate and DSCP of the group.
    pub(crate) fn delete(&mut self, number: u16) {
        let before = self.groups.get(number);
        self.groups.set(number, Group::default());
        self.retired.extend(before.sets.into_iter().filter(|set| *set != 0));
        for direction in DIRECTIONS {
            let numbers = self.rule_numbers.remove(&(number, direction)).unwrap_or_default();
            self.removed_rules.extend(numbers.into_values());
        }
        self.owned.remove(&number);
    }

    /// Rate in bits per second and burst in bytes of each endpoint of the group, in each direction; zeros without a limit.
    pub(crate) fn rate(&self, number: u32) -> (u64, u32) {
        u16::try_from(number).map_or((0, 0), |number| {
            let Group { rate, burst, .. } = self.groups.get(number);
            (rate, burst)
        })
    }

    /// Removes replaced rule sets and the counters of removed rules. Call it after a batch of changes.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if self.retired.is_empty() && self.removed_rules.is_empty() {
            return Ok(());
        }
        rcu::synchronize();
        self.sets.remove(&std::mem::take(&mut self.retired));
        for number in std::mem::take(&mut self.removed_rules) {
            self.remove_counter(number)?;
        }
        Ok(())
    }

    /// Number of groups and rule sets that no object owns.
    pub(crate) fn orphans(&self) -> usize {
        self.unowned_groups().count() + self.sets.orphans() + self.unowned().len()
    }

    fn unowned_groups(&self) -> impl Iterator<Item = u16> {
        self.groups.read().map(|(number, _)| number).filter(|number| !self.owned.contains(number))
    }

    /// Removes groups, rule sets and counters that no object owns. Keeps groups in `used`: their ports are still to be
    /// moved to another group.
    pub(crate) fn collect_garbage(&mut self, used: &BTreeSet<u32>) -> Result<(), Error> {
        let unused = self.unowned_groups().filter(|number| !used.contains(&u32::from(*number)));
        for number in unused.collect::<Vec<_>>() {
            self.groups.set(number, Group::default());
        }
        let in_groups: BTreeSet<u32> = self.groups.read().flat_map(|(_, group)| group.sets).collect();
        let unowned: Vec<u32> = self.sets.roots().filter(|set| !in_groups.contains(set)).collect();
        if !unowned.is_empty() {
            rcu::synchronize();
            self.sets.remove(&unowned);
        }
        self.sets.collect_garbage();
        self.retired.clear();
        let used: BTreeSet<u32> = self.rule_numbers.values().flat_map(BTreeMap::values).copied().collect();
        for number in self.counter_numbers()? {
            if !used.contains(&number) {
                self.remove_counter(number)?;
            }
        }
        Ok(())
    }

    /// Number of groups, rule sets, and tree nodes.
    pub(crate) fn usage(&self) -> [usize; 3] {
        let [sets, nodes, _] = self.sets.usage();
        [self.groups.read().count(), sets, nodes]
    }

    /// Number of rules.
    pub(crate) fn rules(&self) -> usize {
        let [.., rules] = self.sets.usage();
        rules
    }

    fn record_rules(&mut self, number: u16, direction: Direction, compiled: &Compiled, numbers: &[u32]) {
        let names = compiled.rules.iter().cloned().zip(numbers.iter().copied());
        let new: BTreeMap<RuleId, u32> = names.filter(|(_, number)| *number != 0).collect();
        self.names.insert(&new);
        let old = self.rule_numbers.insert((number, direction), new).unwrap_or_default();
        if let Some(new) = self.rule_numbers.get(&(number, direction)) {
            self.removed_rules
                .extend(old.into_iter().filter(|(name, _)| !new.contains_key(name)).map(|(_, n)| n));
        }
    }

    /// Writes a new rule set, to which no group refers yet.
    fn install(
        &mut self,
        group: u16,
        direction: Direction,
        compiled: &Compiled,
    ) -> Result<(u32, Vec<u32>), Error> {
        if compiled.sets.is_empty() {
            return Ok((0, vec![]));
        }
        let old = self.rule_numbers.get(&(group, direction));
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
        Ok((self.sets.install(compiled, &numbers)?, numbers))
    }

    /// Sets to which no owned group refers.
    fn unowned(&self) -> Vec<u32> {
        let groups = self.groups.read().filter(|(number, _)| self.owned.contains(number));
        let used: BTreeSet<u32> = groups.flat_map(|(_, group)| group.sets).collect();
        self.sets.roots().filter(|set| !used.contains(set)).collect()
    }

    fn counter_numbers(&self) -> Result<Vec<u32>, Error> {
        self.counts.keys().collect::<Result<_, _>>().map_err(unreadable)
    }

    fn remove_counter(&mut self, rule: u32) -> Result<(), Error> {
        self.names.remove(rule);
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
