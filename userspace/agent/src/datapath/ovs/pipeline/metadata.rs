//! Metadata bits.

use contiv_model::tag::Encap;
use openflow_rs::{Field, Match, Slice};

use crate::datapath::ovs::bridge::BridgeKind;

/// Set if the frame arrived through a tunnel or from an uplink.
pub(super) const OUTSIDE: u64 = 1;
/// Position and width of the port of the service that a packet is for.
const SERVICE_PORT: (u32, u32) = (1, 16);
/// Position and width of the number of the service that a packet is for; zero for none.
const SERVICE: (u32, u32) = (17, 23);
/// Position of the network's tag.
pub(super) const NETWORK_SHIFT: u32 = 40;
/// Mask of the network's tag, 24 bits.
pub(super) const NETWORK: u64 = 0xff_ffff << NETWORK_SHIFT;

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

/// Matches packets to a service.
pub(super) fn service_match(number: u32) -> Match {
    let mask = u64::from(MAX_SERVICE) << SERVICE.0;
    Match::new().metadata(u64::from(number) << SERVICE.0, mask)
}

/// Matches packets to a port of a service; with number and port 0 packets to no service.
pub(super) fn service_port_match(number: u32, port: u16) -> Match {
    Match::new().metadata(service_value(number, port) << SERVICE_PORT.0, SERVICE_MASK << SERVICE_PORT.0)
}

/// The number of the service whose packets this matches, and of nothing else.
pub(super) fn matched_service(matching: &Match) -> Option<u32> {
    let metadata = matching.get(Field::Metadata)?;
    let mask = u128::from(MAX_SERVICE) << SERVICE.0;
    (metadata.mask == mask).then_some((metadata.value >> SERVICE.0) as u32)
}
