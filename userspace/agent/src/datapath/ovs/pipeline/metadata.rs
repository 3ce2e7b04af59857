//! Metadata bits, and register bits that are valid in all tables.

use std::net::IpAddr;

use contiv_model::{
    name::EndpointId,
    tag::{Encap, Vlan},
};
use openflow_rs::{Action, Field, Match, Slice};

use crate::datapath::ovs::{bridge::BridgeKind, hash::hash};

/// Set if the frame arrived through a tunnel or from an uplink.
pub(super) const OUTSIDE: u64 = 1;
/// Position and width of the port of the service to which a packet is addressed.
const SERVICE_PORT: (u32, u32) = (1, 16);
/// Position and width of the number of the service to which a packet is addressed; zero for none.
const SERVICE: (u32, u32) = (17, 23);
/// Position of the network's tag.
pub(super) const NETWORK_SHIFT: u32 = 40;
/// Mask of the network's tag, 24 bits.
pub(super) const NETWORK: u64 = 0xff_ffff << NETWORK_SHIFT;

/// Register with the number of the packet's VRF in bits 18 to 30 (zero without one). Bit 31 is set if the packet is
/// routed: it then leaves the node with another network or Ethernet source. Policies use the other bits.
pub(super) const FLAGS: Field = Field::Reg14;
/// Position and width of the number of the VRF.
const VRF: (u32, u32) = (18, 13);
/// Set if the packet is routed.
pub(super) const IS_ROUTED: u32 = 1 << 31;
/// Highest number of a VRF.
pub(crate) const MAX_VRF: u32 = (1 << VRF.1) - 1;

/// Number of the endpoint of this node that has sent the packet; zero for packets from [`OUTSIDE`]. Host access and
/// policies use the lower bits of the register.
pub(super) const SENDER: Slice = Slice { field: Field::Reg15, offset: 8, width: 24 };

/// Returns the number of an endpoint in the labels of the connections that it opens: a hash of its id, never zero.
/// Another endpoint that later gets the same address or port has another id.
pub(crate) fn sender_number(id: &EndpointId) -> u32 {
    let hash = hash(id.as_str());
    let number = (hash ^ hash >> SENDER.width ^ hash >> (2 * SENDER.width)) as u32;
    (number & ((1 << SENDER.width) - 1)).max(1)
}

/// Records that an endpoint of this node has sent the packet.
pub(super) fn sent_by(id: &EndpointId) -> Action {
    Action::load(sender_number(id).into(), SENDER)
}

/// Returns the bridge that carries a network, and the network's tag there: a VLAN id or a VNI.
pub(crate) fn bridge_and_tag(encap: Encap) -> (BridgeKind, u32) {
    match encap {
        Encap::Vlan(vlan) => (BridgeKind::Vlan, vlan.get().into()),
        Encap::Vxlan { vni, .. } => (BridgeKind::Vxlan, vni.get()),
    }
}

/// Matches frames of a network.
pub(super) fn network_match(tag: u32) -> Match {
    Match::new().metadata(u64::from(tag) << NETWORK_SHIFT, NETWORK)
}

/// Matches frames of a network that come from a local pod (`origin` 0) or from [`OUTSIDE`].
pub(super) fn network_match_from(tag: u32, origin: u64) -> Match {
    let value = u64::from(tag) << NETWORK_SHIFT | origin;
    Match::new().metadata(value, NETWORK | OUTSIDE)
}

/// Moves the packet to this network.
pub(super) fn enter_network(tag: u32) -> Action {
    Action::load(tag.into(), network_slice())
}

/// Bits of the network's tag.
pub(super) fn network_slice() -> Slice {
    Slice::bits(Field::Metadata, NETWORK_SHIFT as u16, 24)
}

/// Requires bits of the flags, in addition to those that the match requires already.
pub(super) fn flagged(matching: Match, value: u32, mask: u32) -> Match {
    let (before, already) = matching.get(FLAGS).map_or((0, 0), |masked| (masked.value, masked.mask));
    matching.masked(FLAGS, before | u128::from(value), already | u128::from(mask))
}

