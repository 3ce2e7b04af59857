//! The flow table: its maps, and functions that all of its users share.
//!
//! ```text
//! tuple as received -> hash -> page of ctv_flowidx -> two buckets -> entry -> record in ctv_flows
//! ```
//!
//! A flow is inserted with its first packet. A packet of either direction finds it by one lookup. `flow_index` finds, inserts and
//! removes slots, `flow_records` allocates, evicts and removes records, `flow_collector` removes expired flows.
//!
//! Readers take no lock. The generation in a record's head shows whether all fields that were read are of one flow.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, PerCpuArray},
    helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_spin_lock, bpf_spin_unlock},
    macros::btf_map,
};
use contiv_abi::{
    Address, Domain, Flow, FlowBucket, FlowEvent, FlowHalf, FlowHash, FlowHead, FlowLock, FlowTableSize,
    NeighEntry, NeighKey, Verdict, idle,
    maps::{FLOW_STATS_SLOTS, FLOWS_CAPACITY},
};

use crate::maps;

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;
/// Default size; the agent loads the maps with the configured size.
pub(crate) const SIZE: FlowTableSize = FlowTableSize { flows: FLOWS_CAPACITY as u32 };

#[btf_map(name = "ctv_flows")]
static FLOWS: Array<Flow, FLOWS_CAPACITY, MMAPABLE> = Array::new();

/// The values of a memory-mapped map begin at a page boundary, so a bucket is one cache line. Such a map cannot have locks.
#[btf_map(name = "ctv_flowidx")]
static INDEX: Array<FlowBucket, { SIZE.buckets() as usize }, MMAPABLE> = Array::new();

#[btf_map(name = "ctv_flowlock")]
static LOCKS: Array<FlowLock, { SIZE.pages() as usize }> = Array::new();

#[btf_map(name = "ctv_ct_stats")]
static STATS: PerCpuArray<u64, FLOW_STATS_SLOTS> = PerCpuArray::new();

#[btf_map(name = "ctv_clock")]
static CLOCK: Array<u64, 1> = Array::new();

pub(crate) const NANOSECONDS: u64 = 1_000_000_000;

/// Seconds since boot.
#[inline(always)]
pub(crate) fn now() -> u32 {
    // SAFETY: a helper without arguments.
    (unsafe { bpf_ktime_get_coarse_ns() } / NANOSECONDS) as u32
}

/// As [`now`], with at most one call of a time helper per tick: the kernel inlines the read of the tick counter.
#[inline(always)]
pub(crate) fn recent() -> u32 {
    let Some(clock) = CLOCK.get_ptr_mut(0) else { return now() };
    // SAFETY: a helper without arguments.
    let tick = unsafe { bpf_jiffies64() } as u32;
    // SAFETY: the value of the map, read and written as one word.
    let last = unsafe { clock.read_volatile() };
    if (last >> 32) as u32 == tick {
        return last as u32;
    }
    let now = now();
    // SAFETY: as above.
    unsafe { clock.write_volatile(u64::from(tick) << 32 | u64::from(now)) };
    now
}

#[inline(always)]
pub(crate) fn count(event: FlowEvent) {
    if let Some(count) = STATS.get_ptr_mut(event as u32) {
        // SAFETY: the slot of this CPU. If the timer interrupts, one count may be lost.
        unsafe { *count += 1 };
    }
}

/// The record with this number. It may be free, or be written at any time.
#[inline(always)]
pub(crate) fn record(number: u32) -> Option<*mut Flow> {
    FLOWS.get_ptr_mut(number)
}

/// Prefetches the cache lines of a record that a packet needs.
#[inline(always)]
pub(crate) fn touch(number: u32) {
    if let Some(flow) = record(number) {
        // SAFETY: a record of the map.
        unsafe {
            (&raw const (*flow).head).cast::<u64>().read_volatile();
            (&raw const (*flow).halves[0].packets).read_volatile();
        }
    }
}

/// Prefetches the buckets of a hash and the lock of their page. The result is the number of insertions into the page.
///
/// The loads do not depend on each other, so the CPU fetches several lines at once while the program continues.
#[inline(always)]
pub(crate) fn touch_index(hash: FlowHash, pages: u32) -> u32 {
    let page = hash.page(pages);
    for number in hash.buckets() {
        if let Some(bucket) = bucket(page * FlowBucket::PER_PAGE + number) {
            // SAFETY: a bucket of the map.
            unsafe { (&raw const (*bucket).slots).cast::<u64>().read_volatile() };
        }
    }
    // SAFETY: a value of the map.
    page_lock(page).map_or(0, |lock| unsafe { (&raw const (*lock).insertions).read_volatile() })
}

/// The head of a record, read as one word.
#[inline(always)]
pub(crate) fn head(flow: *const Flow) -> FlowHead {
    // SAFETY: a record of the map; the head has the size and alignment of a word.
    FlowHead::from_word(unsafe { (&raw const (*flow).head).cast::<u64>().read_volatile() })
}

/// Writes the head of a record as one word.
#[inline(always)]
pub(crate) fn set_head(flow: *mut Flow, head: FlowHead) {
    // SAFETY: as `head`.
    unsafe { (&raw mut (*flow).head).cast::<u64>().write_volatile(head.word()) };
}

/// One direction of a flow.
///
/// # Safety
///
/// `flow` is a record of the map.
#[inline(always)]
pub(crate) unsafe fn half<'a>(flow: *mut Flow, side: usize) -> &'a mut FlowHalf {
    // SAFETY: guaranteed by the caller; there are two directions. Other CPUs may write the same counters; then one count is lost.
    unsafe { &mut *(&raw mut (*flow).halves).cast::<FlowHalf>().add(side & 1) }
}

