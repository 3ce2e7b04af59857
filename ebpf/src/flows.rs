//! The tables of flows, and how flows leave them.
//!
//! A flow begins among the new ones, an LRU, and moves to the table proper with its first answer, so that
//! what one side sends without being answered pushes out only what is as young. In the table every flow has
//! a timer of the kernel, which removes it when it has been silent for long enough: nobody walks the table,
//! and nothing waits for the agent.

use aya_ebpf::{
    bindings::{BPF_NOEXIST, bpf_timer},
    btf_maps::{HashMap, LruHashMap, PerCpuArray},
    cty::c_void,
    helpers::generated::{
        bpf_get_smp_processor_id, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns, bpf_timer_init,
        bpf_timer_set_callback, bpf_timer_start,
    },
    macros::btf_map,
};
use contiv_abi::{
    DropReason, Epochs, Flow, FlowEvent, FlowKey, TimedFlow,
    maps::{FLOW_STATS_SLOTS, FLOWS_CAPACITY, NEW_FLOWS_CAPACITY},
};

use crate::{
    maps::{self, NO_PREALLOC},
    packet::{self, GO_ON, Packet, set_key},
    shortcut,
};

#[btf_map(name = "ctv_ct")]
static FLOWS: HashMap<FlowKey, TimedFlow, FLOWS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_new")]
static NEW: LruHashMap<FlowKey, Flow, NEW_FLOWS_CAPACITY> = LruHashMap::new();

#[btf_map(name = "ctv_ct_stats")]
static STATS: PerCpuArray<u64, FLOW_STATS_SLOTS> = PerCpuArray::new();

pub(crate) const NANOSECONDS: u64 = 1_000_000_000;

/// Seconds since boot.
#[inline(always)]
pub(crate) fn now() -> u32 {
    // SAFETY: a helper without arguments.
    (unsafe { bpf_ktime_get_coarse_ns() } / NANOSECONDS) as u32
}

#[inline(always)]
pub(crate) fn count(event: FlowEvent) {
    if let Some(count) = STATS.get_ptr_mut(event as u32) {
        // SAFETY: this CPU's own slot; at worst one count is lost to a timer that interrupts.
        unsafe { *count += 1 };
    }
}

/// The entry of a flow that was answered, or of an alias of one.
#[inline(always)]
pub(crate) fn answered(key: &FlowKey) -> Option<*mut Flow> {
    // SAFETY: the place of a field of an entry that was found.
    FLOWS.get_ptr_mut(key).map(|timed| unsafe { &raw mut (*timed).flow })
}

/// The entry of a flow that was not answered yet, or of an alias of one.
#[inline(always)]
pub(crate) fn young(key: &FlowKey) -> Option<*mut Flow> {
    NEW.get_ptr_mut(key)
}

/// The entry of a flow, answered or not.
#[inline(always)]
pub(crate) fn either(key: &FlowKey) -> Option<*mut Flow> {
    answered(key).or_else(|| young(key))
}

/// Whether the time of a flow is over. An alias lives as long as its flow.
#[inline(always)]
pub(crate) fn is_over(flow: &Flow, key: &FlowKey, now: u32, answered: bool) -> bool {
    let idle = now.wrapping_sub(flow.seen);
    // The timeouts are looked up only when time has passed.
    idle != 0
        && flow.flags & Flow::FORWARD_NAT == 0
        && idle
            > ctv_timeout(
                key.protocol.into(),
                u32::from(answered) & flow.is_answered(),
                (flow.tcp[0] | flow.tcp[1]).into(),
            )
}

/// How long a flow is remembered without a packet, in seconds.
///
/// A function of its own for the verifier: what it returns is any number.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_timeout(protocol: u32, answered: u32, closing: u32) -> u32 {
    maps::timeouts().map_or(0, |timeouts| timeouts.of(protocol as u8, answered != 0, closing != 0))
}

/// Notes what is in `packet.flow` as new.
#[inline(always)]
pub(crate) fn note(key: &FlowKey, flow: &Flow) -> bool {
    NEW.insert(key, flow, 0).is_ok()
}

/// The same if there is no new flow with this key.
#[inline(always)]
pub(crate) fn note_first(key: &FlowKey, flow: &Flow) -> bool {
    NEW.insert(key, flow, BPF_NOEXIST.into()).is_ok()
}

