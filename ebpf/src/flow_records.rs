//! Records of flows: allocation, quotas, eviction and removal.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE, btf_maps::Array, cty::c_void, helpers::generated::bpf_loop, macros::btf_map,
};
use contiv_abi::{
    Flow, FlowBucket, FlowEvent, FlowHalf, FlowHash, FlowHead, idle, is_evictable, maps::FLOW_COUNTS_CAPACITY,
};

use crate::{
    flow_index::ctv_remove_slot,
    flows::{self, bucket, head, lock, record, record_lock, set_head, unlock},
    maps,
};

#[btf_map(name = "ctv_flowbits")]
static BITMAP: Array<u64, { flows::SIZE.words() as usize }, { BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "ctv_flowcnt")]
static COUNTS: Array<u64, FLOW_COUNTS_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Words of the bitmap that an allocation looks at.
const WORDS: u32 = 8;
/// Slots of both buckets of a hash.
const SLOTS: u32 = 2 * FlowBucket::LEN as u32;
/// Further records that are considered for an eviction.
const NEIGHBOURS: u32 = 32;
/// An endpoint whose flows are at most one part in this number of the table keeps its established ones.
const MODEST: u32 = 256;

/// No record: the table is full.
pub(crate) const NONE: u32 = 0;
/// No record: the endpoint has used its share.
pub(crate) const OVER_QUOTA: u32 = u32::MAX;

/// What a flow may use of its endpoint's quota: all of it.
pub(crate) const ALL: u32 = 0;
pub(crate) const HALF: u32 = 1;
/// Half while the quota for flows that reach the endpoint is used up, else all.
pub(crate) const HALF_IF_FULL: u32 = 2;
/// Likewise three quarters.
pub(crate) const MOST_IF_FULL: u32 = 3;

/// Allocates a record for a flow of this endpoint (zero for none) and adds it to the endpoint's flows. The result is the
/// number plus one, [`NONE`] or [`OVER_QUOTA`]. `room` is what the flow may use of the endpoint's quota, as above.
///
/// This and the others are functions of their own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_obtain(hash: u64, owner: u32, now: u32, room: u32) -> u32 {
    let Some(node) = maps::node() else { return NONE };
    let quota = node.flow_quota;
    let is_full = room >= HALF_IF_FULL && used_by(owner | FlowHalf::RECEIVED) >= i64::from(quota);
    let spared = match room {
        HALF => quota / 2,
        HALF_IF_FULL if is_full => quota / 2,
        MOST_IF_FULL if is_full => quota / 4,
        _ => 0,
    };
    let over = owner != 0 && used_by(owner) >= i64::from(quota - spared);
    let mut number = NONE;
    if !over {
        number = ctv_allocate(hash);
    }
    if number == NONE {
        number = ctv_evict(hash, if over { owner } else { 0 }, now, SLOTS + NEIGHBOURS, 0);
    }
    if number == NONE && owner != 0 && !over {
        number = ctv_evict(hash, 0, now, SLOTS + NEIGHBOURS, share_against(owner));
    }
    if number == NONE {
        return if over { OVER_QUOTA } else { NONE };
    }
    charge(owner, 1);
    number
}

/// Reads ahead what a search for the flow with this hash reads, and what its insertion writes: the record, its bit and its lock,
/// and the index. The result is the number of insertions into the page of the index.
///
/// For packets that begin connections, which find none of this in the cache.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_read_ahead(hash: u64) -> u32 {
    let Some(node) = maps::node() else { return 0 };
    let hash = FlowHash(hash);
    let number = hash.record(node.flows);
    flows::touch(number);
    if let (Some(flow), Some(bits), Some(lock)) =
        (record(number), BITMAP.get_ptr(number / 64), record_lock(number, node.flow_pages))
    {
        // SAFETY: values of the maps.
        unsafe {
            (&raw const (*flow).halves[1].packets).read_volatile();
            bits.read_volatile();
            (&raw const (*lock).insertions).read_volatile();
        }
    }
    flows::touch_index(hash, node.flow_pages)
}

