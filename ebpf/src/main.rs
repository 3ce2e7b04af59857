//! The forwarding programs of the eBPF datapath: one per way in, each a short chain of stages, and those that they continue in.
//!
//! ```text
//! pod veth, ingress   -> fast_path         established flows between endpoints of the node
//!                     -> pod::receive     -> source::check -> neighbour::answer -> ip::pass -> pod::send
//! behind the queue    -> pod::resume      ->                  neighbour::answer -> ip::pass -> pod::send
//! VXLAN device        -> overlay::receive ->                  neighbour::answer -> ip::pass -> delivery
//! VLAN uplink         -> uplink::receive  ->                  neighbour::answer -> ip::pass -> delivery
//! the node's kernel   -> host::receive    ->                                       ip::pass -> delivery
//! VLAN uplink, XDP    -> xdp::receive     -> sent on to the node of a service's backend, or passed to the line above
//! the agent           -> import           inserts flows of another flow table
//!
//! ip::pass            =  parse -> track (established flow) -> nat
//! no flow             => slow_path::receive -> open (service -> policy -> insert) -> nat -> pod::send / delivery
//! several receivers   => flood::receive
//! ```
//!
//! A double arrow is a tail call into another program (`stages`).
//!
//! A stage returns a [`Verdict`]; only this file turns one into a code of the kernel.

#![no_std]
#![no_main]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a key that is handed over by value is copied to the stack, which has 512 bytes for all"
)]

mod checksum;
mod claim;
mod delivery;
mod dscp;
mod dsr;
mod dsr_table;
mod fast_path;
mod flood;
mod flow_collector;
mod flow_index;
mod flow_records;
mod flows;
mod frame;
mod gateway;
mod guard;
mod header;
mod host;
mod icmp_error;
mod import;
mod ip;
mod log;
mod maps;
mod nat;
mod nd;
mod neighbour;
mod open;
mod overlay;
mod packet;
mod packet_events;
mod parse;
mod plain;
mod pod;
mod policy;
mod rate;
mod receiver;
mod refuse;
mod route;
mod segment;
mod service;
mod service_counts;
mod service_entry;
mod skb;
mod slow_path;
mod source;
mod stages;
mod track;
mod tunnel;
mod uplink;
mod verdict;
mod xdp;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action},
    helpers::generated::{bpf_redirect, bpf_redirect_peer, bpf_skb_change_type},
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};
use contiv_abi::DropReason;
use verdict::Verdict;

/// `PACKET_HOST`: for the receiving stack.
const PACKET_HOST: u32 = 0;

/// A frame that a pod sent: ingress of the host end of its veth pair.
#[classifier]
fn ctv_from_pod(ctx: TcContext) -> i32 {
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    let ifindex = arrival(&ctx);
    if let Some(receiver) = fast_path::forward(&ctx, ifindex) {
        return deliver_or_drop(&ctx, ifindex, receiver);
    }
    log::begin();
    finish(&ctx, ifindex, pod::receive(&ctx))
}

/// A frame that a pod with a rate sent, after its time: ingress of the interface behind the queue. Its mark is its port.
#[classifier]
fn ctv_from_queue(ctx: TcContext) -> i32 {
    // The mark is for the next program then.
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: the context is the one that the kernel gave to this program.
    let port = unsafe { core::mem::take(&mut (*ctx.skb.skb).mark) };
    if port == 0 {
        // Nobody's but the host's own.
        return TC_ACT_UNSPEC;
    }
    log::begin();
    finish(&ctx, port, pod::resume(&ctx, port))
}

/// A frame from another node's tunnel: ingress of the VXLAN device.
#[classifier]
fn ctv_from_vxlan(ctx: TcContext) -> i32 {
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    log::begin();
    let ifindex = arrival(&ctx);
    let Ok(vni) = tunnel::origin(&ctx) else {
        return finish(&ctx, ifindex, Verdict::Drop(DropReason::NoTunnelKey));
    };
    finish(&ctx, ifindex, overlay::receive(&ctx, vni))
}

/// A frame from the wire: ingress of the VLAN uplink.
#[classifier]
fn ctv_from_uplink(ctx: TcContext) -> i32 {
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    let ifindex = arrival(&ctx);
    // Untagged frames and other people's tags belong to the host. Not "ok", which would end the chain: the next program on the
    // interface may want the frame.
    let Some((segment, entry)) = uplink::network(&ctx) else { return TC_ACT_UNSPEC };
    log::begin();
    if entry.out != ifindex {
        return finish(&ctx, ifindex, Verdict::Drop(DropReason::StandbyUplink));
    }
    if !uplink::enter(&ctx) {
        return finish(&ctx, ifindex, Verdict::Drop(DropReason::RewriteFailed));
    }
    finish(&ctx, ifindex, uplink::receive(&ctx, ifindex, segment, &entry))
}

/// A packet from the node's kernel: ingress of the datapath's end of the interface to it.
#[classifier]
fn ctv_from_host(ctx: TcContext) -> i32 {
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    log::begin();
    let ifindex = arrival(&ctx);
    finish(&ctx, ifindex, host::receive(&ctx, ifindex))
}

