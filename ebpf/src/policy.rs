//! Policy evaluation: the rules of the groups of both endpoints. The lookup is in `contiv_abi::policy`.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_NOEXIST},
    btf_maps::{Array, PerCpuArray, PerCpuHashMap},
    cty::c_void,
    helpers::generated::bpf_loop,
    macros::btf_map,
};
use contiv_abi::{
    Address, Be16, DropReason, FdbKey, Flow, FlowHalf, Mac, NeighKey, Segment, Tuple, Verdict,
    maps::{RULE_COUNTS_CAPACITY, RULE_SETS_CAPACITY, RULES_CAPACITY},
    policy::{
        Branch, GROUP_NUMBERS, Group, IN, LookupKey, OUT, RuleCount, RuleEntry, RuleSet, Search, Tables,
    },
};

use crate::{
    claim,
    maps::{self, NO_PREALLOC},
    packet::{self, Admission, IcmpError, PacketMeta},
};

#[btf_map(name = "ctv_groups")]
static GROUPS: Array<Group, GROUP_NUMBERS, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "ctv_rulesets")]
static RULE_SETS: Array<RuleSet, RULE_SETS_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "ctv_rules")]
static RULES: Array<Branch, RULES_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "ctv_rulecnt")]
static COUNTS: PerCpuHashMap<u32, RuleCount, RULE_COUNTS_CAPACITY, NO_PREALLOC> = PerCpuHashMap::new();

/// Context of an evaluation. In a map, for the same reasons as `PacketMeta`.
#[repr(C)]
struct Evaluation {
    /// Source and destination address, after the translation of services.
    ends: [Address; 2],
    /// The destination port; for ICMP as in `Tuple`.
    port: Be16,
    protocol: u8,
    /// Domain and address of the peer.
    of_peer: NeighKey,
    /// Network of the packet.
    segment: Segment,
    /// Groups of source and destination that are on this node, else zero.
    groups: [u32; 2],
    /// Groups of source and destination on any node; [`BY_ADDRESS`] for a group that is looked up if the rules need it.
    identities: [u32; 2],
    /// 1 if the record of the source is missing and the rules of the destination depend on groups.
    unknown: u8,
    /// Ethernet addresses of source and destination: an endpoint that uses an address without a record keeps its group.
    macs: [Mac; 2],
    /// Groups that were known when the flow was opened. They are used instead of the Ethernet addresses for an ICMP error,
    /// because its frame may come from any router. [`FlowHalf::UNKNOWN`] for none.
    known: [u16; 2],
    /// 1 for IPv6.
    ip6: u8,
    /// Numbers of the rule sets of both sides.
    sets: [u32; 2],
    /// Numbers of the rules that decided.
    rules: [u32; 2],
    /// Lookup key for the rules of one side.
    key: LookupKey,
    /// State of the lookup.
    search: Search,
}

impl Evaluation {
    /// Resets the results.
    #[inline(always)]
    fn clear_rules(&mut self) {
        // SAFETY: numbers.
        unsafe {
            contiv_abi::clear(&raw mut self.sets);
            contiv_abi::clear(&raw mut self.rules);
        }
    }
}

/// The group is looked up by the address.
const BY_ADDRESS: u32 = u32::MAX;
/// The address is inside the network but has no record.
const UNKNOWN: u32 = u32::MAX - 1;
/// Mask of the group number in `FdbEntry::group`.
const GROUP: u32 = u16::MAX as u32;

#[btf_map(name = "ctv_evaluation")]
static EVALUATION: PerCpuArray<Evaluation, 1> = PerCpuArray::new();

#[inline(always)]
fn evaluation<'a>() -> Option<&'a mut Evaluation> {
    let evaluation = EVALUATION.get_ptr_mut(0)?;
    // SAFETY: the value of this CPU, see `packet::current`.
    Some(unsafe { &mut *evaluation })
}

/// Settings of the group with this number; without rules and limits for number zero.
#[inline(always)]
pub(crate) fn group(number: u32) -> Option<&'static Group> {
    // The array has an element for number zero; its settings are all zero.
    GROUPS.get(number)
}