/// Where the flows of an owner are counted: those that it has received apart from those that it has begun.
#[inline(always)]
const fn count_of(owner: u32) -> u32 {
    const ALL: u32 = FLOW_COUNTS_CAPACITY as u32;
    let received = owner / FlowHalf::RECEIVED;
    (owner + received * (ALL / 2)) % ALL
}

#[inline(always)]
fn used_by(owner: u32) -> i64 {
    let count = COUNTS.get_ptr(count_of(owner));
    // SAFETY: a value of the map.
    count.map_or(0, |count| unsafe { count.read_volatile() } as i64)
}

/// The share of the table above which others lose established flows to this endpoint; zero for none.
#[inline(always)]
pub(crate) fn share_against(owner: u32) -> u32 {
    if owner == 0 {
        return 0;
    }
    let flows = maps::node().map_or(0, |node| node.flows);
    (2 * used_by(owner) as u32).max(flows / MODEST)
}

/// Adds to the flows of an endpoint.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_charge(owner: u32, flows: i64) -> u32 {
    let Some(node) = maps::node() else { return 0 };
    let index = count_of(owner);
    let Some(count) = COUNTS.get_ptr_mut(index) else { return 0 };
    let Some(held) = record_lock(64 * index, node.flow_pages) else { return 0 };
    lock(held);
    // SAFETY: a value of the map, whose lock is held.
    unsafe { count.write_volatile(count.read_volatile().wrapping_add(flows as u64)) };
    unlock(held);
    0
}

#[inline(always)]
fn charge(owner: u32, flows: i64) {
    if owner != 0 {
        ctv_charge(owner, flows);
    }
}

/// Takes the record of the hash, or a free one near it; the result is its number plus one, or zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_allocate(hash: u64) -> u32 {
    let Some(node) = maps::node() else { return NONE };
    let words = contiv_abi::FlowTableSize { flows: node.flows }.words();
    let place = FlowHash(hash).record(node.flows);
    let (mut word, mut first) = (place / 64, place % 64);
    for _ in 0..WORDS {
        let number = ctv_take(word, first);
        if number != NONE {
            return number;
        }
        (word, first) = (if word + 1 < words { word + 1 } else { 0 }, 0);
    }
    NONE
}

/// Takes a free record of a word of the bitmap: the next one from `first` on, if there is one.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_take(word: u32, from: u32) -> u32 {
    let Some(node) = maps::node() else { return NONE };
    let Some(bits) = BITMAP.get_ptr_mut(word) else { return NONE };
    let first = word * 64;
    let Some(held) = record_lock(first, node.flow_pages) else { return NONE };
    let left = node.flows.wrapping_sub(first);
    let valid = if left < 64 { (1_u64 << (left & 63)) - 1 } else { u64::MAX };
    // SAFETY: a value of the map. Most full words are seen without the lock.
    if unsafe { bits.read_volatile() } & valid == valid {
        return NONE;
    }
    lock(held);
    // SAFETY: a value of the map, whose lock is held.
    let used = unsafe { bits.read_volatile() };
    let free = !used & valid;
    let next = free & u64::MAX << (from & 63);
    let free = if next != 0 { next } else { free };
    let lowest = free & free.wrapping_neg();
    // SAFETY: as above.
    unsafe { bits.write_volatile(used | lowest) };
    unlock(held);
    if lowest == 0 { NONE } else { first + position(lowest) + 1 }
}

/// The position of the only bit. The compiler would make a table of `trailing_zeros`.
#[inline(always)]
fn position(bit: u64) -> u32 {
    const MASKS: [u64; 6] = [
        0xaaaa_aaaa_aaaa_aaaa,
        0xcccc_cccc_cccc_cccc,
        0xf0f0_f0f0_f0f0_f0f0,
        0xff00_ff00_ff00_ff00,
        0xffff_0000_ffff_0000,
        0xffff_ffff_0000_0000,
    ];
    let [a, b, c, d, e, f] = MASKS;
    let is = |mask: u64| {
        let masked = bit & mask;
        ((masked | masked.wrapping_neg()) >> 63) as u32
    };
    is(a) | is(b) << 1 | is(c) << 2 | is(d) << 3 | is(e) << 4 | is(f) << 5
}

