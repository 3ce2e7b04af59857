//! Headers, read from the frame by value: a frame may lie in pieces, and a copy needs no bounds checks.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, Be16, DropReason, Mac};

/// Length of the Ethernet header, where what follows begins.
pub(crate) const ETHERNET: usize = 14;

pub(crate) const ARP: Be16 = Be16::new(0x0806);
pub(crate) const IPV4: Be16 = Be16::new(0x0800);
pub(crate) const IPV6: Be16 = Be16::new(0x86dd);
pub(crate) const VLAN: Be16 = Be16::new(0x8100);
/// Tags: 802.1Q, 802.1ad, and the numbers that equipment used for the latter before.
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
    /// Reads and checks what is true of every frame that we forward.
    #[inline(always)]
    pub(crate) fn read(ctx: &TcContext) -> Result<Ethernet, DropReason> {
        let ethernet = load::<Ethernet>(ctx, 0)?;
        if is_group(&ethernet.source) { Err(DropReason::GroupSource) } else { Ok(ethernet) }
    }

    /// As [`Ethernet::read`] for a frame from outside, without the tag of its network. A pod's kernel accepts a packet behind
    /// further tags if they name no network, and bridges in the pod read them.
    #[inline(always)]
    pub(crate) fn from_outside(ctx: &TcContext) -> Result<Ethernet, DropReason> {
        let ethernet = Ethernet::read(ctx)?;
        // SAFETY: the context is the one that the kernel gave to this program.
        if ethernet.is_tagged() || unsafe { (*ctx.skb.skb).vlan_present != 0 } {
            return Err(DropReason::TaggedTwice);
        }
        if ethernet.is_link_local() { Err(DropReason::LinkLocalGroup) } else { Ok(ethernet) }
    }

    /// True of a frame to a multicast or broadcast address.
    #[inline(always)]
    pub(crate) fn is_group(&self) -> bool {
        is_group(&self.destination)
    }

    /// True of 01:80:c2:00:00:00 to :0f, which 802.1Q bridges never forward.
    #[inline(always)]
    pub(crate) fn is_link_local(&self) -> bool {
        let [a, b, c, d, e, f] = self.destination;
        // As numbers: a comparison of arrays would be a call.
        u32::from_be_bytes([a, b, c, d]) == 0x0180_c200 && e == 0 && f & 0xf0 == 0
    }

    /// True of a frame with a tag in its bytes.
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

/// Reads a header; a frame that ends before it does is malformed.
#[inline(always)]
pub(crate) fn load<T>(ctx: &TcContext, offset: usize) -> Result<T, DropReason> {
    ctx.load(offset).map_err(|_| DropReason::Malformed)
}

/// The bytes of an Ethernet address in a word.
pub(crate) const MAC: u64 = 0xffff_ffff_ffff;

/// Words of a mapped IPv4 address, as it lies in the frame.
#[inline(always)]
pub(crate) const fn mapped(ip: u32) -> [u64; 2] {
    Address::v4(ip.to_ne_bytes()).words()
}

/// The Ethernet address of a service with an address of these words, in a number with the first byte lowest.
#[inline(always)]
pub(crate) fn service([_, low]: [u64; 2]) -> u64 {
    let [_, _, _, _, a, b, c, d] = low.to_ne_bytes();
    u64::from_le_bytes([2, 2, a, b, c, d, 0, 0])
}

/// Reads a number from the frame at an address that was compared with its end.
///
/// # Safety
///
/// All of the number is in the frame.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: usize) -> T {
    // SAFETY: guaranteed by the caller; a program's loads and stores need no alignment. An unaligned read of the compiler's
    // would be one of bytes.
    unsafe { (at as *const T).read_volatile() }
}

/// Writes a number into the frame, likewise.
///
/// # Safety
///
/// As of `read`.
#[inline(always)]
pub(crate) unsafe fn write<T: Copy>(at: usize, value: T) {
    // SAFETY: guaranteed by the caller.
    unsafe { (at as *mut T).write_volatile(value) }
}

/// The TOS byte or traffic class of the packet inside a frame of this kind (as on the wire), without its ECN bits, which the
/// tunnel device carries over itself; zero for what is not IP.
///
/// A function of its own for the verifier.
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
