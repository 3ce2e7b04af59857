//! Policies as the programs read them, and the search, which the agent's tests run, too.
//!
//! ```text
//! ctv_groups    group's number   -> its rule sets in and out, DSCP, rate
//! ctv_rulesets  a set's number   -> where its trees begin
//! ctv_rules     place            -> a branch of a tree
//! ```
//!
//! A rule set is the rules of one group in one direction, as a decision: which rule is it for this group of the peer, this
//! protocol and port, this address of the peer? What is asked is a handful of numbers, the [`word`]s; the space of each
//! is cut at the places where an answer changes, into ranges that do not overlap. So rules of any lengths of prefixes,
//! nested or not, priorities and denials are worked out by the agent, and a range has one answer. The ranges are the
//! leaves of a tree of [`Branch`]es of eight (a static B+ tree), in which an answer may be a tree for the next word.
//!
//! A search takes as many looks into an array as the trees on its way are high: one to three for a few rules, six for 15,000
//! of any prefixes, never more than [`HEIGHT`] for a tree.

use crate::{Address, Be16, maps::RULE_SETS_CAPACITY};

/// Groups have numbers from 1 to one less than this.
pub const GROUP_NUMBERS: usize = 32_768;

/// The source's side of a connection, as an index.
pub const OUT: usize = 0;
/// The destination's.
pub const IN: usize = 1;

/// What the programs know of a group of endpoints.
///
/// Each number is written in one step: a packet is judged by the set of before or by that of after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Group {
    /// The rule sets for connections from its endpoints ([`OUT`]) and to them ([`IN`]); zero for none. A change of
    /// the rules is a set with another number, by which established connections learn that they have to be looked
    /// at again.
    pub sets: [u32; 2],
    /// Bits per second that an endpoint may send, and as many that it may receive; zero for no limit.
    pub rate: u64,
    /// Bytes beyond the rate that may pass at once.
    pub burst: u32,
    /// How packets from its endpoints are marked, 1 to 63; zero leaves them as they are.
    pub dscp: u32,
}

/// What a connection is told by when rules are looked for: numbers of less than 2^62. Addresses take three.
pub mod word {
    /// The group of the peer; zero for none.
    pub const GROUP: u32 = 0;
    /// Protocol in 8 bits, then port in 16.
    pub const PORT: u32 = 1;
    /// Address of the peer.
    pub const PEER: u32 = 2;
    /// Address of this end.
    pub const OWN: u32 = 5;
    /// How many there are.
    pub const COUNT: usize = 8;

    /// IPv6: 48, 48, 32 bits. IPv4: all in the first, above those of IPv6.
    pub const ADDRESS_BITS: [u32; 3] = [48, 48, 32];
    /// The first word of the first address of IPv4.
    pub const IP4: u64 = 1 << ADDRESS_BITS[0];

    /// Of a protocol and port.
    #[inline(always)]
    pub const fn port(protocol: u8, port: u16) -> u64 {
        (protocol as u64) << 16 | port as u64
    }
}

/// More looks than a search in one tree takes. A tree of height 7 has more than 37,000 branches, one of height 8 would need more
/// than there are; groups, being 32,768, come to a height of 6.
pub const HEIGHT: u32 = 6 + 4 * 7;

/// How many ways there are from a branch.
pub const WAYS: usize = 8;

/// A part of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Branch {
    /// Where the range of each way but the first begins; ascending, [`Branch::NEVER`] for ways that are not there.
    pub starts: [u64; WAYS - 1],
    /// Zero.
    pub zero: u64,
    /// What is there.
    pub ways: [RuleEntry; WAYS],
}

impl Branch {
    /// Above all that a word can be.
    pub const NEVER: u64 = i64::MAX as u64;

    /// Without a way.
    pub const EMPTY: Branch =
        Branch { starts: [Branch::NEVER; WAYS - 1], zero: 0, ways: [RuleEntry::NONE; WAYS] };

    /// The way of the word that is one less than `after`.
    ///
    /// Counts the starts that are less than `after` by the signs of the differences: without a branch, of which the
    /// verifier would follow both sides, and the processor often the wrong one. Words are less than 2^62, so that no
    /// difference overflows.
    #[inline(always)]
    pub fn way(&self, after: u64) -> RuleEntry {
        let [a, b, c, d, e, f, g] = self.starts;
        let less = |start: u64| start.wrapping_sub(after) >> 63;
        let way = (less(a) + less(b)) + (less(c) + less(d)) + (less(e) + less(f)) + less(g);
        self.ways.get(way as usize & (WAYS - 1)).copied().unwrap_or(RuleEntry::NONE)
    }
}

