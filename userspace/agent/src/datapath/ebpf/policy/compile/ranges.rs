//! Converts nested prefixes to disjoint ranges.

use contiv_abi::policy::RuleEntry;
use ipnet::IpNet;

/// Ranges in ascending order of their first number. Each ends before the next; the last is unbounded. Adjacent ranges have
/// different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges<N, A = RuleEntry>(Vec<(N, A)>);

impl<N: Copy + Ord, A: PartialEq> Ranges<N, A> {
    /// One range from `begin` on.
    pub(super) fn new(begin: N, entry: A) -> Self {
        Ranges(vec![(begin, entry)])
    }

    /// Appends a range. `begin` must not be below the start of the last range.
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

/// First and last address of a prefix. IPv4 addresses are 32-bit numbers.
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

/// Converts spans, which must be nested or disjoint, to ranges of the whole family. The value outside of all spans is `all`;
/// `nest` computes the value in a span from the value around it.
pub(super) fn flatten<A: Copy + PartialEq, T>(
    all: A,
    mut spans: Vec<(Span, T)>,
    mut nest: impl FnMut(A, T) -> A,
) -> Ranges<u128, A> {
    // Outer spans come first.
    spans.sort_by_key(|(span, _)| (span.first, u128::MAX - span.last));
    let mut ranges = Ranges::new(0, all);
    // Spans that have not ended, from the outermost, with their values.
    let mut open: Vec<(u128, A)> = vec![];
    for (span, inner) in spans {
        close(&mut ranges, &mut open, all, |last| last < span.first);
        let around = open.last().map_or(all, |(_, entry)| *entry);
        let entry = nest(around, inner);
        ranges.push(span.first, entry);
        open.push((span.last, entry));
    }
    close(&mut ranges, &mut open, all, |_| true);
    ranges
}

/// Ends the open spans whose last address satisfies `over`.
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
