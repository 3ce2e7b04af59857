//! The table of connections that are forwarded to backends on other nodes.
//!
//! Readers take no lock: the version of an entry shows whether all fields are of one connection. An entry is written at most once
//! per second, unless its connection ends or the backend's Ethernet address is looked up again.

use aya_ebpf::{bindings::BPF_F_MMAPABLE, btf_maps::Array, macros::btf_map};
use contiv_abi::{
    Address, DsrEntry, DsrKey, DsrSet, DsrState, FdbKey, Mac, Node, SegmentEntry, idle,
    maps::DSR_FLOWS_CAPACITY, tcp::sent,
};

use crate::{
    flows, maps,
    packet::{self, PacketMeta, tcp},
};

/// The values of a memory-mapped map begin at a page boundary, so an entry is one cache line. Such a map cannot have locks.
#[btf_map(name = "ctv_relays")]
static SETS: Array<DsrSet, DSR_FLOWS_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Entries of a set.
const WAYS: u32 = DsrSet::LEN as u32;
/// No Ethernet address.
const UNKNOWN: u64 = 0;

/// The entry with this number. It may be free, or be written at any time.
#[inline(always)]
fn entry(number: u32) -> Option<*mut DsrEntry> {
    let set = SETS.get_ptr_mut(number / WAYS)?;
    // SAFETY: one of the entries of the set.
    Some(unsafe { set.cast::<DsrEntry>().add((number % WAYS) as usize) })
}

/// Ethernet address of the backend of a connection, as a number with the first byte lowest. `None` if the connection is
/// unknown or the backend is not on another node. `flags` are the TCP flags of the packet, zero for other protocols.
///
/// A packet of an established connection writes nothing.
#[inline(always)]
pub(crate) fn lookup(node: &Node, key: &DsrKey, now: u32, flags: u8) -> Option<u64> {
    const CHANGES: u8 = tcp::SYN | tcp::FIN | tcp::RST;
    let set = key.set(node.seed);
    let entries = SETS.get_ptr(set)?.cast::<DsrEntry>();
    let mut way = 0;
    let state = loop {
        if way == DsrSet::LEN {
            return None;
        }
        // SAFETY: one of the entries of the set.
        if let Some(state) = unsafe { DsrEntry::read(entries.add(way), key) } {
            break state;
        }
        way += 1;
    };
    if state.seen == now && flags & CHANGES == 0 && DsrEntry::is_found_in(state.found, maps::fdb_revision()) {
        return Some(state.found & DsrEntry::MAC);
    }
    let flags = u32::from(flags) | u32::from(state.closing) << 8;
    match ctv_update_dsr(set * WAYS + way as u32, state.found, state.stamp(), now, flags) {
        UNKNOWN => None,
        mac => Some(mac),
    }
}

/// As [`lookup`], for a packet that may change the entry, which has been read. `stamp` has time and version; `flags` are those of
/// the packet and, 8 bits higher, those that the client has sent.
///
/// A global function: the verifier checks it once. The result is [`UNKNOWN`] or the address.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_update_dsr(number: u32, found: u64, stamp: u64, now: u32, flags: u32) -> u64 {
    let Some(entry) = entry(number) else { return UNKNOWN };
    let mut state = DsrState::of(found, stamp, (flags >> 8) as u8);
    // SAFETY: an entry of the table. If it has been replaced by another connection, it is not written.
    let (segment, protocol) = unsafe { ((*entry).segment, (*entry).protocol) };
    let opens = flags as u8 & (tcp::SYN | tcp::ACK) == tcp::SYN;
    let ended = flags as u8 & (tcp::FIN | tcp::RST);
    let idle = idle(now, state.seen);
    let reply = u32::from(sent::ANY | state.closing);
    let mut is_over = opens && state.closing != 0
        || idle != 0 && idle > flows::ctv_timeout(protocol.into(), sent::ANY.into(), reply);
    let mut changes = state.closing | ended != state.closing;
    state.closing |= ended;
    // Read before the location, so that a concurrent change is detected later by the revision.
    let revision = maps::fdb_revision();
    if idle != 0 || !DsrEntry::is_found_in(found, revision) {
        let place = maps::destination(&FdbKey::new(segment, mac(found)));
        // The backend was removed or has moved to this node: it is chosen again, and the client learns from its new backend that
        // the connection does not exist.
        let is_gone = place.is_none_or(|place| place.ifindex != 0);
        // After the removal of the service, an endpoint may have the address. The entries stay for a service that is created
        // again.
        if !is_gone && ctv_is_service(number) == 0 {
            return UNKNOWN;
        }
        is_over |= is_gone;
        state.found = DsrEntry::found(found, revision);
        state.seen = now;
        changes = true;
    }
    if is_over {
        // SAFETY: `write` holds the lock of the entry.
        write(number, state.version, |entry| unsafe { DsrEntry::remove(entry, state) });
        return UNKNOWN;
    }
    if changes {
        // SAFETY: as above.
        write(number, state.version, |entry| unsafe { DsrEntry::update(entry, state) });
    }
    found & DsrEntry::MAC
}

