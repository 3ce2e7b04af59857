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

/// Words of the bitmap that an allocation searches.
const WORDS: u32 = 8;
/// Slots of both buckets of a hash.
const SLOTS: u32 = 2 * FlowBucket::LEN as u32;
/// Additional records that are considered for an eviction.
const NEIGHBOURS: u32 = 32;
/// An endpoint with at most this fraction of the table's flows keeps its established flows.
const MODEST: u32 = 256;

/// No record: the table is full.
pub(crate) const NONE: u32 = 0;
/// No record: the endpoint has used its quota.
pub(crate) const OVER_QUOTA: u32 = u32::MAX;

/// Share of the quota that a flow may use: all.
pub(crate) const ALL: u32 = 0;
pub(crate) const HALF: u32 = 1;
/// Share of the quota: half while the endpoint's quota for received flows is used up, else all.
pub(crate) const HALF_IF_FULL: u32 = 2;
/// Share of the quota: three quarters while the endpoint's quota for received flows is used up, else all.
pub(crate) const MOST_IF_FULL: u32 = 3;

/// Allocates a record for a flow of this endpoint (zero for none), and charges the flow to the endpoint. The result is the number
/// of the record plus one, [`NONE`] or [`OVER_QUOTA`]. `room` is the share of the quota that the flow may use, as above.
///
/// This and the others are global functions: the verifier checks each once.
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

/// Prefetches what a lookup of the flow with this hash reads and its insertion writes: the record, its bit and lock, and the
/// index. The result is the number of insertions into the page of the index.
///
/// For packets that open connections, for which none of this is in the cache.
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

/// Index of the counter of an owner's flows. Received flows and those that the endpoint has opened are counted separately.
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

/// Number of flows above which other endpoints lose established flows to this endpoint; zero for none.
#[inline(always)]
pub(crate) fn share_against(owner: u32) -> u32 {
    if owner == 0 {
        return 0;
    }
    let flows = maps::node().map_or(0, |node| node.flows);
    (2 * used_by(owner) as u32).max(flows / MODEST)
}

/// Adds to the number of flows of an endpoint.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_charge(owner: u32, flows: i64) -> u32 {
    let Some(node) = maps::node() else { return 0 };
    let index = count_of(owner);
    let Some(count) = COUNTS.get_ptr_mut(index) else { return 0 };
    let Some(held) = record_lock(64 * index, node.flow_pages) else { return 0 };
    lock(held);
    // SAFETY: a value of the map; its lock is held.
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

/// Allocates the record of the hash, or a free one near it. The result is its number plus one, or zero.
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

/// Allocates a free record of a word of the bitmap: the first one from bit `from` on, or else any. The result is its number plus
/// one, or zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_take(word: u32, from: u32) -> u32 {
    let Some(node) = maps::node() else { return NONE };
    let Some(bits) = BITMAP.get_ptr_mut(word) else { return NONE };
    let first = word * 64;
    let Some(held) = record_lock(first, node.flow_pages) else { return NONE };
    let left = node.flows.wrapping_sub(first);
    let valid = if left < 64 { (1_u64 << (left & 63)) - 1 } else { u64::MAX };
    // SAFETY: a value of the map. Most full words are detected without the lock.
    if unsafe { bits.read_volatile() } & valid == valid {
        return NONE;
    }
    lock(held);
    // SAFETY: a value of the map; its lock is held.
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

/// The position of the only bit that is set. The compiler would emit a table for `trailing_zeros`.
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
    /// Evict only flows of this endpoint, which is over its quota; zero for any.
    owner: u32,
    now: u32,
    pages: u32,
    flows: u32,
    /// Number of the best record so far, plus one.
    victim: u32,
    generation: u32,
    /// Rank of that record, see [`ctv_rank`].
    rank: u32,
    /// Established flows of an endpoint with more flows than this may be evicted; zero for none.
    share: u32,
}

/// Rank of a flow without a packet in this second.
const IDLE: u32 = 1;
/// Rank of an expired flow; above the idle time of others.
const EXPIRED: u32 = 1 << 31;