/// Evaluates the new connection of the current packet to the receiver at `place`. Stores verdict, rules and groups in the packet
/// metadata. True if the rules allow it.
#[inline(always)]
pub(crate) fn allows(packet: &mut PacketMeta) -> bool {
    let Some(evaluation) = evaluation() else { return false };
    let source = packet.tuple.source.words();
    let destination = if packet.hairpin != 0 { source } else { packet.wanted.destination.words() };
    evaluation.ends[0].set_words(source);
    evaluation.ends[1].set_words(destination);
    evaluation.port = packet.wanted.destination_port;
    evaluation.protocol = packet.protocol;
    evaluation.segment = packet.segment;
    evaluation.of_peer.domain = packet.domain;
    evaluation.ip6 = packet.ip6;
    let (known, group) = (packet.placed != 0, packet.place.group & GROUP);
    evaluation.groups = [packet.source_group, if packet.place.ifindex != 0 { group } else { 0 }];
    // The destination Ethernet address selects the receiver, so the group of the endpoint with that address is evaluated.
    let source = if packet.source_port != 0 { packet.source_group } else { BY_ADDRESS };
    evaluation.identities = [source, if known { group } else { BY_ADDRESS }];
    packet::copy_mac(&packet.source_mac, &mut evaluation.macs[0]);
    packet::copy_mac(&packet.destination_mac, &mut evaluation.macs[1]);
    evaluation.known = [FlowHalf::UNKNOWN; 2];
    evaluation.unknown = 0;
    packet.groups = [evaluation.groups[0] as u16, evaluation.groups[1] as u16];
    let from = if packet.source_port != 0 { packet.source_group } else { packet.source_identity };
    let to = if known { group } else { FlowHalf::UNKNOWN.into() };
    packet.identities = [from as u16, to as u16];
    evaluation.clear_rules();
    let denied = ctv_side(OUT as u32) != 0 || ctv_side(IN as u32) != 0;
    packet.verdict = Verdict::of(evaluation.sets).0;
    packet.rules = evaluation.rules;
    !denied
}

/// Checks for each packet whether the verdict of its flow is current: [`packet::GO_ON`], [`packet::REVALIDATE`], or the number of
/// a drop reason. Reads two words of the array of groups.
#[inline(always)]
pub(crate) fn is_current(flow: &Flow, half: &FlowHalf) -> u32 {
    let [out, into] = half.groups;
    // The array has an element for number zero, which has no rule sets.
    let (Some(out), Some(into)) = (GROUPS.get(out.into()), GROUPS.get(into.into())) else {
        return DropReason::Policy as u32;
    };
    let verdict = Verdict(half.verdict);
    if !verdict.is_by([out.sets[OUT], into.sets[IN]]) {
        return packet::REVALIDATE;
    }
    if verdict.is_denied() {
        // Counted for the rule of the side that is evaluated first.
        let side = if verdict.0 & Verdict::DENIED_OUT != 0 { OUT } else { IN };
        count(flow.halves[side].rule);
        return DropReason::Policy as u32;
    }
    packet::GO_ON
}

/// Whether the fast path may forward a packet of a flow between two endpoints of this node. `source` and `destination` are their
/// current groups: the flow must have been evaluated for these, by their current rules, and neither group may have a rate limit
/// or mark packets.
#[inline(always)]
pub(crate) fn allows_fast_path(half: &FlowHalf, reply: bool, [source, destination]: [u32; 2]) -> bool {
    let [out, into] = half.groups;
    if u32::from(out) != source || u32::from(into) != destination || half.identities != half.groups {
        return false;
    }
    let (Some(out), Some(into)) = (GROUPS.get(out.into()), GROUPS.get(into.into())) else { return false };
    let marks = if reply { into.dscp } else { out.dscp };
    // Any denial makes the verdicts differ.
    half.verdict == Verdict::of([out.sets[OUT], into.sets[IN]]).0
        && out.rate | into.rate | u64::from(marks) == 0
}

