//! Refusals: informs a client immediately that a service has no backends, by a TCP reset or by the ICMP error "port unreachable".
//! Also the ICMP error "time exceeded".

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::{bpf_csum_diff, bpf_skb_change_tail, bpf_skb_load_bytes},
    programs::TcContext,
};
use contiv_abi::{Address, Be16, DropReason, TCP, UDP};

use crate::{
    checksum::ctv_checksum,
    frame::{self, ETHERNET, Ethernet},
    header::{Ipv4, Ipv6, Ports, Tcp},
    packet::{self, ANSWER_LEN, Fragment, ICMP, ICMPV6, IcmpError, PacketMeta, tcp},
};

/// TTL of refusals.
const TTL: u8 = 64;

/// The header of an ICMP error, and the part of the packet that it quotes.
#[repr(C)]
struct Message<const QUOTED: usize> {
    /// Type and code.
    kind: [u8; 2],
    checksum: Be16,
    zero: [u8; 4],
    quoted: [u8; QUOTED],
}

/// The IP header and 8 bytes (RFC 792).
const QUOTED_V4: usize = 28;
/// The IP header and 8 bytes. RFC 4443 2.4 c recommends more, but a client needs only the ports.
const QUOTED_V6: usize = 48;

/// A complete answer.
#[repr(C)]
struct Answer<N, T> {
    ethernet: Ethernet,
    network: N,
    transport: T,
}

/// Overwrites the current packet with its refusal. A packet that must not be answered (a reset, a fragment, a packet with
/// options, which the answer would have to quote) is unchanged, and the result is the number of a drop reason.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_refuse(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet::code(refuse(&ctx, packet))
}

#[inline(always)]
fn refuse(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    let header = if packet.ip6 != 0 { size_of::<Ipv6>() } else { size_of::<Ipv4>() } as u32;
    if packet.fragment != Fragment::NONE || packet.l4 != packet.l3 + header {
        return Err(DropReason::NoBackend);
    }
    match (packet.protocol, packet.ip6 != 0) {
        (TCP, ip6) => {
            if packet.tcp & tcp::RST != 0 {
                return Err(DropReason::NoBackend);
            }
            match ctv_reset(ctx.skb.skb) {
                packet::GO_ON => {}
                reason => return Err(packet::reason(reason)),
            }
            if ip6 { reset_v6(ctx) } else { reset_v4(ctx) }
        }
        (UDP, false) => message_v4(ctx, PORT_UNREACHABLE),
        (UDP, true) => message_v6(ctx, PORT_UNREACHABLE_V6),
        _ => Err(DropReason::NoBackend),
    }
}

const PORT_UNREACHABLE: [u8; 2] = [3, 3];
const PORT_UNREACHABLE_V6: [u8; 2] = [1, 4];
const TIME_EXCEEDED: [u8; 2] = [11, 0];
const TIME_EXCEEDED_V6: [u8; 2] = [3, 0];

/// Overwrites the current packet with "time exceeded" from the address `gateway`. A packet that must not be answered (an ICMP
/// error, a fragment, a packet with options) is unchanged, and the result is the number of a drop reason.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_exceed(skb: *mut __sk_buff, gateway: *const Address) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole address.
    let Some(gateway) = (unsafe { gateway.as_ref() }) else { return DropReason::Malformed as u32 };
    let header = if packet.ip6 != 0 { size_of::<Ipv6>() } else { size_of::<Ipv4>() } as u32;
    let is_error = packet.icmp_error != IcmpError::NONE;
    if is_error || packet.fragment != Fragment::NONE || packet.l4 != packet.l3 + header {
        return DropReason::TtlExceeded as u32;
    }
    packet.tuple.destination.set_words(gateway.words());
    let ctx = TcContext::new(skb);
    packet::code(if packet.ip6 != 0 {
        message_v6(&ctx, TIME_EXCEEDED_V6)
    } else {
        message_v4(&ctx, TIME_EXCEEDED)
    })
}

/// Stores the TCP header of a reset in the packet metadata.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_reset(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet::code(reset(&TcContext::new(skb), packet))
}

