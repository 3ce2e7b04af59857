//! Services: the choice of the backend of a new connection.

use aya_ebpf::{btf_maps::Array, cty::c_void, helpers::generated::bpf_loop, macros::btf_map};
use contiv_abi::{
    Address, AffinityBlock, Backend, Be16, DropReason, Flow, FlowHash, Member, NeighEntry, NeighKey,
    PortSlot, RingBlock, ServiceEntry,
    maps::{AFFINITY_CAPACITY, BACKENDS_CAPACITY, RING_CAPACITY},
    mix, rendezvous, service_mac,
};

use crate::{
    flows, guard, maps,
    packet::{self, AGAIN, GO_ON, IcmpError, PacketMeta, Route},
    route, service_counts, service_entry, source,
};

/// The agent writes rings and backends through a memory mapping, not with a syscall for each element.
const MMAPABLE: usize = aya_ebpf::bindings::BPF_F_MMAPABLE as usize;

#[btf_map(name = "ctv_ring")]
static RING: Array<RingBlock, RING_CAPACITY, MMAPABLE> = Array::new();

#[btf_map(name = "ctv_backends")]
static BACKENDS: Array<Backend, BACKENDS_CAPACITY, MMAPABLE> = Array::new();

#[btf_map(name = "ctv_affinity")]
static AFFINITY: Array<AffinityBlock, AFFINITY_CAPACITY, MMAPABLE> = Array::new();

/// Chooses the backend if the current packet opens a connection to a service. Reasons for a refusal are returned as errors.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`, or `AGAIN` if the entry was changed
/// concurrently.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_choose(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let Some(found) = service_entry::find(packet) else { return ctv_no_service(packet) };
    // The record of a service's address has this Ethernet address. If an endpoint has the IP address, too, the packet is still
    // delivered by the Ethernet address of the backend.
    if packet.guarded == 0 && !source::same(&packet.destination_mac, &service_mac(&packet.tuple.destination))
    {
        let code = guard::ctv_guard_destination(packet);
        if code != GO_ON {
            return code;
        }
    }
    packet.guarded = 1;
    // SAFETY: an entry that was found. Whether it has been replaced is checked below.
    let chosen = choose(packet, unsafe { &*found.entry });
    if !found.is_same() {
        return AGAIN;
    }
    if !chosen {
        return DropReason::NoBackend as u32;
    }
    packet.service = found.number();
    packet.translated = 1;
    let code = packet::code(address(packet));
    // Both prefetches together, so that their cache misses overlap.
    service_counts::read_ahead(packet.service);
    read_replies_ahead(packet);
    code
}

/// Processes a packet that is for no port of a service, with the checks that `guard::ctv_guard_new` makes for other packets.
///
/// Not inlined, to save stack. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_no_service(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.tuple.destination));
    let Some(owner) = owner else {
        packet.guarded = 1;
        return if guard::is_for_all(packet) { DropReason::AddressMismatch as u32 } else { GO_ON };
    };
    if packet.guarded == 0 && packet.route == Route::BRIDGED && !guard::is_addressed(packet, &owner) {
        return DropReason::AddressMismatch as u32;
    }
    packet.guarded = 1;
    if owner.flags & NeighEntry::SERVICE != 0 { DropReason::NoService as u32 } else { GO_ON }
}

/// Prefetches the index entries of the current packet's replies, after the choice of the backend.
#[inline(always)]
fn read_replies_ahead(packet: &PacketMeta) {
    let Some(node) = maps::node() else { return };
    // A pod that reaches itself receives the replies from the address of the service.
    let client = if packet.hairpin != 0 { &packet.tuple.destination } else { &packet.tuple.source };
    let ends = [packet.wanted.destination.words(), client.words()];
    let ports =
        u32::from(packet.wanted.destination_port.wire()) | u32::from(packet.wanted.source_port.wire()) << 16;
    let hash = FlowHash::of_words(node.seed, packet.domain.number(), packet.tuple.protocol, ends, ports);
    flows::touch_index(hash, node.flow_pages);
}

