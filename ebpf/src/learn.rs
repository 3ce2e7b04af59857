//! Making shortcuts: of what the stages have done with a packet of a busy flow.

use aya_ebpf::{bindings::__sk_buff, btf_maps::PerCpuArray, macros::btf_map, programs::TcContext};
use contiv_abi::{Changes, Epochs, FlowCacheEntry, Headers, Segment, Vtep};

use crate::{
    flows,
    packet::{self, Packet},
    plain, policy, rate,
    rewrite::fold,
    served, shortcut,
};

/// A packet that went into the stages.
#[repr(C)]
struct Candidate {
    /// As it came.
    headers: Headers,
    /// As it goes on.
    becomes: Headers,
    ifindex: u32,
    vni: u32,
    vtep: u32,
    /// Where its shortcut goes.
    place: u32,
    /// [`Epochs::marks`], read before anything else.
    epochs: [u64; 2],
    /// 1 when it may have a shortcut.
    ready: u32,
    changes: Changes,
}

#[btf_map(name = "ctv_candidate")]
static CANDIDATE: PerCpuArray<Candidate, 1> = PerCpuArray::new();

#[inline(always)]
fn candidate<'a>() -> Option<&'a mut Candidate> {
    let candidate = CANDIDATE.get_ptr_mut(0)?;
    // SAFETY: this CPU's own, as `packet::in_hand`.
    Some(unsafe { &mut *candidate })
}

/// Notes the packet that goes into the stages. A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_came(skb: *mut __sk_buff, vni: u32, vtep: u32) -> u32 {
    let Some(noted) = candidate() else { return 0 };
    noted.ready = 0;
    if plain::ctv_headers(skb, &raw mut noted.headers) == 0 {
        return 0;
    }
    let (Some(noted), Some(epochs)) = (candidate(), shortcut::epochs()) else { return 0 };
    // SAFETY: the one value of the array; and the context is the kernel's.
    let (epochs, ifindex) = unsafe { ((*epochs).marks(), (*skb).ifindex) };
    noted.epochs = epochs;
    noted.ifindex = ifindex;
    noted.vni = vni;
    noted.vtep = vtep;
    noted.place = noted.headers.hash(ifindex);
    let Some(there) = shortcut::at(noted.place) else { return 0 };
    // Two flows with one place do not take it from each other with each packet: the first one of a second has it.
    let same = (there.ifindex, there.vni, there.vtep) == (ifindex, vni, vtep.to_ne_bytes())
        && there.headers.is(&noted.headers);
    noted.ready = u32::from(same || shortcut::ticks() >= there.until_tick);
    0
}

/// Where the packet in hand goes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Pod { ifindex: u32, group: u32 },
    Tunnel { ifindex: u32, vni: u32, to: Vtep },
    Wire { ifindex: u32, tag: u16 },
}

/// Notes what has become of the packet in hand, if it is of a busy flow. After the last change of its bytes.
#[inline(always)]
pub(crate) fn note(ctx: &TcContext, way: Way) {
    let skb = ctx.skb.skb;
    match way {
        Way::Pod { ifindex, group } => ctv_learn(skb, FlowCacheEntry::POD.into(), ifindex, group, 0),
        Way::Tunnel { ifindex, vni, to } => {
            ctv_learn(skb, FlowCacheEntry::TUNNEL.into(), ifindex, vni, u32::from_ne_bytes(to))
        }
        Way::Wire { ifindex, tag } => ctv_learn(skb, FlowCacheEntry::WIRE.into(), ifindex, tag.into(), 0),
    };
}

/// A function of its own for the verifier. `number` is the receiver's group, or the network that the packet leaves into.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_learn(skb: *mut __sk_buff, way: u32, out: u32, number: u32, to: u32) -> u32 {
    let (Some(packet), Some(noted)) = (packet::in_hand(), candidate()) else { return 0 };
    // Mostly it is not busy, and then this is all.
    if packet.busy == 0 || noted.ready == 0 || !is_free(packet, noted) {
        return 0;
    }
    let limit = if way as u16 == FlowCacheEntry::POD { rate::ctv_limit(number, out) } else { rate::GO };
    if limit > rate::WAIT || plain::ctv_headers(skb, &raw mut noted.becomes) == 0 || ctv_differs() == 0 {
        return 0;
    }
    let way = way + limit * u32::from(FlowCacheEntry::PORT - FlowCacheEntry::POD);
    let (Some(packet), Some(noted)) = (packet::in_hand(), candidate()) else { return 0 };
    ctv_settle(noted.place);
    let Some(shortcut) = shortcut::at(noted.place) else { return 0 };
    shortcut.until_tick = 0;
    shortcut.until = 0;
    if !is_still(shortcut, packet, noted) {
        return 0;
    }
    copy(&noted.headers, &mut shortcut.headers);
    copy(&noted.becomes, &mut shortcut.becomes);
    copy(&noted.changes, &mut shortcut.changes);
    copy(&packet.key, &mut shortcut.flow);
    shortcut.ifindex = noted.ifindex;
    shortcut.vni = noted.vni;
    shortcut.vtep = noted.vtep.to_ne_bytes();
    shortcut.groups = packet.judges;
    shortcut.generations = packet.judged_by;
    shortcut.way = way as u16;
    shortcut.out = out;
    shortcut.segment = Segment::of(number, way as u16 == FlowCacheEntry::WIRE);
    shortcut.to = to.to_ne_bytes();
    shortcut.side = packet.reply.into();
    shortcut.service = packet.served;
    last(shortcut, (u64::from(packet.now) + 1) * flows::NANOSECONDS);
    1
}

