//! Which addresses a frame may use, by the records of the endpoints.

use contiv_abi::{Address, Domain, DropReason, FdbKey, FlowHalf, Mac, NeighEntry, NeighKey};

use crate::{
    frame, maps,
    packet::{Ingress, PacketMeta},
    source,
};

/// True of `::1` and of IPv4-mapped addresses, which are on no link.
#[inline(always)]
pub(crate) fn is_reserved(ip: &Address) -> bool {
    const LOOPBACK: Address = Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.is_v4() || ip.same(&LOOPBACK)
}

/// Whether a frame from outside may use the address `ip` with `mac`: if an endpoint has it, `mac` must be the endpoint's, and
/// the endpoint on another node. Services are never a source outside of the nodes that translate for them, but their
/// address may be announced. The result is the endpoint's group, `FlowHalf::UNKNOWN` without an endpoint.
#[inline(always)]
pub(crate) fn claim(packet: &PacketMeta, ip: Address, mac: Mac) -> Result<u32, DropReason> {
    let Some(owner) = maps::neighbour(&NeighKey::new(packet.domain, ip)) else {
        // Neither is the gateway's, if it is on this node.
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

/// Whether an address that no endpoint has is one of the domain's own: that of an endpoint whose record has not arrived, or of
/// nobody. Link-local and unspecified addresses are; the gateway's is not.
#[inline(always)]
pub(crate) fn is_inside(domain: Domain, ip: &Address, ip6: bool) -> bool {
    is_of_link(ip, ip6) || maps::subnet(domain, ip).is_some_and(|subnet| subnet.contains(ip))
}

/// Whether this is a link-local or an unspecified address.
#[inline(always)]
pub(crate) fn is_of_link(ip: &Address, ip6: bool) -> bool {
    let [high, low] = ip.words();
    let unspecified = high | low == 0 || ip.is_v4() && ip.low()[0] == 0;
    ip6 && ip.is_link_local() || unspecified
}

/// Whether ARP or neighbour discovery may name `mac` beside the frame's own source address: on the wire, routers have virtual
/// addresses (RFC 5798 8.2), which no endpoint has.
#[inline(always)]
pub(crate) fn may_name(packet: &PacketMeta, mac: &Mac) -> Result<(), DropReason> {
    if source::same(mac, &packet.source_mac) {
        return Ok(());
    }
    let unknown = || !frame::is_group(mac) && maps::destination(&FdbKey::new(packet.segment, *mac)).is_none();
    if packet.ingress == Ingress::WIRE && unknown() { Ok(()) } else { Err(DropReason::ForeignSource) }
}
