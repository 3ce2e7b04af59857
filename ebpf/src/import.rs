//! Import of flows from the table of another ABI version, or of another size.
//!
//! The agent fills a batch and runs the program once for each flow. Packets may change the table concurrently, because flows are
//! inserted with the functions that packets use.

use aya_ebpf::{bindings::BPF_F_MMAPABLE, btf_maps::Array, macros::btf_map};
use contiv_abi::{
    Flow, FlowBatch, FlowEvent, FlowHead, FlowImport, ImportOperation, ImportResult, Tuple, entry,
    tcp::{self as state, sent},
};

use crate::{
    flow_collector,
    flow_index::{BUSY, FULL, INSERTED, ctv_hash, find, insert_slot},
    flow_records::{NONE, ctv_charge, ctv_obtain, ctv_remove, make_room},
    flows,
};

#[btf_map(name = "ctv_imports")]
static BATCH: Array<FlowBatch, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Imports the next flow of the batch.
#[inline(always)]
pub(crate) fn import_next() {
    let Some(batch) = BATCH.get_ptr_mut(0) else { return };
    // SAFETY: the value of the map, which the agent does not change while the program runs.
    let (next, count) = unsafe { ((*batch).next, (*batch).count) };
    if next >= count {
        return;
    }
    let result = ctv_import_flow(next);
    // SAFETY: as above.
    unsafe { (*batch).next = next + 1 };
    if let Some(import) = import(next) {
        // SAFETY: a flow of the batch.
        unsafe { (*import).result = result };
    }
}

/// A flow of the batch.
#[inline(always)]
fn import(at: u32) -> Option<*mut FlowImport> {
    let batch = BATCH.get_ptr_mut(0)?;
    // SAFETY: the index is inside the batch.
    Some(unsafe { (&raw mut (*batch).imports).cast::<FlowImport>().add(at as usize % FlowBatch::LEN) })
}

/// Imports the flow at an index of the batch. The result is one of `ImportResult`.
///
/// This and the others are global functions: the verifier checks each once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_import_flow(at: u32) -> u64 {
    let Some(place) = import(at) else { return ImportResult::NONE };
    // SAFETY: a flow of the batch.
    let (operation, domain) = unsafe { ((*place).operation, (*place).flow.head.domain) };
    if operation == ImportOperation::REMOVE {
        return ctv_remove_import(at);
    }
    // SAFETY: numbers.
    let mut tuple = unsafe { contiv_abi::cleared::<Tuple>() };
    // SAFETY: a flow of the batch.
    unsafe { &(*place).flow }.received(false, &mut tuple);
    let hash = ctv_hash(&raw const tuple, domain);
    let found = find(&raw const tuple, hash, domain);
    if found == 0 {
        return ctv_insert_import(at, hash);
    }
    let (number, generation) = (found as u32 >> 1, (found >> 32) as u32);
    if found & 1 == 0 && ctv_goes_as(at, number) != 0 {
        ctv_update_import(at, number);
        return ImportResult::flow(number, generation);
    }
    if operation == ImportOperation::MERGE {
        return ImportResult::KEPT;
    }
    // The other table is still authoritative, and its flow has the tuple.
    ctv_remove(number, generation);
    ctv_insert_import(at, hash)
}

/// Non-zero if the flow in a record has the same backend and translation.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_goes_as(at: u32, number: u32) -> u32 {
    let (Some(place), Some(record)) = (import(at), flows::record(number)) else { return 0 };
    // SAFETY: a flow of the batch, and a record of the map.
    let (flow, record) = unsafe { (&(*place).flow, &*record) };
    let same = flow.backend.same(&record.backend)
        && flow.backend_port == record.backend_port
        && flow.nat_port == record.nat_port
        && flow.head.flags & !Flow::INCOMPLETE == record.head.flags & !Flow::INCOMPLETE;
    same.into()
}

/// Inserts a flow with a free tuple: first the slot of its replies, as for a packet.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_insert_import(at: u32, hash: u64) -> u64 {
    let now = flows::now();
    // No quota applies, because the flow exists in the other table.
    let obtained = ctv_obtain(hash, 0, now, 0);
    if obtained == NONE {
        return ImportResult::FULL;
    }
    let number = obtained - 1;
    let generation = ctv_fill_import(at, number);
    let mut code = commit_slot(at, number, 1);
    if code == ImportResult::NONE {
        code = commit_slot(at, number, 0);
    }
    if code != ImportResult::NONE {
        ctv_remove(number, generation);
        return code;
    }
    flows::count(FlowEvent::Imported);
    flow_collector::ensure(now);
    ImportResult::flow(number, generation)
}

