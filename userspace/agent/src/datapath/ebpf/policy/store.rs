//! The rule sets in the kernel, and which groups they are for.

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
    sets::Sets,
};
use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{names::RuleNames, rcu, writes::Writes},
    },
};

const DIRECTIONS: [Direction; 2] = [Direction::In, Direction::Out];

/// A group as it should be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Its number.
    pub(crate) number: u16,
    /// The rest of it; the numbers of its sets are ours to choose.
    pub(crate) group: Group,
    /// Of both directions.
    pub(crate) rules: &'a [Rule],
}

/// The policies of a node.
pub(crate) struct Policies {
    groups: Groups,
    sets: Sets,
    counts: PerCpuHashMap<MapData, u32, RuleCount>,
    names: RuleNames,
    writes: Writes,
    /// The numbers of the rules, by group. None of a group that is not as it should be.
    named: BTreeMap<(u16, Direction), BTreeMap<RuleId, u32>>,
    /// Groups that objects stand for.
    claimed: BTreeSet<u16>,
    /// Sets that no group leads to any more.
    retired: Vec<u32>,
    /// Rules that are gone, by number.
    forgotten: Vec<u32>,
    next_rule: u32,
}

impl Policies {
    pub(crate) fn new(
        groups: &MapData,
        sets: Sets,
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
            named: BTreeMap::new(),
            claimed: BTreeSet::new(),
            retired: vec![],
            forgotten: vec![],
            next_rule: 1,
        })
    }

    /// Reads what is in the kernel, and forgets who it is for.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.named.clear();
        self.claimed.clear();
        self.retired.clear();
        self.forgotten.clear();
        let in_groups = self.groups.read().flat_map(|(_, group)| group.sets).filter(|set| *set != 0);
        let last_rule = self.sets.read(in_groups);
        let last_rule = self.counted()?.into_iter().fold(last_rule, u32::max);
        self.next_rule = last_rule.wrapping_add(1).max(1);
        if self.sets.strays() > 0 {
            // What they lead to is free from here on.
            rcu::synchronize();
        }
        Ok(())
    }

    /// Notes that an object stands for the group; true if it is as it should be.
    pub(crate) fn claim(&mut self, wanted: &Wanted<'_>) -> bool {
        self.claimed.insert(wanted.number);
        let there = self.groups.get(wanted.number);
        let mut same = Group { sets: [0; 2], ..there } == wanted.group;
        for direction in DIRECTIONS {
            match self.compiled(wanted.rules, direction, there.sets[side(direction)]) {
                (compiled, Some(numbers)) => self.name(wanted.number, direction, &compiled, &numbers),
                (_, None) => same = false,
            }
        }
        same
    }

    /// Makes the group be as it should be. On a failure it stays as it is.
    pub(crate) fn set(&mut self, wanted: &Wanted<'_>) -> Result<(), Error> {
        self.claimed.insert(wanted.number);
        let before = self.groups.get(wanted.number);
        let mut group = wanted.group;
        let mut made: Vec<(Direction, u32, Compiled, Vec<u32>)> = vec![];
        for direction in DIRECTIONS {
            let old = before.sets[side(direction)];
            let (compiled, numbers) = self.compiled(wanted.rules, direction, old);
            let (set, numbers) = match numbers {
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

    /// The trees of rules, with the numbers that the rules have in the kernel if the set there is these. Large trees, which are fast,
    /// as long as there is plenty of room.
    fn compiled(&self, rules: &[Rule], direction: Direction, set: u32) -> (Compiled, Option<Vec<u32>>) {
        let fast = compile(rules, direction, Limit::USUAL);
        let numbers = self.sets.numbers(&fast, set);
        if numbers.is_some() || !fast.roomy {
            return (fast, numbers);
        }
        let small = compile(rules, direction, Limit::TIGHT);
        let numbers = self.sets.numbers(&small, set);
        if numbers.is_none() && self.sets.has_plenty(fast.branches.len()) {
            return (fast, None);
        }
        (small, numbers)
    }

    /// Makes the group be without rules, rate and DSCP.
    pub(crate) fn delete(&mut self, number: u16) {
        let before = self.groups.get(number);
        self.groups.set(number, Group::default());
        self.retired.extend(before.sets.into_iter().filter(|set| *set != 0));
        for direction in DIRECTIONS {
            let named = self.named.remove(&(number, direction)).unwrap_or_default();
            self.forgotten.extend(named.into_values());
        }
        self.claimed.remove(&number);
    }

    /// Bits in a second and bytes at once that each endpoint of the group may send, and be sent; zeros for no limit.
    pub(crate) fn rate(&self, number: u32) -> (u64, u32) {
        u16::try_from(number).map_or((0, 0), |number| {
            let Group { rate, burst, .. } = self.groups.get(number);
            (rate, burst)
        })
    }

    /// Removes what no group leads to any more. After the last change of a batch.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        if self.retired.is_empty() && self.forgotten.is_empty() {
            return Ok(());
        }
        rcu::synchronize();
        self.sets.remove(&std::mem::take(&mut self.retired));
        for number in std::mem::take(&mut self.forgotten) {
            self.forget(number)?;
        }
        Ok(())
    }

    /// How many groups and sets no object accounts for.
    pub(crate) fn strays(&self) -> usize {
        let groups = self.groups.read().filter(|(number, _)| !self.claimed.contains(number)).count();
        groups + self.sets.strays() + self.unclaimed().len()
    }

    /// Removes what no object accounts for.
    pub(crate) fn sweep(&mut self) -> Result<(), Error> {
        for (number, _) in self.groups.read() {
            if !self.claimed.contains(&number) {
                self.groups.set(number, Group::default());
            }
        }
        let unclaimed = self.unclaimed();
        if !unclaimed.is_empty() {
            rcu::synchronize();
            self.sets.remove(&unclaimed);
        }
        self.sets.sweep();
        self.retired.clear();
        let named: BTreeSet<u32> = self.named.values().flat_map(BTreeMap::values).copied().collect();
        for number in self.counted()? {
            if !named.contains(&number) {
                self.forget(number)?;
            }
        }
        Ok(())
    }

    /// How many groups, sets, and branches of trees there are.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let [sets, branches, _] = self.sets.sizes();
        [self.groups.read().count(), sets, branches]
    }

    /// How many rules are in force.
    pub(crate) fn rules(&self) -> usize {
        let [.., rules] = self.sets.sizes();
        rules
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

    /// Writes a new set, which nothing leads to yet.
    fn install(
        &mut self,
        group: u16,
        direction: Direction,
        compiled: &Compiled,
    ) -> Result<(u32, Vec<u32>), Error> {
        if compiled.sets.is_empty() {
            return Ok((0, vec![]));
        }
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
        Ok((self.sets.install(compiled, &numbers)?, numbers))
    }

    /// Sets that no group of an object leads to, and that are not removed yet.
    fn unclaimed(&self) -> Vec<u32> {
        let groups = self.groups.read().filter(|(number, _)| self.claimed.contains(number));
        let used: BTreeSet<u32> = groups.flat_map(|(_, group)| group.sets).collect();
        self.sets.roots().filter(|set| !used.contains(set)).collect()
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
