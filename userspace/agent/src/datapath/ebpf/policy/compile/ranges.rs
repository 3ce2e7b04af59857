//! From prefixes to ranges that do not overlap.

use contiv_abi::policy::RuleEntry;
use ipnet::IpNet;

/// Ranges by where they begin, ascending: each goes on to the next, the last one to the end. Neighbours differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges<N, A = RuleEntry>(Vec<(N, A)>);

impl<N: Copy + Ord, A: PartialEq> Ranges<N, A> {
    /// One for all.
    pub(super) fn new(begin: N, entry: A) -> Self {
        Ranges(vec![(begin, entry)])
    }

    /// From `begin` on it is `entry`; not before the last one begins.
    pub(super) fn push(&mut self, begin: N, entry: A) {
        if self.0.last().is_some_and(|(last, _)| *last == begin) {
            self.0.pop();
        }
        if self.0.last().is_none_or(|(_, last)| *last != entry) {
            self.0.push((begin, entry));
        }
    }

    pub(super) fn into_inner(self) -> Vec<(N, A)> {
        self.0
    }
}

/// The first and last address of a prefix; those of IPv4 as numbers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    first: u128,
    last: u128,
}

impl Span {
    pub(super) fn of(net: IpNet) -> Span {
        match net {
            IpNet::V4(net) => {
                Span { first: net.network().to_bits().into(), last: net.broadcast().to_bits().into() }
            }
            IpNet::V6(net) => Span { first: net.network().to_bits(), last: net.broadcast().to_bits() },
        }
    }
}

/// Of the whole family, in which it is `all` where no span is; `within` tells what it is in a span by what it is around. Of spans that
/// overlap, one is in the other.
pub(super) fn flatten<A: Copy + PartialEq, T>(
    all: A,
    mut spans: Vec<(Span, T)>,
    mut within: impl FnMut(A, T) -> A,
) -> Ranges<u128, A> {
    // What is around comes before what is in it.
    spans.sort_by_key(|(span, _)| (span.first, u128::MAX - span.last));
    let mut ranges = Ranges::new(0, all);
    // Those that are open, from the outermost, each with what is in it.
    let mut open: Vec<(u128, A)> = vec![];
    for (span, inner) in spans {
        close(&mut ranges, &mut open, all, |last| last < span.first);
        let around = open.last().map_or(all, |(_, entry)| *entry);
        let entry = within(around, inner);
        ranges.push(span.first, entry);
        open.push((span.last, entry));
    }
    close(&mut ranges, &mut open, all, |_| true);
    ranges
}

/// Ends the open spans whose last address is such.
fn close<A: Copy + PartialEq>(
    ranges: &mut Ranges<u128, A>,
    open: &mut Vec<(u128, A)>,
    all: A,
    over: impl Fn(u128) -> bool,
) {
    while let Some((last, _)) = open.pop_if(|(last, _)| over(*last)) {
        let around = open.last().map_or(all, |(_, entry)| *entry);
        if let Some(next) = last.checked_add(1) {
            ranges.push(next, around);
        }
    }
}