/// A reset that the client accepts (RFC 9293 3.10.7.1).
#[inline(always)]
fn reset(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    let from = frame::load::<Tcp>(ctx, packet.l4 as usize)?;
    packet.reset = Tcp {
        ports: Ports { source: from.ports.destination, destination: from.ports.source },
        sequence: [Be16::new(0); 2],
        acknowledged: [Be16::new(0); 2],
        offset_and_flags: [5 << 4, tcp::RST],
        window: Be16::new(0),
        checksum: Be16::new(0),
        urgent: Be16::new(0),
    };
    if packet.tcp & tcp::ACK != 0 {
        packet.reset.sequence = from.acknowledged;
        return Ok(());
    }
    let header = u32::from(from.offset_and_flags[0] >> 4) * 4;
    let data = ip_end(ctx, packet)?.wrapping_sub(packet.l4 + header);
    // SYN and FIN each take a sequence number. Branch-free: their bits are 2 and 1.
    let counted = u32::from(packet.tcp >> 1 & 1) + u32::from(packet.tcp & 1);
    let [high, low] = from.sequence;
    let next = (u32::from(high.get()) << 16 | u32::from(low.get())).wrapping_add(data).wrapping_add(counted);
    packet.reset.acknowledged = [Be16::new((next >> 16) as u16), Be16::new(next as u16)];
    packet.reset.offset_and_flags[1] = tcp::RST | tcp::ACK;
    Ok(())
}

/// Offset of the end of the packet, which may be before the end of the frame.
#[inline(always)]
fn ip_end(ctx: &TcContext, packet: &PacketMeta) -> Result<u32, DropReason> {
    let (at, header) = if packet.ip6 != 0 { (4, size_of::<Ipv6>() as u32) } else { (2, 0) };
    let length = frame::load::<Be16>(ctx, packet.l3 as usize + at)?;
    Ok(packet.l3 + header + u32::from(length.get()))
}

/// The buffer for an answer, which is too large for the stack.
#[inline(always)]
fn buffer<T>(packet: &mut PacketMeta) -> &mut T {
    const { assert!(size_of::<T>() <= ANSWER_LEN && align_of::<T>() <= 8) };
    // SAFETY: size and alignment suffice, and any bytes are a valid value of these headers.
    unsafe { &mut *(&raw mut packet.answer).cast::<T>() }
}

/// Writes the Ethernet and IP headers of an answer with `payload` bytes of this protocol.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_envelope(protocol: u32, payload: u32) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    let ethernet = ethernet(packet);
    if packet.ip6 != 0 {
        let network = ipv6(packet, protocol as u8, payload as u16);
        let answer = buffer::<Answer<Ipv6, ()>>(packet);
        (answer.ethernet, answer.network) = (ethernet, network);
    } else {
        let network = ipv4(packet, protocol as u8, payload as u16 + size_of::<Ipv4>() as u16);
        let answer = buffer::<Answer<Ipv4, ()>>(packet);
        (answer.ethernet, answer.network) = (ethernet, network);
    }
    0
}

/// Writes the headers of an answer with a payload of type `T`. Returns the answer, and the TCP header of the reset.
#[inline(always)]
fn headers<'a, N, T>(protocol: u8) -> Result<(&'a mut Answer<N, T>, Tcp), DropReason> {
    ctv_envelope(protocol.into(), size_of::<T>() as u32);
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let reset = packet.reset;
    Ok((buffer(packet), reset))
}

#[inline(always)]
fn reset_v4(ctx: &TcContext) -> Result<(), DropReason> {
    let (answer, reset) = headers::<Ipv4, Tcp>(TCP)?;
    answer.transport = reset;
    let seed = pseudo_v4(&answer.network, TCP, size_of::<Tcp>());
    answer.transport.checksum = checksum_of_reset::<Ipv4>(ctx, &answer.transport, seed);
    send(ctx, answer)
}

#[inline(always)]
fn reset_v6(ctx: &TcContext) -> Result<(), DropReason> {
    let (answer, reset) = headers::<Ipv6, Tcp>(TCP)?;
    answer.transport = reset;
    let seed = pseudo_v6(&answer.network, TCP, size_of::<Tcp>());
    answer.transport.checksum = checksum_of_reset::<Ipv6>(ctx, &answer.transport, seed);
    send(ctx, answer)
}

#[inline(always)]
fn message_v4(ctx: &TcContext, kind: [u8; 2]) -> Result<(), DropReason> {
    let (answer, _) = headers::<Ipv4, Message<QUOTED_V4>>(ICMP)?;
    quote(ctx, &mut answer.transport, kind)?;
    answer.transport.checksum = checksum(&answer.transport, 0);
    send(ctx, answer)
}

#[inline(always)]
fn message_v6(ctx: &TcContext, kind: [u8; 2]) -> Result<(), DropReason> {
    let (answer, _) = headers::<Ipv6, Message<QUOTED_V6>>(ICMPV6)?;
    quote(ctx, &mut answer.transport, kind)?;
    let seed = pseudo_v6(&answer.network, ICMPV6, size_of::<Message<QUOTED_V6>>());
    answer.transport.checksum = checksum(&answer.transport, seed);
    send(ctx, answer)
}

