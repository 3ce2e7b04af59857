//! Policies as the programs read them, and the lookup, which the agent's tests also run.
//!
//! ```text
//! ctv_groups    group's number -> its rule sets in and out, DSCP, rate
//! ctv_rulesets  set's number   -> roots of its trees
//! ctv_rules     index          -> a node of a tree
//! ```
//!
//! A rule set is the rules of one group in one direction, compiled to a decision: which rule
//! applies to this group of the peer, this protocol and port, this address of the peer? The lookup
//! key is a handful of numbers, the [`word`]s. The range of each word is divided where the answer
//! changes, into intervals that do not overlap. The agent resolves prefixes of any lengths, nested
//! or not, priorities and denials, so that an interval has one answer. The intervals are the leaves
//! of a tree of [`Branch`]es with eight children (a static B+ tree), in which an answer may be a
//! tree for the next word.
//!
//! A lookup reads as many array elements as the trees on its path are high: one to three for a few
//! rules, six for 15,000 rules with any prefixes, never more than [`HEIGHT`] for one tree.

use crate::{Address, Be16, maps::RULE_SETS_CAPACITY};

/// Group numbers are from 1 to one less than this.
pub const GROUP_NUMBERS: usize = 32_768;

/// Index of the egress side: the source of a connection.
pub const OUT: usize = 0;
/// Index of the ingress side: the destination of a connection.
pub const IN: usize = 1;

/// Settings of an endpoint group.
///
/// Each number is written atomically: a packet is evaluated with the old set or with the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Group {
    /// Numbers of the rule sets for connections from the group's endpoints ([`OUT`]) and to them
    /// ([`IN`]); zero for none. Changed rules are a set with a new number, by which established
    /// connections are evaluated again.
    pub sets: [u32; 2],
    /// Rate limit of an endpoint, in each direction, in bits per second; zero for none.
    pub rate: u64,
    /// Burst in bytes.
    pub burst: u32,
    /// DSCP of packets from the endpoints, 1 to 63; zero leaves it unchanged.
    pub dscp: u32,
}

/// Words of a lookup key: numbers below 2^62. Addresses take three words.
pub mod word {
    /// Number of the peer's group; zero for none.
    pub const GROUP: u32 = 0;
    /// Protocol in 8 bits, then port in 16.
    pub const PORT: u32 = 1;
    /// Address of the peer.
    pub const PEER: u32 = 2;
    /// Address of the local end.
    pub const OWN: u32 = 5;
    /// Number of words.
    pub const COUNT: usize = 8;

    /// Bits of an IPv6 address in each word. An IPv4 address is in the first, above those of IPv6.
    pub const ADDRESS_BITS: [u32; 3] = [48, 48, 32];
    /// First word of the lowest IPv4 address.
    pub const IP4: u64 = 1 << ADDRESS_BITS[0];

    /// Word of a protocol and port.
    #[inline(always)]
    pub const fn port(protocol: u8, port: u16) -> u64 {
        (protocol as u64) << 16 | port as u64
    }
}

/// Upper bound on the reads of a lookup in one tree. A tree of height 7 has more than 37,000 nodes,
/// one of height 8 would need more than exist; the 32,768 groups need a height of 6.
pub const HEIGHT: u32 = 6 + 4 * 7;

/// Number of children of a node.
pub const WAYS: usize = 8;

/// A node of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Branch {
    /// Lowest word of each child but the first, ascending; [`Branch::NEVER`] for missing children.
    pub starts: [u64; WAYS - 1],
    /// Zero.
    pub zero: u64,
    /// The children.
    pub ways: [RuleEntry; WAYS],
}

impl Branch {
    /// Greater than every word.
    pub const NEVER: u64 = i64::MAX as u64;

    /// A node without children.
    pub const EMPTY: Branch =
        Branch { starts: [Branch::NEVER; WAYS - 1], zero: 0, ways: [RuleEntry::NONE; WAYS] };

    /// The child for the word `after - 1`.
    ///
    /// Counts the starts below `after` by the signs of the differences. Branch-free: the verifier
    /// would follow both sides of a branch, and the CPU would often mispredict it. Words are below
    /// 2^62, so that no difference overflows.
    #[inline(always)]
    pub fn way(&self, after: u64) -> RuleEntry {
        let [a, b, c, d, e, f, g] = self.starts;
        let less = |start: u64| start.wrapping_sub(after) >> 63;
        let way = (less(a) + less(b)) + (less(c) + less(d)) + (less(e) + less(f)) + less(g);
        self.ways.get(way as usize & (WAYS - 1)).copied().unwrap_or(RuleEntry::NONE)
    }
}

/// Rules of a group in one direction, or those of them for endpoints with a given address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleSet {
    /// Number of the set; zero if the slot is free.
    pub number: u32,
    /// Number of rules, for diagnosis; in the first set of a group that of all rules.
    pub rules: u32,
    /// Trees, which are searched one after the other; [`RuleEntry::NONE`] after the last. Of their
    /// results the smallest order decides. One tree suffices unless rules of several kinds would
    /// have to be repeated too often. The last tree may be for the local address, and lead to a set
    /// of rules for such endpoints alone.
    pub roots: [RuleEntry; RuleSet::ROOTS + 1],
    /// Not zero if the lookup depends on the peer's group.
    pub by_group: u32,
    /// Not zero if the lookup depends on the peer's group or address.
    pub by_peer: u32,
}