/// The same frame, earlier, where the driver or the kernel gives it to XDP.
///
/// Without `frags`: before a program with that flag, generic XDP of Linux 6.9 on copies frames with little room in front and
/// those that a bridge has cloned (`skb_pp_cow_data`), and the copy does not know how long its Ethernet header is: TC
/// programs then find the IP header in its place, unless the tag was in the bytes. The price is that drivers take the program
/// for an MTU of a page at most.
#[xdp]
fn ctv_xdp(ctx: XdpContext) -> u32 {
    if xdp::receive(&ctx) { xdp_action::XDP_TX } else { xdp_action::XDP_PASS }
}

/// Inserts the next flow of a batch that the agent has exported from another table. Only the agent runs it; it is attached to no
/// interface.
#[classifier]
fn ctv_import(_ctx: TcContext) -> i32 {
    import::import_next();
    TC_ACT_UNSPEC
}

/// A packet without a known flow, or one whose verdict is by other rules: a tail call of the programs above.
#[classifier]
fn ctv_slow_path(ctx: TcContext) -> i32 {
    let ifindex = ingress_ifindex(&ctx);
    finish(&ctx, ifindex, slow_path::receive(&ctx, ifindex))
}

/// A frame for several receivers: a tail call of the programs above.
#[classifier]
fn ctv_replicate(ctx: TcContext) -> i32 {
    finish(&ctx, ingress_ifindex(&ctx), flood::receive(&ctx))
}

/// Where the frame of the packet metadata has come in.
#[inline(always)]
fn ingress_ifindex(ctx: &TcContext) -> u32 {
    match packet::current() {
        Some(packet) if packet.source_port != 0 => packet.source_port,
        _ => arrival(ctx),
    }
}

#[inline(always)]
fn arrival(ctx: &TcContext) -> u32 {
    // SAFETY: the context is the one that the kernel gave to the program.
    unsafe { (*ctx.skb.skb).ifindex }
}

/// `ifindex` is where the frame has come in.
#[inline(always)]
fn finish(ctx: &TcContext, ifindex: u32, verdict: Verdict) -> i32 {
    log::verdict(ifindex, &verdict);
    match verdict {
        // Every copy is on its way; what is left of the original is of no use to anyone. TCX knows no
        // "stolen", so it goes the way of a drop, uncounted.
        Verdict::Delivered => TC_ACT_SHOT,
        Verdict::Drop(reason) => {
            packet_events::dropped(ctx, ifindex, reason);
            TC_ACT_SHOT
        }
        Verdict::Continue(stage) => {
            stages::enter(ctx, stage);
            packet_events::dropped(ctx, ifindex, DropReason::NoStage);
            TC_ACT_SHOT
        }
        Verdict::Wait { queue, priority, port } => {
            // SAFETY: the context is the one that the kernel gave to this program.
            unsafe {
                (*ctx.skb.skb).mark = port;
                (*ctx.skb.skb).priority = priority;
            }
            // SAFETY: a helper without memory arguments.
            (unsafe { bpf_redirect(queue, 0) }) as i32
        }
        Verdict::Pod { ifindex: place, group } => {
            match rate::receives(group, place, ctx.len()) {
                Ok(false) => {}
                // By way of the host end's own sending side, which `bpf_redirect_peer` passes over.
                // SAFETY: a helper without memory arguments.
                Ok(true) => return (unsafe { bpf_redirect(place, 0) }) as i32,
                Err(reason) => {
                    log::dropped(ifindex, reason);
                    packet_events::dropped(ctx, ifindex, reason);
                    return TC_ACT_SHOT;
                }
            }
            deliver_or_drop(ctx, ifindex, place)
        }
        Verdict::Back(port, reason) => {
            packet_events::dropped(ctx, ifindex, reason);
            // SAFETY: a helper without memory arguments.
            (unsafe { bpf_redirect(port, 0) }) as i32
        }
        // SAFETY: a helper without memory arguments.
        Verdict::Out(out) => (unsafe { bpf_redirect(out, 0) }) as i32,
    }
}

/// Gives the frame to the pod whose host end is `receiver`.
#[inline(always)]
fn deliver_or_drop(ctx: &TcContext, ifindex: u32, receiver: u32) -> i32 {
    deliver(ctx, receiver).unwrap_or_else(|reason| {
        packet_events::dropped(ctx, ifindex, reason);
        TC_ACT_SHOT
    })
}

/// Gives the frame to the pod whose host end this is, and says what the kernel is to be told.
#[inline(always)]
fn deliver(ctx: &TcContext, ifindex: u32) -> Result<i32, DropReason> {
    // The host end took the frame for a is_other_host's (its destination is not the host end's own address), and
    // the pod's stack would believe it.
    // SAFETY: the context is the one that the kernel gave to this program.
    let is_other_host = unsafe { (*ctx.skb.skb).pkt_type } != PACKET_HOST;
    // SAFETY: as above.
    if is_other_host && unsafe { bpf_skb_change_type(ctx.skb.skb, PACKET_HOST) } != 0 {
        return Err(DropReason::RewriteFailed);
    }
    // SAFETY: a helper without memory arguments.
    Ok((unsafe { bpf_redirect_peer(ifindex, 0) }) as i32)
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// Helpers such as `bpf_redirect_peer` are open to programs under a compatible licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
