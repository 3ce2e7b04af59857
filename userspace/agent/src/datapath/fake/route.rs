//! Routing between the networks of a VRF.
//!
//! The router is on every node, and has one Ethernet address everywhere. A pod reaches it by that address; what it sends there
//! is forwarded by its IP address.

use std::net::IpAddr;

use contiv_model::{mac::Mac, vrf::Vrf};

use crate::datapath::{Desired, Object, Subnet};

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
