//! Checksums that a frame of a pod does not have yet: whether what was parsed is what will leave the node ([`skb`]).
//!
//! The fast path does without: its frames reach another pod of the node by no device that computes checksums.

use aya_ebpf::bindings::__sk_buff;
use contiv_abi::Be16;

use crate::{
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    packet::{Fragment, PacketMeta},
    skb::{self, NO_CHECKSUM},
};

/// Offset in the frame of the two bytes that the kernel is still to write, or [`NO_CHECKSUM`].
///
/// A function of its own for the verifier, and for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_checksum(skb: *mut __sk_buff) -> u32 {
    skb::checksum(skb)
}

/// Whether the addresses that a pod sends from are the ones that will leave the node: the place is behind the fixed header of IP.
/// What is not IP has no checksum.
#[inline(always)]
pub(crate) fn is_behind_addresses(place: u32, kind: Be16) -> bool {
    match kind {
        _ if place == NO_CHECKSUM => true,
        frame::IPV4 => place >= (ETHERNET + size_of::<Ipv4>()) as u32,
        frame::IPV6 => place >= (ETHERNET + size_of::<Ipv6>()) as u32,
        _ => false,
    }
}

/// Whether what was parsed of the current packet is what will leave the node. The kernel fragments no packet before its checksum
/// is complete.
#[inline(always)]
pub(crate) fn fits(packet: &PacketMeta) -> bool {
    let place = packet.checksum;
    place == NO_CHECKSUM
        || packet.fragment == Fragment::NONE && skb::is_of_transport(place, packet.protocol, packet.l4)
}
