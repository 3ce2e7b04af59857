//! Policies, DSCP and services, evaluated by the oracle of the model.
//!
//! A connection stores its initiator and its backend. Everything else is evaluated for each packet, so that a change of the
//! rules applies to established connections. Simplifications compared with a real datapath: connections do not end;
//! fragments after the first and ICMP errors about translated packets are not handled; backends are those of the network of
//! the service; rejected clients get no reply; rates are not limited.

use std::net::IpAddr;

use contiv_model::{
    mac::Mac,
    policy::{self, Action, Identity, Side, decide},
    service::{Resolution, resolve},
    tag::Encap,
};

use super::{
    forward::{Delivery, Origin, deliver, locals, services_on},
    frame::{tagged, untag},
    packet::{End, Packet, Tuple},
};
use crate::datapath::{Desired, Group, Local, Object, ObjectId, Remote, Service};

/// Established connections.
#[derive(Debug, Default)]
pub(super) struct Traffic(Vec<Connection>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    encap: Encap,
    /// Tuple of the first packet.
    tuple: Tuple,
    /// Destination, or the backend of a service.
    to: End,
}

impl Connection {
    fn is_translated(&self) -> bool {
        self.to != self.tuple.destination
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Original,
    Reply,
}

impl Traffic {
    /// Forwards a frame on a node with `objects`; returns all copies that leave the node.
    pub(super) fn forward(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Vec<Delivery> {
        self.decide(objects, frame, from).unwrap_or_default()
    }

    /// `None` for a dropped frame.
    fn decide(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Option<Vec<Delivery>> {
        let unmodified = || Some(deliver(objects, frame, from));
        let (mut inner, encap, sender) = match from {
            Origin::Pod(port) => {
                let local = locals(objects).find(|local| local.port == *port)?;
                (frame.to_vec(), local.encap, Some(local))
            }
            Origin::Tunnel { vni, .. } => match vxlan(objects, *vni) {
                Some(encap) => (frame.to_vec(), encap, None),
                None => return unmodified(),
            },
            Origin::Uplink => {
                let (vlan, inner) = untag(frame)?;
                (inner, Encap::Vlan(vlan), None)
            }
        };
        let network = Network { objects, encap };
        let packet = Packet::read(&inner).filter(|packet| !packet.is_neighbour_discovery());
        let Some(packet) = packet else { return unmodified() };
        let (connection, direction) = match self.find(encap, packet.tuple) {
            Some(known) => known,
            None => (network.open(packet.tuple, sender.is_some())?, Direction::Original),
        };
        if network.verdict(&connection) == Action::Deny {
            return None;
        }
        match direction {
            Direction::Original if connection.is_translated() => {
                packet.rewrite_destination(&mut inner, connection.to, network.mac(connection.to.0)?);
            }
            Direction::Reply if connection.is_translated() => {
                packet.rewrite_source(&mut inner, connection.tuple.destination);
            }
            _ => {}
        }
        if let Some(dscp) = sender.and_then(|sender| network.group(sender.identity?)?.dscp) {
            packet.set_dscp(&mut inner, dscp);
        }
        if !self.0.contains(&connection) {
            self.0.push(connection);
        }
        let frame = match (from, encap) {
            (Origin::Uplink, Encap::Vlan(vlan)) => tagged(&inner, vlan),
            _ => inner,
        };
        Some(deliver(objects, &frame, from))
    }

    fn find(&self, encap: Encap, tuple: Tuple) -> Option<(Connection, Direction)> {
        let of_network = || self.0.iter().filter(|known| known.encap == encap).copied();
        let there = of_network().find(|known| known.tuple == tuple).map(|known| (known, Direction::Original));
        there.or_else(|| {
            let back = |known: &Connection| {
                let opened = known.tuple;
                tuple == Tuple { source: known.to, destination: opened.source, ..opened }
            };
            of_network().find(back).map(|known| (known, Direction::Reply))
        })
    }
}

fn vxlan(objects: &Desired, number: contiv_model::tag::Vni) -> Option<Encap> {
    objects.iter().find_map(|(_, object)| match object {
        Object::Network(network) => match network.encap {
            encap @ Encap::Vxlan { vni, .. } if vni == number => Some(encap),
            _ => None,
        },
        _ => None,
    })
}

/// Objects of one network.
#[derive(Clone, Copy)]
struct Network<'a> {
    objects: &'a Desired,
    encap: Encap,
}

impl<'a> Network<'a> {
    /// Returns a new connection; `None` if the service rejects it. Only local pods use services: traffic from another node
    /// is already translated.
    fn open(&self, tuple: Tuple, by_pod: bool) -> Option<Connection> {
        let (encap, (vip, port)) = (self.encap, tuple.destination);
        let direct = Connection { encap, tuple, to: tuple.destination };
        let Some(service) = self.services().find(|service| by_pod && service.vip == vip) else {
            return Some(direct);
        };
        let backends = service.backends.iter().filter(|backend| backend.encap == Some(encap));
        let backends = backends.map(|backend| (backend.ip, backend.readiness));
        match resolve(&service.ports, backends, tuple.protocol, port) {
            Resolution::Direct => Some(direct),
            Resolution::To { backends, port } => {
                let client = usize::from(tuple.source.1);
                let to = (backends.get(client % backends.len()).copied()?, port);
                Some(Connection { to, ..direct })
            }
            Resolution::Refused => None,
        }
    }

