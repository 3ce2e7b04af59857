//! Trees of branches.

use std::collections::BTreeMap;

use contiv_abi::policy::{Branch, RuleEntry, WAYS, word};
use ipnet::IpNet;

use super::{
    About, Asked, Case,
    kinds::Limit,
    layers::Layers,
    ranges::{Ranges, Span, flatten},
};

/// The branches of all trees of a group, and where they are.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) branches: Vec<Branch>,
    pub(super) limit: Limit,
    /// Some are by addresses first.
    pub(super) roomy: bool,
}

/// Cases of one protocol.
#[derive(Default)]
struct OfProtocol {
    any_port: Vec<Case>,
    ports: BTreeMap<u16, Vec<Case>>,
}

impl Trees {
    pub(super) fn new(limit: Limit) -> Trees {
        Trees { branches: vec![], limit, roomy: false }
    }

    /// By address of the peer, then as [`Trees::of_groups`].
    pub(super) fn of_layers(&mut self, layers: &Layers) -> RuleEntry {
        self.roomy = true;
        let mut trees: Vec<Option<RuleEntry>> = vec![None; layers.left.len()];
        let [ip4, ip6] = layers.ranges.each_ref().map(|ranges| {
            let entries = ranges.iter().map(|(begin, place)| {
                // Made where it is led to: what is all taken by longer prefixes is nowhere.
                let tree = trees[*place].unwrap_or_else(|| {
                    let left = layers.left[*place].iter();
                    let asked = |((group, about), entry): (&(Option<u16>, About), &RuleEntry)| {
                        (Asked { group: *group, about: *about, subnet: None }, *entry)
                    };
                    self.of_groups(&left.map(asked).collect::<Vec<Case>>())
                });
                trees[*place] = Some(tree);
                (*begin, tree)
            });
            entries.collect::<Vec<(u128, RuleEntry)>>()
        });
        self.of_both(word::PEER, ip4, ip6)
    }

    /// By group of the peer, then as [`Trees::of_ports`].
    pub(super) fn of_groups(&mut self, cases: &[Case]) -> RuleEntry {
        let mut groups: BTreeMap<u16, Vec<Case>> = BTreeMap::new();
        let mut of_any = vec![];
        for case in cases {
            match case.0.group {
                Some(group) => groups.entry(group).or_default().push(*case),
                None => of_any.push(*case),
            }
        }
        let others = self.of_ports(&of_any);
        let mut ranges = Ranges::new(0, others);
        for (group, mut cases) in groups {
            cases.extend(&of_any);
            ranges.push(group.into(), self.of_ports(&cases));
            ranges.push(u64::from(group) + 1, others);
        }
        self.tree(word::GROUP, ranges)
    }

    /// By protocol and port, then by address of the peer.
    fn of_ports(&mut self, cases: &[Case]) -> RuleEntry {
        let mut of_all = vec![];
        let mut protocols: BTreeMap<u8, OfProtocol> = BTreeMap::new();
        for case in cases {
            match case.0.about {
                About::All => of_all.push(*case),
                About::Protocol(protocol) => protocols.entry(protocol).or_default().any_port.push(*case),
                About::Port(protocol, port) => {
                    protocols.entry(protocol).or_default().ports.entry(port).or_default().push(*case);
                }
            }
        }
        let others = self.of_peers(&of_all);
        let mut ranges = Ranges::new(0, others);
        for (protocol, OfProtocol { mut any_port, ports }) in protocols {
            let first = word::port(protocol, 0);
            any_port.extend(&of_all);
            let other_ports = self.of_peers(&any_port);
            ranges.push(first, other_ports);
            for (port, mut cases) in ports {
                cases.extend(&any_port);
                ranges.push(first + u64::from(port), self.of_peers(&cases));
                ranges.push(first + u64::from(port) + 1, other_ports);
            }
            ranges.push(first + (1 << 16), others);
        }
        self.tree(word::PORT, ranges)
    }

    fn of_peers(&mut self, cases: &[Case]) -> RuleEntry {
        let anywhere = cases.iter().filter(|(asked, _)| asked.subnet.is_none()).map(|(_, entry)| *entry);
        let anywhere = anywhere.min().unwrap_or(RuleEntry::NONE);
        let subnets = cases.iter().filter_map(|(asked, entry)| Some((asked.subnet?, *entry)));
        self.of_addresses(word::PEER, anywhere, subnets)
    }

