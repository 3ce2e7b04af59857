use std::{net::IpAddr, time::Duration};

use contiv_abi::{Address, mix};
use contiv_model::{
    name::{NetworkId, ServiceId},
    service::{Port, Readiness},
    tag::Encap,
    vrf::Vrf,
};

use super::Network;

/// A virtual address that selects among backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Service's id.
    pub id: ServiceId,
    /// Endpoints that can use the address.
    pub scope: Scope,
    /// Virtual address. Its Ethernet address is
    /// [`Mac::of_service`](contiv_model::mac::Mac::of_service).
    pub vip: IpAddr,
    /// Ports, unique by protocol and port.
    pub ports: Vec<Port>,
    /// Backends, unique and sorted by address. Without a ready backend, connections are refused.
    pub backends: Vec<Backend>,
    /// Time for which a client keeps its backend after its last connection.
    pub affinity: Option<Duration>,
}

impl Service {
    /// A service without ports, backends and affinity.
    pub fn new(id: impl Into<ServiceId>, scope: Scope, vip: impl Into<IpAddr>) -> Self {
        Service { id: id.into(), scope, vip: vip.into(), ports: vec![], backends: vec![], affinity: None }
    }

    /// Returns the backend whose node answers for the service on a VLAN. All nodes compute the same one. Terminating
    /// backends count: their node still forwards, and holds the state of connections that it forwards to other nodes.
    /// Rendezvous hashing ensures that adding or removing other backends does not move the speaker.
    pub fn speaker(&self) -> Option<IpAddr> {
        let vip = Address::from(self.vip);
        let score = |backend: &Address| {
            let [[a, b], [c, d]] = [vip.words(), backend.words()];
            mix(a.rotate_left(16) ^ mix(b ^ mix(c.rotate_left(32) ^ mix(d))))
        };
        let rank = |ip: &IpAddr| {
            let address = Address::from(*ip);
            (score(&address), address)
        };
        self.backends.iter().map(|backend| backend.ip).max_by_key(rank)
    }
}

/// Endpoints that can use a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// VRF of the endpoints; the service's address is in it.
    pub vrf: Vrf,
    /// Network of the endpoints; `None` for all networks of the VRF. If the VRF has several, the address is unique in it, and
    /// endpoints of the others may reach it as well.
    pub network: Option<ScopeNetwork>,
}

/// Network of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeNetwork {
    /// Network's id.
    pub id: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
}

impl Scope {
    /// The endpoints of one network.
    pub fn network(network: &Network) -> Self {
        let one = ScopeNetwork { id: network.id.clone(), encap: network.encap };
        Scope { vrf: network.vrf.clone(), network: Some(one) }
    }

    /// The endpoints of all networks of a VRF.
    pub fn vrf(vrf: impl Into<Vrf>) -> Self {
        Scope { vrf: vrf.into(), network: None }
    }
}

/// Backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Backend's address.
    pub ip: IpAddr,
    /// Tag of the network of the VRF that contains the address, which may differ from the service's network; `None` for
    /// an address outside of the VRF's networks.
    pub encap: Option<Encap>,
    /// Whether the backend accepts new connections.
    pub readiness: Readiness,
}

impl Backend {
    /// A ready backend on the network with this tag.
    pub fn on(encap: Encap, ip: impl Into<IpAddr>) -> Self {
        Backend { ip: ip.into(), encap: Some(encap), readiness: Readiness::Ready }
    }
}
