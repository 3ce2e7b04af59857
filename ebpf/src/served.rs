//! What is counted of services: connections, and what they carry.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE, btf_maps::Array, helpers::generated::bpf_get_smp_processor_id, macros::btf_map,
};
use contiv_abi::{ServiceCount, maps::SERVICES_CAPACITY};

use crate::maps;

/// The agent makes it as large as `ServiceCountRows` says.
#[btf_map(name = "ctv_svcnt")]
static COUNTS: Array<ServiceCount, SERVICES_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Counts a new connection to a service, with its first packet.
#[inline(always)]
pub(crate) fn began(service: u32, bytes: u32) {
    if service != 0 {
        ctv_served(service, 0, 1, 1, bytes.into());
    }
}

/// Counts a packet of a flow, if that is to a service: of its original direction, or a reply.
#[inline(always)]
pub(crate) fn passed(service: u32, reply: bool, bytes: u32) {
    if service != 0 {
        ctv_served(service, reply.into(), 0, 1, bytes.into());
    }
}

/// A function of its own for the verifier; there is nothing to say about the outcome.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_served(service: u32, answer: u32, connections: u32, packets: u64, bytes: u64) -> u32 {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let Some(node) = maps::node() else { return 0 };
    let rows = node.service_counts;
    let Some(count) = COUNTS.get_ptr_mut(rows.place(processor, service)) else { return 0 };
    // SAFETY: an entry of the map.
    let count = unsafe { &mut *count };
    if count.number != service {
        return 0;
    }
    let side = (answer & 1) as usize;
    // This CPU's own; the agent writes there before anything leads to the service, and when nothing does.
    count.connections += u64::from(connections);
    count.packets[side] += packets;
    count.bytes[side] += bytes;
    0
}