/// Writes an ICMP message except for its checksum.
#[inline(always)]
fn quote<const QUOTED: usize>(
    ctx: &TcContext,
    message: &mut Message<QUOTED>,
    kind: [u8; 2],
) -> Result<(), DropReason> {
    message.kind = kind;
    message.checksum = Be16::new(0);
    message.zero = [0; 4];
    let to = (&raw mut message.quoted).cast();
    // SAFETY: the context is the one that the kernel gave to this program, and the buffer has the given length.
    if unsafe { bpf_skb_load_bytes(ctx.skb.skb.cast(), ETHERNET as u32, to, QUOTED as u32) } != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(())
}

#[inline(always)]
fn ethernet(packet: &PacketMeta) -> Ethernet {
    Ethernet {
        destination: packet.source_mac,
        source: packet.destination_mac,
        kind: if packet.ip6 != 0 { frame::IPV6 } else { frame::IPV4 },
    }
}

#[inline(always)]
fn ipv4(packet: &PacketMeta, protocol: u8, total: u16) -> Ipv4 {
    const DO_NOT_FRAGMENT: u16 = 0x4000;
    let mut header = Ipv4 {
        version_and_length: 0x45,
        service: 0,
        total: Be16::new(total),
        identification: Be16::new(0),
        fragment: Be16::new(DO_NOT_FRAGMENT),
        ttl: TTL,
        protocol,
        checksum: Be16::new(0),
        source: packet.tuple.destination.low(),
        destination: packet.tuple.source.low(),
    };
    header.checksum = checksum(&header, 0);
    header
}

#[inline(always)]
fn ipv6(packet: &PacketMeta, protocol: u8, payload: u16) -> Ipv6 {
    Ipv6 {
        version_class_label: [0x60, 0, 0, 0],
        payload: Be16::new(payload),
        next: protocol,
        hops: TTL,
        source: packet.tuple.destination.0,
        destination: packet.tuple.source.0,
    }
}

#[inline(always)]
fn pseudo_v4(header: &Ipv4, protocol: u8, len: usize) -> u32 {
    // Source and destination address are adjacent.
    sum_bytes((&raw const header.source).cast(), 8, seed(protocol, len))
}

#[inline(always)]
fn pseudo_v6(header: &Ipv6, protocol: u8, len: usize) -> u32 {
    sum_bytes((&raw const header.source).cast(), 32, seed(protocol, len))
}

/// Length and protocol of the pseudo header, in 16-bit words in memory order.
#[inline(always)]
fn seed(protocol: u8, len: usize) -> u32 {
    u32::from((len as u16).to_be()) + u32::from(u16::from(protocol).to_be())
}

#[inline(always)]
fn sum<T>(bytes: &T, seed: u32) -> u32 {
    sum_bytes((&raw const *bytes).cast(), size_of::<T>() as u32, seed)
}

#[inline(always)]
fn sum_bytes(bytes: *const u32, len: u32, seed: u32) -> u32 {
    // SAFETY: the callers pass the length of the buffer, and the helper only reads it.
    (unsafe { bpf_csum_diff(core::ptr::null_mut(), 0, bytes.cast_mut(), len, seed) }) as u32
}

#[inline(always)]
fn checksum<T>(bytes: &T, seed: u32) -> Be16 {
    Be16::from_wire(!folded(sum(bytes, seed)))
}

/// The checksum of a reset. If the kernel has still to write the checksum of the original segment, it will complete that of the
/// reset at the same offset, which must be the sum over the pseudo header then. In an ICMP message, the kernel writes two unused
/// bytes, with which the checksum is correct, too.
#[inline(always)]
fn checksum_of_reset<N>(ctx: &TcContext, reset: &Tcp, seed: u32) -> Be16 {
    const CHECKSUM: usize = 16;
    let is_written = ctv_checksum(ctx.skb.skb) == (ETHERNET + size_of::<N>() + CHECKSUM) as u32;
    if is_written { Be16::from_wire(folded(seed)) } else { checksum(reset, seed) }
}

#[inline(always)]
const fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) as u16 + (sum >> 16) as u16
}

#[inline(always)]
fn send<T>(ctx: &TcContext, answer: &T) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    if unsafe { bpf_skb_change_tail(ctx.skb.skb, size_of::<T>() as u32, 0) } != 0 {
        return Err(DropReason::RewriteFailed);
    }
    ctx.store(0, answer, u64::from(BPF_F_RECOMPUTE_CSUM)).map_err(|_| DropReason::RewriteFailed)
}