/// Requires a packet that is routed.
pub(super) fn routed(matching: Match) -> Match {
    flagged(matching, IS_ROUTED, IS_ROUTED)
}

/// Sets or clears the mark of a routed packet.
pub(super) fn mark_routed(is_routed: bool) -> Action {
    Action::load(is_routed.into(), Slice::bits(FLAGS, IS_ROUTED.trailing_zeros() as u16, 1))
}

/// Scope in which an IP address belongs to one endpoint: a VRF whose networks are routed to each other, or one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Domain {
    /// A single network. A VLAN network is only bridged.
    Network(Encap),
    /// A single VLAN network for which the node is the gateway: its addresses overlap those of another network of the
    /// tenant.
    RoutedVlan(Vlan),
    /// The networks on a bridge of the VRF with this number.
    Vrf(BridgeKind, u16),
}

impl Domain {
    /// Returns the bridge that carries the networks.
    pub(crate) fn bridge(self) -> BridgeKind {
        match self {
            Domain::Network(encap) => bridge_and_tag(encap).0,
            Domain::RoutedVlan(_) => BridgeKind::Vlan,
            Domain::Vrf(bridge, _) => bridge,
        }
    }

    /// Reports whether the frames of a network stay on the node: it is a VLAN network for which the node is the gateway.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Domain::RoutedVlan(_) | Domain::Vrf(BridgeKind::Vlan, _))
    }

    /// Reports whether the bridge learns the ports of unknown stations. Otherwise flows deliver all frames.
    pub(crate) fn is_learning(self) -> bool {
        matches!(self, Domain::Network(Encap::Vlan(_)))
    }

    /// Matches packets of the domain.
    pub(super) fn packets(self) -> Match {
        match self {
            Domain::Network(encap) => network_match(bridge_and_tag(encap).1),
            Domain::RoutedVlan(vlan) => network_match(vlan.get().into()),
            Domain::Vrf(_, number) => of_vrf(Match::new(), number),
        }
    }

    /// Matches packets of the domain that come from a local pod (`origin` 0) or from [`OUTSIDE`].
    pub(super) fn packets_from(self, origin: u64) -> Match {
        match self {
            Domain::Network(encap) => network_match_from(bridge_and_tag(encap).1, origin),
            Domain::RoutedVlan(vlan) => network_match_from(vlan.get().into(), origin),
            Domain::Vrf(_, number) => of_vrf(match_from(origin), number),
        }
    }

    /// Moves the packet to this domain. Returns `None` if the network of the packet identifies the domain.
    pub(super) fn enter(self) -> Option<Action> {
        match self {
            Domain::Network(_) | Domain::RoutedVlan(_) => None,
            Domain::Vrf(_, number) => Some(Action::load(number.into(), vrf_slice())),
        }
    }

    /// Returns the connection tracking zone, because the addresses of domains overlap. For this purpose, a VXLAN network
    /// has a local number that is unique among the node's VXLAN networks and in the range of VLAN ids.
    pub(crate) fn zone(self) -> u16 {
        const VXLAN: u16 = 0x1000;
        const VRFS: u16 = 0x4000;
        match self {
            Domain::Network(Encap::Vlan(vlan)) | Domain::RoutedVlan(vlan) => vlan.get(),
            Domain::Network(Encap::Vxlan { local, .. }) => VXLAN | local.get(),
            // The bridges share the connections, and the addresses of a VRF are unique on both.
            Domain::Vrf(_, number) => VRFS | number,
        }
    }

    /// Zone of the connections of clients to services.
    pub(crate) fn clients_zone(self) -> u16 {
        const CLIENTS: u16 = 0x2000;
        CLIENTS | self.zone()
    }
}

fn of_vrf(matching: Match, number: u16) -> Match {
    flagged(matching, u32::from(number) << VRF.0, MAX_VRF << VRF.0)
}

fn vrf_slice() -> Slice {
    Slice::bits(FLAGS, VRF.0 as u16, VRF.1 as u16)
}

