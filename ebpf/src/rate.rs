//! Rate limits of pods, and storm control.
//!
//! Traffic above the rate waits in queues of the kernel. Packets from a pod wait in their class of a queue before a pair of
//! interfaces (`Port::queue`); `ctv_from_queue` continues behind it. Packets to a pod wait before the host end of its veth pair.
//! On kernels without these queues, traffic above the rate is dropped.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::HashMap,
    helpers::generated::{bpf_ktime_get_ns, bpf_spin_lock, bpf_spin_unlock},
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{
    DropReason,
    maps::METERS_CAPACITY,
    policy::{Meter, MeterKey},
};

use crate::{
    maps::{self, NO_PREALLOC},
    policy,
};

#[btf_map(name = "ctv_meters")]
static METERS: HashMap<MeterKey, Meter, METERS_CAPACITY, NO_PREALLOC> = HashMap::new();

/// Forward at once.
pub(crate) const GO: u32 = 0;
/// Send by the egress path of the host end, where the packet may be queued.
pub(crate) const WAIT: u32 = 1;
/// Each frame is charged to a token bucket.
const METERED: u32 = 2;
/// The rate is exceeded.
const DROP: u32 = 3;

/// Charges `bytes` from a pod to the rate limit of its group. Fails if the rate is exceeded. For a port without a queue.
#[inline(always)]
pub(crate) fn sends(group: u32, ifindex: u32, bytes: u32) -> Result<(), DropReason> {
    if !is_unlimited(group) && ctv_admit(group, ifindex, MeterKey::SENDS, bytes) == DROP {
        Err(DropReason::RateLimit)
    } else {
        Ok(())
    }
}

/// Charges `bytes` to a pod to the rate limit of its group. Fails if the rate is exceeded. True if the packet must be sent by the
/// egress path of the host end.
#[inline(always)]
pub(crate) fn receives(group: u32, ifindex: u32, bytes: u32) -> Result<bool, DropReason> {
    if is_unlimited(group) {
        return Ok(false);
    }
    match ctv_admit(group, ifindex, MeterKey::RECEIVES, bytes) {
        DROP => Err(DropReason::RateLimit),
        code => Ok(code == WAIT),
    }
}

/// Whether the group has no rate limit.
#[inline(always)]
fn is_unlimited(group: u32) -> bool {
    policy::group(group).is_some_and(|limit| limit.rate == 0)
}

/// How the rate of a port is limited: [`GO`], [`WAIT`] or [`METERED`].
///
/// This and the next are global functions: the verifier checks each once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_limit(group: u32, ifindex: u32) -> u32 {
    match policy::group(group) {
        // The number is that of no group: the port is the node's (`FdbEntry::NODE`).
        None => WAIT,
        Some(limit) if limit.rate == 0 => GO,
        Some(_) if maps::port(&ifindex).is_some_and(|port| port.queue != 0) => WAIT,
        Some(_) => METERED,
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_admit(group: u32, ifindex: u32, direction: u32, bytes: u32) -> u32 {
    let code = ctv_limit(group, ifindex);
    if code != METERED {
        return code;
    }
    let Some(limit) = policy::group(group) else { return GO };
    let (rate, burst) = (limit.rate, limit.burst);
    ctv_meter(ifindex, direction, Meter::cost(bytes, rate), Meter::cost(burst, rate))
}

/// Storm control: whether the port may send another broadcast, unknown unicast or multicast packet. The burst is one second. A
/// packet that will be segmented counts as its segments.
#[inline(always)]
pub(crate) fn storm(ctx: &TcContext, ifindex: u32) -> Result<(), DropReason> {
    const SECOND: u64 = 1_000_000_000;
    let rate = u64::from(maps::bum_rate());
    if rate == 0 || ctv_meter(ifindex, MeterKey::BUM, SECOND / rate * frames(ctx), SECOND) == GO {
        Ok(())
    } else {
        Err(DropReason::StormControl)
    }
}

/// Number of frames that a packet will be segmented into.
#[inline(always)]
fn frames(ctx: &TcContext) -> u64 {
    // SAFETY: the context of the program.
    let (segments, size) = unsafe { ((*ctx.skb.skb).gso_segs, (*ctx.skb.skb).gso_size) };
    // The kernel does not set the count for a packet that a program has built.
    let count = if segments == 0 && size != 0 { ctx.len().div_ceil(size) } else { segments };
    u64::from(count.max(1))
}

/// Charges `cost` to a meter, or returns [`DROP`] if that exceeds its `burst`; both in nanoseconds.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_meter(ifindex: u32, direction: u32, cost: u64, burst: u64) -> u32 {
    let key = MeterKey { ifindex, direction };
    if METERS.get_ptr(key).is_none() {
        // SAFETY: numbers, and a released lock.
        let none = unsafe { contiv_abi::cleared::<Meter>() };
        // Fails if another CPU has inserted the meter, which is used then.
        let _made = METERS.insert(key, &none, BPF_NOEXIST.into());
    }
    // The map has room for the meters of all ports.
    let Some(meter) = METERS.get_ptr_mut(key) else { return GO };
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the address of a field of an entry that was found.
    let lock = unsafe { &raw mut (*meter).lock }.cast();
    // SAFETY: an entry that was found, and its lock, which is released below; no function is called in between.
    unsafe {
        bpf_spin_lock(lock);
        let next = Meter::admit((*meter).full_at, now, burst, cost);
        if let Some(full_at) = next {
            (*meter).full_at = full_at;
        }
        bpf_spin_unlock(lock);
        if next.is_some() { GO } else { DROP }
    }
}
