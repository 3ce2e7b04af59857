//! Lookup, insertion and removal of slots in the index of flows.

use contiv_abi::{Address, Flow, FlowBucket, FlowHash, Tuple, entry, slot};

use crate::{
    flows::{bucket, head, lock, page_lock, record, unlock},
    maps,
};

/// Hash of the tuple of a packet as received.
///
/// This and the others are global functions: the verifier checks each once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_hash(tuple: *const Tuple, domain: u32) -> u64 {
    let Some(node) = maps::node() else { return 0 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole tuple.
    let Some(tuple) = (unsafe { tuple.as_ref() }) else { return 0 };
    FlowHash::of(node.seed, domain, tuple).0
}

/// A search result: the generation of the record in the upper half, and the entry. Zero: no flow has the tuple.
#[inline(always)]
pub(crate) const fn found(generation: u32, entry: u32) -> u64 {
    (generation as u64) << 32 | entry as u64
}

/// Finds the flow with packets or replies that have this tuple as received. The result is that of [`found`].
///
/// Reads one or two buckets, and the records with a matching tag.
#[inline(always)]
pub(crate) fn find(tuple: *const Tuple, hash: u64, domain: u32) -> u64 {
    match ctv_find(tuple, hash, domain) {
        AMBIGUOUS => ctv_find_each(tuple, hash, domain),
        found => found,
    }
}

/// Several slots of a bucket have the tag. No generation with an entry is all ones.
const AMBIGUOUS: u64 = u64::MAX;

/// Finds the flow if no other slot of its bucket has the same tag.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_find(tuple: *const Tuple, hash: u64, domain: u32) -> u64 {
    let Some(node) = maps::node() else { return 0 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole tuple.
    let Some(tuple) = (unsafe { tuple.as_ref() }) else { return 0 };
    let hash = FlowHash(hash);
    let page = hash.page(node.flow_pages) * FlowBucket::PER_PAGE;
    let [first, second] = hash.buckets();
    match search(tuple, page + first, hash.tag(), domain) {
        0 => search(tuple, page + second, hash.tag(), domain),
        found => found,
    }
}

#[inline(always)]
fn search(tuple: &Tuple, number: u32, tag: u32, domain: u32) -> u64 {
    let Some(place) = bucket(number) else { return 0 };
    // SAFETY: a bucket of the map. Other CPUs may write slots, each with one store.
    match unsafe { &*place }.find(tag) {
        (_, 0) => 0,
        (entry, 1) => is(tuple, entry, domain),
        _ => AMBIGUOUS,
    }
}

/// Finds the flow among all slots with its tag. Not called by [`ctv_find`], to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_find_each(tuple: *const Tuple, hash: u64, domain: u32) -> u64 {
    let Some(node) = maps::node() else { return 0 };
    let hash = FlowHash(hash);
    let page = hash.page(node.flow_pages) * FlowBucket::PER_PAGE;
    let [first, second] = hash.buckets();
    for at in 0..2 * FlowBucket::LEN {
        let number = page + if at < FlowBucket::LEN { first } else { second };
        let Some(place) = bucket(number) else { return 0 };
        // SAFETY: a slot of the bucket.
        let slot =
            unsafe { (&raw const (*place).slots).cast::<u64>().add(at % FlowBucket::LEN).read_volatile() };
        if slot >> 32 == u64::from(hash.tag()) {
            let generation = ctv_is(tuple, slot as u32, domain);
            if generation != 0 {
                return found(generation, slot as u32);
            }
        }
    }
    0
}

/// The generation of the record if packets of this entry's direction have this tuple as received; else zero.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_is(tuple: *const Tuple, entry: u32, domain: u32) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole tuple.
    unsafe { tuple.as_ref() }.map_or(0, |tuple| (is(tuple, entry, domain) >> 32) as u32)
}

/// The result of [`found`] for an entry if packets of its direction have this tuple as received; else zero.
#[inline(always)]
fn is(tuple: &Tuple, entry: u32, domain: u32) -> u64 {
    let Some(flow) = record(entry >> 1) else { return 0 };
    let before = head(flow);
    // SAFETY: a record of the map. The head shows whether it has changed.
    let same = is_of(unsafe { &*flow }, tuple, entry & 1 != 0);
    if same
        && before.exists()
        && before.domain == domain
        && before.protocol == tuple.protocol
        && head(flow).generation == before.generation
    {
        found(before.generation.into(), entry)
    } else {
        0
    }
}

