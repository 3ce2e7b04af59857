//! Packets of busy flows go past the stages: this CPU knows what became of the last one with the same headers.
//!
//! Plain packets (`plain`) of flows that were answered. What the stages made of one is noted (`learn`), the next ones are
//! compared, rewritten (`rewrite`) and sent on from here. Once in a second, and whenever anything has
//! changed that it relies on, a packet goes through the stages again. So do those that begin or end a connection.

use aya_ebpf::{
    bindings::{__sk_buff, TC_ACT_SHOT},
    btf_maps::{Array, PerCpuArray},
    helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_redirect},
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{DropReason, Epochs, FlowCacheEntry, Headers, maps::FLOW_CACHE_CAPACITY};

use crate::{
    frame, learn,
    plain::{Place, addresses, has, is_plain, kind, read},
    pod, policy,
    rewrite::rewrite,
    tell,
    tunnel::{self, Origin},
};

#[btf_map(name = "ctv_fast")]
static FLOW_CACHE: PerCpuArray<FlowCacheEntry, FLOW_CACHE_CAPACITY> = PerCpuArray::new();

/// The agent adds to it in its own memory.
#[btf_map(name = "ctv_epochs")]
static EPOCHS: Array<Epochs, 1, { aya_ebpf::bindings::BPF_F_MMAPABLE as usize }> = Array::new();

/// What [`find`] returns when the packet has to go through the stages.
const STAGES: i32 = -100;
/// And when it could not be rewritten.
const FAILED: i32 = -101;

/// Sends a pod's packet on if there is a shortcut for it, and says what the kernel is to be told. Else it is noted as it is,
/// for `learn`.
#[inline(always)]
pub(crate) fn take(ctx: &TcContext) -> Option<i32> {
    // Here without a call, which costs 10 ns where the processor's returns are held against speculation.
    verdict(ctx, find(ctx, 0, 0))
}

/// The same of a packet from an interface that is that of many: where it comes from is as `FlowCacheEntry` has it, without a node
/// unless it came by a tunnel.
#[inline(always)]
pub(crate) fn take_from(ctx: &TcContext, from: Origin) -> Option<i32> {
    verdict(ctx, ctv_take(ctx.skb.skb, from.vni, u32::from_ne_bytes(from.vtep)))
}

#[inline(always)]
fn verdict(ctx: &TcContext, code: i32) -> Option<i32> {
    match code {
        STAGES => None,
        FAILED => {
            tell::dropped(ctx, crate::arrival(ctx), DropReason::RewriteFailed);
            Some(TC_ACT_SHOT)
        }
        code => Some(code),
    }
}

/// A function of its own for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_take(skb: *mut __sk_buff, vni: u32, vtep: u32) -> i32 {
    find(&TcContext::new(skb), vni, vtep)
}

#[inline(always)]
fn find(ctx: &TcContext, vni: u32, vtep: u32) -> i32 {
    let kind = kind(ctx);
    let taken = if kind == frame::IPV4.wire() {
        pass::<false>(ctx, vni, vtep)
    } else if kind == frame::IPV6.wire() {
        pass::<true>(ctx, vni, vtep)
    } else {
        Err(STAGES)
    };
    // One way for both families from here on, so that the verifier follows it once.
    let code = taken.map_or_else(|code| code, |shortcut| follow(ctx, shortcut));
    if code == STAGES {
        learn::ctv_came(ctx.skb.skb, vni, vtep);
    }
    code
}

/// The shortcut in a place.
#[inline(always)]
pub(crate) fn at<'a>(place: u32) -> Option<&'a mut FlowCacheEntry> {
    let shortcut = FLOW_CACHE.get_ptr_mut(place & (FLOW_CACHE_CAPACITY as u32 - 1))?;
    // SAFETY: this CPU's own, as `packet::in_hand`.
    Some(unsafe { &mut *shortcut })
}

/// The numbers that shortcuts rely on.
#[inline(always)]
pub(crate) fn epochs() -> Option<*mut Epochs> {
    EPOCHS.get_ptr_mut(0)
}

/// Nanoseconds since boot, as they were at the last tick.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// How often the kernel's clock has ticked. Compiled into the program, where whoever asks for the time calls a function.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_jiffies64() }
}

/// Takes the shortcut of a packet, if it has one: it is rewritten. Else the result is [`STAGES`], or [`FAILED`].
#[inline(always)]
fn pass<'a, const IP6: bool>(ctx: &TcContext, vni: u32, vtep: u32) -> Result<&'a FlowCacheEntry, i32> {
    let (data, end) = (ctx.data(), ctx.data_end());
    if !is_plain::<IP6>(data, end) {
        return Err(STAGES);
    }
    // SAFETY: the context is the one that the kernel gave to this program.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: `is_plain` has said that they are there.
    let place =
        unsafe { Headers::place(addresses::<IP6>(data), read(data + Place::<IP6>::TRANSPORT), ifindex) };
    let (Some(shortcut), Some(epochs)) = (at(place), epochs()) else { return Err(STAGES) };
    // SAFETY: as above.
    let same = unsafe { has::<IP6>(data, &shortcut.headers) };
    // SAFETY: the one value of the array. Others add to it meanwhile, one number at a time.
    let epochs = unsafe { &*epochs };
    if !(same
        && shortcut.ifindex == ifindex
        && shortcut.vni == vni
        && u32::from_ne_bytes(shortcut.vtep) == vtep
        && is_right(shortcut, epochs))
    {
        return Err(STAGES);
    }
    shortcut.packets += 1;
    shortcut.bytes += u64::from(ctx.len());
    if shortcut.changes.what != 0 && !rewrite::<IP6>(ctx, shortcut) {
        return Err(FAILED);
    }
    Ok(shortcut)
}

/// Whether everything is as it was when the shortcut was made.
#[inline(always)]
fn is_right(shortcut: &FlowCacheEntry, epochs: &Epochs) -> bool {
    shortcut.all == epochs.all
        && shortcut.epoch == epochs.of(shortcut.shard)
        && ticks() < shortcut.until_tick
        && (shortcut.groups == [0; 2] || policy::are_sets_of(shortcut.groups, shortcut.generations))
}

/// Sends the packet where the flow's packets go; the result is the kernel's code, or [`FAILED`].
#[inline(always)]
fn follow(ctx: &TcContext, shortcut: &FlowCacheEntry) -> i32 {
    if shortcut.way == FlowCacheEntry::POD {
        // SAFETY: the one value of the array, of which the agent alone writes this.
        let takes = epochs().is_some_and(|epochs| unsafe { (*epochs).takes } != 0);
        return crate::deliver(ctx, shortcut.out, takes).unwrap_or(FAILED);
    }
    let addressed = if shortcut.way == FlowCacheEntry::TUNNEL {
        let vni = shortcut.segment.vni().unwrap_or(0);
        tunnel::address(ctx, vni, shortcut.to, shortcut.becomes.class)
    } else if shortcut.way == FlowCacheEntry::WIRE {
        pod::push_tag(ctx, shortcut.segment)
    } else {
        Ok(())
    };
    if addressed.is_err() {
        return FAILED;
    }
    // SAFETY: a helper without memory arguments.
    (unsafe { bpf_redirect(shortcut.out, 0) }) as i32
}
