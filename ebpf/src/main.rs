//! The forwarding programs of the eBPF datapath: one for each interface that frames enter by, each a short chain of stages, and
//! the programs that these continue in by tail calls.
//!
//! ```text
//! pod veth, ingress   -> fast_path         established flows between endpoints of the node
//!                     -> pod::receive     -> source::check -> neighbour::answer -> ip::pass -> pod::send
//! behind the queue    -> pod::resume      ->                  neighbour::answer -> ip::pass -> pod::send
//! VXLAN device        -> overlay::receive ->                  neighbour::answer -> ip::pass -> delivery
//! VLAN uplink         -> uplink::receive  ->                  neighbour::answer -> ip::pass -> delivery
//! the node's kernel   -> host::receive    ->                                       ip::pass -> delivery
//! VLAN uplink, XDP    -> xdp::receive     -> forwarded to the node of a service's backend (DSR), or passed to uplink::receive
//! the agent           -> import           inserts flows of another flow table
//!
//! ip::pass            =  parse -> track (established flow) -> nat
//! no flow             => slow_path::receive -> open (service -> policy -> insert) -> nat -> pod::send / delivery
//! several receivers   => flood::receive
//! ```
//!
//! A double arrow is a tail call into another program (`stages`).
//!
//! Exported functions (`ctv_*`) are global functions in BTF. The verifier checks a global function once, for any arguments, and
//! its callers assume any result; inlined code and static functions are checked anew on each path. Other functions are not
//! inlined only to save stack: the frames of a call chain share 512 bytes.
//!
//! A stage returns a [`Verdict`]. Only this file converts a verdict into a return code of the kernel.

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

/// `PACKET_HOST`: the frame is for this host.
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

/// A frame from a pod with a rate limit, after it has left the queue: ingress of the interface behind the queue. The mark of the
/// `skb` is the interface index of the pod's port.
#[classifier]
fn ctv_from_queue(ctx: TcContext) -> i32 {
    // The mark stays for the next program.
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: the context is the one that the kernel gave to this program.
    let port = unsafe { core::mem::take(&mut (*ctx.skb.skb).mark) };
    if port == 0 {
        // The frame is the host's own.
        return TC_ACT_UNSPEC;
    }
    log::begin();
    finish(&ctx, port, pod::resume(&ctx, port))
}

/// A frame from the tunnel of another node: ingress of the VXLAN device.
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
    // Untagged frames and frames with other tags belong to the host. The code is not `TC_ACT_OK`, which would end the chain: the
    // next program on the interface may process the frame.
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

/// A packet from the node's kernel: ingress of the datapath's end of the veth pair to the kernel.
#[classifier]
fn ctv_from_host(ctx: TcContext) -> i32 {
    if maps::is_retired() {
        return TC_ACT_UNSPEC;
    }
    log::begin();
    let ifindex = arrival(&ctx);
    finish(&ctx, ifindex, host::receive(&ctx, ifindex))
}

/// A frame from the wire in the XDP hook, before the kernel has built an `skb`.
///
/// Without `frags`: since Linux 6.9, generic XDP copies frames for a program with that flag if they have little headroom or were
/// cloned by a bridge (`skb_pp_cow_data`). The copy has no length of the Ethernet header, so TC programs find the IP header at
/// its offset, unless the tag was in the data. The disadvantage is that drivers accept the program for an MTU of at most a page.
#[xdp]
fn ctv_xdp(ctx: XdpContext) -> u32 {
    if xdp::receive(&ctx) { xdp_action::XDP_TX } else { xdp_action::XDP_PASS }
}

/// Inserts the next flow of a batch that the agent has exported from another flow table. Only the agent runs this program
/// (`BPF_PROG_TEST_RUN`); it is not attached to an interface.
#[classifier]
fn ctv_import(_ctx: TcContext) -> i32 {
    import::import_next();
    TC_ACT_UNSPEC
}

/// A packet without a known flow, or of a flow with an outdated verdict: tail-called by the programs above.
#[classifier]
fn ctv_slow_path(ctx: TcContext) -> i32 {
    let ifindex = ingress_ifindex(&ctx);
    finish(&ctx, ifindex, slow_path::receive(&ctx, ifindex))
}

/// A frame for several receivers: tail-called by the programs above.
#[classifier]
fn ctv_replicate(ctx: TcContext) -> i32 {
    finish(&ctx, ingress_ifindex(&ctx), flood::receive(&ctx))
}

/// Interface index that the frame of the packet metadata was received on.
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

/// Converts a verdict into a return code. `ifindex` is the interface that the frame was received on.
#[inline(always)]
fn finish(ctx: &TcContext, ifindex: u32, verdict: Verdict) -> i32 {
    log::verdict(ifindex, &verdict);
    match verdict {
        // All copies have been sent, and the original is not needed. TCX has no `TC_ACT_STOLEN`, so the original is dropped and
        // not counted.
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
                // By the egress path of the host end, which `bpf_redirect_peer` would bypass.
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

/// Redirects the frame to the pod with the host end `receiver`.
#[inline(always)]
fn deliver_or_drop(ctx: &TcContext, ifindex: u32, receiver: u32) -> i32 {
    deliver(ctx, receiver).unwrap_or_else(|reason| {
        packet_events::dropped(ctx, ifindex, reason);
        TC_ACT_SHOT
    })
}

/// Redirects the frame to the pod with the host end `ifindex`. Returns the code for the kernel.
#[inline(always)]
fn deliver(ctx: &TcContext, ifindex: u32) -> Result<i32, DropReason> {
    // The host end has classified the frame as `PACKET_OTHERHOST`, because its destination is not the address of the host end.
    // The pod's stack would use that classification.
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

// The kernel provides helpers such as `bpf_redirect_peer` only to programs with a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
