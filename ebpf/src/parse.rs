//! Parser for packets: IPv4 with options, IPv6 with extension headers, TCP, UDP, SCTP, ICMP, and the packets that ICMP errors
//! quote. Later fragments get the ports of the first one.

use aya_ebpf::{bindings::__sk_buff, btf_maps::LruHashMap, macros::btf_map, programs::TcContext};
use contiv_abi::{
    Address, Be16, Be32, DropReason, FragmentKey, FragmentPorts, TCP, Tuple, UDP, maps::FRAGMENTS_CAPACITY,
};

use crate::{
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    nd,
    packet::{self, Fragment, ICMP, ICMPV6, IcmpError, PacketMeta, SCTP},
};

#[btf_map(name = "ctv_frags")]
static FRAGMENTS: LruHashMap<FragmentKey, FragmentPorts, FRAGMENTS_CAPACITY> = LruHashMap::new();

/// Maximum number of extension headers. RFC 8200 4.1 defines seven kinds; a packet with more than four headers is unusual.
const EXTENSIONS: usize = 5;
/// Protocol numbers of extension headers.
mod next {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const OPTIONS: u8 = 60;
}

/// Parses IP and transport headers into the packet metadata. The caller has set `segment`, `domain`, `ip6`, `nd` and the Ethernet
/// addresses.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`, or `AGAIN` for valid neighbour discovery.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_parse(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    match parse(&ctx, packet) {
        Ok(true) => packet::GO_ON,
        Ok(false) => packet::AGAIN,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn parse(ctx: &TcContext, packet: &mut PacketMeta) -> Result<bool, DropReason> {
    packet.l3 = ETHERNET as u32;
    packet.icmp_error = IcmpError::NONE;
    packet.tcp = 0;
    packet.translated = 0;
    packet.hairpin = 0;
    packet.service = 0;
    packet.ruled = 0;
    packet::passes(ctv_limit_of(packet, ctx.skb.skb))?;
    packet::passes(ctv_ip(packet, ctx.skb.skb, ETHERNET as u32))?;
    packet.tuple = packet.spare;
    packet.protocol = packet.tuple.protocol;
    packet.l4 = packet.next;
    if packet.l4 > packet.limit {
        return Err(DropReason::Malformed);
    }
    // A packet that an ICMP error quotes may be a fragment, too.
    let fragment = packet.fragment;
    let mut ours = true;
    if fragment == Fragment::LATER {
        lookup_ports(packet)?;
        packet.wanted = packet.tuple;
    } else {
        ours = transport(ctx, packet)?;
        packet.fragment = fragment;
        packet.wanted = packet.tuple;
        if fragment == Fragment::FIRST {
            // ICMP errors are not long enough to be fragmented (RFC 1812 4.3.2.3, RFC 4443 2.4), and the later fragments would
            // not be compared with a flow.
            if packet.icmp_error != IcmpError::NONE {
                return Err(DropReason::UnrelatedIcmpError);
            }
            insert_ports(packet);
        }
    }
    Ok(ours)
}

/// Sets the end of the packet, which must not be behind the end of the frame.
///
/// Not inlined, to save stack. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_limit_of(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet::code(end(&TcContext::new(skb), packet))
}

#[inline(always)]
fn end(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    const TOTAL: usize = ETHERNET + 2;
    const PAYLOAD: usize = ETHERNET + 4;
    let (at, header) = if packet.ip6 != 0 { (PAYLOAD, size_of::<Ipv6>() as u32) } else { (TOTAL, 0) };
    let length = u32::from(frame::load::<Be16>(ctx, at)?.get());
    // The length is zero in a packet of more than 64 KiB that the kernel has not segmented yet (BIG TCP).
    let unsegmented = length == 0 && ctx.len() > u16::MAX.into();
    packet.limit = if unsegmented { ctx.len() } else { ETHERNET as u32 + header + length };
    if packet.limit > ctx.len() { Err(DropReason::Malformed) } else { Ok(()) }
}

