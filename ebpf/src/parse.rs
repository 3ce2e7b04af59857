//! From bytes to the ends of a packet: IPv4 with options, IPv6 with extension headers, TCP, UDP, SCTP,
//! ICMP, and the packets inside ICMP errors; fragments by what their first one told.

use aya_ebpf::{bindings::__sk_buff, btf_maps::LruHashMap, macros::btf_map, programs::TcContext};
use contiv_abi::{
    Address, Be16, DropReason, FragmentKey, FragmentPorts, TCP, Tuple, UDP, maps::FRAGMENTS_CAPACITY,
};

use crate::{
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    packet::{self, ICMP, ICMPV6, Packet, Piece, SCTP, Told},
};

#[btf_map(name = "ctv_frags")]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, FRAGMENTS_CAPACITY> = LruHashMap::new();

/// Extension headers that are followed. RFC 8200 4.1 has seven kinds; a packet with more than four is odd.
const EXTENSIONS: usize = 5;
/// Extension headers by their numbers.
mod next {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const OPTIONS: u8 = 60;
}

/// Reads the headers of IP, and what they carry, into the packet in hand. The caller has set its segment,
/// `ip6` and Ethernet addresses.
///
/// A function of its own for the verifier; its result is that of `packet::code`, or `AGAIN` for what keeps the
/// link itself going.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_parse(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    match parse(&ctx) {
        Ok(true) => packet::GO_ON,
        Ok(false) => packet::AGAIN,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn parse(ctx: &TcContext) -> Result<bool, DropReason> {
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    packet.l3 = ETHERNET as u32;
    packet.icmp_error = Told::NOTHING;
    packet.tcp = 0;
    packet.translated = 0;
    packet.hairpin = 0;
    packet.service = 0;
    packet.ruled = 0;
    match ctv_ip(ctx.skb.skb, packet.l3) {
        packet::GO_ON => {}
        reason => return Err(packet::reason(reason)),
    }
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    packet.tuple = packet.spare;
    packet.protocol = packet.tuple.protocol;
    packet.l4 = packet.next;
    // What an error quotes may be a piece, too.
    let (piece, identification) = (packet.piece, packet.identification);
    let mut ours = true;
    if piece == Piece::LATER {
        recall(packet)?;
        packet.wanted = packet.tuple;
    } else {
        ours = transport(ctx, packet)?;
        let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
        packet.piece = piece;
        packet.identification = identification;
        packet.wanted = packet.tuple;
        if piece == Piece::FIRST {
            remember(packet);
        }
    }
    Ok(ours)
}

/// Reads the headers of IP that begin at `at`: the ends without ports into `spare`, what follows into `next`,
/// and which piece of the packet it is.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_ip(skb: *mut __sk_buff, at: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.spare.source_port = Be16::new(0);
    packet.spare.destination_port = Be16::new(0);
    // SAFETY: bytes.
    unsafe { contiv_abi::clear(&raw mut packet.spare.zero) };
    packet.piece = Piece::WHOLE;
    packet::code(if packet.ip6 != 0 { ipv6(&ctx, packet, at) } else { ipv4(&ctx, packet, at) })
}

#[inline(always)]
fn ipv4(ctx: &TcContext, packet: &mut Packet, at: u32) -> Result<(), DropReason> {
    const MORE_AND_OFFSET: u16 = 0x3fff;
    const OFFSET: u16 = 0x1fff;
    let header = frame::load::<Ipv4>(ctx, at as usize)?;
    let length = u32::from(header.version_and_length & 0x0f) * 4;
    if header.version_and_length >> 4 != 4 || length < size_of::<Ipv4>() as u32 {
        return Err(DropReason::Malformed);
    }
    packet.spare.source = Address::v4(header.source);
    packet.spare.destination = Address::v4(header.destination);
    packet.spare.protocol = header.protocol;
    packet.identification = header.identification.wire().into();
    packet.next = at + length;
    let fragment = header.fragment.get();
    if fragment & OFFSET != 0 {
        packet.piece = Piece::LATER;
    } else if fragment & MORE_AND_OFFSET != 0 {
        packet.piece = Piece::FIRST;
    }
    Ok(())
}