/// Whether the destination of an entry is the address of a service on a wire of this node; non-zero if so. A service without
/// backends keeps its connections.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_is_service(number: u32) -> u32 {
    let Some(entry) = entry(number) else { return 0 };
    // SAFETY: an entry of the table. If it has been replaced by another connection, it is not written.
    let entry = unsafe { &*entry };
    let segment = entry.segment;
    let Some(network) = maps::segment_entry(&segment) else { return 0 };
    if network.flags & SegmentEntry::ON_NODE != 0 {
        return 0;
    }
    let service = Address::from_words(entry.service.words());
    u32::from(maps::is_service(network.domain, service))
}

/// The Ethernet address in a number with the first byte lowest.
#[inline(always)]
const fn mac(number: u64) -> Mac {
    let [a, b, c, d, e, f, _, _] = number.to_le_bytes();
    [a, b, c, d, e, f]
}

/// Inserts the connection of the current packet, which is forwarded to the backend with `destination_mac`. The backend was found
/// in this revision of the forwarding database. If all entries of the set must stay, nothing is inserted, and the next packet
/// tries again.
///
/// This and the next are global functions: the verifier checks each once, and they save stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_insert_dsr(packet: *mut PacketMeta, revision: u64) -> u32 {
    let (Some(packet), Some(node)) = (packet::of(packet), maps::node()) else { return 0 };
    let first = DsrKey::of(packet.segment, &packet.tuple).set(node.seed) * WAYS;
    let at = &raw mut *packet;
    let Some((way, version)) = DsrSet::place(|way| ctv_vacancy(at, first + way)) else { return 0 };
    // Computed again: the stack has no room to keep it.
    let key = DsrKey::of(packet.segment, &packet.tuple);
    let [a, b, c, d, e, f] = packet.destination_mac;
    let state = DsrState {
        found: DsrEntry::found(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), revision),
        seen: packet.now,
        version,
        closing: packet.tcp & (tcp::FIN | tcp::RST),
    };
    // SAFETY: `write` holds the lock of the entry.
    write(first + way, version, |entry| unsafe { DsrEntry::insert(entry, &key, state) });
    0
}

/// `DsrEntry::vacancy` of an entry for the connection of the current packet.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_vacancy(packet: *mut PacketMeta, number: u32) -> u64 {
    let (Some(packet), Some(node)) = (packet::of(packet), maps::node()) else { return 0 };
    let Some(entry) = entry(number) else { return 0 };
    let key = DsrKey::of(packet.segment, &packet.tuple);
    // SAFETY: an entry of the table. Its version shows whether it was written concurrently.
    unsafe { DsrEntry::vacancy(entry, &key, packet.now, &node.timeouts) }
}

/// Writes to an entry if it still has this version. If another CPU has written it, the next packet of the connection writes it
/// again.
#[inline(always)]
fn write(number: u32, version: u32, write: impl FnOnce(*mut DsrEntry)) {
    let (Some(entry), Some(node)) = (entry(number), maps::node()) else { return };
    // The map has no locks. The locks of the flow table are used; they are held briefly.
    let Some(held) = flows::record_lock(number, node.flow_pages) else { return };
    flows::lock(held);
    // SAFETY: an entry of the table.
    if unsafe { (&raw const (*entry).version).read_volatile() } == version {
        write(entry);
    }
    flows::unlock(held);
}
