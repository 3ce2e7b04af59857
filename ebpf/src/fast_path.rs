//! The fast path: packets of established TCP and UDP flows between endpoints of this node.
//!
//! On kernels that mitigate speculation of returns, the calls of the stages cost more than their work, so this is one function.
//! It makes no decisions: it compares the results of the lookups that the stages would make. A packet for which a comparison
//! fails, or which changes the state of its flow, takes the stages unchanged. The fast path has no cache; it reads the same maps
//! as the stages, so it cannot be outdated.

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{
    Be16, Flow, FlowBucket, FlowHalf, FlowHash, Node, PortSlot, TCP, UDP, dhcp_client, idle, tcp,
};

use crate::{
    flows,
    frame::{IPV4, IPV6, service},
    maps,
    plain::{self, Change, Plain},
    policy, service_counts,
};

/// Rewrites the packet for the local port that receives it, and returns the interface index of that port. `None` for a packet
/// that takes the stages; it is unchanged.
#[inline(always)]
pub(crate) fn forward(ctx: &TcContext, ifindex: u32) -> Option<u32> {
    // The log shows stages.
    // SAFETY: the context is the one that the kernel gave to this program.
    if cfg!(feature = "log") || unsafe { (*ctx.skb.skb).vlan_present } != 0 {
        return None;
    }
    let receiver = match plain::kind(ctx) {
        kind if kind == IPV4.wire() => ctv_fast_path(ctx.skb.skb, ifindex),
        kind if kind == IPV6.wire() => ctv_fast_path6(ctx.skb.skb, ifindex),
        _ => STAGES,
    };
    (receiver != STAGES).then_some(receiver)
}

/// Result: the packet takes the stages. No interface has this index.
const STAGES: u32 = 0;