/// Sets the Ethernet address of the current packet's backend.
#[inline(always)]
fn address(packet: &mut PacketMeta) -> Result<(), DropReason> {
    if packet.wanted.destination.same(&packet.tuple.source) {
        // The pod could not distinguish replies from its own packets, so it sees the service as its peer.
        packet.hairpin = Flow::HAIRPIN;
        packet.route = Route::BRIDGED;
        packet.wanted.source = packet.tuple.destination;
        packet.destination_mac = packet.source_mac;
        packet.located = 1;
        return Ok(());
    }
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    let owner = owner.ok_or(DropReason::StrangeBackend)?;
    packet.destination_mac = owner.mac;
    packet.located = 1;
    let port = route::port_on_network(packet, PortSlot::number(owner.ifindex));
    if port.is_none_or(|port| port.ifindex != owner.ifindex) {
        route::ctv_next_hop(packet);
    }
    Ok(())
}

/// A source port for the current packet, which cannot keep its own: always the same for the same packet and `turn`.
#[inline(always)]
pub(crate) fn port(packet: &PacketMeta, turn: u32) -> u16 {
    /// Unprivileged ports only.
    const LOWEST: u64 = 1024;
    let tuple = &packet.tuple;
    let ports = u64::from(tuple.source_port.wire()) << 16 | u64::from(tuple.destination_port.wire());
    (LOWEST + hash(packet, u64::from(turn) << 32 | ports) % (0x1_0000 - LOWEST)) as u16
}

/// The port of all backends of the service; zero without a backend.
#[inline(always)]
pub(crate) fn port_of_backends(packet: &PacketMeta, entry: &ServiceEntry) -> u16 {
    let at = match entry.backends {
        0 => return 0,
        few if few <= ServiceEntry::FEW as u32 => entry.members[0].at,
        _ => Member::from_word(ctv_listed(entry.members[0].as_list().0, 0)).at,
    };
    if packet.ip6 == 0 {
        return at as u16;
    }
    BACKENDS.get(at).map_or(0, |backend| backend.port)
}

/// Whether this is a backend of the current packet's service.
#[inline(always)]
pub(crate) fn has(packet: &PacketMeta, entry: &ServiceEntry, ip: &Address, port: u16) -> bool {
    if packet.ip6 == 0 {
        return ctv_has(entry, Member::v4(ip.low(), port).word()) != 0;
    }
    let number = ctv_marked(entry, Backend::new(*ip, port).mark);
    BACKENDS.get(number).is_some_and(|backend| backend.ip.same(ip))
}

/// Sets the destination to a backend of the service; false if there is none.
#[inline(always)]
fn choose(packet: &mut PacketMeta, entry: &ServiceEntry) -> bool {
    if entry.backends == 0 {
        return false;
    }
    let Some(member) = member(packet, entry) else { return false };
    if packet.ip6 == 0 {
        packet.wanted.destination.set_words(Address::v4(member.mark).words());
        packet.wanted.destination_port = Be16::new(member.at as u16);
        return true;
    }
    let Some(backend) = BACKENDS.get(member.at) else { return false };
    packet.wanted.destination.set_words(backend.ip.words());
    packet.wanted.destination_port = Be16::new(backend.port);
    true
}

/// The backend of the connection. With session affinity, all connections of a client to any port of the service go to one
/// backend, as long as the port has it.
#[inline(always)]
fn member(packet: &PacketMeta, entry: &ServiceEntry) -> Option<Member> {
    if entry.affinity == 0 {
        let tuple = &packet.tuple;
        let ports = u64::from(tuple.source_port.wire()) << 16 | u64::from(tuple.destination_port.wire());
        return pick(packet, entry, hash(packet, ports));
    }
    let hash = hash(packet, 0);
    let (block, tag) = AffinityBlock::find(hash, packet.domain.number());
    // SAFETY: the only reference to it in this program. `AffinityBlock` allows for concurrent writes of other CPUs.
    let block = unsafe { &mut *AFFINITY.get_ptr_mut(block)? };
    let place = ctv_place(block, tag, packet.now);
    let client = block.clients.get_mut(place as usize % AffinityBlock::LEN)?;
    let is_known = client.tag == tag && contiv_abi::idle(packet.now, client.seen) <= entry.affinity;
    let kept = if is_known { at_port(packet, entry, client.with.word()) } else { 0 };
    let word = if kept != 0 { kept } else { pick(packet, entry, hash)?.word() };
    // An ICMP error is no packet of the client.
    if packet.icmp_error == IcmpError::NONE {
        client.tag = tag;
        client.seen = packet.now;
        client.with = Member::from_word(word);
    }
    Some(Member::from_word(word))
}