/// Parses the IP headers at the offset `at`: stores the tuple without ports in `spare`, the offset behind the headers in `next`,
/// and the fragmentation in `fragment`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_ip(packet: *mut PacketMeta, skb: *mut __sk_buff, at: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet.spare.source_port = Be16::new(0);
    packet.spare.destination_port = Be16::new(0);
    // SAFETY: bytes.
    unsafe { contiv_abi::clear(&raw mut packet.spare.zero) };
    packet.fragment = Fragment::NONE;
    packet::code(if packet.ip6 != 0 { ipv6(&ctx, packet, at) } else { ipv4(&ctx, packet, at) })
}

#[inline(always)]
fn ipv4(ctx: &TcContext, packet: &mut PacketMeta, at: u32) -> Result<(), DropReason> {
    const MORE_AND_OFFSET: u16 = 0x3fff;
    const OFFSET: u16 = 0x1fff;
    let header = frame::load::<Ipv4>(ctx, at as usize)?;
    let length = u32::from(header.version_and_length & 0x0f) * 4;
    if header.version_and_length >> 4 != 4 || length < size_of::<Ipv4>() as u32 {
        return Err(DropReason::Malformed);
    }
    packet.spare.source.set_words(Address::v4(header.source).words());
    packet.spare.destination.set_words(Address::v4(header.destination).words());
    packet.spare.protocol = header.protocol;
    packet.identification = header.identification.wire().into();
    packet.fragment_protocol = header.protocol;
    packet.next = at + length;
    let fragment = header.fragment.get();
    if fragment & OFFSET != 0 {
        packet.fragment = Fragment::LATER;
        overlaps_flags(header.protocol, fragment & OFFSET)?;
    } else if fragment & MORE_AND_OFFSET != 0 {
        packet.fragment = Fragment::FIRST;
    }
    Ok(())
}

#[inline(always)]
fn ipv6(ctx: &TcContext, packet: &mut PacketMeta, at: u32) -> Result<(), DropReason> {
    let header = frame::load::<Ipv6>(ctx, at as usize)?;
    if header.version_class_label[0] >> 4 != 6 {
        return Err(DropReason::Malformed);
    }
    packet.spare.source = Address(header.source);
    packet.spare.destination = Address(header.destination);
    packet.spare.protocol = header.next;
    packet.fragment_protocol = header.next;
    packet.next = at + size_of::<Ipv6>() as u32;
    for _ in 0..EXTENSIONS {
        match ctv_extension(packet, ctx.skb.skb) {
            packet::GO_ON => return Ok(()),
            packet::AGAIN => {}
            reason => return Err(packet::reason(reason)),
        }
    }
    Err(DropReason::TooManyHeaders)
}

/// Parses one extension header; the result is `AGAIN` if there was one.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_extension(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    match extension(&ctx, packet) {
        Ok(true) => packet::AGAIN,
        Ok(false) => packet::GO_ON,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn extension(ctx: &TcContext, packet: &mut PacketMeta) -> Result<bool, DropReason> {
    // Each header begins with the number of the next one and its own length, in units of 8 bytes minus 1.
    let scale = match packet.spare.protocol {
        // A later fragment has no headers behind the fragment header, only data.
        _ if packet.fragment == Fragment::LATER => return Ok(false),
        next::HOP_BY_HOP | next::ROUTING | next::OPTIONS => 8,
        next::AUTHENTICATION => 4,
        next::FRAGMENT => 0,
        _ => return Ok(false),
    };
    let [next, length] = frame::load::<[u8; 2]>(ctx, packet.next as usize)?;
    packet.spare.protocol = next;
    if scale == 0 {
        let [_, offset, high, low] = frame::load::<[Be16; 4]>(ctx, packet.next as usize)?;
        packet.fragment_protocol = next;
        packet.identification = u32::from(high.wire()) << 16 | u32::from(low.wire());
        // An atomic fragment (RFC 6946) is a complete packet.
        if offset.get() >> 3 != 0 {
            packet.fragment = Fragment::LATER;
            overlaps_flags(next, offset.get() >> 3)?;
        } else if offset.get() & 1 != 0 {
            packet.fragment = Fragment::FIRST;
        }
    }
    // The length of the authentication header is in units of 4 bytes, minus 2.
    packet.next += u32::from(length) * scale + 8;
    Ok(true)
}