/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_fast_path(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    pass::<false>(&TcContext::new(skb), ifindex).unwrap_or(STAGES)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_fast_path6(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    pass::<true>(&TcContext::new(skb), ifindex).unwrap_or(STAGES)
}

/// Interface index of the receiver. The packet is rewritten if its flow is translated.
#[inline(always)]
fn pass<const IP6: bool>(ctx: &TcContext, ifindex: u32) -> Option<u32> {
    let packet = plain::parse::<IP6>(ctx)?;
    let from = maps::port_slot(PortSlot::number(ifindex))?;
    let node = maps::node()?;
    if from.ifindex != ifindex
        || from.queue != 0
        || packet.source_mac != plain::mac(&from.mac)
        || !has::<IP6>(from, packet.source)
        || is_guarded::<IP6>(&packet, node)
    {
        return None;
    }
    let (number, generation, reply) = find(&packet, from.domain.number(), node)?;
    let place = flows::record(number)?;
    // SAFETY: a record of the map. Whether it has been reused for another flow is checked below.
    let flow = unsafe { &*place };
    // SAFETY: one of two halves. Other CPUs may write the same counters; then one count is lost.
    let half = unsafe { &mut *(&raw mut (*place).halves).cast::<FlowHalf>().add(reply.into()) };
    let now = flows::recent();
    let flags = flow.head.flags;
    if flags & Flow::HAIRPIN != 0 || !is_established(packet.protocol, half, now, node) {
        return None;
    }
    // Checked once per second, as in the stages, which remove the flow.
    if flags & Flow::NAT != 0 && half.seen != now && flows::ctv_is_reused(number) != 0 {
        return None;
    }
    let to = maps::port_slot(u32::from(half.receiver).wrapping_sub(1))?;
    // The receiver's address, after the translation if there is one.
    let wanted = if reply { flow.client.words() } else { flow.backend.words() };
    let groups = if reply { [to.group, from.group] } else { [from.group, to.group] };
    if to.ifindex == 0
        || to.ifindex == ifindex
        || to.segment != from.segment
        || !has::<IP6>(to, wanted)
        || !policy::allows_fast_path(half, reply, groups)
    {
        return None;
    }
    let mac = plain::mac(&to.mac);
    // A packet to a service has the Ethernet address of the service.
    let addressed = if words_differ(wanted, packet.destination) { service(packet.destination) } else { mac };
    let change = if reply {
        Change {
            before: packet.source,
            after: flow.destination.words(),
            ports: flow.ports().rotate_left(16),
            mac,
        }
    } else {
        Change { before: packet.destination, after: wanted, ports: flow.reply_ports().rotate_left(16), mac }
    };
    // All fields of the flow have been read before this point.
    compiler_fence(Ordering::SeqCst);
    if packet.destination_mac != addressed || u32::from(flows::head(place).generation) != generation {
        return None;
    }
    if flags & Flow::NAT != 0 && !plain::rewrite::<IP6>(ctx, &packet, reply, &change) {
        return None;
    }
    count(half, &packet, now, ctx.len());
    service_counts::packet_forwarded_inline(node, half.service, reply, ctx.len());
    Some(to.ifindex)
}

#[inline(always)]
const fn words_differ([a, b]: [u64; 2], [c, d]: [u64; 2]) -> bool {
    (a ^ c) | (b ^ d) != 0
}

/// Whether the port has this address.
#[inline(always)]
fn has<const IP6: bool>(port: &PortSlot, [high, low]: [u64; 2]) -> bool {
    if IP6 {
        let [own_high, own_low] = port.ip6.words();
        (high ^ own_high) | (low ^ own_low) == 0 && high | low != 0
    } else {
        // The mapped form of 0.0.0.0 is not zero, so it does not match a port without an address.
        low == port.ip.words()[1]
    }
}

/// Whether the guard in the stages may drop this UDP packet.
#[inline(always)]
fn is_guarded<const IP6: bool>(packet: &Plain, node: &Node) -> bool {
    let destination = Be16::from_wire((packet.ports >> 16) as u16);
    packet.protocol == UDP && (destination == node.tunnel_port || destination == Be16::new(dhcp_client(IP6)))
}

/// Number of records from which a table is much larger than the caches.
const LARGE_TABLE: u32 = 1 << 19;

/// Number and generation of the flow's record, and whether the packet is a reply. Reads one or two buckets and one record. If
/// that record is another flow with the same tag, the stages continue the search.
#[inline(always)]
fn find(packet: &Plain, domain: u32, node: &Node) -> Option<(u32, u32, bool)> {
    let ends = [packet.source, packet.destination];
    let hash = FlowHash::of_words(node.seed, domain, packet.protocol, ends, packet.ports);
    // Prefetches the probable record. The record of a translated reply is elsewhere: in a table that fits into the caches for the
    // most part, that cache miss costs more than the prefetches of other packets save.
    if node.flows >= LARGE_TABLE {
        flows::touch(hash.record(node.flows));
    }
    let page = hash.page(node.flow_pages) * FlowBucket::PER_PAGE;
    let [first, second] = hash.buckets();
    // SAFETY: a bucket of the map. Other CPUs may write slots, each with one store.
    let mut entry = unsafe { &*flows::bucket(page + first)? }.first(hash.tag());
    if entry == 0 {
        // SAFETY: as above.
        entry = unsafe { &*flows::bucket(page + second)? }.first(hash.tag());
    }
    if entry == 0 {
        return None;
    }
    let reply = entry & 1 != 0;
    let place = flows::record(entry >> 1)?;
    let head = flows::head(place);
    // SAFETY: a record of the map. The head shows whether it has changed.
    let flow = unsafe { &*place };
    let (source, destination, ports) = if reply {
        (&flow.backend, &flow.client, flow.reply_ports())
    } else {
        (&flow.client, &flow.destination, flow.ports())
    };
    let same = !words_differ(source.words(), packet.source)
        && !words_differ(destination.words(), packet.destination);
    (same && ports == packet.ports && head.is_of(domain, packet.protocol)).then_some((
        entry >> 1,
        head.generation.into(),
        reply,
    ))
}

/// Whether the packet cannot change the state of its flow: both directions have sent packets, and neither has ended the flow.
#[inline(always)]
fn is_established(protocol: u8, half: &FlowHalf, now: u32, node: &Node) -> bool {
    let tcp = protocol == TCP;
    let sent = if tcp { tcp::sent::ANY | tcp::sent::ACK } else { tcp::sent::ANY };
    let timeout = if tcp { node.timeouts.tcp } else { node.timeouts.udp };
    half.sent & sent == sent
        && half.other & tcp::sent::ANY != 0
        && (half.sent | half.other) & tcp::sent::END == 0
        && (half.seen == now || idle(now, half.seen) <= timeout)
}

/// Counts a packet of a direction.
#[inline(always)]
fn count(half: &mut FlowHalf, packet: &Plain, now: u32, len: u32) {
    half.packets += 1;
    half.bytes += u64::from(len);
    // Written only if it changes.
    if half.seen != now {
        half.seen = now;
    }
    if packet.protocol == TCP {
        half.end = tcp::later(packet.end, half.end);
        half.acknowledged = tcp::later(packet.acknowledged, half.acknowledged);
    }
}
