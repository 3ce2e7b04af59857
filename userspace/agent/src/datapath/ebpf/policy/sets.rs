//! Rule sets and their trees in the kernel: two arrays, mapped into memory. A set is written where nothing is, and
//! nothing leads to it until it is whole.

mod room;

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use aya::maps::MapData;
use contiv_abi::{
    maps::{RULE_SETS, RULE_SETS_CAPACITY, RULES, RULES_CAPACITY},
    policy::{Branch, RuleEntry, RuleSet},
};

use self::room::Room;
use super::compile::Compiled;
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::Mapping, writes::Writes},
    },
};

/// What belongs to a set that a group leads to.
#[derive(Debug, Default)]
struct Parts {
    /// Numbers of sets: its own, and those that it leads to.
    sets: Vec<u32>,
    /// Places of branches.
    branches: Vec<u32>,
    /// How many rules.
    rules: u32,
    /// It is not as we make them.
    torn: bool,
}

/// `ctv_rulesets` and `ctv_rules`. We are the only writer.
pub(crate) struct Sets {
    sets: Mapping<RuleSet>,
    branches: Mapping<Branch>,
    /// By the number of the set that a group leads to.
    known: HashMap<u32, Parts>,
    room: Room,
    /// Sets that nothing known leads to: their places are taken until they are removed.
    strays: BTreeSet<u32>,
    used_sets: usize,
    next: u32,
    writes: Writes,
}