/// Evaluates an existing flow by the current rules; stores the verdict in the packet metadata. `tuple` is that of the original
/// direction after the translation, `known` the groups of source (lower half) and destination. A denied flow is kept, so that its
/// packets and their replies do not open a new flow.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_reevaluate(
    packet: *mut PacketMeta,
    tuple: *const Tuple,
    groups: u32,
    hairpin: u32,
    known: u32,
) -> u32 {
    let (Some(packet), Some(evaluation)) = (packet::of(packet), evaluation()) else { return 0 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole tuple.
    let Some(tuple) = (unsafe { tuple.as_ref() }) else { return 0 };
    let destination = tuple.destination.words();
    evaluation.ends[0].set_words(if hairpin != 0 { destination } else { tuple.source.words() });
    evaluation.ends[1].set_words(destination);
    evaluation.port = tuple.destination_port;
    evaluation.protocol = tuple.protocol;
    evaluation.segment = packet.segment;
    evaluation.of_peer.domain = packet.domain;
    evaluation.ip6 = packet.ip6;
    evaluation.groups = [groups & 0xffff, groups >> 16];
    evaluation.identities = evaluation.groups.map(|group| if group == 0 { BY_ADDRESS } else { group });
    // The packet may have either direction.
    let reply = packet.entry as usize & 1;
    evaluation.macs[reply] = packet.source_mac;
    evaluation.macs[reply ^ 1] = packet.destination_mac;
    evaluation.known = [FlowHalf::UNKNOWN; 2];
    if packet.icmp_error != IcmpError::NONE {
        evaluation.macs = [[0; 6]; 2];
        evaluation.known = [known as u16, (known >> 16) as u16];
    }
    evaluation.unknown = 0;
    evaluation.clear_rules();
    let out = u64::from(ctv_side(OUT as u32) & 1) * Verdict::DENIED_OUT;
    let into = u64::from(ctv_side(IN as u32) & 1) * Verdict::DENIED_IN;
    packet.verdict = Verdict::of(evaluation.sets).0 | out | into;
    packet.rules = evaluation.rules;
    0
}

/// Evaluates the rules of one side of the connection; 1 if they deny it.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_side(side: u32) -> u32 {
    let Some(evaluation) = evaluation() else { return 1 };
    let side = (side & 1) as usize;
    let Some(group) = GROUPS.get(evaluation.groups[side]) else { return 1 };
    let set = group.sets[side];
    if set == 0 {
        return 0;
    }
    let key = &mut evaluation.key;
    key.set_ends(evaluation.ip6, &evaluation.ends[side ^ 1], &evaluation.ends[side]);
    key.set_port(evaluation.protocol, evaluation.port);
    key.set_group(0);
    if Maps.set(set).is_some_and(|set| set.by_group != 0) {
        let mut identity = evaluation.identities[side ^ 1];
        if identity == BY_ADDRESS {
            evaluation.of_peer.ip.set_words(evaluation.ends[side ^ 1].words());
            identity = ctv_identity(side as u32 ^ 1);
            if identity == UNKNOWN {
                // The endpoint may be in any group. A destination is reached only by its Ethernet address, and its node evaluates
                // the rules of its group.
                evaluation.unknown = u8::from(side == IN);
                evaluation.sets[side] = set;
                if side == IN {
                    return 1;
                }
                identity = 0;
            }
        }
        key.set_group(identity);
    }
    evaluation.search = Search::new(set);
    // SAFETY: `search_on` does not use its argument.
    let _turns = unsafe { bpf_loop(Search::TURNS, search_on as *mut c_void, ptr::null_mut(), 0) };
    let RuleEntry { rule, .. } = evaluation.search.best;
    let denies = evaluation.search.best.denies();
    evaluation.sets[side] = set;
    evaluation.rules[side] = rule;
    count(rule);
    u32::from(denies)
}

/// Group of the endpoint with the peer's IP address, or else with its Ethernet address, so that an address that a pod has
/// assigned itself does not hide its group. `peer` is 0 for the source and 1 for the destination.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_identity(peer: u32) -> u32 {
    let Some(evaluation) = evaluation() else { return 0 };
    if let Some(owner) = maps::neighbour(&evaluation.of_peer) {
        return owner.group;
    }
    let peer = peer as usize & 1;
    if evaluation.known[peer] != FlowHalf::UNKNOWN {
        return evaluation.known[peer].into();
    }
    let Some(mac) = evaluation.macs.get(peer) else { return 0 };
    let inside = claim::is_inside(evaluation.of_peer.domain, &evaluation.of_peer.ip, evaluation.ip6 != 0);
    match maps::destination(&FdbKey::new(evaluation.segment, *mac)) {
        // The record of the endpoint with the address may be missing, so the source may be any endpoint.
        Some(place) if peer != 0 || !inside => place.group & GROUP,
        _ if inside => UNKNOWN,
        _ => 0,
    }
}

/// Drop reason of the connection that was evaluated last.
#[inline(always)]
pub(crate) fn denial() -> u32 {
    let unknown = evaluation().is_some_and(|evaluation| evaluation.unknown != 0);
    if unknown { DropReason::UnknownSource as u32 } else { DropReason::Policy as u32 }
}

/// Whether a group has rules.
#[inline(always)]
fn has_rules(group: u32) -> bool {
    GROUPS.get(group).is_some_and(|group| group.sets[OUT] | group.sets[IN] != 0)
}

/// Whether the sending endpoint may send a frame with this EtherType.
#[inline(always)]
pub(crate) fn admits_sender(packet: &PacketMeta) -> Result<(), DropReason> {
    admits_receiver(packet, packet.source_group)
}

/// Whether an endpoint of this group may receive a frame with this EtherType.
#[inline(always)]
pub(crate) fn admits_receiver(packet: &PacketMeta, group: u32) -> Result<(), DropReason> {
    if packet.admission == Admission::WITHOUT_RULES && has_rules(group & GROUP) {
        Err(DropReason::UnknownEtherType)
    } else {
        Ok(())
    }
}

