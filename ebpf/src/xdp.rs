//! Frames from the wire of VLAN networks in the XDP hook, before the kernel has built an `skb`: frames of service clients to
//! backends on other nodes are forwarded immediately (DSR). All other frames, and those that this program does not parse, pass to
//! the TC program on the ingress of the uplink, which processes the former in the same way.

use aya_ebpf::programs::XdpContext;
use contiv_abi::{Be16, DsrHook, DsrKey, Phase, Segment, SegmentEntry, TCP, UDP};

use crate::{
    dsr, dsr_table, flow_index, flows,
    frame::{self, IPV4, IPV6, MAC, VLAN, service},
    header::{Ipv4, Ipv6},
    maps,
    packet::{self, DSR, Fragment, IcmpError},
    uplink::VID,
};

/// Offset of the IP header, behind the Ethernet header and one tag.
const L3: usize = 18;

/// Header fields of a frame to a service.
struct Headers {
    /// Destination Ethernet address, as a number with the first byte lowest. It is that of the service.
    to: u64,
    from: u64,
    /// VLAN identifier.
    tag: u16,
    /// Words of the IP addresses, and the ports, as `Tuple::set` takes them.
    ends: [[u64; 2]; 2],
    ports: u32,
    protocol: u8,
    /// TCP flags; zero for UDP.
    flags: u8,
    ip6: bool,
}

/// True if the frame was addressed to a backend on another node and is to be sent back to the wire.
#[inline(always)]
pub(crate) fn receive(ctx: &XdpContext) -> bool {
    forward(ctx).is_some()
}

/// A frame of a known connection is compared with its entry directly; the packet metadata is used only for other frames.
#[inline(always)]
fn forward(ctx: &XdpContext) -> Option<()> {
    let node = maps::node()?;
    if maps::phase_of(node) == Phase::RETIRED {
        return None;
    }
    let headers = read(ctx)?;
    let now = flows::recent();
    let Headers { tag, ends, ports, protocol, flags, .. } = headers;
    let key = DsrKey::new(Segment::vlan(tag), protocol, ends, ports);
    let backend = match dsr_table::lookup(node, &key, now, flags) {
        Some(mac) => mac,
        None => choose(&headers, now)?,
    };
    address(ctx, backend, headers.to)
}

/// Chooses the backend of a frame of an unknown connection, if the backend is on another node. A connection to a backend on this
/// node keeps it, even if the backend gets no new connections: a frame with a flow passes to the TC program.
#[inline(always)]
fn choose(headers: &Headers, now: u32) -> Option<u64> {
    // A flow that is still to be imported from another table has a backend.
    if maps::phase() != Phase::RUNNING {
        return None;
    }
    let Headers { to, from, tag, ends, ports, protocol, flags, ip6 } = *headers;
    let packet = packet::current()?;
    packet.segment = Segment::vlan(tag);
    packet.ip6 = u8::from(ip6);
    packet.set_destination_mac(to);
    packet.set_source_mac(from);
    packet.tuple.set(ends, ports, protocol);
    packet.protocol = protocol;
    packet.tcp = flags;
    packet.now = now;
    packet.domain = dsr::vip(packet.segment, &packet.tuple.destination)?.domain;
    if maps::segment_entry(&packet.segment)?.flags & SegmentEntry::ON_NODE != 0 {
        return None;
    }
    packet.wanted.set(ends, ports, protocol);
    packet.source_port = 0;
    packet.source_group = 0;
    packet.fragment = Fragment::NONE;
    packet.icmp_error = IcmpError::NONE;
    packet.hairpin = 0;
    packet.service = 0;
    packet.guarded = 1;
    if ctv_tracked() != 0 {
        return None;
    }
    let packet = packet::current()?;
    // Looked up again: another CPU may have written the entry.
    if dsr::ctv_lookup_dsr(&raw const packet.tuple) != DSR && dsr::ctv_dsr() != DSR {
        return None;
    }
    let packet = packet::current()?;
    let [a, b, c, d, e, f] = packet.destination_mac;
    Some(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
}

/// Whether the current packet belongs to a flow; non-zero if so.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_tracked() -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    let domain = packet.domain.number();
    let hash = flow_index::ctv_hash(&raw const packet.tuple, domain);
    u32::from(flow_index::find(&raw const packet.tuple, hash, domain) != 0)
}

