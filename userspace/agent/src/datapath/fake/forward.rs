//! Layer 2 forwarding in its simplest form: the oracle for the other datapaths.

use std::net::IpAddr;

use contiv_model::{
    addresses::Addresses,
    global::ArpMode,
    mac::Mac,
    tag::{Encap, Vni},
};

use super::route::Router;
use crate::datapath::{
    Desired, Local, Network, Object, Peer, Remote, Service,
    wire::frame::{self, Ethernet, NeighbourRequest},
};

/// Source of a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The pod at the port with this name.
    Pod(String),
    /// A tunnel to another node; the frame is the inner one.
    Tunnel {
        /// VTEP of the other node.
        vtep: IpAddr,
        /// VNI of the network.
        vni: Vni,
    },
    /// The VLAN uplink; the frame includes its tag, if any.
    Uplink,
    /// The node's kernel, which routes VLAN networks and provides host access for VXLAN networks.
    Kernel,
}

/// Destination of a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The pod at the port with this name.
    Pod(String),
    /// A tunnel to another node; the frame is the inner one.
    Tunnel {
        /// VTEP of the other node.
        vtep: IpAddr,
        /// UDP port of the other node.
        port: u16,
        /// VNI of the network.
        vni: Vni,
        /// DSCP of the outer header, copied from the inner one.
        dscp: u8,
    },
    /// The VLAN uplink; the frame includes its tag.
    Uplink,
    /// The node's kernel, which routes VLAN networks and provides host access for VXLAN networks.
    Kernel,
}

/// One copy of a frame that leaves the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// Destination.
    pub to: Target,
    /// Frame, starting with its Ethernet header.
    pub frame: Vec<u8>,
}

/// Forwards a frame on a node with `objects`; returns all copies that leave the node.
pub fn deliver(objects: &Desired, frame: &[u8], from: &Origin) -> Vec<Delivery> {
    decide(objects, frame, from).unwrap_or_default()
}

/// Forwards a routed frame with the Ethernet addresses of its last hop on the network of its destination.
pub(super) fn deliver_routed(objects: &Desired, encap: Encap, frame: &[u8]) -> Vec<Delivery> {
    let Some((segment, ethernet)) = Segment::find(objects, encap).zip(forwardable(frame)) else {
        return vec![];
    };
    match segment.locate(ethernet.destination) {
        Location::Local(local) => vec![to_pod(local, frame.to_vec())],
        Location::Remote(remote) => segment.to_remote(remote, frame),
        Location::Multicast | Location::Unknown => vec![],
    }
}

/// `None` for a dropped frame.
fn decide(objects: &Desired, frame: &[u8], from: &Origin) -> Option<Vec<Delivery>> {
    match from {
        Origin::Pod(port) => {
            let local = locals(objects).find(|local| local.port == *port)?;
            let segment = Segment::find(objects, local.encap)?;
            segment.forward_from_pod(frame, local)
        }
        Origin::Tunnel { vtep, vni } => {
            let peer = peers(objects).find(|peer| peer.vtep == *vtep)?;
            let segment = Segment::with(
                objects,
                |encap| matches!(encap, Encap::Vxlan { vni: known, .. } if known == *vni),
            )?;
            segment.forward_from_outside(frame, |frame| segment.to_peer(peer, *vni, frame))
        }
        Origin::Uplink => {
            let (vlan, inner) = frame::untag(frame)?;
            let segment = Segment::find(objects, Encap::Vlan(vlan))?;
            if segment.is_on_node() {
                return None;
            }
            segment.forward_from_outside(&inner, |frame| to_uplink(frame::tagged(&frame, vlan)))
        }
        // The kernel sends only IP packets, which are routed.
        Origin::Kernel => None,
    }
}

/// One network on this node.
struct Segment<'a> {
    objects: &'a Desired,
    network: &'a Network,
}

impl<'a> Segment<'a> {
    fn find(objects: &'a Desired, encap: Encap) -> Option<Self> {
        Segment::with(objects, |known| known == encap)
    }

    fn with(objects: &'a Desired, is_it: impl Fn(Encap) -> bool) -> Option<Self> {
        let mut networks = objects.iter().filter_map(|(_, object)| match object {
            Object::Network(network) => Some(network),
            _ => None,
        });
        networks.find(|network| is_it(network.encap)).map(|network| Segment { objects, network })
    }

