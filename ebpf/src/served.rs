//! What is counted of services: connections, and what they carry.

use aya_ebpf::{bindings::BPF_NOEXIST, btf_maps::PerCpuHashMap, macros::btf_map};
use contiv_abi::{Flow, ServiceCount, maps::SERVICE_COUNTS_CAPACITY};

use crate::maps::NO_PREALLOC;

#[btf_map(name = "ctv_svcnt")]
static COUNTS: PerCpuHashMap<u32, ServiceCount, SERVICE_COUNTS_CAPACITY, NO_PREALLOC> = PerCpuHashMap::new();

/// Counts a new connection to a service, with its first packet.
#[inline(always)]
pub(crate) fn began(service: u32, bytes: u32) {
    if service != 0 {
        ctv_served(service, 0, 1, 1, bytes.into());
    }
}

/// Counts a packet of a flow, if that is to a service: of its first direction or an answer.
#[inline(always)]
pub(crate) fn passed(flow: &Flow, answer: bool, bytes: u32) {
    if flow.service != 0 {
        ctv_served(flow.service, answer.into(), 0, 1, bytes.into());
    }
}

/// Counts packets that have gone past the stages. `side` is 1 for answers.
#[inline(always)]
pub(crate) fn have_passed(service: u32, side: u32, packets: u64, bytes: u64) {
    if service != 0 {
        ctv_served(service, side, 0, packets, bytes);
    }
}

/// A function of its own for the verifier; there is nothing to say about the outcome.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_served(service: u32, answer: u32, connections: u32, packets: u64, bytes: u64) -> u32 {
    // The flows of a service that is gone go on; they do not bring back its counts.
    if connections != 0 && COUNTS.get_ptr(service).is_none() {
        // SAFETY: numbers.
        let none = unsafe { contiv_abi::cleared::<ServiceCount>() };
        // When another CPU was faster, or there is no room, that is as well.
        let _made = COUNTS.insert(service, &none, BPF_NOEXIST.into());
    }
    if let Some(count) = COUNTS.get_ptr_mut(service) {
        let side = (answer & 1) as usize;
        // SAFETY: this CPU's own.
        unsafe {
            (*count).connections += u64::from(connections);
            (*count).packets[side] += packets;
            (*count).bytes[side] += bytes;
        }
    }
    0
}
