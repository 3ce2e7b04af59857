//! The tunnel key that travels beside a frame to and from the VXLAN device.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_ZERO_CSUM_TX, bpf_tunnel_key},
    helpers::generated::{bpf_skb_get_tunnel_key, bpf_skb_set_tunnel_key},
    programs::TcContext,
};
use contiv_abi::{DropReason, Vtep};

/// The beginning of `bpf_tunnel_key`, which every kernel accepts in this length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Key {
    id: u32,
    /// The other end: the receiver on the way out, the sender on the way in. In the machine's order.
    remote: u32,
    rest_of_ipv6: [u32; 3],
    tos: u8,
    ttl: u8,
    ext: u16,
}

const KEY_LEN: u32 = size_of::<Key>() as u32;
const _: () = assert!(size_of::<Key>() == core::mem::offset_of!(bpf_tunnel_key, tunnel_label));

/// Hops that a tunnelled frame may take, as OVS sets it.
const TTL: u8 = 64;

/// Where a frame came from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) vni: u32,
    pub(crate) vtep: Vtep,
}

/// The key that the VXLAN device found on the wire.
#[inline(always)]
pub(crate) fn origin(ctx: &TcContext) -> Result<Origin, DropReason> {
    match ctv_origin(ctx.skb.skb) {
        NO_KEY => Err(DropReason::NoTunnelKey),
        key => Ok(Origin { vni: (key >> 32) as u32, vtep: (key as u32).to_be_bytes() }),
    }
}

/// There is no tunnel key: no VNI has so many bits.
const NO_KEY: u64 = u64::MAX;

/// VNI and address, as one number. A function of its own for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_origin(skb: *mut __sk_buff) -> u64 {
    // SAFETY: numbers.
    let mut key = unsafe { contiv_abi::cleared::<Key>() };
    // SAFETY: `key` is as long as the length says, and the helper writes no more.
    let got = unsafe { bpf_skb_get_tunnel_key(skb, (&raw mut key).cast::<bpf_tunnel_key>(), KEY_LEN, 0) };
    if got == 0 { u64::from(key.id) << 32 | u64::from(key.remote) } else { NO_KEY }
}

/// Addresses the frame to a node; it leaves when it is sent to the VXLAN device.
#[inline(always)]
pub(crate) fn address(ctx: &TcContext, vni: u32, vtep: Vtep, tos: u8) -> Result<(), DropReason> {
    if ctv_address(ctx.skb.skb, vni, u32::from_be_bytes(vtep), tos.into()) == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}

/// A function of its own for the stack; zero if it went well.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_address(skb: *mut __sk_buff, vni: u32, remote: u32, tos: u32) -> u32 {
    // SAFETY: numbers.
    let mut key = unsafe { contiv_abi::cleared::<Key>() };
    (key.id, key.remote, key.tos, key.ttl) = (vni, remote, tos as u8, TTL);
    // Checksum zero: userspace OVS drops an outer checksum that was left for hardware to finish.
    let flags = u64::from(BPF_F_ZERO_CSUM_TX);
    // SAFETY: `key` is as long as the length says, and the helper only reads it.
    let set = unsafe { bpf_skb_set_tunnel_key(skb, (&raw mut key).cast::<bpf_tunnel_key>(), KEY_LEN, flags) };
    u32::from(set != 0)
}
