//! Rules by the addresses of the peer: prefixes lie in others, and in a range that none divides there are few rules that are left to
//! be told apart by group, protocol and port.

use std::collections::{BTreeMap, HashMap};

use contiv_abi::policy::{RuleEntry, WAYS};
use ipnet::IpNet;

use super::{
    About, Case,
    kinds::Limit,
    ranges::{Span, flatten},
};

/// The rule for each group, protocol and port that the rules of a range ask for.
type Left = BTreeMap<(Option<u16>, About), RuleEntry>;

/// All addresses of IPv4 and IPv6 as ranges, each with the place of what is left there.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) left: Vec<Left>,
    pub(super) ranges: [Vec<(u128, usize)>; 2],
}

/// [`Layers`] while they grow.
struct Growing {
    left: Vec<Left>,
    places: HashMap<Left, usize>,
    /// Branches that may come to it yet; none when there were too many.
    room: Option<usize>,
}

impl Layers {
    /// None if what is left would be repeated too often.
    pub(super) fn of(cases: &[Case], limit: Limit) -> Option<Layers> {
        let mut nets: BTreeMap<Option<IpNet>, Vec<Case>> = BTreeMap::new();
        for case in cases {
            nets.entry(case.0.subnet).or_default().push(*case);
        }
        let room = Some(limit.left(cases.len()));
        let mut growing = Growing { left: vec![], places: HashMap::new(), room };
        let all = growing.with(Left::new(), &nets.remove(&None).unwrap_or_default());
        let (ip4, ip6): (Vec<_>, Vec<_>) =
            nets.into_iter().partition(|(net, _)| matches!(net, Some(IpNet::V4(_))));
        let ranges = [ip4, ip6].map(|nets| {
            let spans = nets.into_iter().filter_map(|(net, cases)| Some((Span::of(net?), cases))).collect();
            flatten(all, spans, |around, cases| growing.within(around, &cases)).into_inner()
        });
        growing.room.map(|_| Layers { left: growing.left, ranges })
    }
}

impl Growing {
    /// In a prefix with these rules, in a range in which that is left.
    fn within(&mut self, around: usize, cases: &[Case]) -> usize {
        match self.left.get(around) {
            Some(left) if self.room.is_some() => {
                let left = left.clone();
                self.with(left, cases)
            }
            _ => around,
        }
    }

    fn with(&mut self, mut left: Left, cases: &[Case]) -> usize {
        for (asked, entry) in cases {
            let decides = left.entry((asked.group, asked.about)).or_insert(*entry);
            *decides = (*decides).min(*entry);
        }
        if let Some(place) = self.places.get(&left) {
            return *place;
        }
        self.room = self.room.and_then(|room| room.checked_sub(branches(&left)));
        self.places.insert(left.clone(), self.left.len());
        self.left.push(left);
        self.left.len() - 1
    }
}

/// What is left comes to so many, at most: a tree by groups, and for each group and all others one by ports.
fn branches(left: &Left) -> usize {
    // A number is a range, and so is what is between two.
    let tree = |numbers: usize| (2 * numbers).div_ceil(WAYS - 1);
    let ports = |about: &About| usize::from(*about != About::All);
    let of_any: usize = left.keys().filter(|(group, _)| group.is_none()).map(|(_, about)| ports(about)).sum();
    let mut groups: BTreeMap<u16, usize> = BTreeMap::new();
    for (group, about) in left.keys() {
        if let Some(group) = group {
            *groups.entry(*group).or_insert(of_any) += ports(about);
        }
    }
    tree(of_any) + tree(groups.len()) + groups.into_values().map(tree).sum::<usize>()
}
