use std::net::IpAddr;

use contiv_model::name::NetworkId;
use ipnet::IpNet;

use crate::{
    datapath::{Family, Gateway, Network, Subnet, SubnetId},
    state::State,
};

/// The network, if it is active.
pub(super) fn network(state: &State, id: &NetworkId) -> Option<Network> {
    let network = state.active_network(id)?;
    let vrf = state.vrf(network);
    Some(Network { id: network.id.clone(), vrf, encap: network.encap, arp: state.arp() })
}

/// The subnet, if its network is active. The gateway is a router on the network: the nodes do not route.
pub(super) fn subnet(state: &State, id: &SubnetId) -> Option<Subnet> {
    let network = state.active_network(&id.network)?;
    let (prefix, gateway) = match id.family {
        Family::V4 => (IpNet::V4(network.subnet), network.gateway.map(IpAddr::V4)),
        Family::V6 => (IpNet::V6(network.subnet_v6?), network.gateway_v6.map(IpAddr::V6)),
    };
    Some(Subnet {
        network: network.id.clone(),
        vrf: state.vrf(network),
        encap: network.encap,
        prefix,
        gateway: gateway.map(|ip| Gateway { ip, mac: None }),
    })
}