/// Refuses a fragment that would overwrite the flags in the TCP header (RFC 3128). `offset` is in units of 8 bytes.
#[inline(always)]
const fn overlaps_flags(protocol: u8, offset: u16) -> Result<(), DropReason> {
    if protocol == TCP && offset == 1 { Err(DropReason::Malformed) } else { Ok(()) }
}

/// Parses the transport header: ports, TCP flags, echo identifiers, and the packet that an ICMP error quotes. False for valid
/// neighbour discovery.
#[inline(always)]
fn transport(ctx: &TcContext, packet: &mut PacketMeta) -> Result<bool, DropReason> {
    const PORTS: u32 = 4;
    const ICMP_HEADER: u32 = 8;
    const IDENTIFIER: u32 = 4;
    let at = packet.l4;
    match packet.protocol {
        TCP => tcp(ctx, packet)?,
        // Bytes behind the end of the packet are not ports.
        UDP | SCTP if at + PORTS > packet.limit => return Err(DropReason::Malformed),
        UDP | SCTP => ports(ctx, at, &mut packet.tuple)?,
        ICMP | ICMPV6 if at + ICMP_HEADER > packet.limit => return Err(DropReason::Malformed),
        ICMP | ICMPV6 => {
            let kind = frame::load::<u8>(ctx, at as usize)?;
            match Message::of(packet, kind) {
                Message::Echo => {
                    let identifier = frame::load::<Be16>(ctx, (at + IDENTIFIER) as usize)?;
                    echo(&mut packet.tuple, kind, identifier);
                }
                Message::Error => about(ctx, packet)?,
                // Valid neighbour discovery has been checked before. The kernel of a pod also accepts some invalid messages, but
                // only with the hop limit of neighbour discovery.
                Message::Discovery if packet.nd != 0 => return Ok(false),
                Message::Discovery if hop_limit(ctx, packet)? == nd::HOP_LIMIT => {
                    return Err(DropReason::InvalidNeighbour);
                }
                Message::Discovery | Message::Other => {}
            }
        }
        _ => {}
    }
    Ok(true)
}

/// The TCP header up to its flags.
#[repr(C)]
struct TcpHead {
    ports: [Be16; 2],
    sequence: [Be16; 2],
    acknowledged: [Be16; 2],
    offset: u8,
    flags: u8,
}

/// Parses ports, flags and sequence numbers of a TCP segment.
#[inline(always)]
fn tcp(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    // Bytes behind the end of the packet are not part of the header.
    if packet.l4 + size_of::<TcpHead>() as u32 > packet.limit {
        return Err(DropReason::Malformed);
    }
    let header = frame::load::<TcpHead>(ctx, packet.l4 as usize)?;
    let number = |[high, low]: [Be16; 2]| u32::from(high.get()) << 16 | u32::from(low.get());
    [packet.tuple.source_port, packet.tuple.destination_port] = header.ports;
    packet.tcp = header.flags;
    packet.sequence = number(header.sequence);
    packet.acknowledged = number(header.acknowledged);
    let data = packet.limit.wrapping_sub(packet.l4).wrapping_sub(u32::from(header.offset >> 4) * 4);
    // SYN and FIN each take a sequence number. Branch-free: their bits are 2 and 1.
    let counted = u32::from(header.flags >> 1 & 1) + u32::from(header.flags & 1);
    packet.end = packet.sequence.wrapping_add(data).wrapping_add(counted);
    Ok(())
}

enum Message {
    Echo,
    Error,
    /// Router and neighbour discovery (RFC 4861).
    Discovery,
    Other,
}

impl Message {
    #[inline(always)]
    fn of(packet: &PacketMeta, kind: u8) -> Message {
        // Echo; unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792); and the types of RFC 4443, in
        // which each type below 128 is an error. Protocol 58 over IPv4 has no meaning.
        match (packet.protocol, packet.ip6, kind) {
            (ICMP, 0, 0 | 8) | (ICMPV6, 1, 128 | 129) => Message::Echo,
            (ICMP, 0, 3 | 4 | 5 | 11 | 12) | (ICMPV6, 1, 0..=127) => Message::Error,
            (ICMPV6, 1, 133..=137) => Message::Discovery,
            _ => Message::Other,
        }
    }
}