/// Writes the flow to a free record, and charges it to its endpoint. The result is the generation of the record.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_fill_import(at: u32, number: u32) -> u32 {
    let (Some(place), Some(record)) = (import(at), flows::record(number)) else { return 0 };
    // SAFETY: a flow of the batch, and a record that was allocated for it.
    let (from, to) = unsafe { (&(*place).flow, &mut *record) };
    to.client.set_words(from.client.words());
    to.destination.set_words(from.destination.words());
    to.backend.set_words(from.backend.words());
    to.client_port = from.client_port;
    to.destination_port = from.destination_port;
    to.nat_port = from.nat_port;
    to.backend_port = from.backend_port;
    let generation = flows::head(record).generation.wrapping_add(1) | 1;
    let head = FlowHead { generation, flags: from.head.flags & !Flow::INCOMPLETE, ..from.head };
    copy(from, to);
    let owner = from.halves[0].owner;
    flows::set_head(record, head);
    if owner != 0 {
        ctv_charge(owner, 1);
    }
    generation.into()
}

/// Copies both directions.
#[inline(always)]
fn copy(from: &Flow, to: &mut Flow) {
    const WORDS: usize = size_of::<[contiv_abi::FlowHalf; 2]>() / 8;
    let (from, to) = ((&raw const from.halves).cast::<u64>(), (&raw mut to.halves).cast::<u64>());
    for word in 0..WORDS {
        // SAFETY: words of both directions.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
}

/// Attempts to insert a slot: concurrent insertions are rare.
const ATTEMPTS: u32 = 4;
/// Another attempt may succeed. Not a value of `ImportResult`.
const AGAIN: u64 = u64::MAX;

/// Inserts the slot of a direction. The result is `ImportResult::NONE`, or the reason of the failure.
#[inline(always)]
fn commit_slot(at: u32, number: u32, reply: u32) -> u64 {
    for _ in 0..ATTEMPTS {
        let code = ctv_import_slot(at, number, reply);
        if code != AGAIN {
            return code;
        }
    }
    ImportResult::TAKEN
}

/// One attempt of `commit_slot`. The result may also be `AGAIN`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_import_slot(at: u32, number: u32, reply: u32) -> u64 {
    let Some(place) = import(at) else { return ImportResult::TAKEN };
    let reply = reply != 0;
    // SAFETY: numbers.
    let mut tuple = unsafe { contiv_abi::cleared::<Tuple>() };
    // SAFETY: a flow of the batch.
    let (flow, domain) = unsafe { (&(*place).flow, (*place).flow.head.domain) };
    flow.received(reply, &mut tuple);
    if reply && flow.head.flags & Flow::NAT == 0 && flow.client.same(&flow.backend) {
        let ends = (flow.client_port, flow.destination_port);
        if ends == (flow.backend_port, flow.nat_port) {
            // An endpoint that sends to itself has one tuple.
            return ImportResult::NONE;
        }
    }
    let hash = ctv_hash(&raw const tuple, domain);
    match insert_slot(&raw const tuple, hash, domain, entry(number, reply)) {
        INSERTED => ImportResult::NONE,
        BUSY => AGAIN,
        FULL => {
            if make_room(hash, flows::now(), 0) {
                AGAIN
            } else {
                ImportResult::FULL
            }
        }
        _ => ImportResult::TAKEN,
    }
}

/// Updates a flow that was imported before. While this table is not in use, the flow is overwritten; later, the newer values are
/// kept.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_update_import(at: u32, number: u32) -> u32 {
    let (Some(place), Some(record)) = (import(at), flows::record(number)) else { return 0 };
    // SAFETY: a flow of the batch.
    let (operation, from) = unsafe { ((*place).operation, &(*place).flow) };
    // SAFETY: a record of the map. Packets may change it concurrently; then a count may be lost.
    let to = unsafe { &mut *record };
    if operation == ImportOperation::PUT {
        // The flow is charged to the owner that was imported first.
        let owner = to.halves[0].owner;
        copy(from, to);
        for half in &mut to.halves {
            half.owner = owner;
        }
        return 0;
    }
    for (from, to) in from.halves.iter().zip(&mut to.halves) {
        to.packets = later(from.packets, to.packets);
        to.bytes = later(from.bytes, to.bytes);
        to.seen = state::later(from.seen, to.seen);
        if from.sent & sent::ANY != 0 {
            to.end = if to.sent & sent::ANY != 0 { state::later(from.end, to.end) } else { from.end };
        }
        if from.sent & sent::ACK != 0 {
            let acknowledged = state::later(from.acknowledged, to.acknowledged);
            to.acknowledged = if to.sent & sent::ACK != 0 { acknowledged } else { from.acknowledged };
        }
        to.sent |= from.sent;
        to.other |= from.other;
    }
    0
}

#[inline(always)]
const fn later(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

/// Removes an imported flow that the other table no longer has, unless packets have changed it since.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_remove_import(at: u32) -> u64 {
    let Some(place) = import(at) else { return ImportResult::NONE };
    // SAFETY: a flow of the batch.
    let (record, halves) = unsafe { ((*place).record, &(*place).flow.halves) };
    let (number, generation) = (record as u32, (record >> 32) as u32);
    let Some(flow) = flows::record(number) else { return ImportResult::KEPT };
    // SAFETY: a record of the map.
    let current = unsafe { &(*flow).halves };
    if current[0].packets != halves[0].packets || current[1].packets != halves[1].packets {
        return ImportResult::KEPT;
    }
    if ctv_remove(number, generation) != 0 { ImportResult::REMOVED } else { ImportResult::KEPT }
}