    /// Evaluates the rules of the local endpoints of a connection.
    fn verdict(&self, connection: &Connection) -> Action {
        let Connection { tuple, to, .. } = connection;
        let connection = policy::Connection {
            source: self.side(tuple.source.0),
            destination: self.side(to.0),
            packet: tuple.policy_packet(to.1),
        };
        decide(&connection).action
    }

    fn side(&self, address: IpAddr) -> Side<'a> {
        let Some((identity, is_here)) = self.identity_at(address) else { return Side::outside(address) };
        let group_here = identity.filter(|_| is_here).and_then(|identity| self.group(identity));
        let rules = group_here.map_or(&[][..], |group| &group.rules);
        let dscp = group_here.and_then(|group| group.dscp);
        Side { dscp, ..Side::endpoint(address, identity, rules) }
    }

    fn group(&self, identity: Identity) -> Option<&'a Group> {
        match self.objects.get(&ObjectId::Group(identity))? {
            Object::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Returns the identity of the endpoint with this address, and whether the endpoint is local.
    fn identity_at(&self, address: IpAddr) -> Option<(Option<Identity>, bool)> {
        let here = self.local_at(address).map(|local| (local.identity, true));
        here.or_else(|| self.remote_at(address).map(|remote| (remote.identity, false)))
    }

    fn mac(&self, address: IpAddr) -> Option<Mac> {
        let here = self.local_at(address).map(|local| local.mac);
        here.or_else(|| self.remote_at(address).map(|remote| remote.mac))
    }

    fn local_at(&self, address: IpAddr) -> Option<&'a Local> {
        self.locals().find(|local| local.addresses.contains(address))
    }

    fn remote_at(&self, address: IpAddr) -> Option<&'a Remote> {
        self.remotes().find(|remote| remote.addresses.contains(address))
    }

    fn locals(self) -> impl Iterator<Item = &'a Local> {
        locals(self.objects).filter(move |local| local.encap == self.encap)
    }

    fn remotes(self) -> impl Iterator<Item = &'a Remote> {
        self.objects.iter().filter_map(move |(_, object)| match object {
            Object::Remote(remote) if remote.encap == self.encap => Some(remote),
            _ => None,
        })
    }

    fn services(self) -> impl Iterator<Item = &'a Service> {
        services_on(self.objects, self.encap)
    }
}