/// The rules of a group in one direction, or of them those for endpoints with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleSet {
    /// Its number; zero if there is no set in this place.
    pub number: u32,
    /// How many rules, for people; with the first set of a group those of all.
    pub rules: u32,
    /// Trees, to be asked one after the other; from the end of them on [`RuleEntry::NONE`]. Of what they say, the
    /// smallest order decides. One is enough unless rules of several kinds would have to be repeated too often. The last
    /// may be about this end's address, and lead to a set of rules for such endpoints alone.
    pub roots: [RuleEntry; RuleSet::ROOTS + 1],
    /// Not zero if the group of the peer is asked for.
    pub by_group: u32,
    /// Zero.
    pub zero: u32,
}

impl RuleSet {
    /// Of rules: with a group of the peer or without; for a protocol and port, a protocol, or any.
    pub const ROOTS: usize = 6;

    /// No set.
    pub const EMPTY: RuleSet =
        RuleSet { number: 0, rules: 0, roots: [RuleEntry::NONE; RuleSet::ROOTS + 1], by_group: 0, zero: 0 };

    /// Where the set with this number is. Of sets that there are, no two are in one place.
    #[inline(always)]
    pub const fn place(number: u32) -> u32 {
        number & (RULE_SETS_CAPACITY as u32 - 1)
    }
}

const _: () = assert!(RULE_SETS_CAPACITY.is_power_of_two());

/// The rule that decides, or where to look for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleEntry {
    /// Of several rules that match, the smallest decides. From the top: a bit that is zero, 127 less the priority in 7 bits,
    /// one that is set if the rule allows, and the place among all rules of the set by name.
    pub order: u32,
    /// The number of the rule on this node, for counting; of a set; or the place of a branch.
    pub rule: u32,
}

impl RuleEntry {
    /// No rule; everything comes before it.
    pub const NONE: RuleEntry = RuleEntry { order: u32::MAX >> 1, rule: 0 };
    /// What is led to is not there, which the agent never lets be: denies, before any rule.
    pub const LOST: RuleEntry = RuleEntry { order: 0, rule: 0 };
    /// Set in [`RuleEntry::order`] if the rule allows.
    pub const ALLOW: u32 = 1 << 23;
    /// Rules of one set that can be told apart.
    pub const PLACES: u32 = 1 << 23;
    /// Instead of an order: a set. As of the priority 0, which no rule has.
    const SET: u32 = 127 << 24;
    /// Instead of an order: a branch. The lowest bits are the word that it is about.
    const BRANCH: u32 = 1 << 31;

    /// A rule of a priority from 1 to 100; `place` is below [`RuleEntry::PLACES`].
    pub const fn new(priority: u8, allow: bool, place: u32, rule: u32) -> Self {
        let urgency = 127 - (priority & 127) as u32;
        let allow = if allow { RuleEntry::ALLOW } else { 0 };
        RuleEntry { order: urgency << 24 | allow | (place & (RuleEntry::PLACES - 1)), rule }
    }

    /// A further set.
    pub const fn set(number: u32) -> Self {
        RuleEntry { order: RuleEntry::SET, rule: number }
    }

    /// A branch about a [`word`].
    pub const fn branch(word: u32, place: u32) -> Self {
        RuleEntry { order: RuleEntry::BRANCH | word, rule: place }
    }

    /// True of a rule that denies. Without a rule, everything is allowed.
    #[inline(always)]
    pub const fn denies(self) -> bool {
        self.order & RuleEntry::ALLOW == 0
    }

    /// Whether there is anything.
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.order != RuleEntry::NONE.order
    }

    /// Whether it is a set.
    #[inline(always)]
    pub const fn is_set(self) -> bool {
        self.order == RuleEntry::SET
    }

    /// Whether it is a branch.
    #[inline(always)]
    pub const fn is_branch(self) -> bool {
        self.order & RuleEntry::BRANCH != 0
    }
}

/// What a rule has decided, on one CPU: new connections that it let through, packets that it stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A limit on what a port may send or be sent: a bucket of bytes, told by the time at which it will be full again.
///
/// Whatever is in the bucket lets a packet through, also one that is larger: pods' kernels leave it to others to cut
/// up what they send, and a burst may be less than that. What it takes too much is paid for by what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Meter {
    /// Nanoseconds since boot.
    pub full_at: u64,
    /// Held while it is read and written.
    pub lock: bpf_spin_lock,
    /// Zero.
    pub zero: u32,
}

