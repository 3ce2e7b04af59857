//! Checksums in frames from pods that the kernel has still to write ([`skb`]): checks that they do not overwrite parsed headers.
//!
//! The fast path does not need this: its frames reach another pod of the node, and no device on that path computes checksums.

use aya_ebpf::bindings::__sk_buff;
use contiv_abi::Be16;

use crate::{
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    packet::{Fragment, PacketMeta},
    skb::{self, NO_CHECKSUM},
};

/// Offset in the frame of the two bytes that the kernel will write, or [`NO_CHECKSUM`].
///
/// A global function: the verifier checks it once, and it saves stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_checksum(skb: *mut __sk_buff) -> u32 {
    skb::checksum(skb)
}

/// Whether a checksum at `place` is behind the fixed IP header, so that the addresses that were checked leave the node. False for
/// frames that are not IP, which have no checksum.
#[inline(always)]
pub(crate) fn is_behind_addresses(place: u32, kind: Be16) -> bool {
    match kind {
        _ if place == NO_CHECKSUM => true,
        frame::IPV4 => place >= (ETHERNET + size_of::<Ipv4>()) as u32,
        frame::IPV6 => place >= (ETHERNET + size_of::<Ipv6>()) as u32,
        _ => false,
    }
}

/// Whether the checksum of the current packet leaves the parsed headers unchanged. A fragment has none: the kernel completes the
/// checksum before it fragments a packet.
#[inline(always)]
pub(crate) fn fits(packet: &PacketMeta) -> bool {
    let place = packet.checksum;
    place == NO_CHECKSUM
        || packet.fragment == Fragment::NONE && skb::is_of_transport(place, packet.protocol, packet.l4)
}
