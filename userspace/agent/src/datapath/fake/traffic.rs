//! Policies, DSCP and services, evaluated by the oracle of the model.
//!
//! A connection stores its initiator and its backend. Everything else is evaluated for each packet, so that a change of the
//! rules applies to established connections. Simplifications compared with a real datapath: connections do not end;
//! fragments after the first are not handled; ICMP errors about translated packets are not translated; backends are those of the network of
//! the service; rejected clients get no reply; rates are not limited.

use std::net::IpAddr;

use contiv_model::{
    mac::Mac,
    policy::{self, Action, Identity, Party, Side, decide},
    service::{Resolution, resolve},
    tag::Encap,
};

use super::{
    forward::{Delivery, Origin, Target, deliver, has, locals, remotes, services_on},
    frame::{Ethernet, tagged, untag},
    guard::{self, Class},
    packet::{End, Tuple},
};
use crate::datapath::{Desired, Group, Local, Object, ObjectId, Remote, Service, Subnet};

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
        let packet = match guard::check(objects, encap, &inner, from)? {
            Class::Neighbour => return unmodified(),
            Class::Probe => {
                let is_answer = |copy: &Delivery| matches!((&copy.to, from), (Target::Pod(to), Origin::Pod(from)) if to == from);
                return unmodified().filter(|copies| copies.iter().all(is_answer));
            }
            Class::Other => return Some(network.deliver_other(unmodified()?, sender)),
            Class::Ip(packet) if is_multicast(&inner) => {
                if let Some(dscp) = sender.and_then(|sender| network.group(sender.identity?)?.dscp) {
                    packet.set_dscp(&mut inner, dscp);
                }
                let frame = network.framed(inner, from);
                let mac = Ethernet::read(&frame)?.source;
                return Some(network.replicate(deliver(objects, &frame, from), packet.tuple, mac));
            }
            Class::Ip(packet) => packet,
        };
        if let Some(quoted) = packet.quoted(&inner) {
            let connection = self.about(&network, packet.tuple, quoted?)?;
            return (network.verdict(&connection, [None; 2]) == Action::Allow)
                .then(|| deliver(objects, frame, from));
        }
        let (connection, direction) = match self.find(encap, packet.tuple) {
            Some(known) => known,
            None => (network.open(packet.tuple, sender.is_some())?, Direction::Original),
        };
        let ethernet = Ethernet::read(&inner)?;
        let macs = match direction {
            Direction::Original => [ethernet.source, ethernet.destination],
            Direction::Reply => [ethernet.destination, ethernet.source],
        };
        if network.verdict(&connection, macs.map(Some)) == Action::Deny {
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
        let frame = network.framed(inner, from);
        let is_unknown = !network.is_known(&frame, from);
        let copies = deliver(objects, &frame, from);
        Some(if is_unknown { network.replicate(copies, packet.tuple, ethernet.source) } else { copies })
    }

    /// Returns the connection that an ICMP error is about: it quotes a packet that its receiver has sent, and comes from the
    /// peer or from a router, which is no endpoint.
    fn about(&self, network: &Network<'_>, error: Tuple, quoted: Tuple) -> Option<Connection> {
        let (from, to) = (error.source.0, error.destination.0);
        let is_router =
            || network.identity_at(from).is_none() && network.stranger(from).party == Party::Outside;
        let is_on_path = from == quoted.destination.0 || is_router();
        let reply = Tuple { source: quoted.destination, destination: quoted.source, ..quoted };
        let known = self.find(network.encap, quoted).or_else(|| self.find(network.encap, reply));
        known.filter(|_| to == quoted.source.0 && is_on_path).map(|(connection, _)| connection)
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

    /// Evaluates the rules of the local endpoints of a connection. `macs` are the Ethernet addresses of the source and of the
    /// destination: an endpoint that uses an address without a record keeps its group.
    fn verdict(&self, connection: &Connection, macs: [Option<Mac>; 2]) -> Action {
        let Connection { tuple, to, .. } = connection;
        let connection = policy::Connection {
            source: self.source(tuple.source.0, macs[0]),
            destination: self.side(to.0, macs[1]),
            packet: tuple.policy_packet(to.1),
        };
        decide(&connection).action
    }

    fn side(&self, address: IpAddr, mac: Option<Mac>) -> Side<'a> {
        let by_mac = || self.identity_of(mac?);
        let Some((identity, is_here)) = self.identity_at(address).or_else(by_mac) else {
            return self.stranger(address);
        };
        let group_here = identity.filter(|_| is_here).and_then(|identity| self.group(identity));
        let rules = group_here.map_or(&[][..], |group| &group.rules);
        let dscp = group_here.and_then(|group| group.dscp);
        Side { dscp, ..Side::endpoint(address, identity, rules) }
    }

    /// The frame as `deliver` takes it.
    fn framed(&self, inner: Vec<u8>, from: &Origin) -> Vec<u8> {
        match (from, self.encap) {
            (Origin::Uplink, Encap::Vlan(vlan)) => tagged(&inner, vlan),
            _ => inner,
        }
    }

    /// Whether an endpoint has the destination Ethernet address of a frame as `deliver` takes it, or the wire delivers it.
    fn is_known(&self, frame: &[u8], from: &Origin) -> bool {
        let Some(mac) = Ethernet::read(frame).map(|ethernet| ethernet.destination) else { return true };
        matches!(self.encap, Encap::Vlan(_))
            || *from == Origin::Uplink
            || self.locals().any(|local| local.mac == mac)
            || self.remotes().any(|remote| remote.mac == mac)
    }

    /// The copies of a frame that rules cannot evaluate: none from or to an endpoint with rules.
    fn deliver_other(&self, copies: Vec<Delivery>, sender: Option<&Local>) -> Vec<Delivery> {
        let has_rules = |local: &Local| {
            let group = local.identity.and_then(|identity| self.group(identity));
            group.is_some_and(|group| !group.rules.is_empty())
        };
        if sender.is_some_and(has_rules) {
            return vec![];
        }
        let admits = |copy: &Delivery| self.receiver(copy).is_none_or(|local| !has_rules(local));
        copies.into_iter().filter(admits).collect()
    }

    /// The copies of a replicated packet that the rules of both endpoints allow, evaluated for each receiver. No copy leaves the
    /// node if a rule of the sender depends on the group of the receiver, which is not known for other nodes.
    fn replicate(&self, copies: Vec<Delivery>, tuple: Tuple, mac: Mac) -> Vec<Delivery> {
        let source = self.source(tuple.source.0, Some(mac));
        let named =
            |rule: &policy::Rule| rule.direction == policy::Direction::Out && rule.peer.names_identity();
        let by_group = source.rules.iter().any(named);
        let packet = tuple.policy_packet(tuple.destination.1);
        let admits = |copy: &Delivery| {
            let destination = match self.receiver(copy) {
                Some(local) => self.side(address_in(local, tuple.source.0), None),
                None if by_group => return false,
                None => Side::outside(tuple.destination.0),
            };
            decide(&policy::Connection { source, destination, packet }).action == Action::Allow
        };
        copies.into_iter().filter(admits).collect()
    }

    /// The endpoint that receives a copy on this node.
    fn receiver(&self, copy: &Delivery) -> Option<&'a Local> {
        match &copy.to {
            Target::Pod(port) => locals(self.objects).find(|local| local.port == *port),
            Target::Tunnel { .. } | Target::Uplink => None,
        }
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

    /// As `side` for a source: one that uses the address of an endpoint whose record is missing may be any endpoint.
    fn source(&self, address: IpAddr, mac: Option<Mac>) -> Side<'a> {
        let is_here = || mac.is_some_and(|mac| self.locals().any(|local| local.mac == mac));
        match self.side(address, None) {
            Side { party: Party::Outside, .. } => self.side(address, mac),
            Side { party: Party::UnknownInside, .. } if is_here() => self.side(address, mac),
            known => known,
        }
    }

    /// An address that is no endpoint's.
    fn stranger(&self, address: IpAddr) -> Side<'a> {
        // On the link, or no endpoint's: "this network" and the unspecified address of IPv6.
        let is_reserved = match address {
            IpAddr::V4(ip) => ip.octets()[0] == 0,
            IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local(),
        };
        let is_inside = |subnet: &Subnet| {
            let gateway = subnet.gateway.is_some_and(|gateway| gateway.ip == address);
            subnet.prefix.contains(&address) && !gateway
        };
        if is_reserved || self.subnets().any(is_inside) {
            Side::unknown_inside(address)
        } else {
            Side::outside(address)
        }
    }

    fn subnets(self) -> impl Iterator<Item = &'a Subnet> {
        let network = self.objects.iter().find_map(move |(_, object)| match object {
            Object::Network(network) if network.encap == self.encap => Some(&network.id),
            _ => None,
        });
        self.objects.iter().filter_map(move |(_, object)| match object {
            Object::Subnet(subnet) if Some(&subnet.network) == network => Some(subnet),
            _ => None,
        })
    }

    /// As `identity_at` for an Ethernet address.
    fn identity_of(&self, mac: Mac) -> Option<(Option<Identity>, bool)> {
        let here = self.locals().find(|local| local.mac == mac).map(|local| (local.identity, true));
        let there = || self.remotes().find(|remote| remote.mac == mac).map(|remote| (remote.identity, false));
        here.or_else(there)
    }

    fn mac(&self, address: IpAddr) -> Option<Mac> {
        let here = self.local_at(address).map(|local| local.mac);
        here.or_else(|| self.remote_at(address).map(|remote| remote.mac))
    }

    fn local_at(&self, address: IpAddr) -> Option<&'a Local> {
        self.locals().find(|local| has(&local.addresses, local.mac, address))
    }

    fn remote_at(&self, address: IpAddr) -> Option<&'a Remote> {
        self.remotes().find(|remote| has(&remote.addresses, remote.mac, address))
    }

    fn locals(self) -> impl Iterator<Item = &'a Local> {
        locals(self.objects).filter(move |local| local.encap == self.encap)
    }

    fn remotes(self) -> impl Iterator<Item = &'a Remote> {
        remotes(self.objects).filter(move |remote| remote.encap == self.encap)
    }

    fn services(self) -> impl Iterator<Item = &'a Service> {
        services_on(self.objects, self.encap)
    }
}

/// The endpoint's address of the family of `other`; link-local without another.
fn address_in(local: &Local, other: IpAddr) -> IpAddr {
    let mut addresses = local.addresses.iter().filter(|address| address.is_ipv4() == other.is_ipv4());
    addresses.next().unwrap_or_else(|| local.mac.link_local().into())
}

fn is_multicast(frame: &[u8]) -> bool {
    Ethernet::read(frame).is_some_and(|ethernet| ethernet.destination.is_multicast())
}