/// A search for a flow to evict.
#[repr(C)]
struct Search {
    hash: u64,
    /// Only flows of this endpoint, because it is over its quota; zero for all.
    owner: u32,
    now: u32,
    pages: u32,
    flows: u32,
    /// Number of the record plus one,
    victim: u32,
    generation: u32,
    /// and how dispensable it is.
    rank: u32,
    /// An endpoint with more flows than this may lose any of them; zero if none may.
    share: u32,
}

/// Rank of a flow without a packet in this second.
const IDLE: u32 = 1;
/// Rank of an expired flow; above the idle time of others.
const EXPIRED: u32 = 1 << 31;

/// Evicts an unreplied, ended or expired flow of those that have a slot in the buckets of the hash, and if there are more steps,
/// of those in records near the place of the hash: the first that has been idle for a second, or the oldest. With a share, an
/// endpoint that has more flows than that loses established ones, too. The result is the number of its record plus one, which is
/// the caller's then, or zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_evict(hash: u64, owner: u32, now: u32, steps: u32, share: u32) -> u32 {
    let Some(node) = maps::node() else { return NONE };
    let (pages, flows) = (node.flow_pages, node.flows);
    let mut search = Search { hash, owner, now, pages, flows, victim: NONE, generation: 0, rank: 0, share };
    // SAFETY: `consider` expects a `Search`, which outlives the loop.
    let _steps = unsafe { bpf_loop(steps, consider as *mut c_void, (&raw mut search).cast::<c_void>(), 0) };
    if search.victim == NONE || ctv_end(search.victim - 1, search.generation) == 0 {
        return NONE;
    }
    unlink(search.victim - 1);
    flows::count(if search.rank >= EXPIRED { FlowEvent::Expired } else { FlowEvent::Evicted });
    search.victim
}

/// The number of the record, plus one, in a slot of the buckets; zero for a free slot.
#[inline(always)]
fn in_slot(search: &Search, step: u32) -> u32 {
    let hash = FlowHash(search.hash);
    let [first, second] = hash.buckets();
    let (number, at) = (if step & 8 == 0 { first } else { second }, (step & 7) as usize);
    let Some(place) = bucket(hash.page(search.pages) * FlowBucket::PER_PAGE + number) else { return NONE };
    // SAFETY: a slot of the bucket.
    let slot = unsafe { (&raw const (*place).slots).cast::<u64>().add(at).read_volatile() };
    if slot == 0 { NONE } else { (slot as u32 >> 1) + 1 }
}

/// The number of a record, plus one, near the place of the hash.
#[inline(always)]
fn near(search: &Search, step: u32) -> u32 {
    let first = FlowHash(search.hash).record(search.flows);
    let number = (first + step) % search.flows.max(1);
    if is_used(number) { number + 1 } else { NONE }
}

extern "C" fn consider(step: u64, search: *mut Search) -> i64 {
    // SAFETY: `ctv_evict` passes its own.
    let search = unsafe { &mut *search };
    let number =
        if step < u64::from(SLOTS) { in_slot(search, step as u32) } else { near(search, step as u32) };
    if number == NONE {
        return 0;
    }
    let number = number - 1;
    let Some(flow) = record(number) else { return 0 };
    // Read first: if another flow gets the record meanwhile, it stays.
    let head = head(flow);
    let rank = ctv_rank(number, search.owner, search.now, search.share);
    if head.exists() && rank > search.rank {
        search.victim = number + 1;
        search.generation = head.generation.into();
        search.rank = rank;
    }
    // Each record that is looked at is a cache miss.
    i64::from(search.rank > IDLE)
}