/// Whether the port receives a copy of a replicated frame. Each receiver is evaluated as if it were the only one. No flow is
/// inserted, so replies open new connections.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_admits(ifindex: u32) -> u32 {
    let (Some(packet), Some(evaluation)) = (packet::current(), evaluation()) else {
        return DropReason::Malformed as u32;
    };
    if packet.admission == Admission::ALL {
        return packet::GO_ON;
    }
    let Some(port) = maps::port_in_place(ifindex) else { return DropReason::UnknownPort as u32 };
    if packet.admission == Admission::WITHOUT_RULES {
        return packet::code(admits_receiver(packet, port.group));
    }
    replicated(packet, evaluation, port.own(packet.ip6 != 0));
    evaluation.groups = [packet.source_group, port.group];
    evaluation.identities[1] = port.group;
    if ctv_side(OUT as u32) != 0 || ctv_side(IN as u32) != 0 {
        DropReason::Policy as u32
    } else {
        packet::GO_ON
    }
}

/// Whether a replicated frame from a pod may leave the node; non-zero if so. The receivers on other nodes are unknown, so it may
/// not if rules of its sender depend on the group or the address of the receiver.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_leaves() -> u32 {
    let (Some(packet), Some(evaluation)) = (packet::current(), evaluation()) else { return 0 };
    if packet.admission != Admission::RULES {
        return 1;
    }
    let Some(group) = GROUPS.get(packet.source_group) else { return 0 };
    if Maps.set(group.sets[OUT]).is_some_and(|set| set.by_peer != 0) {
        return 0;
    }
    replicated(packet, evaluation, packet.tuple.destination.words());
    evaluation.groups = [packet.source_group, 0];
    evaluation.identities[1] = 0;
    u32::from(ctv_side(OUT as u32) == 0)
}

/// Prepares the evaluation of a replicated packet for a receiver with the address `own`.
#[inline(always)]
fn replicated(packet: &PacketMeta, evaluation: &mut Evaluation, own: [u64; 2]) {
    evaluation.ends[0].set_words(packet.tuple.source.words());
    evaluation.ends[1].set_words(own);
    evaluation.port = packet.tuple.destination_port;
    evaluation.protocol = packet.protocol;
    evaluation.segment = packet.segment;
    evaluation.of_peer.domain = packet.domain;
    evaluation.ip6 = packet.ip6;
    evaluation.identities[0] = if packet.source_port != 0 { packet.source_group } else { BY_ADDRESS };
    packet::copy_mac(&packet.source_mac, &mut evaluation.macs[0]);
    packet::copy_mac(&packet.destination_mac, &mut evaluation.macs[1]);
    evaluation.known = [FlowHalf::UNKNOWN; 2];
    evaluation.unknown = 0;
    evaluation.clear_rules();
}

/// Access to the rule maps. Rule sets and their trees are not changed while a group refers to them.
struct Maps;

impl Tables for Maps {
    #[inline(always)]
    fn set(&self, number: u32) -> Option<&RuleSet> {
        RULE_SETS.get(RuleSet::place(number)).filter(|set| set.number == number && number != 0)
    }

    #[inline(always)]
    fn branch(&self, place: u32) -> Option<&Branch> {
        RULES.get(place)
    }
}

/// One step of the lookup. The verifier checks it once for all steps, because the state of the search is in a map. The result is
/// 1 at the end.
extern "C" fn search_on(_turn: u64, _nothing: *mut c_void) -> i64 {
    let Some(Evaluation { key, search, .. }) = evaluation() else { return 1 };
    if !search.turn(&Maps) {
        return 1;
    }
    search.walk(&Maps, key);
    0
}

/// Counts the current packet for the rule that decided.
#[inline(always)]
fn count(rule: u32) {
    if rule != 0 {
        ctv_count(rule);
    }
}

/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_count(rule: u32) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    packet.ruled = rule;
    if COUNTS.get_ptr(rule).is_none() {
        // SAFETY: numbers.
        let none = unsafe { contiv_abi::cleared::<RuleCount>() };
        // Fails if another CPU has inserted the entry, or if there is no room; both are acceptable.
        let _made = COUNTS.insert(rule, &none, BPF_NOEXIST.into());
    }
    if let Some(count) = COUNTS.get_ptr_mut(rule) {
        // SAFETY: the value of this CPU.
        unsafe {
            (*count).packets += 1;
            (*count).bytes += u64::from(packet.len);
        }
    }
    0
}
