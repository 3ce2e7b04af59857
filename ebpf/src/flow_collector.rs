//! Garbage collection: a BPF timer removes expired flows, without packets and without the agent.
//!
//! The timer holds the program that has armed it. When the agent replaces the programs, it clears the value of the map, which
//! cancels the timer, and the next insertion of a flow arms it with the new program. An insertion also arms a timer that has not
//! run for some seconds, so that the collection does not depend on a single event.

use aya_ebpf::{
    bindings::bpf_timer,
    btf_maps::Array,
    cty::c_void,
    helpers::generated::{bpf_loop, bpf_timer_init, bpf_timer_set_callback, bpf_timer_start},
    macros::btf_map,
};
use contiv_abi::{FlowCollector, FlowEvent, idle};

use crate::{
    flow_records::{ctv_remove, is_used},
    flows::{self, head, record},
    maps,
};

#[btf_map(name = "ctv_flowgc")]
static COLLECTOR: Array<FlowCollector, 1> = Array::new();

/// `CLOCK_MONOTONIC`.
const MONOTONIC: u64 = 1;

/// Arms the timer unless it is running.
#[inline(always)]
pub(crate) fn ensure(now: u32) {
    let Some(collector) = COLLECTOR.get_ptr(0) else { return };
    // SAFETY: the value of the map.
    let ran = unsafe { (&raw const (*collector).ran).read_volatile() };
    if ran == 0 || idle(now, ran) > FlowCollector::OVERDUE {
        ctv_arm(now);
    }
}

/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_arm(now: u32) -> u32 {
    let Some(collector) = COLLECTOR.get_ptr_mut(0) else { return 0 };
    // SAFETY: the value of the map, and its timer. If the timer exists, its initialization fails, and the other calls apply to
    // the existing timer.
    unsafe {
        (&raw mut (*collector).ran).write_volatile(now);
        let timer = (&raw mut (*collector).timer).cast::<bpf_timer>();
        bpf_timer_init(timer, (&raw const COLLECTOR).cast_mut().cast(), MONOTONIC);
        bpf_timer_set_callback(timer, collect as *mut c_void);
        bpf_timer_start(timer, FlowCollector::INTERVAL, 0);
    }
    0
}

/// The records that one run of the timer checks.
#[repr(C)]
struct Part {
    next: u32,
    flows: u32,
    now: u32,
    passes: u32,
}

/// Timer callback: checks a part of the table, and arms the timer again.
extern "C" fn collect(_map: *mut c_void, _key: *mut u32, collector: *mut FlowCollector) -> i64 {
    let Some(node) = maps::node() else { return 0 };
    // SAFETY: the kernel passes the value with the timer.
    let collector = unsafe { &mut *collector };
    let now = flows::now();
    let mut part = Part { next: collector.next, flows: node.flows, now, passes: 0 };
    let records = node.flows / FlowCollector::RUNS + 1;
    // SAFETY: `visit` expects a `Part`, which outlives the loop.
    let _steps = unsafe { bpf_loop(records, visit as *mut c_void, (&raw mut part).cast::<c_void>(), 0) };
    collector.next = part.next;
    collector.passes += u64::from(part.passes);
    collector.ran = now.max(1);
    // SAFETY: the timer of the value.
    unsafe { bpf_timer_start((&raw mut collector.timer).cast::<bpf_timer>(), FlowCollector::INTERVAL, 0) };
    0
}

extern "C" fn visit(_step: u64, part: *mut Part) -> i64 {
    // SAFETY: `collect` passes a `Part` that outlives the loop.
    let part = unsafe { &mut *part };
    let number = part.next;
    part.next += 1;
    if part.next >= part.flows {
        part.next = 0;
        part.passes += 1;
    }
    if !is_used(number) {
        return 0;
    }
    let Some(flow) = record(number) else { return 0 };
    // Read first: if another flow gets the record concurrently, that flow is not removed.
    let generation = head(flow).generation.into();
    if flows::ctv_is_over(number, part.now) != 0 && ctv_remove(number, generation) != 0 {
        flows::count(FlowEvent::Expired);
    }
    0
}
