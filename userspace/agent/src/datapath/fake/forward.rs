//! What every datapath does with a frame, in its simplest form: the oracle that they are held against.

use std::net::IpAddr;

use contiv_model::{
    global::ArpMode,
    mac::Mac,
    tag::{Encap, Vni},
};

use super::frame::{self, Ethernet, Question};
use crate::datapath::{Desired, Local, Network, Object, Peer, Remote, Service};

/// Where a frame comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The pod behind the port of this name.
    Pod(String),
    /// Another node's tunnel; the frame is the inner one.
    Tunnel {
        /// The address of the other end.
        vtep: IpAddr,
        /// The network's number.
        vni: Vni,
    },
    /// The VLAN uplink; the frame has its tag, if any.
    Uplink,
}

/// Where a frame goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The pod behind the port of this name.
    Pod(String),
    /// Another node's tunnel; the frame is the inner one.
    Tunnel {
        /// The address of the other end.
        vtep: IpAddr,
        /// The UDP port of the other end.
        port: u16,
        /// The network's number.
        vni: Vni,
        /// The class of service in the outer header, that of the inner one.
        dscp: u8,
    },
    /// The VLAN uplink; the frame has its tag.
    Uplink,
}

/// One copy of a frame.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivery {
    /// Where it goes.
    pub to: Target,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// What a node that holds `objects` does with a frame: every copy that leaves it.
pub fn deliver(objects: &Desired, frame: &[u8], from: &Origin) -> Vec<Delivery> {
    decide(objects, frame, from).unwrap_or_default()
}

