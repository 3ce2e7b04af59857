//! Search trees.

use std::collections::BTreeMap;

use contiv_abi::policy::{Branch, RuleEntry, WAYS, word};
use contiv_model::policy::PortRange;
use ipnet::IpNet;

use super::{
    address_first::AddressPartition,
    clause::{Clause, L4Match, Match},
    intervals::intervals,
    partition::Limit,
    ranges::{Ranges, Span, flatten},
};

/// The nodes of all trees of a group.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) nodes: Vec<Branch>,
    pub(super) limit: Limit,
    /// A tree searches addresses first.
    pub(super) address_first: bool,
}

/// Clauses of one protocol.
#[derive(Default)]
struct OfProtocol {
    any_port: Vec<Clause>,
    ports: Vec<(PortRange, Clause)>,
}

impl Trees {
    pub(super) fn new(limit: Limit) -> Trees {
        Trees { nodes: vec![], limit, address_first: false }
    }

    /// A tree by address of the peer, then as [`of_groups`](Self::of_groups).
    pub(super) fn of_addresses_first(&mut self, partition: &AddressPartition) -> RuleEntry {
        self.address_first = true;
        let mut trees: Vec<Option<RuleEntry>> = vec![None; partition.residuals.len()];
        let [ip4, ip6] = partition.ranges.each_ref().map(|ranges| {
            let entries = ranges.iter().map(|(begin, index)| {
                // Built on first use: a residual may be covered by longer prefixes everywhere.
                let tree = trees[*index].unwrap_or_else(|| {
                    let residual = partition.residuals[*index].iter();
                    let clause = |((group, l4), entry): (&(Option<u16>, L4Match), &RuleEntry)| {
                        (Match { group: *group, l4: *l4, subnet: None }, *entry)
                    };
                    self.of_groups(&residual.map(clause).collect::<Vec<Clause>>())
                });
                trees[*index] = Some(tree);
                (*begin, tree)
            });
            entries.collect::<Vec<(u128, RuleEntry)>>()
        });
        self.of_both(word::PEER, ip4, ip6)
    }

    /// A tree by group of the peer, then as [`of_ports`](Self::of_ports).
    pub(super) fn of_groups(&mut self, clauses: &[Clause]) -> RuleEntry {
        let mut groups: BTreeMap<u16, Vec<Clause>> = BTreeMap::new();
        let mut of_any = vec![];
        for clause in clauses {
            match clause.0.group {
                Some(group) => groups.entry(group).or_default().push(*clause),
                None => of_any.push(*clause),
            }
        }
        let others = self.of_ports(&of_any);
        let mut ranges = Ranges::new(0, others);
        for (group, mut clauses) in groups {
            clauses.extend(&of_any);
            ranges.push(group.into(), self.of_ports(&clauses));
            ranges.push(u64::from(group) + 1, others);
        }
        self.tree(word::GROUP, ranges)
    }

