//! How much a pod may send and be sent.
//!
//! What is too much waits in the kernel's queues, where the kernel has them: what a pod sends in its class of a queue in
//! front of a pair of interfaces (`Port::queue`), behind which `ctv_from_queue` goes on with it; what it is sent in front of the
//! host end of its own pair. Where there are no queues, it is dropped.

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

/// Goes at once.
pub(crate) const GO: u32 = 0;
/// Leaves by the host end's sending side, in front of which it may have to wait.
pub(crate) const WAIT: u32 = 1;
/// Each frame is asked about.
const METERED: u32 = 2;
/// Too much.
const DROP: u32 = 3;

/// Lets `bytes` that a pod sends through, or says that it is too much for the port's group. For a port without a queue.
#[inline(always)]
pub(crate) fn sends(group: u32, ifindex: u32, bytes: u32) -> Result<(), DropReason> {
    if !is_unlimited(group) && ctv_admit(group, ifindex, MeterKey::SENDS, bytes) == DROP {
        Err(DropReason::RateLimit)
    } else {
        Ok(())
    }
}

/// Lets `bytes` for a pod through, or says that it is too much for the port's group. True if they have to take the way by the
/// host end's sending side.
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

/// Whether the group has no limit, as most.
#[inline(always)]
fn is_unlimited(group: u32) -> bool {
    policy::group(group).is_some_and(|limit| limit.rate == 0)
}

/// What holds for frames between a port and whoever else: [`GO`], [`WAIT`] or [`METERED`].
///
/// This and the next are functions of their own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_limit(group: u32, ifindex: u32) -> u32 {
    match policy::group(group) {
        // No number of a group: it is the node's port (`FdbEntry::NODE`).
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

/// Storm control: whether the port may send one more broadcast, unknown unicast or multicast packet. A burst of one second is
/// allowed. One that is cut into frames on its way counts as these.
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

/// Number of frames that receivers get of a packet.
#[inline(always)]
fn frames(ctx: &TcContext) -> u64 {
    // SAFETY: the context of the program.
    let (segments, size) = unsafe { ((*ctx.skb.skb).gso_segs, (*ctx.skb.skb).gso_size) };
    // The kernel does not count those of a packet that a program has made.
    let count = if segments == 0 && size != 0 { ctx.len().div_ceil(size) } else { segments };
    u64::from(count.max(1))
}

/// Takes `cost` from a meter, or returns [`DROP`] if that exceeds its `burst`; both in nanoseconds.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_meter(ifindex: u32, direction: u32, cost: u64, burst: u64) -> u32 {
    let key = MeterKey { ifindex, direction };
    if METERS.get_ptr(key).is_none() {
        // SAFETY: numbers, and a lock that is open.
        let none = unsafe { contiv_abi::cleared::<Meter>() };
        // If another CPU was faster, its meter serves as well.
        let _made = METERS.insert(key, &none, BPF_NOEXIST.into());
    }
    // No room: there are meters for more ports than there can be.
    let Some(meter) = METERS.get_ptr_mut(key) else { return GO };
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the place of a field of an entry that was found.
    let lock = unsafe { &raw mut (*meter).lock }.cast();
    // SAFETY: an entry that was found, and its lock, which is released at once; nothing is called meanwhile.
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
