//! Frames from the wire of VLAN networks before the kernel has made anything of them: those of services' clients that go
//! on to another node are sent on at once. All others, and all that this program does not understand, go to the program on
//! the uplink's ingress, which does the same and everything else.

use aya_ebpf::programs::XdpContext;
use contiv_abi::{Address, Be16, DsrHook, Mac, Segment, TCP, Tuple, UDP, service_mac};

use crate::{
    flow_index, flows,
    frame::{IPV4, IPV6, VLAN},
    header::{Ipv4, Ipv6},
    maps,
    packet::{self, Packet, Piece, RELAY, Told},
    relay::{self, Macs},
    source,
    uplink::VID,
};

/// An Ethernet header with one tag.
#[repr(C)]
struct Tagged {
    destination: Mac,
    source: Mac,
    kind: Be16,
    tci: Be16,
    inner: Be16,
}

/// Where IP begins.
const L3: usize = size_of::<Tagged>();
const _: () = assert!(L3 == 18);

/// A header in the frame, if the frame is as long.
#[inline(always)]
fn at<T>(ctx: &XdpContext, offset: usize) -> Option<*mut T> {
    let start = ctx.data() + offset;
    (start + size_of::<T>() <= ctx.data_end()).then_some(start as *mut T)
}

/// Somewhere in the frame, by value: nothing there is aligned.
#[inline(always)]
fn load<T>(ctx: &XdpContext, offset: usize) -> Option<T> {
    // SAFETY: it is in the frame; headers are plain numbers.
    at::<T>(ctx, offset).map(|header| unsafe { header.read_unaligned() })
}

/// True when the frame has been addressed to a backend on another node, and is to be sent back to the wire.
#[inline(always)]
pub(crate) fn receive(ctx: &XdpContext) -> bool {
    read(ctx).is_some() && is_relayed() && address(ctx).is_some()
}

/// Whether the packet in hand goes to a backend on another node. A connection to a backend here stays with it, also when the
/// backend gets no new ones: what has a flow is for the other program.
#[inline(always)]
fn is_relayed() -> bool {
    relay::ctv_known() == RELAY || ctv_tracked() == 0 && relay::ctv_relay() == RELAY
}

/// Whether the packet in hand belongs to a flow; not zero if so. A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_tracked() -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
    let domain = packet.domain.number();
    let hash = flow_index::ctv_hash(&raw const packet.tuple, domain);
    u32::from(flow_index::find(&raw const packet.tuple, hash, domain) != 0)
}

/// Reads what is for a service into the packet in hand.
#[inline(always)]
fn read(ctx: &XdpContext) -> Option<()> {
    // An uplink that stands by gets copies of what the active one gets.
    if ctx.ingress_ifindex() as u32 != maps::uplink() {
        return None;
    }
    let ethernet = load::<Tagged>(ctx, 0)?;
    let tag = ethernet.tci.get() & VID;
    // Of senders for many, and the like, the other program says what is wrong.
    if ethernet.kind != VLAN || tag == 0 || ethernet.source[0] & 1 != 0 {
        return None;
    }
    let packet = packet::in_hand()?;
    packet.segment = Segment::vlan(tag);
    packet.ip6 = u8::from(ethernet.inner == IPV6);
    packet.destination_mac = ethernet.destination;
    packet.source_mac = ethernet.source;
    let l4 = match ethernet.inner {
        IPV4 => ipv4(ctx, packet)?,
        IPV6 => ipv6(ctx, packet)?,
        _ => return None,
    };
    let to = &packet.tuple.destination;
    if !source::same(&ethernet.destination, &service_mac(to)) {
        return None;
    }
    packet.domain = relay::vip(packet.segment, to)?.domain;
    transport(ctx, packet, l4)?;
    packet.wanted = packet.tuple;
    packet.now = flows::now();
    packet.source_port = 0;
    packet.source_group = 0;
    packet.piece = Piece::WHOLE;
    packet.icmp_error = Told::NOTHING;
    packet.hairpin = 0;
    packet.service = 0;
    packet::ctv_key(&raw const packet.tuple, &raw mut packet.key);
    Some(())
}

/// Where the transport begins. What has options or is a fragment is for the other program.
#[inline(always)]
fn ipv4(ctx: &XdpContext, packet: &mut Packet) -> Option<usize> {
    const FOUR_AND_FIVE_WORDS: u8 = 0x45;
    const MORE_AND_OFFSET: u16 = 0x3fff;
    let header = load::<Ipv4>(ctx, L3)?;
    let plain = header.version_and_length == FOUR_AND_FIVE_WORDS
        && header.fragment.get() & MORE_AND_OFFSET == 0
        && is_served(header.protocol);
    packet.tuple.source = Address::v4(header.source);
    packet.tuple.destination = Address::v4(header.destination);
    packet.tuple.protocol = header.protocol;
    plain.then_some(L3 + size_of::<Ipv4>())
}

#[inline(always)]
fn ipv6(ctx: &XdpContext, packet: &mut Packet) -> Option<usize> {
    let header = load::<Ipv6>(ctx, L3)?;
    let plain = header.version_class_label[0] >> 4 == 6 && is_served(header.next);
    packet.tuple.source = Address(header.source);
    packet.tuple.destination = Address(header.destination);
    packet.tuple.protocol = header.next;
    plain.then_some(L3 + size_of::<Ipv6>())
}

/// Services have ports of these.
#[inline(always)]
const fn is_served(protocol: u8) -> bool {
    protocol == TCP || protocol == UDP
}

#[inline(always)]
fn transport(ctx: &XdpContext, packet: &mut Packet, l4: usize) -> Option<()> {
    const FLAGS: usize = 13;
    let [source, destination] = load::<[Be16; 2]>(ctx, l4)?;
    let Tuple { source_port, destination_port, protocol, zero, .. } = &mut packet.tuple;
    *source_port = source;
    *destination_port = destination;
    *zero = [0; 3];
    packet.protocol = *protocol;
    packet.tcp = if *protocol == TCP { load::<u8>(ctx, l4 + FLAGS)? } else { 0 };
    Some(())
}

/// Addresses the frame to the backend.
#[inline(always)]
fn address(ctx: &XdpContext) -> Option<()> {
    let packet = packet::in_hand()?;
    let macs = at::<Macs>(ctx, 0)?;
    let service = service_mac(&packet.tuple.destination);
    // SAFETY: in the frame, as was just seen; addresses of Ethernet are bytes.
    unsafe { macs.write_unaligned(Macs { destination: packet.destination_mac, source: service }) };
    relay::count(DsrHook::Xdp, (ctx.data_end() - ctx.data()) as u32);
    Some(())
}