    fn forward_from_pod(&self, frame: &[u8], sender: &Local) -> Option<Vec<Delivery>> {
        let ethernet = forwardable(frame)?;
        if let Some(request) = NeighbourRequest::read(frame)
            && let Some(answer) = self.answer_to_pod(&request, sender)
        {
            return Some(vec![to_pod(sender, request.reply(answer))]);
        }
        let others = self.locals().filter(|local| local.port != sender.port);
        let copies = match self.locate(ethernet.destination) {
            Location::Local(local) if local.port == sender.port => vec![],
            Location::Local(local) => vec![to_pod(local, frame.to_vec())],
            Location::Remote(remote) => self.to_remote(remote, frame),
            Location::Multicast => {
                others.map(|local| to_pod(local, frame.to_vec())).chain(self.to_other_nodes(frame)).collect()
            }
            Location::Unknown if self.is_on_node() => {
                others.map(|local| to_pod(local, frame.to_vec())).collect()
            }
            Location::Unknown => match self.network.encap {
                Encap::Vxlan { .. } => others
                    .map(|local| to_pod(local, frame.to_vec()))
                    .chain(self.to_other_nodes(frame))
                    .collect(),
                // The physical network floods or learns.
                Encap::Vlan(_) => self.to_other_nodes(frame),
            },
        };
        Some(copies)
    }

    /// Forwards a frame from a tunnel or uplink. `back` returns the delivery to that source.
    fn forward_from_outside(
        &self,
        frame: &[u8],
        back: impl Fn(Vec<u8>) -> Delivery,
    ) -> Option<Vec<Delivery>> {
        let ethernet = forwardable(frame)?;
        if let Some(request) = NeighbourRequest::read(frame).filter(|_| self.is_proxy())
            && let Some(owner) = self.owner(&request, None)
        {
            return Some(vec![back(request.reply(owner))]);
        }
        let everybody = || self.locals().map(|local| to_pod(local, frame.to_vec())).collect();
        Some(match (self.locate(ethernet.destination), self.network.encap) {
            (Location::Local(local), _) => vec![to_pod(local, frame.to_vec())],
            (Location::Multicast, _) | (Location::Unknown, Encap::Vxlan { .. }) => everybody(),
            // Split horizon: the sending node replicates to all nodes. The uplink also receives frames for other nodes.
            (Location::Remote(_), _) | (Location::Unknown, Encap::Vlan(_)) => vec![],
        })
    }

    fn is_proxy(&self) -> bool {
        self.network.arp == ArpMode::Proxy
    }

    /// Returns the Ethernet address in the reply to a pod. No endpoint answers for gateways and services, so the node
    /// does so in each ARP mode.
    fn answer_to_pod(&self, request: &NeighbourRequest, sender: &Local) -> Option<Mac> {
        let gateway = self.is_gateway(request.target()).then_some(Mac::ROUTER);
        let owner = || self.is_proxy().then(|| self.owner(request, Some(sender))).flatten();
        gateway.or_else(owner).or_else(|| self.service_mac(request.target()))
    }

    /// Returns the Ethernet address of the owner. Pods get replies for all addresses except their own. Requests from
    /// outside get replies only for local pods, because other nodes reply for theirs.
    fn owner(&self, request: &NeighbourRequest, requester: Option<&Local>) -> Option<Mac> {
        let target = request.target();
        let here = self.locals().find(|local| has(&local.addresses, local.mac, target));
        match (here, requester) {
            (Some(local), Some(requester)) if local.port == requester.port => None,
            (Some(local), _) => Some(local.mac),
            (None, Some(_)) => {
                let is_there = |remote: &&Remote| match self.is_on_node() {
                    true => remote.addresses.contains(target),
                    false => has(&remote.addresses, remote.mac, target),
                };
                let there = self
                    .remotes()
                    .find(is_there)
                    .map(|remote| if self.is_on_node() { Mac::ROUTER } else { remote.mac });
                there.or_else(|| self.router_mac(target))
            }
            (None, None) => None,
        }
    }

    /// Whether the frames of the network stay on the node.
    fn is_on_node(&self) -> bool {
        Router::new(self.objects, &self.network.vrf).keeps(&self.network.id)
    }

    /// Whether this is the address of the gateway of the network's pods, and the node is the gateway.
    fn is_gateway(&self, address: IpAddr) -> bool {
        let router = Router::new(self.objects, &self.network.vrf);
        router.gateway(address).is_some_and(|subnet| subnet.network == self.network.id)
    }

    /// Returns the router's Ethernet address for an endpoint that it can reach on another network.
    fn router_mac(&self, address: IpAddr) -> Option<Mac> {
        let vrf = &self.network.vrf;
        let subnet = Router::new(self.objects, vrf).subnet(address)?;
        let here = locals(self.objects).filter(|local| local.vrf == *vrf);
        let there = remotes(self.objects).filter(|remote| remote.vrf == *vrf);
        let mut addresses = here.map(|local| &local.addresses).chain(there.map(|remote| &remote.addresses));
        let is_endpoint = addresses.any(|addresses| addresses.contains(address));
        (subnet.network != self.network.id && is_endpoint).then_some(Mac::ROUTER)
    }