impl Sets {
    pub(crate) fn new(sets: MapData, branches: MapData, writes: Writes) -> Result<Sets, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(Sets {
            sets: Mapping::new(sets, RULE_SETS_CAPACITY).map_err(|error| map(RULE_SETS, error))?,
            branches: Mapping::new(branches, RULES_CAPACITY).map_err(|error| map(RULES, error))?,
            known: HashMap::new(),
            room: Room::new(RULES_CAPACITY as u32),
            strays: BTreeSet::new(),
            used_sets: 0,
            next: 1,
            writes,
        })
    }

    /// Learns what is there; `roots` are the sets that groups lead to. The largest number of a rule.
    pub(crate) fn read(&mut self, roots: impl Iterator<Item = u32>) -> u32 {
        self.known.clear();
        let there: Vec<u32> = (0..RULE_SETS_CAPACITY as u32)
            .filter_map(|place| self.sets.get(place))
            .map(|set| set.number)
            .filter(|number| *number != 0)
            .collect();
        self.strays = there.iter().copied().collect();
        self.used_sets = there.len();
        let mut taken = vec![false; RULES_CAPACITY];
        let (mut last_set, mut last_rule) = (there.iter().copied().max().unwrap_or(0), 0);
        for root in roots {
            last_set = root.max(last_set);
            let parts = self.collect(root, &mut taken, &mut last_rule);
            self.known.insert(root, parts);
        }
        self.room = Room::around(&taken);
        self.next = last_set.wrapping_add(1);
        last_rule
    }

    /// What a set leads to, and what nothing before it led to.
    fn collect(&mut self, root: u32, taken: &mut [bool], last_rule: &mut u32) -> Parts {
        let mut parts = Parts::default();
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut entries = vec![RuleEntry::set(root)];
        while let Some(entry) = entries.pop() {
            if entry.is_set() {
                if parts.sets.contains(&entry.rule) {
                    continue;
                }
                match self.set(entry.rule) {
                    Some(set) if self.strays.remove(&entry.rule) => {
                        parts.sets.push(entry.rule);
                        entries.extend(set.roots);
                    }
                    _ => parts.torn = true,
                }
            } else if entry.is_branch() {
                if !seen.insert(entry.rule) {
                    continue;
                }
                match (self.branches.get(entry.rule), taken.get_mut(entry.rule as usize)) {
                    (Some(branch), Some(taken)) if !*taken => {
                        *taken = true;
                        parts.branches.push(entry.rule);
                        entries.extend(branch.ways);
                    }
                    _ => parts.torn = true,
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

    /// Whether there are sets that no group leads to.
    pub(crate) fn strays(&self) -> usize {
        self.strays.len()
    }

    /// Those that groups are known to lead to.
    pub(crate) fn roots(&self) -> impl Iterator<Item = u32> {
        self.known.keys().copied()
    }

    /// Sets, branches, rules.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let rules = self.known.values().map(|parts| parts.rules as usize).sum();
        [self.used_sets, self.room.used(), rules]
    }

    /// The numbers that the rules have in the kernel if the set there is what has been compiled; 0 for those that never
    /// decide.
    pub(crate) fn numbers(&self, compiled: &Compiled, set: u32) -> Option<Vec<u32>> {
        if compiled.sets.is_empty() || set == 0 {
            return (compiled.sets.is_empty() && set == 0).then(Vec::new);
        }
        if self.known.get(&set).is_none_or(|parts| parts.torn) {
            return None;
        }
        let mut same = Same::new(compiled);
        same.entry(RuleEntry::set(0), RuleEntry::set(set))?;
        while let Some(pair) = same.open.pop() {
            match pair {
                Pair::Sets(wanted, there) => same.set(wanted, &self.set(there)?)?,
                Pair::Branches(wanted, there) => same.branch(wanted, &self.branches.get(there)?)?,
            }
        }
        Some(same.rules)
    }

    /// Whether there is room for so many more branches, with as much again for others.
    pub(crate) fn has_plenty(&self, branches: usize) -> bool {
        self.room.used() + branches <= RULES_CAPACITY / 2
    }

    /// Writes new sets, to which nothing leads yet; `rules` are the numbers of the rules. All of it or nothing. The number
    /// of the first.
    pub(crate) fn install(&mut self, compiled: &Compiled, rules: &[u32]) -> Result<u32, Error> {
        let full = |map, capacity| {
            let what = format!("write to the map {map}, which is full ({capacity} entries)");
            failed(what, io::Error::from_raw_os_error(libc::E2BIG))
        };
        let sets =
            self.free_numbers(compiled.sets.len()).ok_or_else(|| full(RULE_SETS, RULE_SETS_CAPACITY))?;
        let branches = self.room.take(compiled.branches.len()).ok_or_else(|| full(RULES, RULES_CAPACITY))?;
        let number = |numbers: &[u32], number: u32| numbers.get(number as usize).copied().unwrap_or(0);
        let entry = |entry: RuleEntry| {
            let numbers = match entry {
                entry if entry.is_branch() => &branches,
                entry if entry.is_set() => &sets,
                entry if entry.is_some() => rules,
                entry => return entry,
            };
            RuleEntry { rule: number(numbers, entry.rule), ..entry }
        };
        self.writes.count();
        for (place, branch) in branches.iter().zip(&compiled.branches) {
            self.branches.set(*place, Branch { ways: branch.ways.map(entry), ..*branch });
        }
        // From the last: the first leads to the others.
        for (set, compiled) in sets.iter().zip(&compiled.sets).rev() {
            let roots = compiled.roots.map(entry);
            self.sets.set(RuleSet::place(*set), RuleSet { number: *set, roots, ..*compiled });
        }
        let first = number(&sets, 0);
        self.next = sets.last().copied().unwrap_or(first).wrapping_add(1);
        self.used_sets += sets.len();
        let rules = compiled.sets.first().map_or(0, |set| set.rules);
        self.known.insert(first, Parts { sets, branches, rules, torn: false });
        Ok(first)
    }

    /// The next numbers whose places are free.
    fn free_numbers(&self, count: usize) -> Option<Vec<u32>> {
        let free = |number: &u32| {
            *number != 0 && self.sets.get(RuleSet::place(*number)).is_some_and(|set| set.number == 0)
        };
        let all = (0..RULE_SETS_CAPACITY as u32).map(|ahead| self.next.wrapping_add(ahead));
        let numbers: Vec<u32> = all.filter(free).take(count).collect();
        (numbers.len() == count).then_some(numbers)
    }

    /// Removes sets that no program can have in hand any more, with all that belongs to them.
    pub(crate) fn remove(&mut self, roots: &[u32]) {
        for root in roots {
            let Some(parts) = self.known.remove(root) else { continue };
            parts.sets.into_iter().for_each(|set| self.clear(set));
            self.room.give(parts.branches);
        }
    }

    /// Removes sets that nothing leads to.
    pub(crate) fn sweep(&mut self) {
        for set in std::mem::take(&mut self.strays) {
            self.clear(set);
        }
    }

    fn clear(&mut self, set: u32) {
        self.writes.count();
        self.sets.set(RuleSet::place(set), RuleSet::EMPTY);
        self.used_sets = self.used_sets.saturating_sub(1);
    }
}

enum Pair {
    Sets(u32, u32),
    Branches(u32, u32),
}

/// A comparison of what has been compiled with what is in the kernel, where all numbers are others.
struct Same<'a> {
    compiled: &'a Compiled,
    sets: Vec<u32>,
    branches: Vec<Option<u32>>,
    rules: Vec<u32>,
    /// To be compared yet; each of the compiled ones comes up once.
    open: Vec<Pair>,
}

impl<'a> Same<'a> {
    fn new(compiled: &'a Compiled) -> Same<'a> {
        Same {
            compiled,
            sets: vec![0; compiled.sets.len()],
            branches: vec![None; compiled.branches.len()],
            rules: vec![0; compiled.rules.len()],
            open: vec![],
        }
    }

    /// None if they differ.
    fn entry(&mut self, wanted: RuleEntry, there: RuleEntry) -> Option<()> {
        if wanted.order != there.order {
            return None;
        }
        let place = wanted.rule as usize;
        let known = if wanted.is_branch() {
            let known = self.branches.get_mut(place)?;
            if known.is_none() {
                self.open.push(Pair::Branches(wanted.rule, there.rule));
            }
            *known.get_or_insert(there.rule)
        } else if wanted.is_some() {
            let set = wanted.is_set();
            let known = if set { self.sets.get_mut(place)? } else { self.rules.get_mut(place)? };
            if *known == 0 && set {
                self.open.push(Pair::Sets(wanted.rule, there.rule));
            }
            if *known == 0 {
                *known = there.rule;
            }
            // Zero is the number of nothing.
            if *known == 0 {
                return None;
            }
            *known
        } else {
            there.rule
        };
        (known == there.rule).then_some(())
    }

    fn set(&mut self, wanted: u32, there: &RuleSet) -> Option<()> {
        let wanted = *self.compiled.sets.get(wanted as usize)?;
        if (wanted.rules, wanted.by_group) != (there.rules, there.by_group) {
            return None;
        }
        wanted.roots.iter().zip(there.roots).try_for_each(|(wanted, there)| self.entry(*wanted, there))
    }

    fn branch(&mut self, wanted: u32, there: &Branch) -> Option<()> {
        let wanted = *self.compiled.branches.get(wanted as usize)?;
        if wanted.starts != there.starts {
            return None;
        }
        wanted.ways.iter().zip(there.ways).try_for_each(|(wanted, there)| self.entry(*wanted, there))
    }
}