#[inline(always)]
fn ipv6(ctx: &TcContext, packet: &mut Packet, at: u32) -> Result<(), DropReason> {
    let header = frame::load::<Ipv6>(ctx, at as usize)?;
    if header.version_class_label[0] >> 4 != 6 {
        return Err(DropReason::Malformed);
    }
    packet.spare.source = Address(header.source);
    packet.spare.destination = Address(header.destination);
    packet.spare.protocol = header.next;
    packet.next = at + size_of::<Ipv6>() as u32;
    for _ in 0..EXTENSIONS {
        match ctv_extension(ctx.skb.skb) {
            packet::GO_ON => return Ok(()),
            packet::AGAIN => {}
            reason => return Err(packet::reason(reason)),
        }
    }
    Err(DropReason::TooManyHeaders)
}

/// Follows one extension header; the result is `AGAIN` if there was one.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_extension(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    match extension(&ctx, packet) {
        Ok(true) => packet::AGAIN,
        Ok(false) => packet::GO_ON,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn extension(ctx: &TcContext, packet: &mut Packet) -> Result<bool, DropReason> {
    // Each begins with the next one's number and its own length, in units of 8 bytes beyond the first.
    let scale = match packet.spare.protocol {
        // What follows is data, whatever it looks like.
        _ if packet.piece == Piece::LATER => return Ok(false),
        next::HOP_BY_HOP | next::ROUTING | next::OPTIONS => 8,
        next::AUTHENTICATION => 4,
        next::FRAGMENT => 0,
        _ => return Ok(false),
    };
    let [next, length] = frame::load::<[u8; 2]>(ctx, packet.next as usize)?;
    packet.spare.protocol = next;
    if scale == 0 {
        let [_, offset, high, low] = frame::load::<[Be16; 4]>(ctx, packet.next as usize)?;
        packet.identification = u32::from(high.wire()) << 16 | u32::from(low.wire());
        // A lone fragment that is the whole packet (RFC 6946) is a whole packet.
        if offset.get() >> 3 != 0 {
            packet.piece = Piece::LATER;
        } else if offset.get() & 1 != 0 {
            packet.piece = Piece::FIRST;
        }
    }
    // The authentication header counts in fours, beyond the first two.
    packet.next += u32::from(length) * scale + 8;
    Ok(true)
}

/// Ports, TCP flags, echo identifiers, and the packet that an ICMP error is about. False of messages of the
/// link.
#[inline(always)]
fn transport(ctx: &TcContext, packet: &mut Packet) -> Result<bool, DropReason> {
    const IDENTIFIER: u32 = 4;
    let at = packet.l4;
    match packet.protocol {
        TCP => tcp(ctx, packet)?,
        UDP | SCTP => ports(ctx, at, &mut packet.tuple)?,
        ICMP | ICMPV6 => {
            let kind = frame::load::<u8>(ctx, at as usize)?;
            match Message::of(packet.protocol, kind) {
                Message::Echo => {
                    let identifier = frame::load::<Be16>(ctx, (at + IDENTIFIER) as usize)?;
                    packet.tuple.source_port = identifier;
                    packet.tuple.destination_port = identifier;
                }
                Message::Error => about(ctx, packet)?,
                Message::OfTheLink => return Ok(false),
                Message::Other => {}
            }
        }
        _ => {}
    }
    Ok(true)
}

/// The header of TCP up to its flags.
#[repr(C)]
struct TcpHead {
    ports: [Be16; 2],
    sequence: [Be16; 2],
    acknowledged: [Be16; 2],
    offset: u8,
    flags: u8,
}