    /// Returns the Ethernet address of a service. Frames to it are translated before they are forwarded.
    fn service_mac(&self, vip: IpAddr) -> Option<Mac> {
        let mut services = services_on(self.objects, self.network.encap);
        services.find(|service| service.vip == vip).map(|_| Mac::of_service(vip))
    }

    fn locate(&self, mac: Mac) -> Location<'a> {
        if mac.is_multicast() {
            return Location::Multicast;
        }
        match (self.locals().find(|local| local.mac == mac), self.remotes().find(|remote| remote.mac == mac))
        {
            (Some(local), _) => Location::Local(local),
            (None, Some(remote)) if !self.is_on_node() => Location::Remote(remote),
            (None, _) => Location::Unknown,
        }
    }

    fn to_remote(&self, remote: &Remote, frame: &[u8]) -> Vec<Delivery> {
        match (self.network.encap, remote.vtep()) {
            (Encap::Vxlan { vni, .. }, Some(vtep)) => {
                let peer = peers(self.objects).find(|peer| peer.vtep == vtep);
                peer.map(|peer| self.to_peer(peer, vni, frame.to_vec())).into_iter().collect()
            }
            (Encap::Vxlan { .. }, None) => vec![],
            (Encap::Vlan(_), _) => self.to_other_nodes(frame),
        }
    }

    fn to_other_nodes(&self, frame: &[u8]) -> Vec<Delivery> {
        match self.network.encap {
            _ if self.is_on_node() => vec![],
            Encap::Vxlan { vni, .. } => {
                let members = peers(self.objects).filter(|peer| peer.networks.contains_key(&self.network.id));
                members.map(|peer| self.to_peer(peer, vni, frame.to_vec())).collect()
            }
            Encap::Vlan(vlan) => vec![to_uplink(frame::tagged(frame, vlan))],
        }
    }

    fn to_peer(&self, peer: &Peer, vni: Vni, frame: Vec<u8>) -> Delivery {
        let dscp = frame::dscp(&frame);
        Delivery { to: Target::Tunnel { vtep: peer.vtep, port: peer.port, vni, dscp }, frame }
    }

    fn locals(&self) -> impl Iterator<Item = &'a Local> + use<'a> {
        let encap = self.network.encap;
        locals(self.objects).filter(move |local| local.encap == encap)
    }

    fn remotes(&self) -> impl Iterator<Item = &'a Remote> + use<'a> {
        let encap = self.network.encap;
        remotes(self.objects).filter(move |remote| remote.encap == encap)
    }
}

/// Location of an Ethernet address.
enum Location<'a> {
    Local(&'a Local),
    Remote(&'a Remote),
    Multicast,
    Unknown,
}

/// Returns the header of a frame that a bridge may forward.
fn forwardable(frame: &[u8]) -> Option<Ethernet> {
    // Pods cannot select a network with a tag, and networks are not nested.
    Ethernet::read(frame).filter(|e| !e.is_tagged() && !e.source.is_multicast() && !e.is_link_local())
}

fn to_pod(local: &Local, frame: Vec<u8>) -> Delivery {
    Delivery { to: Target::Pod(local.port.clone()), frame }
}

fn to_uplink(frame: Vec<u8>) -> Delivery {
    Delivery { to: Target::Uplink, frame }
}

pub(super) fn peers(objects: &Desired) -> impl Iterator<Item = &Peer> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Peer(peer) => Some(peer),
        _ => None,
    })
}

pub(super) fn locals(objects: &Desired) -> impl Iterator<Item = &Local> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Local(local) => Some(local),
        _ => None,
    })
}

/// Reports whether an endpoint has the address: it is assigned, or it is the link-local one that its kernel derives.
pub(super) fn has(addresses: &Addresses, mac: Mac, address: IpAddr) -> bool {
    addresses.contains(address) || address == IpAddr::V6(mac.link_local())
}

pub(super) fn remotes(objects: &Desired) -> impl Iterator<Item = &Remote> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Remote(remote) => Some(remote),
        _ => None,
    })
}

/// Returns the services that the endpoints of a network can use: those of its VRF.
pub(super) fn services_on(objects: &Desired, encap: Encap) -> impl Iterator<Item = &Service> {
    let networks = objects.iter().filter_map(|(_, object)| match object {
        Object::Network(network) => Some(network),
        _ => None,
    });
    let vrf = networks.filter(|network| network.encap == encap).map(|network| &network.vrf).next();
    let is_usable = move |service: &Service| match &service.scope.network {
        Some(network) if network.encap == encap => true,
        _ => vrf == Some(&service.scope.vrf),
    };
    objects.iter().filter_map(move |(_, object)| match object {
        Object::Service(service) if is_usable(service) => Some(service),
        _ => None,
    })
}