impl RuleSet {
    /// Kinds of rules: with or without a group of the peer; for a protocol and port, a protocol, or
    /// any.
    pub const ROOTS: usize = 6;

    /// A free slot.
    pub const EMPTY: RuleSet = RuleSet {
        number: 0,
        rules: 0,
        roots: [RuleEntry::NONE; RuleSet::ROOTS + 1],
        by_group: 0,
        by_peer: 0,
    };

    /// Index of the set with this number. Existing sets have different indexes.
    #[inline(always)]
    pub const fn place(number: u32) -> u32 {
        number & (RULE_SETS_CAPACITY as u32 - 1)
    }
}

const _: () = assert!(RULE_SETS_CAPACITY.is_power_of_two());

/// A rule, or a reference to a node or set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleEntry {
    /// Of several matching rules, the smallest order decides. From the top: a zero bit; 127 less
    /// the rank of its layer and priority in 7 bits; a bit that is set if the rule allows; the rank of the rule's name in
    /// the set.
    pub order: u32,
    /// Number of the rule on this node, for counters; number of a set; or index of a node.
    pub rule: u32,
}

impl RuleEntry {
    /// No rule; after all rules.
    pub const NONE: RuleEntry = RuleEntry { order: u32::MAX >> 1, rule: 0 };
    /// The referenced node or set is missing, which is a defect: denies, before all rules.
    pub const LOST: RuleEntry = RuleEntry { order: 0, rule: 0 };
    /// Set in [`RuleEntry::order`] if the rule allows.
    pub const ALLOW: u32 = 1 << 23;
    /// Number of distinct ranks in a set.
    pub const PLACES: u32 = 1 << 23;
    /// `order` of a reference to a set: that of the rank 0, which no rule has.
    const SET: u32 = 127 << 24;
    /// `order` of a reference to a node. The lowest bits are the index of its word.
    const BRANCH: u32 = 1 << 31;

    /// A rule with a rank from 1 to 126, of which the highest decides; `place` is below [`RuleEntry::PLACES`].
    pub const fn new(rank: u8, allow: bool, place: u32, rule: u32) -> Self {
        let urgency = 127 - (rank & 127) as u32;
        let allow = if allow { RuleEntry::ALLOW } else { 0 };
        RuleEntry { order: urgency << 24 | allow | (place & (RuleEntry::PLACES - 1)), rule }
    }

    /// A reference to a set.
    pub const fn set(number: u32) -> Self {
        RuleEntry { order: RuleEntry::SET, rule: number }
    }

    /// A reference to a node for a [`word`].
    pub const fn branch(word: u32, place: u32) -> Self {
        RuleEntry { order: RuleEntry::BRANCH | word, rule: place }
    }

    /// Returns true for a rule that denies. Without a rule, the packet is allowed.
    #[inline(always)]
    pub const fn denies(self) -> bool {
        self.order & RuleEntry::ALLOW == 0
    }

    /// Returns true unless the entry is [`RuleEntry::NONE`].
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.order != RuleEntry::NONE.order
    }

    /// Returns true for a reference to a set.
    #[inline(always)]
    pub const fn is_set(self) -> bool {
        self.order == RuleEntry::SET
    }

    /// Returns true for a reference to a node.
    #[inline(always)]
    pub const fn is_branch(self) -> bool {
        self.order & RuleEntry::BRANCH != 0
    }
}

/// Decisions of a rule on one CPU: new connections that it allowed, packets that it denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleCount {
    /// Number of packets.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
}

/// A token bucket for one direction of a port, represented by the time at which it is full again.
///
/// A packet passes if the bucket is not empty, also if the packet is larger than its content: with
/// segmentation offload packets may exceed the burst. The excess delays later packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Meter {
    /// Time at which the bucket is full, in nanoseconds since boot.
    pub full_at: u64,
    /// Held while `full_at` is read and written.
    pub lock: bpf_spin_lock,
    /// Zero.
    pub zero: u32,
}

/// The kernel's `struct bpf_spin_lock`, which it finds in a map's value by this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct bpf_spin_lock {
    /// Opaque; reads as zero.
    pub val: u32,
}

impl Meter {
    /// The new `full_at` of a meter after a packet of `cost`; `None` if the packet exceeds the
    /// rate. `burst` and `cost` are in nanoseconds, by [`Meter::cost`].
    #[inline(always)]
    pub const fn admit(full_at: u64, now: u64, burst: u64, cost: u64) -> Option<u64> {
        let full_at = if full_at > now { full_at } else { now };
        if full_at - now > burst { None } else { Some(full_at + cost) }
    }