/// Moves the flow of the packet in hand, which was answered, to the table proper, where it gets its alias; when that is full, it
/// stays. The result is that of `packet::code`: the answer goes no further when the client has been answered by another backend.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_confirm() -> u32 {
    let Some(packet) = packet::in_hand() else { return GO_ON };
    let Some(flow) = young(&packet.key) else { return GO_ON };
    // SAFETY: an entry that was found.
    let flow = unsafe { &mut *flow };
    let flags = flow.flags;
    if flags & Flow::NAT != 0 {
        ctv_alias(flow);
    }
    let Some(packet) = packet::in_hand() else { return GO_ON };
    let closing = flow.tcp[0] | flow.tcp[1];
    copy(packet, flow);
    if FLOWS.insert(&packet.key, timed(packet), 0).is_err() {
        count(FlowEvent::Full);
        if flags & (Flow::NAT | Flow::NAMED) == Flow::NAT {
            flow.flags |= Flow::NAMED;
            ctv_name(flags.into(), 0);
        }
        return GO_ON;
    }
    if let Some(entry) = FLOWS.get_ptr_mut(&packet.key) {
        watch(entry, ctv_timeout(packet.key.protocol.into(), 1, closing.into()));
    }
    count(FlowEvent::Answered);
    let _moved = NEW.remove(&packet.key);
    if flags & Flow::NAT != 0 { ctv_name(flags.into(), 1) } else { GO_ON }
}

/// Gives the flow of the packet in hand, which is an answer, its alias: in the table where the flow is now, if it has `moved`.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_name(flags: u32, moved: u32) -> u32 {
    const EXISTS: i32 = -17;
    let Some(packet) = packet::in_hand() else { return GO_ON };
    let alias = &mut packet.timed.flow;
    alias.flags = Flow::FORWARD_NAT | flags as u8 & (Flow::HAIRPIN | Flow::COLLISION);
    alias.nat_ip.set_words(packet.tuple.source.words());
    alias.nat_port = packet.tuple.source_port;
    alias.nat_client_port = packet.tuple.destination_port;
    let named =
        if moved != 0 { FLOWS.insert(&packet.alias, timed(packet), BPF_NOEXIST.into()) } else { Err(0) };
    let Err(error) = named else {
        if flags as u8 & Flow::NAMED != 0 {
            let _moved = NEW.remove(&packet.alias);
        }
        return GO_ON;
    };
    if error == EXISTS {
        // Between two tries of the client the service has changed, and the backend of the other try was the first to answer.
        let _gone = FLOWS.remove(&packet.key);
        return DropReason::NotTracked as u32;
    }
    // When there is no room, it is among the new ones; if it is pushed out there, the client's next packet finds the flow
    // again by the service.
    note(&packet.alias, &packet.timed.flow);
    GO_ON
}

/// Sets the key of the alias of the flow with the packet's key. Not zero if the flow is translated at all.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_alias(flow: *const Flow) -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole flow.
    let Some(flow) = (unsafe { flow.as_ref() }) else { return 0 };
    flow.untranslate(&packet.key, &mut packet.spare);
    set_key(&packet.spare, &raw mut packet.alias, flow.alias_kind());
    u32::from(flow.flags & Flow::NAT)
}

/// Puts a flow where `timed` finds it.
#[inline(always)]
fn copy(packet: &mut Packet, flow: &Flow) {
    // SAFETY: numbers.
    unsafe { contiv_abi::clear(&raw mut packet.timed.room) };
    // SAFETY: an entry of a map is not in the packet. An assignment would go by way of the stack.
    unsafe { core::ptr::copy_nonoverlapping(flow, &raw mut packet.timed.flow, 1) };
}

/// The entry that was put together in the packet.
#[inline(always)]
fn timed(packet: &Packet) -> &TimedFlow {
    // SAFETY: of the same shape; the kernel copies all of it but the timer.
    unsafe { &*(&raw const packet.timed).cast::<TimedFlow>() }
}

/// Removes the flow with the key of the packet in hand, and its alias.
///
/// A function of its own for the verifier; there is nothing to say about the outcome.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_forget() -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
    let translated = either(&packet.key).map_or(0, |flow| ctv_alias(flow));
    let Some(packet) = packet::in_hand() else { return 0 };
    if translated != 0 {
        forget_alias(packet);
    }
    let _gone = FLOWS.remove(&packet.key);
    let _gone = NEW.remove(&packet.key);
    ctv_end_shortcuts()
}

