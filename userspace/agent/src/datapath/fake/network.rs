//! One network: its objects, decisions of the model, and the processing of a packet.

use std::net::IpAddr;

use contiv_model::{
    mac::Mac,
    policy::{self, Action, Decision, Identity, Party, Side, decide},
    service::{Port, Resolution, resolve},
    tag::Encap,
    vrf::Vrf,
};

use super::{
    connection::{Connection, Direction},
    forward::{Delivery, Origin, Target, deliver, deliver_routed, has, locals, remotes, services_on},
    host,
    route::{Router, on_kernel},
};
use crate::datapath::{
    Desired, Group, KERNEL_MAC, Local, Object, ObjectId, Remote, Service, Subnet,
    host_access::is_no_host,
    wire::{
        answer,
        frame::{Ethernet, tagged},
        packet::{Packet, Tuple},
    },
};

/// Returns the port of a service to which a packet to the service's address belongs.
pub(super) fn service_port(service: &Service, tuple: Tuple) -> Option<&Port> {
    let is_it = |port: &&Port| (port.protocol.number(), port.port) == (tuple.protocol, tuple.destination.1);
    service.ports.iter().find(is_it)
}

pub(super) fn networks(objects: &Desired) -> impl Iterator<Item = &crate::datapath::Network> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Network(network) => Some(network),
        _ => None,
    })
}

/// One network, and the objects of its VRF.
#[derive(Clone, Copy)]
pub(super) struct Network<'a> {
    pub(super) objects: &'a Desired,
    pub(super) encap: Encap,
    pub(super) vrf: &'a Vrf,
}

impl<'a> Network<'a> {
    /// Returns a new connection; `None` if the service rejects it. Only local pods and clients outside use services:
    /// traffic from another node is already translated.
    pub(super) fn open(&self, tuple: Tuple, by_client: bool) -> Option<Connection> {
        let (vip, port) = tuple.destination;
        let (vrf, to) = (self.vrf.clone(), tuple.destination);
        let direct = Connection { vrf, tuple, to, macs: [None; 2], opener: None };
        let Some(service) = self.services().find(|service| by_client && service.vip == vip) else {
            return Some(direct);
        };
        let is_vlan = |encap: Encap| matches!(encap, Encap::Vlan(_));
        // VLAN and VXLAN networks are not routed to each other.
        let is_inside = |encap: Encap| {
            is_vlan(encap) == is_vlan(self.encap)
                && networks(self.objects).any(|n| n.encap == encap && n.vrf == *self.vrf)
        };
        let backends = service.backends.iter().filter(|backend| backend.encap.is_some_and(is_inside));
        let backends = backends.map(|backend| (backend.ip, backend.readiness));
        match resolve(&service.ports, backends, tuple.protocol, port) {
            // The service does not have the port.
            Resolution::Direct => None,
            Resolution::To { backends, port } => {
                let client = usize::from(tuple.source.1);
                let to = (backends.get(client % backends.len()).copied()?, port);
                Some(Connection { to, ..direct })
            }
            Resolution::Refused => None,
        }
    }

    /// Returns the frames that the node sends to a client whose connection the service rejects.
    pub(super) fn refuse(&self, inner: &[u8], packet: &Packet, sender: &Local) -> Option<Vec<Delivery>> {
        let answer = answer::refusal(inner, packet)?;
        Some(vec![Delivery { to: Target::Pod(sender.port.clone()), frame: answer }])
    }

    /// Whether a service has the address.
    pub(super) fn is_of_service(&self, address: IpAddr) -> bool {
        self.services().any(|service| service.vip == address)
    }

    /// Whether a service has the port that the packet is for.
    pub(super) fn has_service_port(&self, tuple: Tuple) -> bool {
        let vip = tuple.destination.0;
        self.services().any(|service| service.vip == vip && service_port(service, tuple).is_some())
    }

