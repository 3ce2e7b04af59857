//! Checks of the addresses that a frame uses or claims against the records of the endpoints.

use contiv_abi::{Address, Domain, DropReason, FdbKey, FlowHalf, Mac, NeighEntry, NeighKey};

use crate::{
    frame, maps,
    packet::{Ingress, PacketMeta},
    source,
};

/// True for `::1` and for IPv4-mapped addresses, which are not used on a link.
#[inline(always)]
pub(crate) fn is_reserved(ip: &Address) -> bool {
    const LOOPBACK: Address = Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.is_v4() || ip.same(&LOOPBACK)
}

/// Whether a frame from outside may use the address `ip` with `mac`. If an endpoint has the address, `mac` must be that of the
/// endpoint, and the endpoint must be on another node. The address of a service is no source outside of the nodes that translate
/// for the service, but it may be announced. The result is the group of the endpoint, or `FlowHalf::UNKNOWN` without an endpoint.
#[inline(always)]
pub(crate) fn claim(packet: &PacketMeta, ip: Address, mac: Mac) -> Result<u32, DropReason> {
    let Some(owner) = maps::neighbour(&NeighKey::new(packet.domain, ip)) else {
        // The broadcast address is no source, and neither is the address of a gateway on this node.
        let reserved = maps::subnet(packet.domain, &ip)
            .is_some_and(|subnet| ip.is_v4() && subnet.is_last(&ip) || subnet.is_router(&ip));
        return if reserved { Err(DropReason::ForeignSource) } else { Ok(FlowHalf::UNKNOWN.into()) };
    };
    let announced = owner.flags & NeighEntry::SERVICE == 0 || packet.kind == frame::ARP || packet.nd != 0;
    if owner.ifindex == 0 && announced && source::same(&owner.mac, &mac) {
        Ok(owner.group)
    } else {
        Err(DropReason::ForeignSource)
    }
}

/// Whether an address without a record is inside the domain: its record may not have arrived, or no endpoint has it. Link-local
/// and unspecified addresses are inside; that of the gateway is not.
#[inline(always)]
pub(crate) fn is_inside(domain: Domain, ip: &Address, ip6: bool) -> bool {
    is_of_link(ip, ip6) || maps::subnet(domain, ip).is_some_and(|subnet| subnet.contains(ip))
}

/// True for a link-local or unspecified address.
#[inline(always)]
pub(crate) fn is_of_link(ip: &Address, ip6: bool) -> bool {
    let [high, low] = ip.words();
    let unspecified = high | low == 0 || ip.is_v4() && ip.low()[0] == 0;
    ip6 && ip.is_link_local() || unspecified
}

/// Whether ARP or neighbour discovery may contain `mac` as well as the source address of the frame: on the wire, routers have
/// virtual addresses (RFC 5798 8.2), which no endpoint has.
#[inline(always)]
pub(crate) fn may_name(packet: &PacketMeta, mac: &Mac) -> Result<(), DropReason> {
    if source::same(mac, &packet.source_mac) {
        return Ok(());
    }
    let unknown = || !frame::is_group(mac) && maps::destination(&FdbKey::new(packet.segment, *mac)).is_none();
    if packet.ingress == Ingress::WIRE && unknown() { Ok(()) } else { Err(DropReason::ForeignSource) }
}
