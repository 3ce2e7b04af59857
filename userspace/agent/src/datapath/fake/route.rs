//! Routing between the networks of a VRF.
//!
//! The router is on every node, and has the same Ethernet address on each. A pod sends packets to this address, and the
//! router forwards them by their IP address.

use std::net::IpAddr;

use contiv_model::{mac::Mac, name::NetworkId, vrf::Vrf};

use crate::datapath::{Desired, Object, Subnet};

/// Returns the subnet of an address among those of all VLAN networks for which the node is the gateway.
pub(super) fn on_kernel(objects: &Desired, address: IpAddr) -> Option<&Subnet> {
    let mut subnets = objects.iter().filter_map(|(_, object)| match object {
        Object::Subnet(subnet) if subnet.is_routed_vlan() => Some(subnet),
        _ => None,
    });
    subnets.find(|subnet| subnet.prefix.contains(&address))
}

/// The router of a VRF.
#[derive(Clone, Copy)]
pub(super) struct Router<'a> {
    objects: &'a Desired,
    vrf: &'a Vrf,
}

impl<'a> Router<'a> {
    pub(super) fn new(objects: &'a Desired, vrf: &'a Vrf) -> Self {
        Router { objects, vrf }
    }

    /// Returns the subnet of an address, if the node routes it.
    pub(super) fn subnet(self, address: IpAddr) -> Option<&'a Subnet> {
        self.subnets().find(|subnet| subnet.prefix.contains(&address))
    }

    /// Reports whether the frames of a network stay on the node: a VLAN network for which the node is the gateway.
    pub(super) fn keeps(self, network: &NetworkId) -> bool {
        self.subnets().any(|subnet| subnet.network == *network && subnet.is_routed_vlan())
    }

    /// Returns the subnet whose gateway has the address.
    pub(super) fn gateway(self, address: IpAddr) -> Option<&'a Subnet> {
        self.subnets().find(|subnet| subnet.gateway.is_some_and(|gateway| gateway.ip == address))
    }

    /// Whether a packet that a pod sends to the Ethernet address `to` is for the router: one of its ends is in a routed subnet.
    pub(super) fn receives(self, to: Mac, ends: [IpAddr; 2]) -> bool {
        to == Mac::ROUTER && ends.iter().any(|end| self.subnet(*end).is_some())
    }

    fn subnets(self) -> impl Iterator<Item = &'a Subnet> {
        self.objects.iter().filter_map(move |(_, object)| match object {
            Object::Subnet(subnet) if subnet.vrf == *self.vrf && subnet.is_routed() => Some(subnet),
            _ => None,
        })
    }
}