/// The kernel's `struct bpf_spin_lock`, which it finds in a map's value by this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct bpf_spin_lock {
    /// The kernel's; reads as zero.
    pub val: u32,
}

impl Meter {
    /// When a meter that would be full at `full_at` will be so after a packet of `cost` has passed; `None` if it may
    /// not. `burst` and `cost` are as [`Meter::cost`] has them.
    #[inline(always)]
    pub const fn admit(full_at: u64, now: u64, burst: u64, cost: u64) -> Option<u64> {
        let full_at = if full_at > now { full_at } else { now };
        if full_at - now > burst { None } else { Some(full_at + cost) }
    }

    /// How long so many bytes take, in nanoseconds; `rate` is in bits per second.
    #[inline(always)]
    pub const fn cost(bytes: u32, rate: u64) -> u64 {
        // By bytes per second, because bits of 2^32 bytes times nanoseconds would overflow.
        let rate = if rate < 8 { 1 } else { rate / 8 };
        bytes as u64 * 1_000_000_000 / rate
    }
}

/// A port, and a direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct MeterKey {
    /// The host end of the pod's veth pair.
    pub ifindex: u32,
    /// [`MeterKey::SENDS`] or [`MeterKey::RECEIVES`].
    pub direction: u32,
}

impl MeterKey {
    /// What the pod sends.
    pub const SENDS: u32 = 0;
    /// What it is sent.
    pub const RECEIVES: u32 = 1;
}

/// What is asked about a new connection, seen from one of its ends: its [`word`]s, each one more than it is, as
/// [`Branch::way`] takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LookupKey {
    after: [u64; word::COUNT],
}

impl LookupKey {
    /// The group that the other end is in; zero for none.
    #[inline(always)]
    pub fn set_group(&mut self, group: u32) {
        self.after[word::GROUP as usize] = group as u64 + 1;
    }

    /// The number in the IP header, or the last of the IPv6 headers; the destination port. Rules of a port are of TCP or
    /// UDP, so what others have in its place is never asked for.
    #[inline(always)]
    pub fn set_port(&mut self, protocol: u8, port: Be16) {
        self.after[word::PORT as usize] = word::port(protocol, port.get()) + 1;
    }

    /// The addresses of the other end and of this one, which are mapped if they are of IPv4 (`ip6` is 0, else 1).
    #[inline(always)]
    pub fn set_ends(&mut self, ip6: u8, peer: &Address, own: &Address) {
        self.set_address(word::PEER as usize, ip6, peer);
        self.set_address(word::OWN as usize, ip6, own);
    }

    #[inline(always)]
    fn set_address(&mut self, word: usize, ip6: u8, address: &Address) {
        let [high, low] = address.words();
        let (high, low) = (u64::from_be(high), u64::from_be(low));
        let last = low & u64::from(u32::MAX);
        // All ones for IPv4, of which the high part is zero.
        let ip4 = u64::from(ip6 & 1).wrapping_sub(1);
        self.after[word] = (high >> 16 | (word::IP4 | last) & ip4) + 1;
        self.after[word + 1] = ((high & 0xffff) << 32 | low >> 32) + 1;
        self.after[word + 2] = last + 1;
    }

    /// From a branch one step on.
    #[inline(always)]
    fn way(&self, branch: &Branch, at: RuleEntry) -> RuleEntry {
        let word = at.order as usize & (word::COUNT - 1);
        self.after.get(word).map_or(RuleEntry::NONE, |after| branch.way(*after))
    }
}

/// Where the rules are: maps in the kernel.
pub trait Tables {
    /// The set with this number, if it is there.
    fn set(&self, number: u32) -> Option<&RuleSet>;
    /// The branch in this place, if there is one.
    fn branch(&self, place: u32) -> Option<&Branch>;
}

/// A search in a set, and the one that it leads to: [`Search::turn`], then [`Search::walk`], until the first says no.
/// It is kept in memory between the two, so that the verifier knows nothing of it and all its parts are one to it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Search {
    /// Where it is.
    at: RuleEntry,
    /// What decides, or [`RuleEntry::NONE`], when the search is over.
    pub best: RuleEntry,
    set: u32,
    /// Into [`RuleSet::roots`].
    root: u32,
}