/// None: dropped.
fn decide(objects: &Desired, frame: &[u8], from: &Origin) -> Option<Vec<Delivery>> {
    match from {
        Origin::Pod(port) => {
            let local = locals(objects).find(|local| local.port == *port)?;
            let segment = Segment::find(objects, local.encap)?;
            segment.of_pod(frame, local)
        }
        Origin::Tunnel { vtep, vni } => {
            let peer = peers(objects).find(|peer| peer.vtep == *vtep)?;
            let segment = Segment::with(
                objects,
                |encap| matches!(encap, Encap::Vxlan { vni: known, .. } if known == *vni),
            )?;
            segment.of_outside(frame, |frame| segment.to_peer(peer, *vni, frame))
        }
        Origin::Uplink => {
            let (vlan, inner) = frame::untag(frame)?;
            let segment = Segment::find(objects, Encap::Vlan(vlan))?;
            segment.of_outside(&inner, |frame| to_uplink(frame::tagged(&frame, vlan)))
        }
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

    fn of_pod(&self, frame: &[u8], sender: &Local) -> Option<Vec<Delivery>> {
        let ethernet = sound(frame)?;
        if let Some(question) = self.question(frame)
            && let Some(owner) = self.owner(&question, Some(sender))
        {
            return Some(vec![to_pod(sender, question.answer(owner))]);
        }
        let others = self.locals().filter(|local| local.port != sender.port);
        let copies = match self.home(ethernet.destination) {
            Home::Here(local) if local.port == sender.port => vec![],
            Home::Here(local) => vec![to_pod(local, frame.to_vec())],
            Home::At(remote) => self.to_remote(remote, frame),
            Home::Everybody => {
                others.map(|local| to_pod(local, frame.to_vec())).chain(self.to_other_nodes(frame)).collect()
            }
            Home::Unknown => match self.network.encap {
                Encap::Vxlan { .. } => others
                    .map(|local| to_pod(local, frame.to_vec()))
                    .chain(self.to_other_nodes(frame))
                    .collect(),
                // The switches outside find the way.
                Encap::Vlan(_) => self.to_other_nodes(frame),
            },
        };
        Some(copies)
    }

    /// `back` sends a frame where this one came from.
    fn of_outside(&self, frame: &[u8], back: impl Fn(Vec<u8>) -> Delivery) -> Option<Vec<Delivery>> {
        let ethernet = sound(frame)?;
        if let Some(question) = self.question(frame)
            && let Some(owner) = self.owner(&question, None)
        {
            return Some(vec![back(question.answer(owner))]);
        }
        let everybody = || self.locals().map(|local| to_pod(local, frame.to_vec())).collect();
        Some(match (self.home(ethernet.destination), self.network.encap) {
            (Home::Here(local), _) => vec![to_pod(local, frame.to_vec())],
            (Home::Everybody, _) | (Home::Unknown, Encap::Vxlan { .. }) => everybody(),
            // Never from one node to another: each sends to all of them itself. And the uplink hears
            // much that is for others.
            (Home::At(_), _) | (Home::Unknown, Encap::Vlan(_)) => vec![],
        })
    }

    fn question(&self, frame: &[u8]) -> Option<Question> {
        match self.network.arp {
            ArpMode::Proxy => Question::read(frame),
            ArpMode::Flood => None,
        }
    }

    /// Whose the address is, among those for whom the asker is answered: a pod for everyone but itself, the
    /// outside for the pods here, as the others' nodes answer for theirs.
    fn owner(&self, question: &Question, asker: Option<&Local>) -> Option<Mac> {
        let has = |ip: std::net::Ipv4Addr, ip6: Option<std::net::Ipv6Addr>| match question {
            Question::Arp { target, .. } => ip == *target,
            Question::Solicitation { target, .. } => ip6 == Some(*target),
        };
        let here = self.locals().find(|local| has(local.ip, local.ip6));
        match (here, asker) {
            (Some(local), Some(asker)) if local.port == asker.port => None,
            (Some(local), _) => Some(local.mac),
            (None, Some(_)) => {
                let there = self.remotes().find(|remote| has(remote.ip, remote.ip6)).map(|remote| remote.mac);
                there.or_else(|| self.service_mac(question))
            }
            (None, None) => None,
        }
    }

    /// A service's address looks like that of an endpoint. What is sent there is addressed anew before it is forwarded.
    fn service_mac(&self, question: &Question) -> Option<Mac> {
        let Question::Arp { target, .. } = question else { return None };
        let mut services = services_on(self.objects, self.network.encap);
        services.find(|service| service.vip == IpAddr::V4(*target)).map(|_| Mac::of_endpoint(*target))
    }

    fn home(&self, mac: Mac) -> Home<'a> {
        if mac.is_multicast() {
            return Home::Everybody;
        }
        match (self.locals().find(|local| local.mac == mac), self.remotes().find(|remote| remote.mac == mac))
        {
            (Some(local), _) => Home::Here(local),
            (None, Some(remote)) => Home::At(remote),
            (None, None) => Home::Unknown,
        }
    }

    fn to_remote(&self, remote: &Remote, frame: &[u8]) -> Vec<Delivery> {
        match (self.network.encap, remote.vtep) {
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
            Encap::Vxlan { vni, .. } => {
                peers(self.objects).map(|peer| self.to_peer(peer, vni, frame.to_vec())).collect()
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
        self.objects.iter().filter_map(move |(_, object)| match object {
            Object::Remote(remote) if remote.encap == encap => Some(remote),
            _ => None,
        })
    }
}

/// Where a MAC address is.
enum Home<'a> {
    Here(&'a Local),
    At(&'a Remote),
    Everybody,
    Unknown,
}

/// The frame's addresses, if any bridge would forward it.
fn sound(frame: &[u8]) -> Option<Ethernet> {
    // Pods do not choose their network, and networks are not nested.
    Ethernet::read(frame).filter(|e| !e.is_tagged() && !e.source.is_multicast() && !e.is_for_bridges())
}

fn to_pod(local: &Local, frame: Vec<u8>) -> Delivery {
    Delivery { to: Target::Pod(local.port.clone()), frame }
}

fn to_uplink(frame: Vec<u8>) -> Delivery {
    Delivery { to: Target::Uplink, frame }
}

fn peers(objects: &Desired) -> impl Iterator<Item = &Peer> {
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

/// The services whose addresses the endpoints of a network can use.
pub(super) fn services_on(objects: &Desired, encap: Encap) -> impl Iterator<Item = &Service> {
    objects.iter().filter_map(move |(_, object)| match object {
        Object::Service(service) if service.scope.as_ref().is_none_or(|scope| scope.encap == encap) => {
            Some(service)
        }
        _ => None,
    })
}