/// A bucket of the index.
#[inline(always)]
pub(crate) fn bucket(number: u32) -> Option<*mut FlowBucket> {
    INDEX.get_ptr_mut(number)
}

/// The lock of a page of the index.
#[inline(always)]
pub(crate) fn page_lock(page: u32) -> Option<*mut FlowLock> {
    LOCKS.get_ptr_mut(page)
}

/// The lock of a record's head, also used for entries of other tables by their numbers.
#[inline(always)]
pub(crate) fn record_lock(number: u32, pages: u32) -> Option<*mut FlowLock> {
    // 64 records share a word of the bitmap, and the lock.
    LOCKS.get_ptr_mut((number / 64) % pages.max(1))
}

/// Acquires a lock: no helper or function may be called until it is released.
#[inline(always)]
pub(crate) fn lock(lock: *mut FlowLock) {
    // SAFETY: a value of the map; its first field is the lock.
    unsafe { bpf_spin_lock((&raw mut (*lock).lock).cast()) };
}

#[inline(always)]
pub(crate) fn unlock(lock: *mut FlowLock) {
    // SAFETY: the caller holds the lock.
    unsafe { bpf_spin_unlock((&raw mut (*lock).lock).cast()) };
}

/// Timeout of a flow in seconds, from what both directions have sent.
///
/// A global function: the verifier checks it once, and takes its result for any number.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_timeout(protocol: u32, original: u32, reply: u32) -> u32 {
    maps::node().map_or(0, |node| node.timeouts.of(protocol as u8, original as u8, reply as u8))
}

/// Whether the flow in a record has timed out; non-zero if so.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_is_over(number: u32, now: u32) -> u32 {
    // SAFETY: a record of the map. A torn read at worst delays the end of the flow.
    record(number).map_or(0, |flow| u32::from(is_over(unsafe { &*flow }, now)))
}

/// Whether the destination address of the flow in a record has been reused; non-zero if so. A flow to a service is over when an
/// endpoint has the address, and continues as long as no endpoint has it. Another flow is over when a service has the address,
/// because its packets then go to backends. The caller passes the generation when it removes the flow.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_is_reused(number: u32) -> u32 {
    let Some(flow) = record(number) else { return 0 };
    // SAFETY: a record of the map.
    let flow = unsafe { &*flow };
    let domain = Domain::from_number(flow.head.domain);
    let owner = maps::neighbour(&NeighKey::new(domain, Address::from_words(flow.destination.words())));
    let Some(owner) = owner else { return 0 };
    let is_service = owner.flags & NeighEntry::SERVICE != 0;
    // A translation of the source port alone is not for a service.
    let to_service = !flow.destination.same(&flow.backend);
    u32::from(is_service != to_service)
}

/// Whether the flow has timed out.
#[inline(always)]
pub(crate) fn is_over(flow: &Flow, now: u32) -> bool {
    let idle = idle(now, flow.seen());
    let Some(node) = maps::node() else { return false };
    // The timeout is computed only if the flow has been idle.
    idle != 0 && idle > flow.timeout(&node.timeouts)
}

/// Stores a verdict in the flow of a record if it has this generation and the groups for which the verdict was evaluated
/// ([`FlowHalf::ends`]): another CPU may have changed the group of an endpoint concurrently.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_set_verdict(
    number: u32,
    generation: u32,
    verdict: u64,
    rules: u64,
    ends: u64,
) -> u32 {
    let (Some(flow), Some(node)) = (record(number), maps::node()) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    lock(held);
    // SAFETY: a record of the map.
    let FlowHalf { groups, identities, .. } = unsafe { &(*flow).halves[0] };
    if u32::from(head(flow).generation) == generation && FlowHalf::ends(*groups, *identities) == ends {
        // SAFETY: as above. The word with revisions and denials is written in one store, after the rules.
        unsafe {
            (&raw mut (*flow).halves[0].rule).write_volatile(rules as u32);
            (&raw mut (*flow).halves[1].rule).write_volatile((rules >> 32) as u32);
            (&raw mut (*flow).halves[0].verdict).write_volatile(verdict);
            (&raw mut (*flow).halves[1].verdict).write_volatile(verdict);
        }
    }
    unlock(held);
    0
}

/// Stores the new group of the source (`end` 0) or the destination (`end` 1) of a flow if the record has this generation. For a
/// pod that reaches itself through a service, both are changed. The verdict becomes outdated, because the rules of the other
/// endpoint may depend on the group.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_regroup(number: u32, generation: u32, end: u32, group: u32) -> u32 {
    let (Some(flow), Some(node)) = (record(number), maps::node()) else { return 0 };
    let Some(held) = record_lock(number, node.flow_pages) else { return 0 };
    let (end, group) = (end & 1, group as u16);
    lock(held);
    if u32::from(head(flow).generation) == generation {
        let is_both = head(flow).flags & Flow::HAIRPIN != 0;
        // SAFETY: a record of the map.
        for half in unsafe { &mut (*flow).halves } {
            // No index is used, because Linux 6.1 does not track its bounds.
            if is_both || end == 0 {
                half.groups[0] = group;
                half.identities[0] = group;
            }
            if is_both || end != 0 {
                half.groups[1] = group;
                half.identities[1] = group;
            }
            half.verdict = Verdict::OUTDATED.0;
        }
    }
    unlock(held);
    0
}
