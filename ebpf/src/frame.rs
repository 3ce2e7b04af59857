//! Reads headers from frames by value: a frame may be non-linear, and a copy needs no bounds checks.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, Be16, DropReason, Mac};

/// Length of the Ethernet header.
pub(crate) const ETHERNET: usize = 14;

pub(crate) const ARP: Be16 = Be16::new(0x0806);
pub(crate) const IPV4: Be16 = Be16::new(0x0800);
pub(crate) const IPV6: Be16 = Be16::new(0x86dd);
pub(crate) const VLAN: Be16 = Be16::new(0x8100);
/// EtherTypes of tags: 802.1Q, 802.1ad, and the values that equipment used before 802.1ad.
const TAGS: [Be16; 5] = [VLAN, Be16::new(0x88a8), Be16::new(0x9100), Be16::new(0x9200), Be16::new(0x9300)];

/// The Ethernet header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ethernet {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    pub(crate) kind: Be16,
}

impl Ethernet {
    /// Reads the Ethernet header. The source of a forwarded frame must be a unicast address.
    #[inline(always)]
    pub(crate) fn read(ctx: &TcContext) -> Result<Ethernet, DropReason> {
        let ethernet = load::<Ethernet>(ctx, 0)?;
        if is_group(&ethernet.source) { Err(DropReason::GroupSource) } else { Ok(ethernet) }
    }

    /// As [`Ethernet::read`], for a frame from outside after the removal of its network tag. Frames with further tags are
    /// refused: a pod's kernel accepts a packet behind tags that name no network, and bridges in the pod read them.
    #[inline(always)]
    pub(crate) fn from_outside(ctx: &TcContext) -> Result<Ethernet, DropReason> {
        let ethernet = Ethernet::read(ctx)?;
        // SAFETY: the context is the one that the kernel gave to this program.
        if ethernet.is_tagged() || unsafe { (*ctx.skb.skb).vlan_present != 0 } {
            return Err(DropReason::TaggedTwice);
        }
        if ethernet.is_link_local() { Err(DropReason::LinkLocalGroup) } else { Ok(ethernet) }
    }

    /// True for a frame to a multicast or broadcast address.
    #[inline(always)]
    pub(crate) fn is_group(&self) -> bool {
        is_group(&self.destination)
    }

    /// True for 01:80:c2:00:00:00 to :0f, which 802.1Q bridges never forward.
    #[inline(always)]
    pub(crate) fn is_link_local(&self) -> bool {
        let [a, b, c, d, e, f] = self.destination;
        // Compares numbers: the compiler would emit a call for a comparison of arrays.
        u32::from_be_bytes([a, b, c, d]) == 0x0180_c200 && e == 0 && f & 0xf0 == 0
    }

    /// True for a frame with a tag in its data.
    #[inline(always)]
    pub(crate) fn is_tagged(&self) -> bool {
        let [a, b, c, d, e] = TAGS;
        self.kind == a || self.kind == b || self.kind == c || self.kind == d || self.kind == e
    }
}

#[inline(always)]
pub(crate) fn is_group(mac: &Mac) -> bool {
    mac[0] & 1 == 1
}

/// Reads a header. `Malformed` if the frame is too short.
#[inline(always)]
pub(crate) fn load<T>(ctx: &TcContext, offset: usize) -> Result<T, DropReason> {
    ctx.load(offset).map_err(|_| DropReason::Malformed)
}

/// Mask of the bytes of an Ethernet address in a word.
pub(crate) const MAC: u64 = 0xffff_ffff_ffff;

/// Words of the mapped form of an IPv4 address that was read from a frame.
#[inline(always)]
pub(crate) const fn mapped(ip: u32) -> [u64; 2] {
    Address::v4(ip.to_ne_bytes()).words()
}

/// Ethernet address of the service with this IP address, as a number with the first byte lowest.
#[inline(always)]
pub(crate) fn service([_, low]: [u64; 2]) -> u64 {
    let [_, _, _, _, a, b, c, d] = low.to_ne_bytes();
    u64::from_le_bytes([2, 2, a, b, c, d, 0, 0])
}

/// Reads a number from the frame.
///
/// # Safety
///
/// The caller has compared the end of the number with the end of the frame.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: usize) -> T {
    // SAFETY: guaranteed by the caller. BPF loads and stores need no alignment; the compiler would split an unaligned read into
    // bytes.
    unsafe { (at as *const T).read_volatile() }
}

/// Writes a number into the frame.
///
/// # Safety
///
/// As for [`read`].
#[inline(always)]
pub(crate) unsafe fn write<T: Copy>(at: usize, value: T) {
    // SAFETY: guaranteed by the caller.
    unsafe { (at as *mut T).write_volatile(value) }
}

/// TOS byte or traffic class of the packet in a frame with this EtherType in wire order, without the ECN bits, which the tunnel
/// device copies itself; zero if the packet is not IP.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_class_of(skb: *mut __sk_buff, kind: u32) -> u32 {
    const DSCP: u8 = 0xfc;
    let Ok([first, second]) = TcContext::new(skb).load::<[u8; 2]>(ETHERNET) else { return 0 };
    let class = match Be16::from_wire(kind as u16) {
        IPV4 => second,
        IPV6 => first << 4 | second >> 4,
        _ => 0,
    };
    (class & DSCP).into()
}
