//! Host access: packets between pods and the node's kernel. Pods have private addresses towards the kernel.

use std::net::{IpAddr, Ipv4Addr};

use contiv_model::{mac::Mac, tag::Encap, vrf::Vrf};
use ipnet::Ipv4Net;

use super::{forward::locals, route::Router};
use crate::datapath::{
    Desired, KERNEL_MAC, Local, Object,
    host_access::{NO_HOST, endpoint_address, kernel_address},
    wire::packet::Packet,
};

/// Private subnet of a VRF whose pods have host access.
fn private_subnet(objects: &Desired, vrf: &Vrf) -> Option<Ipv4Net> {
    objects.iter().find_map(|(_, object)| match object {
        Object::Route(route) if route.id.vrf == *vrf => route.private_subnet(),
        _ => None,
    })
}

/// Own and private address of an endpoint.
fn addresses(objects: &Desired, local: &Local) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let private = endpoint_address(private_subnet(objects, &local.vrf)?, &local.port)?;
    local.addresses.v4().next().zip(Some(private))
}

/// Returns a packet to an address in no subnet as the kernel receives it; `None` if the packet does not reach the kernel.
pub(super) fn leave(objects: &Desired, sender: &Local, packet: &Packet, frame: &[u8]) -> Option<Vec<u8>> {
    let (_, private) = addresses(objects, sender)?;
    let subnet = private_subnet(objects, &sender.vrf)?;
    let IpAddr::V4(to) = packet.tuple.destination.0 else { return None };
    let is_closed = NO_HOST.iter().any(|prefix| prefix.contains(&to))
        || subnet.contains(&to) && to != kernel_address(subnet);
    if is_closed {
        return None;
    }
    let mut frame = frame.to_vec();
    packet.rewrite_source(&mut frame, (private.into(), packet.tuple.source.1));
    if packet.quoted(&frame).is_some() {
        packet.rewrite_quoted_destination(&mut frame, private)?;
    }
    frame[..6].copy_from_slice(&KERNEL_MAC.0);
    Some(frame)
}

/// Returns a packet of the kernel to a private address as it arrives on the network of the pod; `None` if there is no
/// such pod.
pub(super) fn enter(objects: &Desired, packet: &Packet, frame: &[u8]) -> Option<(Encap, Vec<u8>)> {
    let ((from, _), (to, port)) = (packet.tuple.source, packet.tuple.destination);
    let is_receiver =
        |local: &&Local| addresses(objects, local).is_some_and(|(_, private)| IpAddr::V4(private) == to);
    let receiver = locals(objects).find(is_receiver)?;
    // An address of the VRF is not outside.
    if Router::new(objects, &receiver.vrf).subnet(from).is_some() {
        return None;
    }
    let (own, _) = addresses(objects, receiver)?;
    let mut frame = frame.to_vec();
    packet.rewrite_destination(&mut frame, (own.into(), port), Mac::ROUTER);
    if packet.quoted(&frame).is_some() {
        packet.rewrite_quoted_source(&mut frame, own)?;
    }
    Some((receiver.encap, frame))
}