/// Compares one field after the other: a comparison of all at once would need too much stack.
#[inline(always)]
fn is_of(flow: &Flow, tuple: &Tuple, reply: bool) -> bool {
    let hairpin = flow.head.flags & Flow::HAIRPIN != 0;
    let client = if reply && hairpin { &flow.destination } else { &flow.client };
    let (source, destination) = if reply { (&flow.backend, client) } else { (client, &flow.destination) };
    if !same(source, &tuple.source) || !same(destination, &tuple.destination) {
        return false;
    }
    let (source_port, destination_port) =
        if reply { (flow.backend_port, flow.nat_port) } else { (flow.client_port, flow.destination_port) };
    source_port == tuple.source_port && destination_port == tuple.destination_port
}

#[inline(always)]
fn same(a: &Address, b: &Address) -> bool {
    let (a, b) = ((&raw const *a).cast::<u64>(), (&raw const *b).cast::<u64>());
    // SAFETY: two words each.
    unsafe { a.read_volatile() == b.read_volatile() && a.add(1).read_volatile() == b.add(1).read_volatile() }
}

/// The slot was inserted.
pub(crate) const INSERTED: u64 = 0;
/// Both buckets are full of flows that cannot be evicted.
pub(crate) const FULL: u64 = 1;
/// There was a concurrent insertion into the page: try again.
pub(crate) const BUSY: u64 = 2;

/// Inserts the slot of an entry for a tuple with this hash, unless a flow has the tuple. Then the result is that of [`found`],
/// which is greater than the codes.
#[inline(always)]
pub(crate) fn insert_slot(tuple: *const Tuple, hash: u64, domain: u32, entry: u32) -> u64 {
    let Some(node) = maps::node() else { return FULL };
    let Some(lock) = page_lock(FlowHash(hash).page(node.flow_pages)) else { return FULL };
    // SAFETY: a value of the map.
    let insertions = unsafe { (&raw const (*lock).insertions).read_volatile() };
    match find(tuple, hash, domain) {
        0 => ctv_put_slot(hash, entry, insertions),
        found => found,
    }
}

/// Writes the slot of an entry to a bucket of the hash. The result is [`BUSY`] if the number of insertions into the page is not
/// `insertions`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_put_slot(hash: u64, entry: u32, insertions: u32) -> u64 {
    let Some(node) = maps::node() else { return FULL };
    let hash = FlowHash(hash);
    let page = hash.page(node.flow_pages);
    let [first, second] = hash.buckets().map(|number| bucket(page * FlowBucket::PER_PAGE + number));
    let (Some(first), Some(second), Some(held)) = (first, second, page_lock(page)) else { return FULL };
    let value = slot(hash.tag(), entry);
    let mut result = BUSY;
    lock(held);
    // SAFETY: a value of the map; its lock is held.
    let current = unsafe { (&raw const (*held).insertions).read_volatile() };
    if current == insertions {
        result = FULL;
        // SAFETY: buckets of the map.
        let used = unsafe { [(*first).used(), (*second).used()] };
        let (one, other) = if FlowBucket::prefers_first(used) { (first, second) } else { (second, first) };
        if replace(one, 0, value) || replace(other, 0, value) {
            // SAFETY: as above.
            unsafe { (&raw mut (*held).insertions).write_volatile(current.wrapping_add(1)) };
            result = INSERTED;
        }
    }
    unlock(held);
    result
}

/// Replaces the first slot that equals `old`; false if there is none.
#[inline(always)]
fn replace(place: *mut FlowBucket, old: u64, new: u64) -> bool {
    for at in 0..FlowBucket::LEN {
        // SAFETY: a slot of the bucket; its page is locked.
        let slot = unsafe { (&raw mut (*place).slots).cast::<u64>().add(at) };
        // SAFETY: as above.
        unsafe {
            if slot.read_volatile() == old {
                slot.write_volatile(new);
                return true;
            }
        }
    }
    false
}

/// Removes the slot of one direction of a record, which must not be free.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_remove_slot(number: u32, reply: u32) -> u32 {
    let (Some(flow), Some(node)) = (record(number), maps::node()) else { return 0 };
    // SAFETY: numbers; and a record of the map.
    let (mut tuple, flow) = unsafe { (contiv_abi::cleared::<Tuple>(), &*flow) };
    flow.received(reply != 0, &mut tuple);
    let hash = FlowHash::of(node.seed, flow.head.domain, &tuple);
    let page = hash.page(node.flow_pages);
    let [first, second] = hash.buckets().map(|number| bucket(page * FlowBucket::PER_PAGE + number));
    let (Some(first), Some(second), Some(held)) = (first, second, page_lock(page)) else { return 0 };
    let value = slot(hash.tag(), entry(number, reply != 0));
    lock(held);
    let removed = replace(first, value, 0) || replace(second, value, 0);
    unlock(held);
    removed.into()
}