    /// Evaluates the rules of the local endpoints of a connection.
    pub(super) fn decision(&self, connection: &Connection) -> Decision<'a> {
        let Connection { tuple, to, macs, .. } = connection;
        let connection = policy::Connection {
            source: self.source(tuple.source.0, macs[0]),
            destination: self.side(to.0, macs[1]),
            packet: tuple.policy_packet(to.1),
        };
        decide(&connection)
    }

    /// Translates an accepted packet and sets its DSCP; `None` if the backend has no record.
    pub(super) fn rewrite(
        &self,
        inner: &mut [u8],
        packet: Packet,
        connection: &Connection,
        direction: Direction,
        sender: Option<&Local>,
    ) -> Option<()> {
        let sent_to = inner.first_chunk::<6>().copied()?;
        match direction {
            Direction::Original if connection.is_translated() => {
                packet.rewrite_destination(inner, connection.to, self.mac(connection.to.0)?);
            }
            Direction::Reply if connection.is_translated() => {
                packet.rewrite_source(inner, connection.tuple.destination);
            }
            _ => {}
        }
        if connection.is_own() {
            let (client, service) = (connection.tuple.source, connection.tuple.destination);
            match direction {
                Direction::Original => packet.rewrite_source(inner, (service.0, client.1)),
                Direction::Reply => packet.rewrite_destination(inner, client, self.mac(client.0)?),
            }
            // The Ethernet source is the address to which the pod sent the packet.
            inner[6..12].copy_from_slice(&sent_to);
        }
        self.mark(inner, packet, sender);
        Some(())
    }

    /// Sets the DSCP of the sender's group.
    pub(super) fn mark(&self, inner: &mut [u8], packet: Packet, sender: Option<&Local>) {
        if let Some(dscp) = sender.and_then(|sender| self.group(sender.identity?)?.dscp) {
            packet.set_dscp(inner, dscp);
        }
    }

    /// The copies of an accepted packet that leave the node.
    pub(super) fn forward(
        &self,
        inner: Vec<u8>,
        packet: Packet,
        (connection, direction): (&Connection, Direction),
        for_router: bool,
        from: &Origin,
    ) -> Option<Vec<Delivery>> {
        let to = match direction {
            Direction::Original => connection.to.0,
            Direction::Reply => packet.tuple.destination.0,
        };
        if connection.is_own()
            && let Origin::Pod(port) = from
        {
            return Some(vec![Delivery { to: Target::Pod(port.clone()), frame: inner }]);
        }
        if *from == Origin::Kernel {
            return self.deliver_routed_by_kernel(inner, to);
        }
        let is_translated = direction == Direction::Original && connection.is_translated();
        if is_translated && !for_router && self.is_on_node() && self.remote_at(to).is_some() {
            return (!is_link_local(packet.tuple.source.0)).then(|| to_kernel(inner));
        }
        let by_pod = matches!(from, Origin::Pod(_));
        if for_router || by_pod && is_translated && self.is_elsewhere(to) {
            return self.route(&packet, inner, to);
        }
        Some(self.bridge(inner, packet, from))
    }

    /// Returns the copies of a packet that leave the node according to its Ethernet address. Copies to an unknown address
    /// are evaluated for each receiver.
    pub(super) fn bridge(&self, inner: Vec<u8>, packet: Packet, from: &Origin) -> Vec<Delivery> {
        let mac = Ethernet::read(&inner).map(|ethernet| ethernet.source);
        let frame = self.framed(inner, from);
        let copies = deliver(self.objects, &frame, from);
        match mac {
            Some(mac) if !self.is_known(&frame, from) => self.replicate(copies, packet.tuple, mac),
            _ => copies,
        }
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

    /// Returns the frame in the form that `deliver` expects.
    pub(super) fn framed(&self, inner: Vec<u8>, from: &Origin) -> Vec<u8> {
        match (from, self.encap) {
            (Origin::Uplink, Encap::Vlan(vlan)) => tagged(&inner, vlan),
            _ => inner,
        }
    }

    /// Reports whether an endpoint has the destination Ethernet address of a frame in the form that `deliver` expects, or
    /// the wire delivers it.
    pub(super) fn is_known(&self, frame: &[u8], from: &Origin) -> bool {
        let Some(mac) = Ethernet::read(frame).map(|ethernet| ethernet.destination) else { return true };
        matches!(self.encap, Encap::Vlan(_)) && !self.is_on_node()
            || *from == Origin::Uplink
            || self.locals().any(|local| (local.encap, local.mac) == (self.encap, mac))
            || !self.is_on_node()
                && self.remotes().any(|remote| (remote.encap, remote.mac) == (self.encap, mac))
    }

    /// The copies of a frame that rules cannot evaluate: none from or to an endpoint with rules.
    pub(super) fn deliver_other(&self, copies: Vec<Delivery>, sender: Option<&Local>) -> Vec<Delivery> {
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
    /// node if a rule of the sender depends on the receiver, which is not known for other nodes.
    pub(super) fn replicate(&self, copies: Vec<Delivery>, tuple: Tuple, mac: Mac) -> Vec<Delivery> {
        let source = self.source(tuple.source.0, Some(mac));
        let named = |rule: &policy::Rule| rule.direction == policy::Direction::Out && rule.peer.names_any();
        let by_peer = source.rules.iter().any(named);
        let packet = tuple.policy_packet(tuple.destination.1);
        let admits = |copy: &Delivery| {
            let destination = match self.receiver(copy) {
                Some(local) => self.side(address_in(local, tuple.source.0), None),
                None if by_peer => return false,
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
            Target::Tunnel { .. } | Target::Uplink | Target::Kernel => None,
        }
    }

    pub(super) fn group(&self, identity: Identity) -> Option<&'a Group> {
        match self.objects.get(&ObjectId::Group(identity))? {
            Object::Group(group) => Some(group),
            _ => None,
        }
    }

    /// Returns the identity of the endpoint with this address, and whether the endpoint is local.
    pub(super) fn identity_at(&self, address: IpAddr) -> Option<(Option<Identity>, bool)> {
        let here = self.local_at(address).map(|local| (local.identity, true));
        here.or_else(|| self.remote_at(address).map(|remote| (remote.identity, false)))
    }

    /// Like `side` for a source. A source that uses the address of an endpoint with a missing record may be any endpoint.
    fn source(&self, address: IpAddr, mac: Option<Mac>) -> Side<'a> {
        let is_here = || {
            let same = |local: &Local, mac| (local.encap, local.mac) == (self.encap, mac);
            mac.is_some_and(|mac| self.locals().any(|local| same(local, mac)))
        };
        match self.side(address, None) {
            Side { party: Party::Outside, .. } => self.side(address, mac),
            Side { party: Party::UnknownInside, .. } if is_here() => self.side(address, mac),
            known => known,
        }
    }

    /// Returns the side of an address that does not belong to an endpoint.
    fn stranger(&self, address: IpAddr) -> Side<'a> {
        let is_inside = |subnet: &Subnet| {
            let gateway = subnet.gateway.is_some_and(|gateway| gateway.ip == address);
            subnet.prefix.contains(&address) && !gateway
        };
        if is_of_link(address) || self.subnets().any(is_inside) {
            Side::unknown_inside(address)
        } else {
            Side::outside(address)
        }
    }

    /// Reports whether an address may be a router's: it must not belong to an endpoint. On the wire, the gateway may be a
    /// virtual address of several routers (RFC 5798), which send from their own addresses in the subnet.
    pub(super) fn is_router(&self, address: IpAddr) -> bool {
        let is_on_wire = || matches!(self.encap, Encap::Vlan(_)) && !self.is_on_node();
        self.identity_at(address).is_none()
            && (self.stranger(address).party == Party::Outside || is_on_wire() && !is_of_link(address))
    }

    /// Reports whether a connection is between two addresses of one link: its packets pass no router.
    pub(super) fn is_on_link(&self, connection: &Connection) -> bool {
        let ends = [connection.tuple.source.0, connection.to.0];
        let has_both =
            |subnet: &Subnet| !subnet.is_routed_vlan() && ends.iter().all(|end| subnet.prefix.contains(end));
        is_link_local(ends[0]) || self.subnets().any(has_both)
    }

    fn subnets(self) -> impl Iterator<Item = &'a Subnet> {
        self.objects.iter().filter_map(move |(_, object)| match object {
            Object::Subnet(subnet) if subnet.vrf == *self.vrf => Some(subnet),
            _ => None,
        })
    }

    fn router(&self) -> Router<'a> {
        Router::new(self.objects, self.vrf)
    }

    /// Whether a packet that a pod sends to this Ethernet address is routed.
    pub(super) fn is_for_router(&self, to: Mac, tuple: Tuple) -> bool {
        let ends = [tuple.source.0, tuple.destination.0];
        self.router().receives(to, ends) || self.is_behind_router(to, tuple.destination.0)
    }

    /// Reports whether an endpoint with both addresses is behind the kernel. The endpoint may have been on the node
    /// before, and its neighbours keep its ARP or ND entry for a while.
    fn is_behind_router(&self, mac: Mac, address: IpAddr) -> bool {
        let has_both = |remote: &Remote| {
            (remote.encap, remote.mac) == (self.encap, mac) && remote.addresses.contains(address)
        };
        self.is_on_node() && self.router().subnet(address).is_some() && self.remotes().any(has_both)
    }

    /// Whether an endpoint with this address is on another network, to which the node routes.
    fn is_elsewhere(&self, address: IpAddr) -> bool {
        let hop = self.router().subnet(address).and_then(|_| self.last_hop(address));
        hop.is_some_and(|(encap, _)| encap != self.encap)
    }

    /// Returns the router's own processing of a packet that is addressed to it: `Some` reply, or `Some(None)` if it drops
    /// the packet. `None` if it forwards the packet.
    pub(super) fn answer(&self, frame: &[u8], packet: &Packet) -> Option<Option<Vec<u8>>> {
        let (from, to) = (packet.tuple.source.0, packet.tuple.destination);
        if self.router().gateway(to.0).is_some() {
            let (vrf, tuple) = (self.vrf.clone(), packet.tuple);
            let connection = Connection { vrf, tuple, to, macs: [None; 2], opener: None };
            let is_allowed = self.decision(&connection).action == Action::Allow;
            return Some(answer::echo_reply(frame, packet).filter(|_| is_allowed));
        }
        if self.is_on_node() {
            return None;
        }
        let gateway = self.router().subnet(from).and_then(|subnet| subnet.gateway);
        (packet.ttl(frame) <= 1).then(|| answer::time_exceeded(frame, packet, gateway?.ip))
    }

    /// Reports whether an address is in a subnet of the VRF to which this network is not routed because one is a VLAN and
    /// the other a VXLAN.
    fn is_apart(&self, address: IpAddr) -> bool {
        let is_other = |subnet: &Subnet| match self.is_on_node() {
            true => matches!(subnet.encap, Encap::Vxlan { .. }),
            false => subnet.is_routed_vlan(),
        };
        self.subnets().any(|subnet| subnet.prefix.contains(&address) && is_other(subnet))
    }

    /// Forwards a packet by its IP address.
    pub(super) fn route(&self, packet: &Packet, mut frame: Vec<u8>, to: IpAddr) -> Option<Vec<Delivery>> {
        let (is_link_local, is_apart) = (is_link_local(packet.tuple.source.0), self.is_apart(to));
        // Like a bridge, the router does not send a packet back to its sender.
        let is_own = to == packet.tuple.source.0;
        if self.is_on_node() && (packet.ttl(&frame) <= 1 || is_apart || self.local_at(to).is_none()) {
            let of_other_vrf = || on_kernel(self.objects, to).is_some_and(|subnet| subnet.vrf != *self.vrf);
            let is_allowed = packet.ttl(&frame) <= 1 || !is_apart && !of_other_vrf();
            let is_closed = is_link_local || is_own || is_no_host(to);
            return Some(to_kernel(frame)).filter(|_| is_allowed && !is_closed);
        }
        if self.router().subnet(to).is_none() && to == packet.tuple.destination.0 {
            let frame = host::leave(self.objects, self.local_at(packet.tuple.source.0)?, packet, &frame)?;
            return Some(to_kernel(frame));
        }
        self.router().subnet(to).filter(|_| !is_link_local && !is_own && !is_apart)?;
        let (encap, mac) = self.last_hop(to)?;
        let ttl = packet.ttl(&frame).checked_sub(1).filter(|ttl| *ttl != 0)?;
        frame[..6].copy_from_slice(&mac.0);
        frame[6..12].copy_from_slice(&Mac::ROUTER.0);
        packet.set_ttl(&mut frame, ttl);
        Some(deliver_routed(self.objects, encap, &frame))
    }

    /// Delivers a packet of the kernel, which has already decremented the TTL.
    pub(super) fn deliver_routed_by_kernel(&self, mut frame: Vec<u8>, to: IpAddr) -> Option<Vec<Delivery>> {
        let local = self.local_at(to).filter(|local| local.addresses.contains(to))?;
        frame[..6].copy_from_slice(&local.mac.0);
        Some(vec![Delivery { to: Target::Pod(local.port.clone()), frame }])
    }

    /// Whether the frames of the network stay on the node.
    pub(super) fn is_on_node(&self) -> bool {
        let mut own = networks(self.objects).filter(|network| network.encap == self.encap);
        own.any(|network| self.router().keeps(&network.id))
    }

    /// Returns network and Ethernet address of the endpoint with this address.
    fn last_hop(&self, address: IpAddr) -> Option<(Encap, Mac)> {
        let here = self.local_at(address).map(|local| (local.encap, local.mac));
        here.or_else(|| self.remote_at(address).map(|remote| (remote.encap, remote.mac)))
    }

    /// Like `identity_at` for an Ethernet address.
    fn identity_of(&self, mac: Mac) -> Option<(Option<Identity>, bool)> {
        let encap = self.encap;
        let here = self.locals().find(|local| (local.encap, local.mac) == (encap, mac));
        let there = || self.remotes().find(|remote| (remote.encap, remote.mac) == (encap, mac));
        let here = here.map(|local| (local.identity, true));
        here.or_else(|| there().map(|remote| (remote.identity, false)))
    }

    /// Reports whether the endpoint of this node that has the initiator's address, if there is one, opened the
    /// connection.
    pub(super) fn is_of_receiver(&self, connection: &Connection) -> bool {
        let receiver = self.local_at(connection.tuple.source.0);
        receiver.is_none_or(|local| connection.opener.as_ref() == Some(&local.id))
    }

    /// Reports whether a reply in a frame to this Ethernet address goes to an endpoint of a group that did not open the
    /// connection: no endpoint opens one from an address without a record.
    pub(super) fn is_misdirected(&self, connection: &Connection, to: Mac) -> bool {
        let has_group = || self.identity_of(to).is_some_and(|(identity, _)| identity.is_some());
        self.identity_at(connection.tuple.source.0).is_none() && has_group()
    }

    pub(super) fn mac(&self, address: IpAddr) -> Option<Mac> {
        self.last_hop(address).map(|(_, mac)| mac)
    }

    pub(super) fn local_at(&self, address: IpAddr) -> Option<&'a Local> {
        self.locals().find(|local| has(&local.addresses, local.mac, address))
    }

    fn remote_at(&self, address: IpAddr) -> Option<&'a Remote> {
        self.remotes().find(|remote| has(&remote.addresses, remote.mac, address))
    }

    fn locals(self) -> impl Iterator<Item = &'a Local> {
        locals(self.objects).filter(move |local| local.vrf == *self.vrf)
    }

    fn remotes(self) -> impl Iterator<Item = &'a Remote> {
        remotes(self.objects).filter(move |remote| remote.vrf == *self.vrf)
    }

    fn services(self) -> impl Iterator<Item = &'a Service> {
        services_on(self.objects, self.encap)
    }
}

fn to_kernel(mut frame: Vec<u8>) -> Vec<Delivery> {
    frame[..6].copy_from_slice(&KERNEL_MAC.0);
    vec![Delivery { to: Target::Kernel, frame }]
}

/// Returns the endpoint's address of the family of `other`; the link-local one if it has no other.
fn address_in(local: &Local, other: IpAddr) -> IpAddr {
    let mut addresses = local.addresses.iter().filter(|address| address.is_ipv4() == other.is_ipv4());
    addresses.next().unwrap_or_else(|| local.mac.link_local().into())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Reports whether the address is link-local or belongs to no endpoint: "this network" and the unspecified address of
/// IPv6.
fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_unicast_link_local(),
    }
}

pub(super) fn is_multicast(frame: &[u8]) -> bool {
    Ethernet::read(frame).is_some_and(|ethernet| ethernet.destination.is_multicast())
}