/// Removes the alias with the key of the alias of the packet in hand.
#[inline(always)]
pub(crate) fn forget_alias(packet: &Packet) {
    let _gone = FLOWS.remove(&packet.alias);
    let _gone = NEW.remove(&packet.alias);
}

/// No CPU takes shortcuts of the flow with the packet's key any more. A flow whose time is over has none: they last for the
/// second in which its last packet came.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_end_shortcuts() -> u32 {
    let (Some(packet), Some(epochs)) = (packet::in_hand(), shortcut::epochs()) else { return 0 };
    let shard = Epochs::shard(&packet.key) as usize & (Epochs::SHARDS - 1);
    // SAFETY: helpers without arguments; and numbers of the one value of the array, in this order.
    unsafe {
        let (time, processor) = (bpf_ktime_get_ns(), bpf_get_smp_processor_id());
        for place in [&raw mut (*epochs).forgotten, (&raw mut (*epochs).flows).cast::<u64>().add(shard)] {
            place.write_volatile(Epochs::next(place.read_volatile(), time, processor));
        }
    }
    0
}

/// Adds packets that have gone past the stages to a flow, if it is still there. `side` is 1 for answers.
#[inline(always)]
pub(crate) fn count_for(key: &FlowKey, side: u32, packets: u64, bytes: u64) {
    if let Some(flow) = answered(key) {
        let side = (side & 1) as usize;
        // SAFETY: places of an entry that was found.
        unsafe {
            *(&raw mut (*flow).packets).cast::<u64>().add(side) += packets;
            *(&raw mut (*flow).bytes).cast::<u64>().add(side) += bytes;
        }
    }
}

/// `CLOCK_MONOTONIC`.
const MONOTONIC: u64 = 1;

/// Sets the timer of a flow.
#[inline(always)]
fn watch(entry: *mut TimedFlow, seconds: u32) {
    // SAFETY: the timer of an entry of this map.
    unsafe {
        let timer = (&raw mut (*entry).timer).cast::<bpf_timer>();
        bpf_timer_init(timer, (&raw const FLOWS).cast_mut().cast(), MONOTONIC);
        bpf_timer_set_callback(timer, expire as *mut c_void);
        bpf_timer_start(timer, u64::from(seconds) * NANOSECONDS, 0);
    }
}

/// The timer of the flow with the packet's key runs out after the timeout of one that is closing.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_hurry() -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
    if let Some(entry) = FLOWS.get_ptr_mut(&packet.key) {
        let seconds = ctv_timeout(packet.key.protocol.into(), 1, 1);
        // SAFETY: the timer of an entry of this map.
        unsafe {
            let timer = (&raw mut (*entry).timer).cast::<bpf_timer>();
            bpf_timer_start(timer, u64::from(seconds) * NANOSECONDS, 0);
        }
    }
    0
}

/// Runs when a flow might have run out: removes it, or comes back when it would.
extern "C" fn expire(_map: *mut c_void, key: *mut FlowKey, entry: *mut TimedFlow) -> i64 {
    // SAFETY: the kernel calls with the entry whose timer it is, and its key.
    let (key, flow) = unsafe { (&*key, &(*entry).flow) };
    let timeout = ctv_timeout(key.protocol.into(), flow.is_answered(), (flow.tcp[0] | flow.tcp[1]).into());
    let idle = now().wrapping_sub(flow.seen);
    if idle <= timeout {
        // SAFETY: the timer of this entry, which runs.
        unsafe {
            let timer = (&raw mut (*entry).timer).cast::<bpf_timer>();
            bpf_timer_start(timer, u64::from(timeout - idle + 1) * NANOSECONDS, 0);
        }
        return 0;
    }
    // A timer is a softirq as packets are, so no packet is in hand now.
    let Some(packet) = packet::in_hand() else { return 0 };
    // SAFETY: an entry of a map is not in the packet.
    unsafe { core::ptr::copy_nonoverlapping(key, &raw mut packet.key, 1) };
    packet.segment = packet.key.segment;
    let translated = ctv_alias(flow) != 0;
    let Some(packet) = packet::in_hand() else { return 0 };
    if translated {
        let _gone = FLOWS.remove(&packet.alias);
    }
    let _gone = FLOWS.remove(&packet.key);
    count(FlowEvent::Expired);
    0
}
