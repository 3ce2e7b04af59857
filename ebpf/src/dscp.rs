//! DSCP marking of packets by the group of the sender (RFC 2474).

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    programs::TcContext,
};
use contiv_abi::DropReason;

use crate::{
    frame::{self, ETHERNET, Ethernet},
    policy,
};

/// The ECN bits in the TOS byte or traffic class (RFC 3168); the others are the DSCP.
const ECN: u8 = 0x03;
/// Offset of the checksum in the IPv4 header.
const CHECKSUM: usize = ETHERNET + 10;

/// Marks an IP packet with the DSCP of the sender's group.
#[inline(always)]
pub(crate) fn mark(ctx: &TcContext, group: u32) -> Result<(), DropReason> {
    let dscp = policy::group(group).map_or(0, |group| group.dscp);
    if dscp == 0 || ctv_class(ctx.skb.skb, dscp << 2) == 0 { Ok(()) } else { Err(DropReason::RewriteFailed) }
}

/// Sets the DSCP of an IP packet. `class` is the TOS byte with the DSCP in its upper six bits. Zero on success.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_class(skb: *mut __sk_buff, class: u32) -> u32 {
    u32::from(rewrite(&TcContext::new(skb), class as u8).is_err())
}

#[inline(always)]
fn rewrite(ctx: &TcContext, dscp: u8) -> Result<(), DropReason> {
    let ethernet = frame::load::<Ethernet>(ctx, 0)?;
    let refused = |_| DropReason::RewriteFailed;
    let [first, second] = match ethernet.kind {
        frame::IPV4 | frame::IPV6 => frame::load::<[u8; 2]>(ctx, ETHERNET)?,
        _ => return Ok(()),
    };
    if ethernet.kind == frame::IPV4 {
        let marked = [first, dscp | second & ECN];
        if marked[1] != second {
            let (from, to) = (u16::from_ne_bytes([first, second]), u16::from_ne_bytes(marked));
            ctx.l3_csum_replace(CHECKSUM, from.into(), to.into(), 2).map_err(refused)?;
            ctx.store(ETHERNET, &marked, 0).map_err(refused)?;
        }
    } else {
        // Four bits of version, eight of traffic class, four of flow label.
        let before = u16::from_be_bytes([first, second]);
        let class = dscp | (before >> 4) as u8 & ECN;
        let after = before & 0xf00f | u16::from(class) << 4;
        if after != before {
            ctx.store(ETHERNET, &after.to_be_bytes(), BPF_F_RECOMPUTE_CSUM.into()).map_err(refused)?;
        }
    }
    Ok(())
}