    /// Time to send `bytes` at `rate` bits per second, in nanoseconds.
    #[inline(always)]
    pub const fn cost(bytes: u32, rate: u64) -> u64 {
        // By bytes per second, because 2^32 bytes in bits times nanoseconds would overflow.
        let rate = if rate < 8 { 1 } else { rate / 8 };
        bytes as u64 * 1_000_000_000 / rate
    }
}

/// A port and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct MeterKey {
    /// Host end of the pod's veth pair.
    pub ifindex: u32,
    /// [`MeterKey::SENDS`], [`MeterKey::RECEIVES`] or [`MeterKey::BUM`].
    pub direction: u32,
}

impl MeterKey {
    /// Packets from the pod.
    pub const SENDS: u32 = 0;
    /// Packets to the pod.
    pub const RECEIVES: u32 = 1;
    /// Broadcast, unknown unicast and multicast frames from the pod.
    pub const BUM: u32 = 2;
}

/// Lookup key of a new connection, from the point of view of one end: its [`word`]s, each plus one,
/// as [`Branch::way`] takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LookupKey {
    after: [u64; word::COUNT],
}

impl LookupKey {
    /// Sets the number of the peer's group; zero for none.
    #[inline(always)]
    pub fn set_group(&mut self, group: u32) {
        self.after[word::GROUP as usize] = group as u64 + 1;
    }

    /// Sets the IP protocol number (of the last IPv6 header) and the destination port. Rules with a
    /// port are for TCP or UDP, so the value for other protocols is not used.
    #[inline(always)]
    pub fn set_port(&mut self, protocol: u8, port: Be16) {
        self.after[word::PORT as usize] = word::port(protocol, port.get()) + 1;
    }

    /// Sets the addresses of the peer and of the local end; IPv4 addresses are mapped (`ip6` is 0,
    /// else 1).
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
        // All ones for IPv4, whose high part is zero.
        let ip4 = u64::from(ip6 & 1).wrapping_sub(1);
        self.after[word] = (high >> 16 | (word::IP4 | last) & ip4) + 1;
        self.after[word + 1] = ((high & 0xffff) << 32 | low >> 32) + 1;
        self.after[word + 2] = last + 1;
    }

    /// The child of a node for this key.
    #[inline(always)]
    fn way(&self, branch: &Branch, at: RuleEntry) -> RuleEntry {
        let word = at.order as usize & (word::COUNT - 1);
        self.after.get(word).map_or(RuleEntry::NONE, |after| branch.way(*after))
    }
}

/// Access to the rule maps.
pub trait Tables {
    /// The set with this number, if it exists.
    fn set(&self, number: u32) -> Option<&RuleSet>;
    /// The node at this index, if it exists.
    fn branch(&self, place: u32) -> Option<&Branch>;
}

/// A lookup in a set, and in the one that it refers to: [`Search::turn`], then [`Search::walk`],
/// until `turn` returns false. The state is kept in memory between the calls, so that the verifier
/// does not track it and explores the steps once.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Search {
    /// Current position.
    at: RuleEntry,
    /// Rule that decides when the lookup has ended, or [`RuleEntry::NONE`].
    pub best: RuleEntry,
    set: u32,
    /// Index in [`RuleSet::roots`].
    root: u32,
}

impl Search {
    /// Nodes of one walk. Few trees are higher; the verifier follows this many instead of
    /// [`HEIGHT`].
    pub const STRIDE: u32 = 6;
    /// Upper bound on the turns of a lookup: through all trees of two sets, the one between them,
    /// and the last turn.
    pub const TURNS: u32 = (2 * RuleSet::ROOTS as u32 + 1) * HEIGHT.div_ceil(Search::STRIDE) + 1;

    /// Begins with the set of a group.
    #[inline(always)]
    pub const fn new(set: u32) -> Self {
        Search { at: RuleEntry::set(set), best: RuleEntry::NONE, set, root: 0 }
    }

    /// Advances from the end of a tree to the next one; returns false after the last.
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

    /// Descends to the end of a tree, or by [`Search::STRIDE`] nodes. Returns the number of nodes.
    #[inline(always)]
    pub fn walk<T: Tables>(&mut self, tables: &T, key: &LookupKey) -> u32 {
        let mut at = self.at;
        let mut steps = 0;
        while steps < Search::STRIDE && at.is_branch() {
            at = tables.branch(at.rule).map_or(RuleEntry::LOST, |branch| key.way(branch, at));
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
            let mut key = LookupKey::default();
            key.set_ends(ip6, &Address(address), &Address::default());
            [0, 1, 2].map(|word| key.after[word::PEER as usize + word])
        };
        let address: [u8; 16] = core::array::from_fn(|byte| byte as u8 + 1);
        assert_eq!(words(1, address), [0x0102_0304_0507, 0x0708_090a_0b0d, 0x0d0e_0f11]);
        assert!(words(1, [0xff; 16])[0] < words(0, Address::v4([0; 4]).0)[0] + 1);
        assert_eq!(words(0, Address::v4([10, 1, 2, 3]).0)[0], word::IP4 + 0x0a01_0203 + 1);
    }

    #[test]
    fn a_node_selects_the_child_by_interval() {
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
    fn references_are_not_rules() {
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
