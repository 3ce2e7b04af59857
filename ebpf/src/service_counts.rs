//! Counters of services: connections, packets and bytes.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE, btf_maps::Array, helpers::generated::bpf_get_smp_processor_id, macros::btf_map,
};
use contiv_abi::{Node, ServiceCount, maps::SERVICES_CAPACITY};

use crate::maps;

/// The agent loads the map with the size that `ServiceCountRows` determines.
#[btf_map(name = "ctv_svcnt")]
static COUNTS: Array<ServiceCount, SERVICES_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Counts a new connection to a service, and its first packet.
#[inline(always)]
pub(crate) fn connection_opened(service: u32, bytes: u32) {
    if service != 0 {
        ctv_count_svc(service, 0, 1, 1, bytes.into());
    }
}

/// Counts a packet of a flow to a service, in its original or its reply direction.
#[inline(always)]
pub(crate) fn packet_forwarded(service: u32, reply: bool, bytes: u32) {
    if service != 0 {
        ctv_count_svc(service, reply.into(), 0, 1, bytes.into());
    }
}

/// A global function: the verifier checks it once. The result is always zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_count_svc(service: u32, answer: u32, connections: u32, packets: u64, bytes: u64) -> u32 {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    let Some(count) = maps::node().and_then(|node| of(node, processor, service)) else { return 0 };
    let side = (answer & 1) as usize;
    count.connections += u64::from(connections);
    count.packets[side] += packets;
    count.bytes[side] += bytes;
    0
}

/// Prefetches the counters of a service.
#[inline(always)]
pub(crate) fn read_ahead(service: u32) {
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    if let Some(node) = maps::node()
        && let Some(count) = COUNTS.get_ptr(node.service_counts.place(processor, service))
    {
        // SAFETY: an entry of the map, which may span two cache lines.
        unsafe {
            (&raw const (*count).number).read_volatile();
            (&raw const (*count).bytes[1]).read_volatile();
        }
    }
}

/// As [`packet_forwarded`], without a function call.
#[inline(always)]
pub(crate) fn packet_forwarded_inline(node: &Node, service: u32, reply: bool, bytes: u32) {
    if service == 0 {
        return;
    }
    // SAFETY: a helper without arguments.
    let processor = unsafe { bpf_get_smp_processor_id() };
    if let Some(count) = of(node, processor, service) {
        let side = usize::from(reply);
        count.packets[side] += 1;
        count.bytes[side] += u64::from(bytes);
    }
}

/// The counters of a CPU for the service's port with this number.
#[inline(always)]
fn of<'a>(node: &Node, processor: u32, service: u32) -> Option<&'a mut ServiceCount> {
    let count = COUNTS.get_ptr_mut(node.service_counts.place(processor, service))?;
    // SAFETY: an entry of the map, which only this CPU writes. The agent writes it only while no entry of a service refers to it.
    let count = unsafe { &mut *count };
    (count.number == service).then_some(count)
}