impl Search {
    /// Branches of one walk. Few trees are higher; the verifier follows these alone, not all of [`HEIGHT`].
    pub const STRIDE: u32 = 6;
    /// More turns than any search takes: through all trees of two sets, and the one between them, and the last.
    pub const TURNS: u32 = (2 * RuleSet::ROOTS as u32 + 1) * HEIGHT.div_ceil(Search::STRIDE) + 1;

    /// Begins with the set of a group.
    #[inline(always)]
    pub const fn new(set: u32) -> Self {
        Search { at: RuleEntry::set(set), best: RuleEntry::NONE, set, root: 0 }
    }

    /// From the end of a tree to the next one; false when there is none.
    #[inline(always)]
    pub fn turn<T: Tables>(&mut self, tables: &T) -> bool {
        if self.at.is_branch() {
            return true;
        }
        if self.at.is_set() {
            self.set = self.at.rule;
            self.root = 0;
        } else if self.at.order < self.best.order {
            self.best = self.at;
        }
        let Some(set) = tables.set(self.set) else {
            self.best = RuleEntry::LOST;
            return false;
        };
        self.at = set.roots.get(self.root as usize).copied().unwrap_or(RuleEntry::NONE);
        self.root += 1;
        self.at.is_some()
    }

    /// To the end of a tree, or [`Search::STRIDE`] branches far. How far it was.
    #[inline(always)]
    pub fn walk<T: Tables>(&mut self, tables: &T, question: &LookupKey) -> u32 {
        let mut at = self.at;
        let mut steps = 0;
        while steps < Search::STRIDE && at.is_branch() {
            at = tables.branch(at.rule).map_or(RuleEntry::LOST, |branch| question.way(branch, at));
            steps += 1;
        }
        self.at = at;
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_in_the_order_of_addresses() {
        let words = |ip6, address: [u8; 16]| {
            let mut question = LookupKey::default();
            question.set_ends(ip6, &Address(address), &Address::default());
            [0, 1, 2].map(|word| question.after[word::PEER as usize + word])
        };
        let address: [u8; 16] = core::array::from_fn(|byte| byte as u8 + 1);
        assert_eq!(words(1, address), [0x0102_0304_0507, 0x0708_090a_0b0d, 0x0d0e_0f11]);
        assert!(words(1, [0xff; 16])[0] < words(0, Address::v4([0; 4]).0)[0] + 1);
        assert_eq!(words(0, Address::v4([10, 1, 2, 3]).0)[0], word::IP4 + 0x0a01_0203 + 1);
    }

    #[test]
    fn a_branch_leads_by_ranges() {
        let mut branch = Branch::EMPTY;
        let starts = [1, 5, word::IP4, 1 << 61];
        branch.starts[..4].copy_from_slice(&starts);
        for (way, entry) in branch.ways.iter_mut().take(5).enumerate() {
            entry.rule = way as u32;
        }
        let cases = [
            (0, 0),
            (1, 1),
            (4, 1),
            (5, 2),
            (word::IP4 - 1, 2),
            (word::IP4, 3),
            (1 << 61, 4),
            ((1 << 62) - 1, 4),
        ];
        for (word, way) in cases {
            assert_eq!(branch.way(word + 1).rule, way, "{word}");
        }
    }

    #[test]
    fn what_is_no_rule_passes_for_none() {
        let rule = RuleEntry::new(1, true, RuleEntry::PLACES - 1, 7);
        for (entry, set, branch) in
            [(rule, false, false), (RuleEntry::set(3), true, false), (RuleEntry::branch(7, 3), false, true)]
        {
            assert_eq!((entry.is_set(), entry.is_branch(), entry.is_some()), (set, branch, true));
            assert!(entry.order >= rule.order);
        }
        assert!(!RuleEntry::NONE.is_some() && !RuleEntry::NONE.is_branch() && !RuleEntry::NONE.is_set());
    }

    #[test]
    fn urgent_rules_come_first_and_of_equals_those_that_deny() {
        let orders = [
            RuleEntry::new(100, false, 5, 1),
            RuleEntry::new(100, false, 6, 1),
            RuleEntry::new(100, true, 0, 1),
            RuleEntry::new(1, false, 9, 1),
            RuleEntry::new(1, true, RuleEntry::PLACES - 1, 1),
            RuleEntry::NONE,
        ];
        assert!(orders.is_sorted_by(|a, b| a.order < b.order));
        assert_eq!(orders.map(RuleEntry::denies), [true, true, false, true, false, false]);
    }
}
