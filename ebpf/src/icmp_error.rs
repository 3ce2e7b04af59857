//! ICMP errors that quote packets of flows: their flow, and their translation.

use contiv_abi::{Address, DropReason, NeighKey};

use crate::{
    claim, flows, maps,
    packet::{self, GO_ON, IcmpError, Ingress, NEW, PacketMeta},
};

/// Sets the lookup tuple of an ICMP error: that of a packet of the quoted packet's flow in the direction of the error. `NEW` if
/// the error is not addressed to the sender of the quoted packet, or does not come from the path; no flow is looked up then.
///
/// This and the next are global functions: the verifier checks each once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_inside(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return NEW };
    packet.wanted = packet.inner;
    packet.wanted.reverse();
    let is_for_sender = packet.wanted.destination.same(&packet.tuple.destination);
    if packet.icmp_error == IcmpError::FLOW && is_for_sender && is_on_path(packet) { GO_ON } else { NEW }
}

/// Whether an ICMP error comes from the receiver of the quoted packet, or from a router. Endpoints are not routers. On the wire,
/// the gateway may be a virtual address of several routers (RFC 5798), which send from their own addresses in the subnet.
#[inline(always)]
fn is_on_path(packet: &PacketMeta) -> bool {
    let (source, ip6) = (&packet.tuple.source, packet.ip6 != 0);
    let is_strange = || {
        if packet.ingress == Ingress::WIRE {
            claim::is_of_link(source, ip6)
        } else {
            claim::is_inside(packet.domain, source, ip6)
        }
    };
    source.same(&packet.inner.destination)
        || maps::neighbour(&NeighKey::new(packet.domain, *source)).is_none() && !is_strange()
}

/// Whether the flow of the current ICMP error is between two addresses of one link. Its packets pass no router, unless other
/// nodes are reached through the node's kernel.
#[inline(always)]
fn is_on_link(packet: &PacketMeta) -> bool {
    let Some(flow) = flows::record(packet.entry >> 1) else { return false };
    // SAFETY: a record of the map.
    let flow = unsafe { &*flow };
    let client = Address::from_words(flow.client.words());
    if packet.ip6 != 0 && client.is_link_local() {
        return true;
    }
    let Some(subnet) = maps::subnet(packet.domain, &client) else { return false };
    !subnet.is_on_node() && (subnet.contains(&flow.backend) || flow.backend.same(&subnet.gateway))
}

/// Sets the tuples of the translated error and of the translated quoted packet.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_outside(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if !packet.inner.destination.same(&packet.tuple.source) && is_on_link(packet) {
        return DropReason::UnrelatedIcmpError as u32;
    }
    packet.inner_wanted = packet.wanted;
    packet.wanted = packet.tuple;
    if packet.translated == 0 {
        return GO_ON;
    }
    // An error from a router on the path keeps its source.
    if packet.inner.destination.same(&packet.tuple.source) {
        packet.wanted.source = packet.inner_wanted.source;
    }
    packet.wanted.destination = packet.inner_wanted.destination;
    packet.inner_wanted.reverse();
    GO_ON
}