/// Ports, flags and sequence numbers of a segment.
#[inline(always)]
fn tcp(ctx: &TcContext, packet: &mut Packet) -> Result<(), DropReason> {
    let header = frame::load::<TcpHead>(ctx, packet.l4 as usize)?;
    let number = |[high, low]: [Be16; 2]| u32::from(high.get()) << 16 | u32::from(low.get());
    [packet.tuple.source_port, packet.tuple.destination_port] = header.ports;
    packet.tcp = header.flags;
    packet.sequence = number(header.sequence);
    packet.acknowledged = number(header.acknowledged);
    // What the frame has beyond the header; padding of a short frame makes no difference that matters.
    let data = ctx.len().wrapping_sub(packet.l4).wrapping_sub(u32::from(header.offset >> 4) * 4);
    // SYN and FIN take a number each; without branches, their bits being 2 and 1.
    let counted = u32::from(header.flags >> 1 & 1) + u32::from(header.flags & 1);
    packet.end = packet.sequence.wrapping_add(data).wrapping_add(counted);
    Ok(())
}

enum Message {
    Echo,
    Error,
    /// Router and neighbour discovery (RFC 4861).
    OfTheLink,
    Other,
}

impl Message {
    #[inline(always)]
    fn of(protocol: u8, kind: u8) -> Message {
        // Echo; unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792); and those of
        // RFC 4443, where every type below 128 is an error.
        match (protocol, kind) {
            (ICMP, 0 | 8) | (ICMPV6, 128 | 129) => Message::Echo,
            (ICMP, 3 | 4 | 5 | 11 | 12) | (ICMPV6, 0..=127) => Message::Error,
            (ICMPV6, 133..=137) => Message::OfTheLink,
            _ => Message::Other,
        }
    }
}

#[inline(always)]
fn ports(ctx: &TcContext, at: u32, tuple: &mut Tuple) -> Result<(), DropReason> {
    let [source, destination] = frame::load::<[Be16; 2]>(ctx, at as usize)?;
    tuple.source_port = source;
    tuple.destination_port = destination;
    Ok(())
}

/// The packet inside an ICMP error went the other way.
#[inline(always)]
fn about(ctx: &TcContext, packet: &mut Packet) -> Result<(), DropReason> {
    const ICMP_HEADER: u32 = 8;
    let at = packet.l4 + ICMP_HEADER;
    // What cannot be read is about nothing that we know: the error goes its way as a packet of its own.
    packet.icmp_error = Told::LITTLE;
    if ctv_ip(ctx.skb.skb, at) != packet::GO_ON {
        return Ok(());
    }
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    if packet.piece == Piece::LATER {
        return Ok(());
    }
    packet.inner = packet.spare;
    packet.inner_l3 = at;
    packet.inner_l4 = packet.next;
    let protocol = packet.inner.protocol;
    match protocol {
        TCP | UDP | SCTP if ports(ctx, packet.inner_l4, &mut packet.inner).is_err() => return Ok(()),
        ICMP | ICMPV6 => {
            const IDENTIFIER: u32 = 4;
            let Ok(identifier) = frame::load::<Be16>(ctx, (packet.inner_l4 + IDENTIFIER) as usize) else {
                return Ok(());
            };
            packet.inner.source_port = identifier;
            packet.inner.destination_port = identifier;
        }
        _ => {}
    }
    packet.icmp_error = Told::FLOW;
    Ok(())
}

#[inline(always)]
fn fragment_key(packet: &Packet) -> FragmentKey {
    FragmentKey {
        segment: packet.segment,
        source: packet.tuple.source,
        destination: packet.tuple.destination,
        identification: packet.identification,
        protocol: packet.protocol.into(),
    }
}

/// Later fragments will ask.
#[inline(always)]
fn remember(packet: &Packet) {
    let ports =
        FragmentPorts { source: packet.tuple.source_port, destination: packet.tuple.destination_port };
    // Without memory the later fragments are dropped, and counted.
    let _noted = FRAGMENTS.insert(fragment_key(packet), ports, 0);
}

#[inline(always)]
fn recall(packet: &mut Packet) -> Result<(), DropReason> {
    // SAFETY: copied at once.
    let ports = unsafe { FRAGMENTS.get(fragment_key(packet)) }.copied().ok_or(DropReason::UnknownFragment)?;
    packet.tuple.source_port = ports.source;
    packet.tuple.destination_port = ports.destination;
    Ok(())
}