/// How dispensable the flow in a record is: zero if it must stay, else one more than its idle time, or more than [`EXPIRED`].
///
/// Not part of the loop's function: Linux 7.2 would follow its branches anew for each step.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_rank(number: u32, owner: u32, now: u32, share: u32) -> u32 {
    let Some(flow) = record(number) else { return 0 };
    // SAFETY: a record of the map; a torn read at worst evicts another flow of the kind.
    let flow = unsafe { &*flow };
    // The expired flow of another endpoint leaves an endpoint over its quota where it is.
    let others = flow.halves[0].owner;
    if owner != 0 && others != owner || flow.head.flags & Flow::INCOMPLETE != 0 {
        return 0;
    }
    let idle = idle(now, flow.seen());
    let rank = idle + 1;
    if flows::is_over(flow, now) {
        return rank | EXPIRED;
    }
    // Its ends may still have the connection: the next packet would begin a flow, perhaps the other way round. Not so if its server
    // has sent nothing for long; else a denied client would hold the room of its server.
    if flow.is_denied() {
        let Some(node) = maps::node() else { return 0 };
        let is_silent = contiv_abi::idle(now, flow.halves[1].seen) > flow.timeout(&node.timeouts);
        return if is_silent { rank } else { 0 };
    }
    if share != 0 && others != 0 && used_by(others) > i64::from(share) {
        return rank;
    }
    if is_evictable(flow.head.protocol, flow.halves[0].sent, flow.halves[1].sent, idle) { rank } else { 0 }
}

/// Frees a slot in the buckets of the hash by evicting a flow; false if none can be evicted. The share is as of [`ctv_evict`].
#[inline(always)]
pub(crate) fn make_room(hash: u64, now: u32, share: u32) -> bool {
    let number = ctv_evict(hash, 0, now, SLOTS, share);
    if number != NONE {
        ctv_release(number - 1);
    }
    number != NONE
}

/// Removes the flow in a record, if it is still this generation's; not zero if so.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_remove(number: u32, generation: u32) -> u32 {
    if ctv_end(number, generation) == 0 {
        return 0;
    }
    unlink(number);
    ctv_release(number);
    1
}

/// Removes the slots of a flow that has ended, and its charge.
#[inline(always)]
fn unlink(number: u32) {
    ctv_remove_slot(number, 0);
    ctv_remove_slot(number, 1);
    if let Some(flow) = record(number) {
        // SAFETY: a record of the map, which the caller owns.
        charge(unsafe { (*flow).halves[0].owner }, -1);
    }
}

/// Ends the flow in a record, unless it is being inserted: one caller succeeds, and owns the record then.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_end(number: u32, generation: u32) -> u32 {
    let (Some(flow), Some(node)) = (record(number), maps::node()) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    let mut ended = 0;
    lock(held);
    let before = head(flow);
    let is_complete = before.flags & Flow::INCOMPLETE == 0;
    if before.exists() && is_complete && u32::from(before.generation) == generation {
        set_head(flow, FlowHead { generation: before.generation.wrapping_add(1), ..before });
        ended = 1;
    }
    unlock(held);
    ended
}

/// The flow in a record has all the slots that it gets: from now on others may remove it.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_complete(number: u32, generation: u32) -> u32 {
    let (Some(flow), Some(node)) = (record(number), maps::node()) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    lock(held);
    let head = head(flow);
    if u32::from(head.generation) == generation {
        set_head(flow, FlowHead { flags: head.flags & !Flow::INCOMPLETE, ..head });
    }
    unlock(held);
    0
}

/// Makes a record free.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_release(number: u32) -> u32 {
    let Some(node) = maps::node() else { return 0 };
    let Some(bits) = BITMAP.get_ptr_mut(number / 64) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    let bit = 1_u64 << (number & 63);
    lock(held);
    // SAFETY: a value of the map, whose lock is held.
    unsafe { bits.write_volatile(bits.read_volatile() & !bit) };
    unlock(held);
    0
}

/// Whether a record is in use.
#[inline(always)]
pub(crate) fn is_used(number: u32) -> bool {
    // SAFETY: a value of the map.
    BITMAP.get_ptr(number / 64).is_some_and(|bits| unsafe { bits.read_volatile() } >> (number & 63) & 1 != 0)
}