/// The word of the member with the address of this one, which a client may have been assigned at another port of the service;
/// zero if there is none.
#[inline(always)]
fn at_port(packet: &PacketMeta, entry: &ServiceEntry, word: u64) -> u64 {
    let with = Member::from_word(word);
    let port = port_of_backends(packet, entry);
    if packet.ip6 == 0 {
        let word = Member::v4(with.mark, port).word();
        return if ctv_has(entry, word) != 0 { word } else { 0 };
    }
    // If the port is that of the client's previous connection, a long list is searched and not scanned.
    if ctv_has(entry, word) != 0 {
        return word;
    }
    let Some(known) = BACKENDS.get(with.at) else { return 0 };
    // Another backend may have got the number.
    if known.mark != u32::from_ne_bytes(with.mark) {
        return 0;
    }
    let mark = Backend::new(known.ip, port).mark;
    let number = ctv_marked(entry, mark);
    let is_same = BACKENDS.get(number).is_some_and(|backend| backend.ip.same(&known.ip));
    if is_same { Member { mark: mark.to_ne_bytes(), at: number }.word() } else { 0 }
}

/// The member of the set for a hash: the same on every node.
#[inline(always)]
fn pick(packet: &PacketMeta, entry: &ServiceEntry, hash: u64) -> Option<Member> {
    let (bucket, ip6) = (rendezvous::bucket(hash), u32::from(packet.ip6));
    if entry.backends <= ServiceEntry::FEW as u32 {
        let place = ctv_highest(entry, bucket, ip6);
        let member = entry.members.get(place as usize % ServiceEntry::FEW)?;
        return Some(Member::from_word(member.word()));
    }
    let (list, len) = entry.members[0].as_list();
    let chosen = if entry.ring == ServiceEntry::NO_RING {
        ctv_contest(list, len, bucket, ip6)
    } else {
        let slots = word(entry.ring + bucket / 2)?;
        ctv_listed(list, slots >> (16 * (bucket & 1)) & 0xffff)
    };
    Some(Member::from_word(chosen))
}

/// A word of `ctv_ring`.
#[inline(always)]
fn word(at: u32) -> Option<u32> {
    let block = RING.get(at / RingBlock::LEN as u32)?;
    block.words.get(at as usize % RingBlock::LEN).copied()
}

/// `ServiceEntry::highest`. This and the next ones are global functions: the verifier checks each once, and takes its result for
/// any number.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_highest(entry: *const ServiceEntry, bucket: u32, ip6: u32) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole entry.
    unsafe { entry.as_ref() }.map_or(0, |entry| entry.highest(bucket, ip6 != 0) as u32)
}

/// The word of the member of a list with the highest score in a bucket.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_contest(list: u32, len: u32, bucket: u32, ip6: u32) -> u64 {
    let mut contest = Contest { list, bucket, ip6, score: 0, winner: 0 };
    let len = if len < Contest::LONGEST { len } else { Contest::LONGEST };
    // The result is the length.
    // SAFETY: `contest_step` expects a `Contest`, which outlives the loop.
    let _steps =
        unsafe { bpf_loop(len, contest_step as *mut c_void, (&raw mut contest).cast::<c_void>(), 0) };
    contest.winner
}

/// A scan of a list of members.
#[repr(C)]
struct Contest {
    list: u32,
    bucket: u32,
    ip6: u32,
    score: u64,
    winner: u64,
}

impl Contest {
    /// A set has at most 2^16 backends.
    const LONGEST: u32 = 1 << 16;
}

extern "C" fn contest_step(place: u64, contest: *mut Contest) -> i64 {
    // SAFETY: `ctv_contest` passes a `Contest` that outlives the loop.
    let contest = unsafe { &mut *contest };
    let word = ctv_listed(contest.list, place as u32);
    let score = Member::from_word(word).score(contest.bucket, contest.ip6 != 0);
    if place == 0 || score > contest.score {
        (contest.score, contest.winner) = (score, word);
    }
    0
}