/// The identifier of an echo becomes the port of the endpoint that sends requests, so that a request does not match the replies
/// to requests with the same identifier. The other port is zero; an identifier of zero is stored as 1.
#[inline(always)]
fn echo(tuple: &mut Tuple, kind: u8, identifier: Be16) {
    let identifier = if identifier.wire() == 0 { Be16::new(1) } else { identifier };
    let request = kind == 8 || kind == 128;
    tuple.source_port = if request { identifier } else { Be16::new(0) };
    tuple.destination_port = if request { Be16::new(0) } else { identifier };
}

#[inline(always)]
fn hop_limit(ctx: &TcContext, packet: &PacketMeta) -> Result<u8, DropReason> {
    const HOP_LIMIT: u32 = 7;
    frame::load::<u8>(ctx, (packet.l3 + HOP_LIMIT) as usize)
}

#[inline(always)]
fn ports(ctx: &TcContext, at: u32, tuple: &mut Tuple) -> Result<(), DropReason> {
    let [source, destination] = frame::load::<[Be16; 2]>(ctx, at as usize)?;
    tuple.source_port = source;
    tuple.destination_port = destination;
    Ok(())
}

/// Parses the packet that an ICMP error quotes, which has the opposite direction.
#[inline(always)]
fn about(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    const ICMP_HEADER: u32 = 8;
    const PORTS: u32 = 4;
    const IDENTIFIER: u32 = 4;
    const SEQUENCE: u32 = 4;
    let at = packet.l4 + ICMP_HEADER;
    // An error with a quoted packet that cannot be parsed belongs to no flow. It is processed as an ordinary packet.
    packet.icmp_error = IcmpError::UNREADABLE;
    if ctv_ip(packet, ctx.skb.skb, at) != packet::GO_ON {
        return Ok(());
    }
    // Bytes behind the end of the packet are not quoted.
    let needed = match packet.spare.protocol {
        TCP => SEQUENCE + size_of::<Be32>() as u32,
        UDP | SCTP => PORTS,
        ICMP | ICMPV6 => IDENTIFIER + size_of::<Be16>() as u32,
        _ => 0,
    };
    if packet.fragment == Fragment::LATER || packet.next + needed > packet.limit {
        return Ok(());
    }
    packet.inner = packet.spare;
    packet.inner_l3 = at;
    packet.inner_l4 = packet.next;
    let protocol = packet.inner.protocol;
    match protocol {
        TCP | UDP | SCTP => ports(ctx, packet.inner_l4, &mut packet.inner)?,
        ICMP | ICMPV6 => {
            let identifier = frame::load::<Be16>(ctx, (packet.inner_l4 + IDENTIFIER) as usize)?;
            let kind = frame::load::<u8>(ctx, packet.inner_l4 as usize)?;
            echo(&mut packet.inner, kind, identifier);
        }
        _ => {}
    }
    if protocol == TCP {
        packet.sequence = frame::load::<Be32>(ctx, (packet.inner_l4 + SEQUENCE) as usize)?.get();
    }
    packet.icmp_error = IcmpError::FLOW;
    Ok(())
}

#[inline(always)]
fn fragment_key(packet: &PacketMeta) -> FragmentKey {
    FragmentKey {
        domain: packet.domain,
        identification: packet.identification,
        source: packet.tuple.source,
        destination: packet.tuple.destination,
        protocol: packet.fragment_protocol.into(),
        zero: 0,
    }
}

/// Stores the ports of a first fragment for the later ones.
#[inline(always)]
fn insert_ports(packet: &PacketMeta) {
    let ports = FragmentPorts {
        source: packet.tuple.source_port,
        destination: packet.tuple.destination_port,
        protocol: packet.protocol.into(),
    };
    // Without memory, the later fragments are dropped and counted.
    let _noted = FRAGMENTS.insert(fragment_key(packet), ports, 0);
}

#[inline(always)]
fn lookup_ports(packet: &mut PacketMeta) -> Result<(), DropReason> {
    // SAFETY: the value is copied at once.
    let ports = unsafe { FRAGMENTS.get(fragment_key(packet)) }.copied().ok_or(DropReason::UnknownFragment)?;
    packet.tuple.source_port = ports.source;
    packet.tuple.destination_port = ports.destination;
    packet.protocol = ports.protocol as u8;
    packet.tuple.protocol = packet.protocol;
    Ok(())
}