/// Lets the shortcut last until this time. The ticks and the time that is asked here move together.
#[inline(always)]
fn last(shortcut: &mut FlowCacheEntry, until: u64) {
    let Some(epochs) = shortcut::epochs() else { return };
    // SAFETY: the one value of the array.
    let ticks = unsafe { (*epochs).ticks };
    let left = until.saturating_sub(shortcut::now()) * ticks / flows::NANOSECONDS;
    shortcut.until_tick = shortcut::ticks() + left;
    shortcut.until = until;
}

/// Whether nothing has changed since the packet came; then the shortcut knows the epoch.
#[inline(always)]
fn is_still(shortcut: &mut FlowCacheEntry, packet: &Packet, noted: &Candidate) -> bool {
    let Some(epochs) = shortcut::epochs() else { return false };
    // SAFETY: the one value of the array. Others write there meanwhile, one number at a time.
    let epochs = unsafe { &*epochs };
    shortcut.shard = Epochs::shard(&packet.key);
    shortcut.epoch = epochs.of(shortcut.shard);
    shortcut.all = noted.epochs[0];
    // Whoever forgets a flow, or changes anything else, says so after it has, and here first: what has not been said by
    // now shows in the epoch that was just read.
    epochs.marks() == noted.epochs
}

/// Whether the sender has no rate, or the packet has waited for it.
#[inline(always)]
fn is_free(packet: &Packet, noted: &Candidate) -> bool {
    noted.ifindex != packet.source_port
        || policy::group(packet.source_group).is_some_and(|group| group.rate == 0)
}

/// An assignment would go by way of the stack.
#[inline(always)]
fn copy<T>(from: &T, to: &mut T) {
    // SAFETY: one is borrowed as nobody else's.
    unsafe { core::ptr::copy_nonoverlapping(from, to, 1) };
}

/// The flow counts what has taken the shortcut. A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_settle(place: u32) -> u32 {
    // Not handed over: Linux 6.1 takes no key for a map from what a function was given.
    let Some(shortcut) = shortcut::at(place) else { return 0 };
    if shortcut.packets != 0 {
        let (side, packets, bytes) = (shortcut.side.into(), shortcut.packets, shortcut.bytes);
        flows::count_for(&shortcut.flow, side, packets, bytes);
        served::have_passed(shortcut.service, side, packets, bytes);
        shortcut.packets = 0;
        shortcut.bytes = 0;
    }
    0
}

/// What of the packet is another than it was, and what that does to checksums. Zero when a packet would not show how far its
/// checksum is made.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_differs() -> u32 {
    let Some(noted) = candidate() else { return 0 };
    let (before, after) = (&noted.headers, &noted.becomes);
    let (mut addresses, mut moved) = (0_u64, 0);
    for (old, new) in before.addresses.iter().zip(&after.addresses) {
        moved |= old ^ new;
        addresses += halves(!*old) + halves(*new);
    }
    let ethernet = before.ethernet ^ after.ethernet | u64::from(before.ethernet_rest ^ after.ethernet_rest);
    let addresses = fold(halves(halves(addresses)) as u32);
    // The second byte of a word of the header.
    let class = [[0, before.class], [0, after.class]].map(u16::from_ne_bytes);
    let ports = u64::from(!before.ports) + u64::from(after.ports);
    let changes = &mut noted.changes;
    changes.what = flag(moved, Changes::ADDRESSES)
        | flag(ethernet, Changes::ETHERNET)
        | flag((before.ports ^ after.ports).into(), Changes::PORTS)
        | flag((before.class ^ after.class).into(), Changes::CLASS);
    changes.port_sum = fold(halves(ports) as u32);
    changes.header_sum = fold(u32::from(addresses) + u32::from(!class[0]) + u32::from(class[1]));
    changes.address_sum = addresses;
    changes.pseudo_sum = pseudo_sum(before);
    let udp = plain::is_udp(before.protocol);
    changes.zero = udp * 0xffff;
    changes.place = plain::place_of_sum(before, udp);
    u32::from(moved == 0 || addresses != 0xffff)
}

/// The sum over the pseudo header, but for the length.
#[inline(always)]
fn pseudo_sum(headers: &Headers) -> u16 {
    let sum = headers.addresses.iter().map(|word| halves(*word)).sum::<u64>();
    let protocol = u16::from_ne_bytes([0, headers.protocol]);
    fold(halves(halves(sum) + u64::from(protocol)) as u32)
}

/// The flag if there is a difference; without a branch, which the verifier would follow both ways.
#[inline(always)]
const fn flag(difference: u64, flag: u8) -> u8 {
    // The compiler would know a comparison with zero again in anything simpler.
    let half = difference >> 1 | difference & 1;
    let none = half.wrapping_sub(1) >> 63;
    ((none ^ 1) << flag.trailing_zeros()) as u8
}

/// A sum of 16-bit words is the sum of their pairs, too, until it is folded.
#[inline(always)]
const fn halves(words: u64) -> u64 {
    (words & 0xffff_ffff) + (words >> 32)
}
