//! Metadata bits. Bits 1 to 15 are reserved for the destination group, 16 to 30 for the source group, 32 to 39 for the
//! tenant.

use contiv_model::tag::Encap;
use openflow_rs::Match;

use crate::datapath::ovs::bridge::BridgeKind;

/// Set if the frame arrived through a tunnel or from an uplink.
pub(super) const OUTSIDE: u64 = 1;
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
