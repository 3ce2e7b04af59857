//! Services for clients outside the cluster, on the wire of a VLAN.
//!
//! The node of the service's speaker answers ARP and ND, and selects the backend. It forwards frames for a backend on
//! another node with other Ethernet addresses; that node translates the packet for the pod to which the frame is
//! addressed. Simplification: only current backends of the service receive packets, although a connection keeps a former
//! backend.

use std::net::IpAddr;

use contiv_model::{
    mac::Mac,
    policy::{TCP, UDP},
    tag::Encap,
};

use super::{
    connection::Connection,
    forward::{Delivery, Target, locals, services_on},
    network::{Network, service_port},
};
use crate::datapath::{
    Desired, Service,
    wire::{
        frame::{NeighbourRequest, tagged},
        packet::{Packet, Tuple},
    },
};

/// Returns the service with this address on the VLAN, and its Ethernet address. Frames of the VLAN must not be confined
/// to the node.
pub(super) fn service(objects: &Desired, encap: Encap, address: IpAddr) -> Option<(&Service, Mac)> {
    let Encap::Vlan(_) = encap else { return None };
    let is_it = |service: &&Service| {
        let network = service.scope.network.as_ref();
        service.vip == address && network.is_some_and(|network| network.encap == encap)
    };
    Some((services_on(objects, encap).find(is_it)?, Mac::of_service(address)))
}

/// Returns this node's reply to an ARP or ND request from the wire for the address of a service; `None` for other frames.
pub(super) fn reply(network: &Network<'_>, frame: &[u8]) -> Option<Delivery> {
    let request = NeighbourRequest::read(frame)?;
    let (service, mac) = service(network.objects, network.encap, request.target())?;
    let is_answered = is_answered(network.objects, network.encap, service);
    is_answered.then(|| to_wire(network, request.reply(mac)))
}

/// Whether this node answers ARP and ND for the service.
pub(super) fn is_answered(objects: &Desired, encap: Encap, service: &Service) -> bool {
    let speaker = service.speaker();
    let has = |ip: IpAddr| locals(objects).any(|local| local.encap == encap && local.addresses.contains(ip));
    speaker.is_some_and(has)
}

/// Returns the connection of a packet that another node has forwarded to the endpoint with this Ethernet address.
pub(super) fn arrived(network: &Network<'_>, service: &Service, tuple: Tuple, to: Mac) -> Option<Connection> {
    let port = service_port(service, tuple)?;
    let local = locals(network.objects).find(|local| local.encap == network.encap && local.mac == to)?;
    let backend = service.backends.iter().find(|backend| local.addresses.contains(backend.ip))?;
    let (vrf, to) = (network.vrf.clone(), (backend.ip, port.target));
    Some(Connection { vrf, tuple, to, macs: [None; 2], opener: None })
}

/// Reports whether a packet has ports, which a service requires.
pub(super) fn has_ports(packet: &Packet) -> bool {
    matches!(packet.tuple.protocol, TCP | UDP)
}

pub(super) fn to_wire(network: &Network<'_>, inner: Vec<u8>) -> Delivery {
    let frame = match network.encap {
        Encap::Vlan(vlan) => tagged(&inner, vlan),
        Encap::Vxlan { .. } => inner,
    };
    Delivery { to: Target::Uplink, frame }
}
