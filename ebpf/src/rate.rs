//! How much a pod may send and be sent.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::HashMap,
    helpers::generated::{bpf_ktime_get_ns, bpf_spin_lock, bpf_spin_unlock},
    macros::btf_map,
};
use contiv_abi::{
    DropReason,
    maps::METERS_CAPACITY,
    policy::{Meter, MeterKey},
};

use crate::{maps::NO_PREALLOC, policy};

#[btf_map(name = "ctv_meters")]
static METERS: HashMap<MeterKey, Meter, METERS_CAPACITY, NO_PREALLOC> = HashMap::new();

/// Lets `bytes` through, or says that it is too much for the port's group.
#[inline(always)]
pub(crate) fn admit(group: u32, ifindex: u32, direction: u32, bytes: u32) -> Result<(), DropReason> {
    if ctv_admit(group, ifindex, direction, bytes) != 0 { Ok(()) } else { Err(DropReason::RateLimit) }
}

/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_admit(group: u32, ifindex: u32, direction: u32, bytes: u32) -> u32 {
    let Some(limit) = policy::group(group) else { return 1 };
    let (rate, burst) = (limit.rate, limit.burst);
    if rate == 0 {
        return 1;
    }
    let key = MeterKey { ifindex, direction };
    if METERS.get_ptr(key).is_none() {
        // When another CPU was faster, that is as well.
        let _made = METERS.insert(key, Meter::default(), BPF_NOEXIST.into());
    }
    // No room: there are meters for more ports than there can be.
    let Some(meter) = METERS.get_ptr_mut(key) else { return 1 };
    let (cost, burst) = (Meter::cost(bytes, rate), Meter::cost(burst, rate));
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the place of a field of an entry that was found.
    let lock = unsafe { &raw mut (*meter).lock }.cast();
    // SAFETY: an entry that was found, and its lock, which is let go of at once; nothing is called meanwhile.
    unsafe {
        bpf_spin_lock(lock);
        let next = Meter::admit((*meter).full_at, now, burst, cost);
        if let Some(full_at) = next {
            (*meter).full_at = full_at;
        }
        bpf_spin_unlock(lock);
        u32::from(next.is_some())
    }
}