/// Evicts an unreplied, ended or expired flow. Considers the flows with a slot in the buckets of the hash and, with more steps,
/// those in records near the record of the hash. Takes the first one that has been idle for a second, or else the oldest one.
/// With a share, established flows of an endpoint with more flows than the share may be evicted, too. The result is the number of
/// the record plus one, which then belongs to the caller, or zero.
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

/// The number of a used record near the record of the hash, plus one; zero if it is free.
#[inline(always)]
fn near(search: &Search, step: u32) -> u32 {
    let first = FlowHash(search.hash).record(search.flows);
    let number = (first + step) % search.flows.max(1);
    if is_used(number) { number + 1 } else { NONE }
}

extern "C" fn consider(step: u64, search: *mut Search) -> i64 {
    // SAFETY: `ctv_evict` passes a `Search` that outlives the loop.
    let search = unsafe { &mut *search };
    let number =
        if step < u64::from(SLOTS) { in_slot(search, step as u32) } else { near(search, step as u32) };
    if number == NONE {
        return 0;
    }
    let number = number - 1;
    let Some(flow) = record(number) else { return 0 };
    // Read first: if another flow gets the record concurrently, that flow is not evicted.
    let head = head(flow);
    let rank = ctv_rank(number, search.owner, search.now, search.share);
    if head.exists() && rank > search.rank {
        search.victim = number + 1;
        search.generation = head.generation.into();
        search.rank = rank;
    }
    // Each further record would be a cache miss.
    i64::from(search.rank > IDLE)
}

/// Rank of the flow in a record for eviction: zero if it must stay, else its idle time plus one, or more than [`EXPIRED`].
///
/// Not part of the loop's callback: Linux 7.2 would follow its branches again for each step.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_rank(number: u32, owner: u32, now: u32, share: u32) -> u32 {
    let Some(flow) = record(number) else { return 0 };
    // SAFETY: a record of the map. After a torn read, another flow of the same kind may be evicted.
    let flow = unsafe { &*flow };
    // An eviction of another endpoint's flow would not reduce the flows of an endpoint over its quota.
    let others = flow.halves[0].owner;
    if owner != 0 && others != owner || flow.head.flags & Flow::INCOMPLETE != 0 {
        return 0;
    }
    let idle = idle(now, flow.seen());
    let rank = idle + 1;
    if flows::is_over(flow, now) {
        return rank | EXPIRED;
    }
    // The endpoints of a denied flow may still have the connection, and its next packet would open a flow, perhaps in the other
    // direction. So it is kept, unless its server has sent nothing for the timeout; otherwise a denied client could use up the
    // server's quota.
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

/// Frees a slot in the buckets of the hash by evicting a flow; false if none can be evicted. `share` is as in [`ctv_evict`].
#[inline(always)]
pub(crate) fn make_room(hash: u64, now: u32, share: u32) -> bool {
    let number = ctv_evict(hash, 0, now, SLOTS, share);
    if number != NONE {
        ctv_release(number - 1);
    }
    number != NONE
}

/// Removes the flow in a record if it has this generation; non-zero if so.
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

/// Removes the slots of an ended flow, and its charge.
#[inline(always)]
fn unlink(number: u32) {
    ctv_remove_slot(number, 0);
    ctv_remove_slot(number, 1);
    if let Some(flow) = record(number) {
        // SAFETY: a record of the map, which the caller owns.
        charge(unsafe { (*flow).halves[0].owner }, -1);
    }
}

/// Ends the flow in a record, unless it is being inserted. Only one caller succeeds, and then owns the record.
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

/// Marks the flow in a record as complete: all its slots are inserted, and other CPUs may remove it.
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

/// Frees a record.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_release(number: u32) -> u32 {
    let Some(node) = maps::node() else { return 0 };
    let Some(bits) = BITMAP.get_ptr_mut(number / 64) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    let bit = 1_u64 << (number & 63);
    lock(held);
    // SAFETY: a value of the map; its lock is held.
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