/// `AffinityBlock::highest`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_place(block: *const AffinityBlock, tag: u32, now: u32) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole block.
    unsafe { block.as_ref() }.map_or(0, |block| block.highest(tag, now) as u32)
}

/// Whether this is the word of a backend of the service.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_has(entry: *const ServiceEntry, wanted: u64) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole entry.
    let Some(entry) = (unsafe { entry.as_ref() }) else { return 0 };
    if entry.backends <= ServiceEntry::FEW as u32 {
        return u32::from(entry.has(wanted));
    }
    let (list, len) = entry.members[0].as_list();
    let mut seek = Seek { list, from: 0, len, wanted };
    // The result is the number of steps.
    // SAFETY: `seek_step` expects a `Seek`, which outlives the loop.
    let _steps =
        unsafe { bpf_loop(Seek::STEPS, seek_step as *mut c_void, (&raw mut seek).cast::<c_void>(), 0) };
    u32::from(ctv_listed(list, seek.from) == wanted)
}

/// A binary search in the sorted list of a set's members: if the word is in the list, it is among the `len` members from `from`
/// on.
#[repr(C)]
struct Seek {
    list: u32,
    from: u32,
    len: u32,
    wanted: u64,
}

impl Seek {
    /// A set has at most 2^16 backends.
    const STEPS: u32 = 17;
}

extern "C" fn seek_step(_step: u64, seek: *mut Seek) -> i64 {
    // SAFETY: `ctv_has` passes a `Seek` that outlives the loop.
    let seek = unsafe { &mut *seek };
    let half = seek.len / 2;
    if half == 0 {
        return 1;
    }
    if ctv_listed(seek.list, seek.from + half) <= seek.wanted {
        seek.from += half;
        seek.len -= half;
    } else {
        seek.len = half;
    }
    0
}

/// Number of the IPv6 backend of the service with this mark, or [`ServiceEntry::NO_NUMBER`]. A list is sorted by numbers and not
/// by marks, so it is scanned.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_marked(entry: *const ServiceEntry, mark: u32) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole entry.
    let Some(entry) = (unsafe { entry.as_ref() }) else { return ServiceEntry::NO_NUMBER };
    if entry.backends <= ServiceEntry::FEW as u32 {
        return entry.marked(mark);
    }
    let (list, len) = entry.members[0].as_list();
    let len = if len < Contest::LONGEST { len } else { Contest::LONGEST };
    let mut walk = Walk { list, mark, number: ServiceEntry::NO_NUMBER };
    // The result is the number of steps.
    // SAFETY: `walk_step` expects a `Walk`, which outlives the loop.
    let _steps = unsafe { bpf_loop(len, walk_step as *mut c_void, (&raw mut walk).cast::<c_void>(), 0) };
    walk.number
}

/// A scan of a list of members for one with a mark.
#[repr(C)]
struct Walk {
    list: u32,
    mark: u32,
    number: u32,
}

extern "C" fn walk_step(place: u64, walk: *mut Walk) -> i64 {
    // SAFETY: `ctv_marked` passes a `Walk` that outlives the loop.
    let walk = unsafe { &mut *walk };
    let member = Member::from_word(ctv_listed(walk.list, place as u32));
    if u32::from_ne_bytes(member.mark) != walk.mark {
        return 0;
    }
    walk.number = member.at;
    1
}

/// A word of a list of members; zero behind the end of all lists.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_listed(list: u32, place: u32) -> u64 {
    let first = list + 2 * place;
    let (Some(low), Some(high)) = (word(first), word(first + 1)) else { return 0 };
    u64::from(high) << 32 | u64::from(low)
}

/// Hash of a connection.
#[inline(always)]
fn hash(packet: &PacketMeta, ports: u64) -> u64 {
    let ([a, b], [c, d]) = (packet.tuple.source.words(), packet.tuple.destination.words());
    mix(a ^ b.rotate_left(32) ^ mix(c ^ d ^ ports))
}
