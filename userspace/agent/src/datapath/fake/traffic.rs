//! Policies, DSCP and services, evaluated by the oracle of the model.
//!
//! A connection stores its initiator and its backend. Everything else is evaluated for each packet, so that a change of
//! the rules applies to established connections. Packets with which the other end opens a connection, and replies to an
//! initiator whose address has passed to another endpoint, are packets of a new connection; ICMP errors to such an
//! endpoint are dropped. Simplifications compared with a real datapath: connections do not end; fragments after the first
//! are not handled; ICMP errors of clients outside the cluster are not translated; backends are those of the network of
//! the service; rates are not limited.

use contiv_model::{mac::Mac, policy::Action, tag::Encap, vrf::Vrf};

use super::{
    connection::{Connection, Direction},
    external,
    forward::{Delivery, Origin, Target, deliver, locals},
    guard::{self, Class},
    host,
    network::{Network, is_multicast, networks},
    route::on_kernel,
};
use crate::datapath::{
    Desired, KERNEL_MAC, Local, Service,
    wire::{
        answer,
        frame::{Ethernet, untag},
        packet::{Packet, Tuple},
    },
};

/// Established connections, the latest first. If two connections use the same connection to their backend, replies belong
/// to the one that was used last.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic(Vec<Connection>);

impl Traffic {
    /// Forwards a frame on a node with `objects`; returns all copies that leave the node.
    pub(super) fn forward(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Vec<Delivery> {
        self.decide(objects, frame, from).unwrap_or_default()
    }

    /// `None` for a dropped frame.
    fn decide(&mut self, objects: &Desired, frame: &[u8], from: &Origin) -> Option<Vec<Delivery>> {
        let unmodified = || Some(deliver(objects, frame, from));
        let (mut inner, network, sender) = arrival(objects, frame, from)?;
        let Some(crate::datapath::Network { encap, vrf, .. }) = network else { return unmodified() };
        let encap = *encap;
        let network = Network { objects, encap, vrf };
        if *from == Origin::Uplink && network.is_on_node() {
            return None;
        }
        // Connections to a removed service end when an endpoint gets its address. Other connections end when a service
        // gets their destination address.
        let is_reused = |known: &Connection| {
            let address = known.tuple.destination.0;
            match known.is_translated() {
                true => network.identity_at(address).is_some(),
                false => network.is_of_service(address),
            }
        };
        self.0.retain(|known| known.vrf != *vrf || !is_reused(known));
        let packet = match guard::check(objects, (encap, vrf), &inner, from)? {
            Class::Neighbour if *from == Origin::Uplink => {
                let reply = external::reply(&network, &inner);
                return reply.map(|reply| vec![reply]).or_else(unmodified);
            }
            Class::Neighbour => return unmodified(),
            Class::Probe => {
                let is_answer = |copy: &Delivery| matches!((&copy.to, from), (Target::Pod(to), Origin::Pod(from)) if to == from);
                return unmodified().filter(|copies| copies.iter().all(is_answer));
            }
            Class::Other => return Some(network.deliver_other(unmodified()?, sender)),
            // An ICMP error is meant for the sender of a packet.
            Class::Ip(packet) if is_multicast(&inner) && packet.quoted(&inner).is_some() => return None,
            Class::Ip(packet) if is_multicast(&inner) => {
                network.mark(&mut inner, packet, sender);
                let frame = network.framed(inner, from);
                let mac = Ethernet::read(&frame)?.source;
                return Some(network.replicate(deliver(objects, &frame, from), packet.tuple, mac));
            }
            Class::Ip(packet) => packet,
        };
        if *from == Origin::Uplink
            && let Some(service) = external::service(objects, encap, packet.tuple.destination.0)
        {
            return external::has_ports(&packet)
                .then(|| self.serve_outside(&network, service, packet, inner))?;
        }
        let ethernet = Ethernet::read(&inner)?;
        let for_router = sender.filter(|_| network.is_for_router(ethernet.destination, packet.tuple));
        if let Some(sender) = for_router
            && let Some(answer) = network.answer(&inner, &packet)
        {
            return answer.map(|frame| vec![Delivery { to: Target::Pod(sender.port.clone()), frame }]);
        }
        if let Some(quoted) = packet.quoted(&inner) {
            let (connection, direction) = self.about(&network, packet.tuple, quoted?)?;
            let is_for_opener = || {
                network.is_of_receiver(&connection)
                    && !network.is_misdirected(&connection, ethernet.destination)
            };
            if direction == Direction::Reply && !is_for_opener() {
                return None;
            }
            // The packet is evaluated for the station that receives it, not for the station that received the last
            // packet.
            let connection = connection.received_by(direction, ethernet.destination);
            if network.decision(&connection).action == Action::Deny {
                return None;
            }
            network.mark(&mut inner, packet, sender);
            if connection.is_translated() && packet.tuple.destination.0 == connection.tuple.source.0 {
                packet.rewrite_error(&mut inner, connection.tuple.destination)?;
            }
            let to_service =
                connection.is_translated() && packet.tuple.destination.0 == connection.tuple.destination.0;
            let destination = if to_service { connection.to.0 } else { packet.tuple.destination.0 };
            if to_service {
                packet.return_error(&mut inner, connection.to, network.mac(destination)?)?;
            }
            return match for_router {
                _ if *from == Origin::Kernel => network.deliver_routed_by_kernel(inner, destination),
                Some(_) => network.route(&packet, inner, destination),
                None => Some(network.bridge(inner, packet, from)),
            };
        }
        let opener = sender.map(|sender| sender.id.clone());
        let (connection, direction) = match self.known(&network, &packet, &inner) {
            Some(known) => known,
            None => match (network.open(packet.tuple, sender.is_some()), sender) {
                (Some(opened), _) => (opened.opened_by(opener.clone()), Direction::Original),
                (None, Some(sender)) => return network.refuse(&inner, &packet, sender),
                (None, None) => return None,
            },
        };
        let macs = match direction {
            Direction::Original => [ethernet.source, ethernet.destination],
            Direction::Reply => [ethernet.destination, ethernet.source],
        };
        if direction == Direction::Reply && network.is_misdirected(&connection, ethernet.destination) {
            return None;
        }
        let is_known = self.0.iter().position(|known| *known == connection);
        let connection = connection.between(macs);
        if let Some(known) = is_known.and_then(|at| self.0.get_mut(at)) {
            known.macs = connection.macs;
        }
        if network.decision(&connection).action == Action::Deny {
            return None;
        }
        if direction == Direction::Original
            && let Some(at) = is_known
        {
            self.0[at].opener = opener;
            self.0[..=at].rotate_right(1);
        }
        network.rewrite(&mut inner, packet, &connection, direction, sender)?;
        let copies = network.forward(inner, packet, (&connection, direction), for_router.is_some(), from);
        // The backend is selected before the node detects that the packet cannot reach it, because its TTL has expired.
        if is_known.is_none() && (copies.is_some() || connection.is_translated()) {
            // A connection that the other end has opened before ends.
            self.0.retain(|known| known.vrf != connection.vrf || known.reply() != connection.tuple);
            self.0.insert(0, connection);
        }
        copies
    }

    /// Processes a client's packet to a service.
    fn serve_outside(
        &mut self,
        network: &Network<'_>,
        (service, mac): (&Service, Mac),
        packet: Packet,
        mut inner: Vec<u8>,
    ) -> Option<Vec<Delivery>> {
        let ethernet = Ethernet::read(&inner)?;
        let known = self.find(network.vrf, packet.tuple).map(|(known, _)| known);
        let is_known = known.is_some();
        let connection = if ethernet.destination != mac {
            external::arrived(network, service, packet.tuple, ethernet.destination)?
        } else if !external::is_answered(network.objects, network.encap, service) {
            return None;
        } else {
            match known.or_else(|| network.open(packet.tuple, true)) {
                Some(connection) => connection,
                None => return Some(vec![external::to_wire(network, answer::refusal(&inner, &packet)?)]),
            }
        };
        let copies = if network.local_at(connection.to.0).is_some() {
            let connection = connection.clone().between([ethernet.source, ethernet.destination]);
            if network.decision(&connection).action == Action::Deny {
                return None;
            }
            network.rewrite(&mut inner, packet, &connection, Direction::Original, None)?;
            network.bridge(inner, packet, &Origin::Uplink)
        } else {
            inner[..6].copy_from_slice(&network.mac(connection.to.0)?.0);
            inner[6..12].copy_from_slice(&mac.0);
            vec![external::to_wire(network, inner)]
        };
        if !is_known {
            self.0.insert(0, connection);
        }
        Some(copies)
    }

    /// Removes the connection that a frame belongs to.
    pub(super) fn end(&mut self, objects: &Desired, frame: &[u8], from: &Origin) {
        let Some((inner, Some(network), _)) = arrival(objects, frame, from) else { return };
        let tuple = Packet::read(&inner).map(|packet| packet.tuple);
        if let Some((connection, _)) = tuple.and_then(|tuple| self.find(&network.vrf, tuple)) {
            self.0.retain(|known| *known != connection);
        }
    }

    /// Returns the connection that an ICMP error is about, and the direction of the error. The error quotes a packet that
    /// its receiver has sent. It comes from the peer or from a router, which is not an endpoint, and which is on the path
    /// of connections that leave their link.
    fn about(&self, network: &Network<'_>, error: Tuple, quoted: Tuple) -> Option<(Connection, Direction)> {
        let (from, to) = (error.source.0, error.destination.0);
        let is_on_path = |known: &Connection| {
            from == quoted.destination.0 || network.is_router(from) && !network.is_on_link(known)
        };
        let reply = Tuple { source: quoted.destination, destination: quoted.source, ..quoted };
        let sent = self.find(network.vrf, quoted).map(|(known, direction)| (known, direction.opposite()));
        let known = sent.or_else(|| self.find(network.vrf, reply));
        known.filter(|(known, _)| to == quoted.source.0 && is_on_path(known))
    }

    /// The connection that a packet in a frame belongs to.
    pub(super) fn known(
        &self,
        network: &Network<'_>,
        packet: &Packet,
        frame: &[u8],
    ) -> Option<(Connection, Direction)> {
        let (connection, direction) = self.find(network.vrf, packet.tuple)?;
        let is_of_receiver = || network.is_of_receiver(&connection);
        let belongs = direction == Direction::Original || !packet.opens_tcp(frame) && is_of_receiver();
        belongs.then_some((connection, direction))
    }

    fn find(&self, vrf: &Vrf, tuple: Tuple) -> Option<(Connection, Direction)> {
        let of_vrf = || self.0.iter().filter(|known| known.vrf == *vrf).cloned();
        let there = of_vrf().find(|known| known.tuple == tuple).map(|known| (known, Direction::Original));
        there.or_else(|| {
            let back = |known: &Connection| tuple == known.reply();
            of_vrf().find(back).map(|known| (known, Direction::Reply))
        })
    }
}

/// The frame without its tag, the network on which it arrives, if the node has that network, and the local sender; `None`
/// for a frame without a network.
type Arrival<'a> = (Vec<u8>, Option<&'a crate::datapath::Network>, Option<&'a Local>);

fn arrival<'a>(objects: &'a Desired, frame: &[u8], from: &Origin) -> Option<Arrival<'a>> {
    let find = |is_it: &dyn Fn(Encap) -> bool| networks(objects).find(|network| is_it(network.encap));
    Some(match from {
        Origin::Pod(port) => {
            let local = locals(objects).find(|local| local.port == *port)?;
            (frame.to_vec(), find(&|encap| encap == local.encap), Some(local))
        }
        Origin::Tunnel { vni, .. } => {
            let network = find(&|encap| matches!(encap, Encap::Vxlan { vni: number, .. } if number == *vni));
            (frame.to_vec(), network, None)
        }
        Origin::Uplink => {
            let (vlan, inner) = untag(frame)?;
            (inner, find(&|encap| encap == Encap::Vlan(vlan)), None)
        }
        Origin::Kernel => {
            let (network, mut inner) = from_kernel(objects, frame)?;
            inner[..12].copy_from_slice(&[Mac::ROUTER.0; 2].concat());
            (inner, find(&|encap| encap == network), None)
        }
    })
}

/// Returns the network of a packet that the kernel sends, and the packet with its receiver's address in that network.
fn from_kernel(objects: &Desired, frame: &[u8]) -> Option<(Encap, Vec<u8>)> {
    let ethernet = Ethernet::read(frame)?;
    let is_routed = !ethernet.is_tagged() && [ethernet.source, ethernet.destination] == [KERNEL_MAC; 2];
    let packet = Packet::read(frame).filter(|_| is_routed)?;
    match on_kernel(objects, packet.tuple.destination.0) {
        Some(subnet) => Some((subnet.encap, frame.to_vec())),
        None => host::enter(objects, &packet, frame),
    }
}