/// Parses the headers of a frame to a service.
#[inline(always)]
fn read(ctx: &XdpContext) -> Option<Headers> {
    let (data, end) = (ctx.data(), ctx.data_end());
    // A standby uplink receives copies of frames to the active one.
    if data + L3 > end || ctx.ingress_ifindex() as u32 != maps::uplink() {
        return None;
    }
    // SAFETY: before the end of the frame, which was compared.
    let (to, from, kind, tci, inner) = unsafe {
        let [to, from] = [frame::read::<u64>(data), frame::read(data + 6)].map(|mac| u64::from_le(mac) & MAC);
        let word = |at| Be16::from_wire(frame::read::<u16>(data + at));
        (to, from, word(12), word(14), word(16))
    };
    let tag = tci.get() & VID;
    // The TC program counts frames with a multicast source and other invalid ones.
    if kind != VLAN || tag == 0 || from & 1 != 0 {
        return None;
    }
    if inner == IPV4 {
        parse::<false>(data, end, to, from, tag)
    } else if inner == IPV6 {
        parse::<true>(data, end, to, from, tag)
    } else {
        None
    }
}

/// Parses the headers of TCP or UDP over IP without options. Packets with options and fragments pass to the TC program.
#[inline(always)]
fn parse<const IP6: bool>(data: usize, end: usize, to: u64, from: u64, tag: u16) -> Option<Headers> {
    const FOUR_AND_FIVE_WORDS: u8 = 0x45;
    // "More fragments" and the fragment offset, in memory order.
    const FRAGMENT: u16 = 0x3fff_u16.to_be();
    const TCP_FLAGS: usize = 13;
    let (addresses, l4) = if IP6 {
        (data + L3 + 8, data + L3 + size_of::<Ipv6>())
    } else {
        (data + L3 + 12, data + L3 + size_of::<Ipv4>())
    };
    if l4 + 8 > end {
        return None;
    }
    // SAFETY: before the end of the frame, which was compared.
    unsafe {
        let version: u8 = frame::read(data + L3);
        let (plain, protocol): (bool, u8) = if IP6 {
            (version >> 4 == 6, frame::read(data + L3 + 6))
        } else {
            let fragment = frame::read::<u16>(data + L3 + 6) & FRAGMENT;
            (version == FOUR_AND_FIVE_WORDS && fragment == 0, frame::read(data + L3 + 9))
        };
        let ends = if IP6 {
            [
                [frame::read(addresses), frame::read(addresses + 8)],
                [frame::read(addresses + 16), frame::read(addresses + 24)],
            ]
        } else {
            [frame::mapped(frame::read(addresses)), frame::mapped(frame::read(addresses + 4))]
        };
        // Only these protocols have services.
        if !plain || protocol != TCP && protocol != UDP || to != service(ends[1]) {
            return None;
        }
        let mut flags = 0;
        if protocol == TCP {
            if l4 + TCP_FLAGS + 1 > end {
                return None;
            }
            flags = frame::read::<u8>(l4 + TCP_FLAGS);
        }
        Some(Headers { to, from, tag, ends, ports: frame::read(l4), protocol, flags, ip6: IP6 })
    }
}

/// Addresses the frame to the backend.
#[inline(always)]
fn address(ctx: &XdpContext, backend: u64, service: u64) -> Option<()> {
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + 12 > end {
        return None;
    }
    // SAFETY: before the end of the frame, which was compared.
    unsafe {
        frame::write(data, (backend | service << 48).to_le());
        frame::write(data + 8, ((service >> 16) as u32).to_le());
    }
    dsr::count(DsrHook::Xdp, (end - data) as u32);
    Some(())
}