    /// A tree by protocol and port, then by address of the peer.
    fn of_ports(&mut self, clauses: &[Clause]) -> RuleEntry {
        let mut of_all = vec![];
        let mut protocols: BTreeMap<u8, OfProtocol> = BTreeMap::new();
        for clause in clauses {
            match clause.0.l4 {
                L4Match::Any => of_all.push(*clause),
                L4Match::Protocol(protocol) => protocols.entry(protocol).or_default().any_port.push(*clause),
                L4Match::Ports(protocol, ports) => {
                    protocols.entry(protocol).or_default().ports.push((ports, *clause));
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
            intervals(&ports, |port, mut clauses| {
                let tree = if clauses.is_empty() {
                    other_ports
                } else {
                    clauses.extend(&any_port);
                    self.of_peers(&clauses)
                };
                ranges.push(first + u64::from(port), tree);
            });
            ranges.push(first + (1 << 16), others);
        }
        self.tree(word::PORT, ranges)
    }

    fn of_peers(&mut self, clauses: &[Clause]) -> RuleEntry {
        let anywhere =
            clauses.iter().filter(|(condition, _)| condition.subnet.is_none()).map(|(_, entry)| *entry);
        let anywhere = anywhere.min().unwrap_or(RuleEntry::NONE);
        let subnets = clauses.iter().filter_map(|(condition, entry)| Some((condition.subnet?, *entry)));
        self.of_addresses(word::PEER, anywhere, subnets)
    }

    /// A tree by the local address, which leads to the set of the longest matching prefix.
    pub(super) fn local_subnets(&mut self, sets: impl Iterator<Item = (IpNet, u32)>) -> RuleEntry {
        // The smaller entry wins, so a longer prefix has a smaller order.
        let sets = sets.map(|(net, set)| {
            let order = u32::from(net.max_prefix_len() - net.prefix_len());
            (net, RuleEntry { order, rule: set })
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

    /// A tree for both families. In the first word, IPv4 addresses follow the IPv6 addresses.
    fn of_both(&mut self, word: u32, ip4: Vec<(u128, RuleEntry)>, ip6: Vec<(u128, RuleEntry)>) -> RuleEntry {
        let mut ranges = self.in_words(word, &ip6, 0);
        for (begin, entry) in ip4 {
            ranges.push(word::IP4 + begin as u64, entry);
        }
        self.tree(word, ranges)
    }

    /// Converts ranges of addresses to ranges of one word of the address. A number of this word that contains several ranges
    /// gets a tree for the next word. `index` is the index of the word.
    fn in_words(&mut self, word: u32, ranges: &[(u128, RuleEntry)], index: usize) -> Ranges<u64> {
        let lower_bits: u32 = word::ADDRESS_BITS.iter().skip(index + 1).sum();
        let mut before = ranges.first().map_or(RuleEntry::NONE, |(_, entry)| *entry);
        let mut out = Ranges::new(0, before);
        for part in ranges.chunk_by(|a, b| a.0 >> lower_bits == b.0 >> lower_bits) {
            let (Some((begin, first)), Some((_, last))) = (part.first(), part.last()) else { continue };
            let number = begin >> lower_bits;
            let starts_at_boundary = *begin == number << lower_bits;
            if part.len() == 1 && starts_at_boundary {
                out.push(number as u64, *first);
            } else {
                let inside = part.iter().map(|(begin, entry)| (begin - (number << lower_bits), *entry));
                let around = (!starts_at_boundary).then_some((0, before));
                let inside: Vec<(u128, RuleEntry)> = around.into_iter().chain(inside).collect();
                let inside = self.in_words(word + 1, &inside, index + 1);
                let tree = self.tree(word + 1, inside);
                out.push(number as u64, tree);
                out.push(number as u64 + 1, *last);
            }
            before = *last;
        }
        out
    }

    /// Builds a tree from the leaves up. All nodes of a level are full except the last.
    fn tree(&mut self, word: u32, ranges: Ranges<u64>) -> RuleEntry {
        let mut level = ranges.into_inner();
        while level.len() > 1 {
            level = level.chunks(WAYS).filter_map(|children| self.node(word, children)).collect();
        }
        level.first().map_or(RuleEntry::NONE, |(_, entry)| *entry)
    }

    fn node(&mut self, word: u32, children: &[(u64, RuleEntry)]) -> Option<(u64, RuleEntry)> {
        let (first, others) = children.split_first()?;
        if others.is_empty() {
            return Some(*first);
        }
        let mut node = Branch::EMPTY;
        node.ways.iter_mut().zip(children).for_each(|(child, (_, entry))| *child = *entry);
        node.starts.iter_mut().zip(others).for_each(|(start, (begin, _))| *start = *begin);
        let slot = self.nodes.len() as u32;
        self.nodes.push(node);
        Some((first.0, RuleEntry::branch(word, slot)))
    }
}

/// Ranges of IPv4 and of IPv6 addresses.
fn by_family(anywhere: RuleEntry, nets: impl Iterator<Item = (IpNet, RuleEntry)>) -> [Ranges<u128>; 2] {
    let nets: Vec<(IpNet, RuleEntry)> = nets.collect();
    let (ip4, ip6): (Vec<_>, Vec<_>) = nets.into_iter().partition(|(net, _)| matches!(net, IpNet::V4(_)));
    [ip4, ip6].map(|nets| {
        let spans = nets.into_iter().map(|(net, entry)| (Span::of(net), entry)).collect();
        flatten(anywhere, spans, RuleEntry::min)
    })
}
