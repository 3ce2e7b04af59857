use contiv_model::name::NetworkId;

use crate::{datapath::Network, state::State};

/// The network, if it is active.
pub(super) fn network(state: &State, id: &NetworkId) -> Option<Network> {
    let network = state.active_network(id)?;
    Some(Network { id: network.id.clone(), encap: network.encap, arp: state.arp() })
}