/// Returns the number of the VRF that an action moves packets to.
pub(super) fn entered_vrf(action: &Action) -> Option<u32> {
    match action {
        Action::Load { value, to } if *to == vrf_slice() => u32::try_from(*value).ok(),
        _ => None,
    }
}

/// Returns the number of the VRF whose packets this matches.
pub(super) fn matched_vrf(matching: &Match) -> Option<u32> {
    let flags = matching.get(FLAGS)?;
    let mask = u128::from(MAX_VRF << VRF.0);
    (flags.mask & mask == mask).then_some((flags.value >> VRF.0) as u32 & MAX_VRF)
}

/// Address families of a network that the nodes route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routed {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl Routed {
    pub(crate) fn is_any(self) -> bool {
        self.v4 || self.v6
    }

    pub(super) fn has(self, ip: IpAddr) -> bool {
        if ip.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// The network of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) tag: u32,
    pub(crate) domain: Domain,
    pub(crate) routed: Routed,
}

impl Segment {
    /// A single network that is not routed.
    #[cfg(test)]
    pub(crate) fn bridged(encap: Encap) -> Segment {
        Segment { tag: bridge_and_tag(encap).1, domain: Domain::Network(encap), routed: Routed::default() }
    }
}

/// Matches frames of any network that come from a local pod (`origin` 0) or from [`OUTSIDE`].
pub(super) fn match_from(origin: u64) -> Match {
    Match::new().metadata(origin, OUTSIDE)
}

/// Highest number of a service.
pub(crate) const MAX_SERVICE: u32 = (1 << SERVICE.1) - 1;

/// Number and port of the service.
pub(super) fn service_slice() -> Slice {
    Slice::bits(Field::Metadata, SERVICE_PORT.0 as u16, (SERVICE_PORT.1 + SERVICE.1) as u16)
}

/// Value of [`service_slice`].
pub(super) fn service_value(number: u32, port: u16) -> u64 {
    u64::from(number) << SERVICE_PORT.1 | u64::from(port)
}

/// Mask of [`service_slice`] within a field that begins with it.
pub(super) const SERVICE_MASK: u64 = (1 << (SERVICE_PORT.1 + SERVICE.1)) - 1;

/// Requires a packet that is not addressed to a service, in addition to the metadata that the match requires already.
pub(super) fn to_no_service(matching: Match) -> Match {
    let (value, mask) = matching.get(Field::Metadata).map_or((0, 0), |masked| (masked.value, masked.mask));
    matching.masked(Field::Metadata, value, mask | u128::from(SERVICE_MASK << SERVICE_PORT.0))
}

/// Matches packets to a service.
pub(super) fn service_match(number: u32) -> Match {
    let mask = u64::from(MAX_SERVICE) << SERVICE.0;
    Match::new().metadata(u64::from(number) << SERVICE.0, mask)
}

/// Matches packets to a service that come from [`OUTSIDE`].
pub(super) fn external_match(number: u32) -> Match {
    let mask = u64::from(MAX_SERVICE) << SERVICE.0 | OUTSIDE;
    Match::new().metadata(u64::from(number) << SERVICE.0 | OUTSIDE, mask)
}

/// Matches packets to a port of a service that come from [`OUTSIDE`].
pub(super) fn external_port_match(number: u32, port: u16) -> Match {
    let value = service_value(number, port) << SERVICE_PORT.0 | OUTSIDE;
    Match::new().metadata(value, SERVICE_MASK << SERVICE_PORT.0 | OUTSIDE)
}

/// Matches packets to a port of a service. With number and port 0, it matches packets that are not addressed to a
/// service.
pub(super) fn service_port_match(number: u32, port: u16) -> Match {
    Match::new().metadata(service_value(number, port) << SERVICE_PORT.0, SERVICE_MASK << SERVICE_PORT.0)
}

/// Returns the number of the service if the flow matches only packets of that service.
pub(super) fn matched_service(matching: &Match) -> Option<u32> {
    let metadata = matching.get(Field::Metadata)?;
    let mask = u128::from(MAX_SERVICE) << SERVICE.0;
    (metadata.mask == mask).then_some((metadata.value >> SERVICE.0) as u32)
}