    /// By this end's address: sets for some, of which the longest prefix decides.
    pub(super) fn own(&mut self, sets: impl Iterator<Item = (IpNet, u32)>) -> RuleEntry {
        // Longer ones come later in the order of prefixes that are in each other, and are to be smaller.
        let sets = sets.map(|(net, set)| {
            let longer = u32::from(net.max_prefix_len() - net.prefix_len());
            (net, RuleEntry { order: longer, rule: set })
        });
        let sets: Vec<(IpNet, RuleEntry)> = sets.collect();
        let as_set = |(begin, entry): (u128, RuleEntry)| {
            let entry = if entry.is_some() { RuleEntry::set(entry.rule) } else { entry };
            (begin, entry)
        };
        let [ip4, ip6] = by_family(RuleEntry::NONE, sets.into_iter());
        let [ip4, ip6] = [ip4, ip6].map(|ranges| ranges.into_inner().into_iter().map(as_set).collect());
        self.of_both(word::OWN, ip4, ip6)
    }

    fn of_addresses(
        &mut self,
        word: u32,
        anywhere: RuleEntry,
        subnets: impl Iterator<Item = (IpNet, RuleEntry)>,
    ) -> RuleEntry {
        let [ip4, ip6] = by_family(anywhere, subnets).map(Ranges::into_inner);
        self.of_both(word, ip4, ip6)
    }

    /// IPv4 is above IPv6 in the first word.
    fn of_both(&mut self, word: u32, ip4: Vec<(u128, RuleEntry)>, ip6: Vec<(u128, RuleEntry)>) -> RuleEntry {
        let mut ranges = self.in_words(word, &ip6, 0);
        for (begin, entry) in ip4 {
            ranges.push(word::IP4 + begin as u64, entry);
        }
        self.tree(word, ranges)
    }

    /// Ranges of numbers of several words as ranges of the first of these; where one does not end with a number of this
    /// word, there is a tree for the next.
    fn in_words(&mut self, word: u32, ranges: &[(u128, RuleEntry)], place: usize) -> Ranges<u64> {
        let rest: u32 = word::ADDRESS_BITS.iter().skip(place + 1).sum();
        let mut before = ranges.first().map_or(RuleEntry::NONE, |(_, entry)| *entry);
        let mut out = Ranges::new(0, before);
        for part in ranges.chunk_by(|a, b| a.0 >> rest == b.0 >> rest) {
            let (Some((begin, first)), Some((_, last))) = (part.first(), part.last()) else { continue };
            let here = begin >> rest;
            let begins_here = *begin == here << rest;
            if part.len() == 1 && begins_here {
                out.push(here as u64, *first);
            } else {
                let inside = part.iter().map(|(begin, entry)| (begin - (here << rest), *entry));
                let around = (!begins_here).then_some((0, before));
                let inside: Vec<(u128, RuleEntry)> = around.into_iter().chain(inside).collect();
                let inside = self.in_words(word + 1, &inside, place + 1);
                let tree = self.tree(word + 1, inside);
                out.push(here as u64, tree);
                out.push(here as u64 + 1, *last);
            }
            before = *last;
        }
        out
    }

    /// From the leaves up, each branch full but the last of its level.
    fn tree(&mut self, word: u32, ranges: Ranges<u64>) -> RuleEntry {
        let mut level = ranges.into_inner();
        while level.len() > 1 {
            level = level.chunks(WAYS).filter_map(|ways| self.branch(word, ways)).collect();
        }
        level.first().map_or(RuleEntry::NONE, |(_, entry)| *entry)
    }

    fn branch(&mut self, word: u32, ways: &[(u64, RuleEntry)]) -> Option<(u64, RuleEntry)> {
        let (first, others) = ways.split_first()?;
        if others.is_empty() {
            return Some(*first);
        }
        let mut branch = Branch::EMPTY;
        branch.ways.iter_mut().zip(ways).for_each(|(way, (_, entry))| *way = *entry);
        branch.starts.iter_mut().zip(others).for_each(|(start, (begin, _))| *start = *begin);
        let place = self.branches.len() as u32;
        self.branches.push(branch);
        Some((first.0, RuleEntry::branch(word, place)))
    }
}

/// Of IPv4 and IPv6.
fn by_family(anywhere: RuleEntry, nets: impl Iterator<Item = (IpNet, RuleEntry)>) -> [Ranges<u128>; 2] {
    let nets: Vec<(IpNet, RuleEntry)> = nets.collect();
    let (ip4, ip6): (Vec<_>, Vec<_>) = nets.into_iter().partition(|(net, _)| matches!(net, IpNet::V4(_)));
    [ip4, ip6].map(|nets| {
        let spans = nets.into_iter().map(|(net, entry)| (Span::of(net), entry)).collect();
        flatten(anywhere, spans, RuleEntry::min)
    })
}
