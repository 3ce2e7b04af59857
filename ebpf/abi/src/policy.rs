//! Policies as the programs read them: keys, values, and the search, which the agent's tests run, too.
//!
//! ```text
//! ctv_groups    group's number          -> its rule sets in and out, DSCP, rate
//! ctv_rulesets  rule set                -> which prefix lengths to look for
//! ctv_rules     rule set, what, prefix  -> the rule that decides
//! ```
//!
//! A rule set is the rules of one group in one direction. Its rules are sorted by what they ask for ([`shape`]): the
//! peer's group or not, the protocol, the protocol and port or neither. Within a shape, all that is asked for but the
//! peer's prefix is compared whole, as a part of the key; the longest prefix is found by a binary search
//! over the lengths that the shape has (Waldvogel et al., "Scalable High Speed IP Routing Lookups", 1997). An entry holds
//! the rule that decides among all whose prefix covers its own, so the search need not go back; entries in which it only
//! learns that longer prefixes are worth a look hold the same. What the shapes come to is compared at the end.
//! So the number of look-ups depends on how many shapes and lengths are in use, never on how many rules; and
//! a rule has one entry, and a handful of such signposts at worst.

use crate::{Address, Be16};

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

/// How many [`shape`]s of rules there are, and one more for the group's own addresses.
pub const SHAPES: usize = 7;

/// What a rule asks for: an index into [`RuleSet::trees`], a part of [`RuleKey`].
pub mod shape {
    /// Any protocol and port; any group.
    pub const ANY: u8 = 0;
    /// A protocol.
    pub const PROTOCOL: u8 = 1;
    /// A protocol and a port.
    pub const PORT: u8 = 2;
    /// Added to those: a group of the peer, too.
    pub const GROUP: u8 = 3;
    /// Not a rule, but for endpoints with this address: the number of a further set, of rules for them alone.
    pub const OWN: u8 = 6;
}

/// The lengths of prefixes that are to be looked for, as a search tree: the root is in slot 1, the child for shorter
/// prefixes of slot `n` in slot `2n`, that for longer ones in `2n + 1`. IPv4 has at most 33 lengths. IPv6 may have all but
/// 1 to 3, so that there are no more than 127.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Tree {
    /// The first half is that of IPv4, the other that of IPv6. Slot 0 is 1 if there is a root, else 0: where the search
    /// begins.
    slots: [u8; 256],
}

impl Tree {
    /// In a slot: no node.
    pub const END: u8 = 255;
    /// How deep a tree is at most.
    const DEPTH: u32 = 7;

    /// Without a root.
    pub const EMPTY: Tree = {
        let mut slots = [Tree::END; 256];
        slots[Family::V4.place(0)] = 0;
        slots[Family::V6.place(0)] = 0;
        Tree { slots }
    };

    /// What is in a slot.
    #[inline(always)]
    pub fn slot(&self, family: Family, slot: u8) -> u8 {
        self.slots.get(family.place(slot)).copied().unwrap_or(Tree::END)
    }

    /// Sets a slot below 128.
    pub fn set(&mut self, family: Family, slot: u8, length: u8) {
        if let Some(place) = self.slots.get_mut(family.place(slot)) {
            *place = length;
        }
    }
}

/// What rules of a shape ask for, as masks of what a connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Asks {
    /// Of the peer's group.
    pub group: u16,
    /// Of the port.
    pub port: u16,
    /// Of the protocol.
    pub protocol: u8,
    /// [`shape`], or [`Asks::END`].
    pub shape: u8,
}

impl Asks {
    /// Instead of a shape: no more.
    pub const END: u8 = 255;

    /// What a shape asks for.
    pub const fn of(shape: u8) -> Self {
        let rest = shape % shape::GROUP;
        Asks {
            group: if shape >= shape::GROUP && shape < shape::OWN { u16::MAX } else { 0 },
            port: if rest == shape::PORT { u16::MAX } else { 0 },
            protocol: if rest != shape::ANY { u8::MAX } else { 0 },
            shape,
        }
    }
}

/// Which rules there are in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleSet {
    /// How many, for people.
    pub rules: u32,
    /// The shapes in use, then one that is [`Asks::END`]; from [`RuleSet::OWN`] on likewise [`shape::OWN`].
    pub used: [Asks; 10],
    /// By [`shape`].
    pub trees: [Tree; SHAPES],
}

impl RuleSet {
    /// The first place in [`RuleSet::used`] that is not of rules.
    pub const OWN: u8 = 8;
}

/// A family of addresses, by its number in keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(u8);

impl Family {
    /// IPv4.
    pub const V4: Family = Family(4);
    /// IPv6.
    pub const V6: Family = Family(6);

