//! The table of flows: its maps, and what all of its users share.
//!
//! ```text
//! tuple as received -> hash -> page of ctv_flowidx -> two buckets -> entry -> record in ctv_flows
//! ```
//!
//! A flow is inserted with its first packet, and both directions find it by one search. `flow_index` searches, inserts and
//! removes slots, `flow_records` allocates, evicts and removes records, `flow_collector` removes expired ones.
//!
//! Readers take no lock. The generation in a record's head tells them whether what they have read is one flow.

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
/// The agent makes the maps as large as it is configured.
pub(crate) const SIZE: FlowTableSize = FlowTableSize { flows: FLOWS_CAPACITY as u32 };

#[btf_map(name = "ctv_flows")]
static FLOWS: Array<Flow, FLOWS_CAPACITY, MMAPABLE> = Array::new();

/// Values of a map in the agent's memory begin at a page, so that a bucket is a cache line. Such maps have no locks.
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

/// As [`now`], without a call of the kernel more than once in a tick: ticks are compiled into the program.
#[inline(always)]
pub(crate) fn recent() -> u32 {
    let Some(clock) = CLOCK.get_ptr_mut(0) else { return now() };
    // SAFETY: a helper without arguments.
    let tick = unsafe { bpf_jiffies64() } as u32;
    // SAFETY: the value of the map, read and written at once.
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
        // SAFETY: this CPU's own slot; at worst one count is lost to a timer that interrupts.
        unsafe { *count += 1 };
    }
}

/// A record. It may be free, or change at any time.
#[inline(always)]
pub(crate) fn record(number: u32) -> Option<*mut Flow> {
    FLOWS.get_ptr_mut(number)
}

/// Reads what a packet needs of a record ahead.
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

/// Reads what the index has for a hash ahead: both buckets, and the lock of the page. The result is the number of insertions into
/// the page.
///
/// What is read ahead comes into the cache while the program goes on, and several lines at a time.
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

/// The head of a record, read at once.
#[inline(always)]
pub(crate) fn head(flow: *const Flow) -> FlowHead {
    // SAFETY: a record of the map; the head has the size and alignment of a word.
    FlowHead::from_word(unsafe { (&raw const (*flow).head).cast::<u64>().read_volatile() })
}

/// Writes the head of a record at once.
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
    // SAFETY: guaranteed by the caller; there are two sides. Other CPUs write the counters of the same half, and at worst
    // a count is lost.
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

/// The lock of a record's head, and of entries of other tables by their numbers.
#[inline(always)]
pub(crate) fn record_lock(number: u32, pages: u32) -> Option<*mut FlowLock> {
    // 64 records share a word of the bitmap, and the lock.
    LOCKS.get_ptr_mut((number / 64) % pages.max(1))
}

/// Takes a lock: no helper or function may be called until it is released.
#[inline(always)]
pub(crate) fn lock(lock: *mut FlowLock) {
    // SAFETY: a value of the map, whose first field is the lock.
    unsafe { bpf_spin_lock((&raw mut (*lock).lock).cast()) };
}

#[inline(always)]
pub(crate) fn unlock(lock: *mut FlowLock) {
    // SAFETY: the caller holds the lock.
    unsafe { bpf_spin_unlock((&raw mut (*lock).lock).cast()) };
}

/// How long a flow is tracked without a packet, in seconds, by what both directions have sent.
///
/// A function of its own for the verifier: the result is any number.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_timeout(protocol: u32, original: u32, reply: u32) -> u32 {
    maps::node().map_or(0, |node| node.timeouts.of(protocol as u8, original as u8, reply as u8))
}

/// Whether the flow in a record has timed out; not zero if so.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_is_over(number: u32, now: u32) -> u32 {
    // SAFETY: a record of the map; a torn read at worst postpones the end of the flow.
    record(number).map_or(0, |flow| u32::from(is_over(unsafe { &*flow }, now)))
}

/// Whether the address that the flow in a record is sent to has another use by now; not zero if so. A flow to a service is over when an
/// endpoint has the address, and goes on as long as the address is unused. Another flow is over when a service has the address,
/// whose backends get what is sent there. Whoever removes the flow compares its generation.
///
/// A function of its own for the stack.
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
    // Flows with another port alone are to no service.
    let to_service = !flow.destination.same(&flow.backend);
    u32::from(is_service != to_service)
}

/// Whether the flow has timed out.
#[inline(always)]
pub(crate) fn is_over(flow: &Flow, now: u32) -> bool {
    let idle = idle(now, flow.seen());
    let Some(node) = maps::node() else { return false };
    // The timeout is computed only when time has passed.
    idle != 0 && idle > flow.timeout(&node.timeouts)
}

/// Stores a verdict in the flow of a record, if it is still this generation's, and has the ends for which it was evaluated
/// ([`FlowHalf::ends`]): another CPU may have noted meanwhile that one has got another group.
///
/// A function of its own for the verifier.
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
        // SAFETY: as above. The word with revisions and denials is written at once, after the rules.
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

/// Notes the group that an end of a flow has got, its source's for `end` 0 and its destination's for 1, if the record is still this
/// generation's. A pod that reaches itself by a service is both ends. The verdict is of no rules then: those of the other end may be
/// about groups.
///
/// A function of its own for the verifier.
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
            // Not by an index, whose bounds Linux 6.1 does not see.
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
