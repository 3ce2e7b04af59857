//! The tunnel key of frames to and from the VXLAN device.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_TUNINFO_IPV6, BPF_F_ZERO_CSUM_TX, bpf_tunnel_key},
    helpers::generated::{bpf_skb_get_tunnel_key, bpf_skb_set_tunnel_key},
    programs::TcContext,
};
use contiv_abi::{Address, DropReason, Vtep};

use crate::{log, packet};

/// The first fields of `bpf_tunnel_key`, which every kernel accepts with this length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Key {
    id: u32,
    /// Address of the receiver of a sent frame, or of the sender of a received one. IPv4 is in the first word in host byte order;
    /// IPv6 is in network byte order.
    remote: [u32; 4],
    tos: u8,
    ttl: u8,
    ext: u16,
}

const KEY_LEN: u32 = size_of::<Key>() as u32;
const _: () = assert!(size_of::<Key>() == core::mem::offset_of!(bpf_tunnel_key, tunnel_label));

/// TTL of tunnelled frames, as OVS sets it.
const TTL: u8 = 64;

/// Reads the tunnel key of a received frame. Stores the VTEP in the packet metadata, and returns the VNI.
#[inline(always)]
pub(crate) fn origin(ctx: &TcContext) -> Result<u32, DropReason> {
    match ctv_origin(ctx.skb.skb) {
        NO_KEY => Err(DropReason::NoTunnelKey),
        vni => Ok(vni),
    }
}

/// Value for a frame without a tunnel key; VNIs have 24 bits.
const NO_KEY: u32 = u32::MAX;

/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_origin(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return NO_KEY };
    // SAFETY: numbers.
    let mut key = unsafe { contiv_abi::cleared::<Key>() };
    let place = (&raw mut key).cast::<bpf_tunnel_key>();
    // The helper fails for a key of the other family.
    // SAFETY: `key` has the given length, and the helper writes no more.
    if unsafe { bpf_skb_get_tunnel_key(skb, place, KEY_LEN, 0) } == 0 {
        packet.vtep.set_words(Address::v4(key.remote[0].to_be_bytes()).words());
        return key.id;
    }
    // SAFETY: as before.
    if unsafe { bpf_skb_get_tunnel_key(skb, place, KEY_LEN, IPV6) } != 0 {
        return log::origin(packet).unwrap_or(NO_KEY);
    }
    let [a, b, c, d] = key.remote.map(u64::from);
    packet.vtep.set_words(if cfg!(target_endian = "big") {
        [a << 32 | b, c << 32 | d]
    } else {
        [b << 32 | a, d << 32 | c]
    });
    key.id
}

/// Sets the tunnel key of a frame to a node; the caller sends the frame to the VXLAN device.
#[inline(always)]
pub(crate) fn address(ctx: &TcContext, vni: u32, vtep: &Vtep, tos: u8) -> Result<(), DropReason> {
    if ctv_address(ctx.skb.skb, vni, &raw const *vtep, tos.into()) == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}

/// Flag of a key with an IPv6 address.
const IPV6: u64 = BPF_F_TUNINFO_IPV6 as u64;

/// Not inlined, to save stack. The result is zero on success.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_address(skb: *mut __sk_buff, vni: u32, vtep: *const Vtep, tos: u32) -> u32 {
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole address.
    let Some(vtep) = (unsafe { vtep.as_ref() }) else { return 1 };
    // SAFETY: numbers.
    let mut key = unsafe { contiv_abi::cleared::<Key>() };
    (key.id, key.tos, key.ttl) = (vni, tos as u8, TTL);
    let flags = if vtep.is_v4() {
        key.remote[0] = u32::from_be_bytes(vtep.low());
        // Without a checksum: userspace OVS drops frames with an outer checksum that was left to the device.
        u64::from(BPF_F_ZERO_CSUM_TX)
    } else {
        let [high, low] = vtep.words();
        key.remote = if cfg!(target_endian = "big") {
            [(high >> 32) as u32, high as u32, (low >> 32) as u32, low as u32]
        } else {
            [high as u32, (high >> 32) as u32, low as u32, (low >> 32) as u32]
        };
        // With a checksum, which UDP over IPv6 needs unless both ends agree (RFC 6935).
        IPV6
    };
    // SAFETY: `key` has the given length, and the helper only reads it.
    let set = unsafe { bpf_skb_set_tunnel_key(skb, (&raw mut key).cast::<bpf_tunnel_key>(), KEY_LEN, flags) };
    u32::from(set != 0)
}