    /// IPv6 if `ip6` is 1, IPv4 if it is 0.
    #[inline(always)]
    pub const fn of(ip6: u8) -> Self {
        Family(4 + (ip6 & 1) * 2)
    }

    /// Without a branch: the verifier would follow both sides of it through all that comes.
    #[inline(always)]
    const fn place(self, slot: u8) -> usize {
        (self.0 & 2) as usize * 64 + slot as usize
    }
}

/// An address as two numbers, as it is masked and compared: IPv4 addresses mapped into `::ffff:0:0/96`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bits {
    high: u64,
    low: u64,
    family: Family,
}

impl Bits {
    /// Of an address, which is mapped if it is of IPv4.
    #[inline(always)]
    pub const fn new(family: Family, address: &Address) -> Self {
        let [high, low] = address.words();
        Bits { high: u64::from_be(high), low: u64::from_be(low), family }
    }

    /// Its first `length` bits, the others being zero.
    #[inline(always)]
    fn truncated(&self, length: u8) -> [u8; 16] {
        // By steps that are less than the width of a word, so that what is shifted out is out; and without branches.
        let kept = length as u32 & 0xff;
        let step = kept / 4;
        let high = !(u64::MAX >> step >> step >> step >> (kept - 3 * step));
        let rest = 128_u32.wrapping_sub(kept) & 0xff;
        let step = rest / 4;
        let low = u64::MAX << step << step << step << (rest - 3 * step);
        let [a, b, c, d, e, f, g, h] = (self.high & high).to_be_bytes();
        let [i, j, k, l, m, n, o, p] = (self.low & low).to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// A prefix of the peer, and what else a rule of the set asks for; what it does not ask for is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleKey {
    /// The prefix, IPv4 mapped.
    pub address: [u8; 16],
    /// Which rules.
    pub set: u32,
    /// The group that the peer is in.
    pub group: u16,
    /// The destination port, in the machine's order.
    pub port: u16,
    /// The protocol.
    pub protocol: u8,
    /// [`shape`].
    pub shape: u8,
    /// 4 or 6.
    pub family: u8,
    /// How many bits of the address count; those of IPv4 begin after the first 96.
    pub length: u8,
}

impl RuleKey {
    /// The same for the first `length` bits of `address`.
    #[inline(always)]
    pub fn at(self, address: &Bits, length: u8) -> Self {
        RuleKey { address: address.truncated(length), family: address.family.0, length, ..self }
    }
}

/// The rule that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleEntry {
    /// Of several rules that match, the smallest decides. From the top: 127 less the priority in 8 bits, one bit that is set
    /// if the rule allows, and the place among all rules of the set by name.
    pub order: u32,
    /// The number of the rule on this node, for counting; with [`shape::OWN`], the number of a set.
    pub rule: u32,
}

impl RuleEntry {
    /// No rule; everything comes before it.
    pub const NONE: RuleEntry = RuleEntry { order: u32::MAX, rule: 0 };
    /// Set in [`RuleEntry::order`] if the rule allows.
    pub const ALLOW: u32 = 1 << 23;
    /// Rules of one set that can be told apart.
    pub const PLACES: u32 = 1 << 23;

    /// A rule of a priority from 1 to 100; `place` is below [`RuleEntry::PLACES`].
    pub const fn new(priority: u8, allow: bool, place: u32, rule: u32) -> Self {
        let urgency = 127 - (priority & 127) as u32;
        let allow = if allow { RuleEntry::ALLOW } else { 0 };
        RuleEntry { order: urgency << 24 | allow | (place & (RuleEntry::PLACES - 1)), rule }
    }

    /// True of a rule that denies. Without a rule, everything is allowed.
    #[inline(always)]
    pub const fn denies(self) -> bool {
        self.order & RuleEntry::ALLOW == 0
    }

    /// Whether there is a rule.
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.order != RuleEntry::NONE.order
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

/// What is asked about a new connection, seen from one of its ends.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Question {
    /// The other end.
    pub peer: Bits,
    /// This end.
    pub own: Bits,
    /// The set of this end's group, in the direction of the connection.
    pub set: u32,
    /// The group of the other end; zero for none.
    pub group: u16,
    /// The destination port; zero where the protocol is neither TCP nor UDP.
    pub port: Be16,
    /// The number in the IP header, or the last of the IPv6 headers.
    pub protocol: u8,
}

/// Which entries of a set are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those of rules, by the other end's address.
    Rules,
    /// Those that lead to rules for single endpoints, by this end's address.
    Own,
}

