//! What policies, profiles and services do with packets, by the oracle of the model.
//!
//! Connections have a memory: who opened it, and which backend was chosen. Everything else is decided anew for each
//! packet, so a change of the rules is in force for all. Simpler than a real datapath in this: it knows nothing of
//! connections' ends, of fragments after the first, and of errors about translated packets; backends are those of the
//! service's own network; who is refused is told nothing; and there is no limit to what may be sent.

use std::net::IpAddr;

use contiv_model::{
    group::GroupNumber,
    mac::Mac,
    policy::{self, Action, Side, decide},
    service::{Resolution, resolve},
    tag::Encap,
};

use super::{
    forward::{Delivery, Origin, deliver, locals, services_on},
    frame::{tagged, untag},
    packet::{End, Packet, Tuple},
};
use crate::datapath::{Desired, Group, Local, Object, ObjectId, Remote, Service};

/// The connections that passed.
#[derive(Debug, Default)]
pub(super) struct Traffic(Vec<Connection>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    encap: Encap,
    /// As it was opened.
    tuple: Tuple,
    /// Where it leads: its destination, or the backend.
    to: End,
}

impl Connection {
    fn is_translated(&self) -> bool {
        self.to != self.tuple.destination
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Traffic {
    /// What a node that holds `objects` does with a frame.
    pub(super) fn carry(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Vec<Delivery> {
        self.decide(objects, frame, from).unwrap_or_default()
    }

    /// None: dropped.
    fn decide(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Option<Vec<Delivery>> {
        let as_it_is = || Some(deliver(objects, frame, from));
        let (mut inner, encap, sender) = match from {
            Origin::Pod(port) => {
                let local = locals(objects).find(|local| local.port == *port)?;
                (frame.to_vec(), local.encap, Some(local))
            }
            Origin::Tunnel { vni, .. } => match vxlan(objects, *vni) {
                Some(encap) => (frame.to_vec(), encap, None),
                None => return as_it_is(),
            },
            Origin::Uplink => {
                let (vlan, inner) = untag(frame)?;
                (inner, Encap::Vlan(vlan), None)
            }
        };
        let network = Network { objects, encap };
        let packet = Packet::read(&inner).filter(|packet| !packet.is_neighbour_discovery());
        let Some(packet) = packet else { return as_it_is() };
        let (connection, way) = match self.find(encap, packet.tuple) {
            Some(known) => known,
            None => (network.open(packet.tuple, sender.is_some())?, Way::There),
        };
        if network.verdict(&connection) == Action::Deny {
            return None;
        }
        match way {
            Way::There if connection.is_translated() => {
                packet.readdress(&mut inner, connection.to, network.mac(connection.to.0)?);
            }
            Way::Back if connection.is_translated() => {
                packet.pretend(&mut inner, connection.tuple.destination);
            }
            _ => {}
        }
        if let Some(dscp) = sender.and_then(|sender| network.group(sender.group?)?.dscp) {
            packet.mark(&mut inner, dscp);
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

    fn find(&self, encap: Encap, tuple: Tuple) -> Option<(Connection, Way)> {
        let of_network = || self.0.iter().filter(|known| known.encap == encap).copied();
        let there = of_network().find(|known| known.tuple == tuple).map(|known| (known, Way::There));
        there.or_else(|| {
            let back = |known: &Connection| {
                let opened = known.tuple;
                tuple == Tuple { source: known.to, destination: opened.source, ..opened }
            };
            of_network().find(back).map(|known| (known, Way::Back))
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

/// One network as this node knows it.
#[derive(Clone, Copy)]
struct Network<'a> {
    objects: &'a Desired,
    encap: Encap,
}

impl<'a> Network<'a> {
    /// None if the client is refused. Services are for pods: what comes from another node was translated there.
    fn open(&self, tuple: Tuple, by_pod: bool) -> Option<Connection> {
        let (encap, (vip, port)) = (self.encap, tuple.destination);
        let direct = Connection { encap, tuple, to: tuple.destination };
        let Some(service) = self.services().find(|service| by_pod && service.vip == vip) else {
            return Some(direct);
        };
        let backends = service.backends.iter().filter(|backend| backend.encap == encap);
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

    /// By the rules of those of its ends that live here.
    fn verdict(&self, connection: &Connection) -> Action {
        let Connection { tuple, to, .. } = connection;
        let asked = policy::Connection {
            source: self.side(tuple.source.0),
            destination: self.side(to.0),
            packet: tuple.asked(to.1),
        };
        decide(&asked).action
    }

    fn side(&self, address: IpAddr) -> Side<'a> {
        let Some((group, is_here)) = self.group_at(address) else { return Side::outside(address) };
        let group_here = group.filter(|_| is_here).and_then(|number| self.group(number));
        let rules = group_here.map_or(&[][..], |group| &group.rules);
        Side { address, group, rules, dscp: group_here.and_then(|group| group.dscp) }
    }

    fn group(&self, number: GroupNumber) -> Option<&'a Group> {
        match self.objects.get(&ObjectId::Group(number))? {
            Object::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Of the endpoint that has the address, and whether it is here.
    fn group_at(&self, address: IpAddr) -> Option<(Option<GroupNumber>, bool)> {
        let here =
            self.locals().find(|local| has(address, local.ip, local.ip6)).map(|local| (local.group, true));
        let there = || self.remotes().find(|remote| has(address, remote.ip, remote.ip6));
        here.or_else(|| there().map(|remote| (remote.group, false)))
    }

    fn mac(&self, address: IpAddr) -> Option<Mac> {
        let here = self.locals().find(|local| has(address, local.ip, local.ip6)).map(|local| local.mac);
        here.or_else(|| {
            self.remotes().find(|remote| has(address, remote.ip, remote.ip6)).map(|remote| remote.mac)
        })
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

fn has(address: IpAddr, ip: std::net::Ipv4Addr, ip6: Option<std::net::Ipv6Addr>) -> bool {
    match address {
        IpAddr::V4(address) => ip == address,
        IpAddr::V6(address) => ip6 == Some(address),
    }
}