/// Where the rules are: maps in the kernel.
pub trait Tables {
    /// An entry.
    fn rule(&self, key: &RuleKey) -> Option<RuleEntry>;
    /// What a part of a set says, or [`RuleEntry::NONE`]; `None` when the set is not there. Takes the steps of a [`Search`].
    fn within(&self, set: u32, part: Part, question: &Question) -> Option<RuleEntry>;
}

/// The rule that decides, or [`RuleEntry::NONE`]; `None` when a set is not there, which the agent never lets be.
#[inline(always)]
pub fn deciding<T: Tables>(tables: &T, question: &Question) -> Option<RuleEntry> {
    let wide = tables.within(question.set, Part::Rules, question)?;
    let narrow = tables.within(question.set, Part::Own, question)?;
    if !narrow.is_some() {
        return Some(wide);
    }
    let narrow = tables.within(narrow.rule, Part::Rules, question)?;
    Some(if narrow.order < wide.order { narrow } else { wide })
}

/// A search in a part of a set, between two looks into the map. It is kept in memory and not in registers, so that the
/// verifier knows nothing of it and all its steps are one to it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Search {
    /// Whose prefixes are looked for.
    address: Bits,
    /// The best of the shapes so far.
    pub best: RuleEntry,
    /// The longest prefix of this shape so far.
    found: RuleEntry,
    /// What is looked up.
    key: RuleKey,
    /// Into [`RuleSet::used`].
    place: u8,
    /// Of the tree.
    slot: u8,
}

impl Search {
    /// More steps than any search takes: of each shape, one to begin with and one for each level of its tree.
    pub const STEPS: u32 = shape::OWN as u32 * (Tree::DEPTH + 1);

    /// Begins.
    #[inline(always)]
    pub fn new(set: u32, part: Part, question: &Question) -> Self {
        let own = part == Part::Own;
        Search {
            address: if own { question.own } else { question.peer },
            best: RuleEntry::NONE,
            found: RuleEntry::NONE,
            key: RuleKey { set, ..RuleKey::default() },
            place: if own { RuleSet::OWN } else { 0 },
            slot: 0,
        }
    }

    /// Goes on; false when it is at its end.
    #[inline(always)]
    pub fn step<T: Tables>(&mut self, tables: &T, set: &RuleSet, question: &Question) -> bool {
        let family = self.address.family;
        if self.slot == 0 {
            return self.next_shape(set, question);
        }
        let Some(tree) = set.trees.get(usize::from(self.key.shape)) else { return false };
        self.key = self.key.at(&self.address, tree.slot(family, self.slot));
        let longer = match tables.rule(&self.key) {
            Some(entry) => {
                self.found = entry;
                1
            }
            None => 0,
        };
        self.slot = self.slot << 1 | longer;
        if tree.slot(family, self.slot) == Tree::END {
            self.slot = 0;
            if self.found.order < self.best.order {
                self.best = self.found;
            }
        }
        true
    }

    #[inline(always)]
    fn next_shape(&mut self, set: &RuleSet, question: &Question) -> bool {
        let Some(asks) = set.used.get(usize::from(self.place)) else { return false };
        let Some(tree) = set.trees.get(usize::from(asks.shape)) else { return false };
        self.place += 1;
        self.found = RuleEntry::NONE;
        self.key.shape = asks.shape;
        self.key.group = question.group & asks.group;
        self.key.port = question.port.get() & asks.port;
        self.key.protocol = question.protocol & asks.protocol;
        // A shape of the other family alone has no root.
        self.slot = tree.slot(self.address.family, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_keep_what_counts() {
        let address = Bits::new(Family::V4, &Address::v4([10, 1, 2, 3]));
        assert_eq!(address.truncated(128), Address::v4([10, 1, 2, 3]).0);
        assert_eq!(address.truncated(96 + 17), Address::v4([10, 1, 0, 0]).0);
        assert_eq!(address.truncated(96), Address::v4([0; 4]).0);
        let address = Bits::new(Family::V6, &Address([0xff; 16]));
        for length in 0..=128_u8 {
            let kept = u128::from_be_bytes(address.truncated(length));
            assert_eq!(kept.leading_ones(), length.into());
            assert_eq!(kept.count_ones(), length.into());
        }
    }

    #[test]
    fn families_have_slots_of_their_own() {
        let mut tree = Tree::EMPTY;
        for family in [Family::V4, Family::V6] {
            assert_eq!(tree.slot(family, 0), 0);
            assert!((1..128).all(|slot| tree.slot(family, slot) == Tree::END));
            (0..128).for_each(|slot| tree.set(family, slot, slot + family.0));
        }
        for family in [Family::V4, Family::V6] {
            assert!((0..128).all(|slot| tree.slot(family, slot) == slot + family.0));
        }
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
