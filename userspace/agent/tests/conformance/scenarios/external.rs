//! Services for clients outside the cluster, on the wire of a VLAN.

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::{
    mac::Mac,
    policy::{Action, Direction, Peer, Rule},
    service::Readiness,
};
use netplugin::datapath::{
    Backend, Object, Scope, Service,
    fake::{Delivery, Origin, Target},
};
use testkit::packet::{BROADCAST, Packet, nd_flags, tcp_flags};

use crate::{
    harness::Harness,
    scenarios::policy::{group, in_group, rule},
    topology::{Net, ip, ip6, mac, to_pod},
    world::World,
};

/// The backend on the node, and the one on another node.
const HERE: u8 = 2;
const THERE: u8 = 11;
/// A pod on the node that is no backend.
const OTHER: u8 = 3;
const CLIENT: u8 = 90;

#[derive(Clone, Copy, Debug)]
enum Family {
    V4,
    V6,
}

impl Family {
    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// The address of an endpoint or of a service.
    fn address(self, last: u8) -> IpAddr {
        match self {
            Family::V4 => ip(last).into(),
            Family::V6 => ip6(last).into(),
        }
    }

    fn packet(self, macs: ([u8; 6], [u8; 6]), from: u8, to: u8) -> Packet {
        let eth = Packet::eth(macs.0, macs.1);
        match self {
            Family::V4 => eth.ipv4(ip(from), ip(to)),
            Family::V6 => eth.ipv6(ip6(from), ip6(to)),
        }
    }

    fn datagram(self, macs: ([u8; 6], [u8; 6]), from: (u8, u16), to: (u8, u16)) -> Packet {
        self.packet(macs, from.0, to.0).udp(from.1, to.1).payload(b"service")
    }

    fn service(self, vip: u8, backends: &[(u8, Readiness)]) -> Result<Service> {
        let net = Net::vlan(100)?;
        let backend = |(last, readiness): &(u8, Readiness)| Backend {
            readiness: *readiness,
            ..Backend::on(net.encap, self.address(*last))
        };
        Ok(Service {
            ports: vec!["53:5353:UDP".parse()?, "80:8080:TCP".parse()?],
            backends: backends.iter().map(backend).collect(),
            ..Service::new("dns:t", Scope::network(&net.plain()), self.address(vip))
        })
    }

    /// Last byte of an address for which the node of this backend answers.
    fn spoken_for_by(self, backend: u8) -> Result<u8> {
        for vip in 200..250 {
            if self.service(vip, &ready())?.speaker() == Some(self.address(backend)) {
                return Ok(vip);
            }
        }
        bail!("the backend {backend} speaks for no address")
    }

    /// The client's request for this address, and the reply.
    fn resolution(self, vip: u8) -> (Packet, Packet) {
        let vip_mac = Mac::of_service(self.address(vip)).0;
        let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
        let (client, client6) = ((mac(CLIENT), ip(CLIENT)), (mac(CLIENT), ip6(CLIENT)));
        match self {
            Family::V4 => (
                Packet::eth(BROADCAST, mac(CLIENT)).arp(1, client, ([0; 6], ip(vip))),
                Packet::eth(mac(CLIENT), vip_mac).arp(2, (vip_mac, ip(vip)), client),
            ),
            Family::V6 => (
                Packet::neighbour_solicitation(mac(CLIENT), ip6(CLIENT), ip6(vip)),
                Packet::neighbour_advertisement(client6, (vip_mac, ip6(vip)), vip_mac, flags),
            ),
        }
    }
}

fn ready() -> [(u8, Readiness); 2] {
    [HERE, THERE].map(|last| (last, Readiness::Ready))
}

struct Wire<H> {
    world: World<H>,
    net: Net,
    family: Family,
    vip: u8,
    vip_mac: [u8; 6],
}

impl<H: Harness> Wire<H> {
    fn new(family: Family, speaker: u8) -> Result<Wire<H>> {
        Wire::with(family, speaker, None)
    }

    /// With another pod on the node, that is no backend.
    fn with(family: Family, speaker: u8, pod: Option<(&str, u8)>) -> Result<Wire<H>> {
        let (net, vip) = (Net::vlan(100)?, family.spoken_for_by(speaker)?);
        let vip_mac = Mac::of_service(family.address(vip)).0;
        let objects = [net.network(), net.local("pb", HERE), net.remote(0, THERE)];
        let mut world = World::new(objects.into_iter().chain(pod.map(|(port, last)| net.local(port, last))))?;
        world.set(Object::Service(family.service(vip, &ready())?))?;
        world.check_in_sync()?;
        Ok(Wire { world, net, family, vip, vip_mac })
    }

    fn set(&mut self, backends: &[(u8, Readiness)]) -> Result<()> {
        self.world.set(Object::Service(self.family.service(self.vip, backends)?))
    }

    /// The client's datagram to the service, to this Ethernet address and from this one.
    fn request(&self, macs: ([u8; 6], [u8; 6]), port: u16) -> Packet {
        self.family.datagram(macs, (CLIENT, port), (self.vip, 53))
    }

    /// The client's datagram, as the client sends it.
    fn asked(&self, port: u16) -> Packet {
        self.request((self.vip_mac, mac(CLIENT)), port)
    }

    /// What leaves the node for a client's frame.
    fn outcome(&mut self, frame: &Packet) -> Result<Vec<Delivery>> {
        let bytes = self.net.on_wire(&frame.build());
        self.world.outcome(&Origin::Uplink, &bytes)
    }

    /// Sends a datagram to the service; returns the backend that got it, or to whose node it was sent on.
    fn asks(&mut self, port: u16) -> Result<u8> {
        let came = self.outcome(&self.asked(port))?;
        if came == [self.arrival(mac(CLIENT), port)] {
            return Ok(HERE);
        }
        let relayed = self.request((mac(THERE), self.vip_mac), port);
        ensure!(came == [self.net.to_node(0, &relayed)], "{:?}, port {port}: {came:?}", self.family);
        Ok(THERE)
    }

    /// Delivery of the datagram to the backend here, from the client's Ethernet address or from that of the service.
    fn arrival(&self, from: [u8; 6], port: u16) -> Delivery {
        to_pod("pb", &self.family.datagram((mac(HERE), from), (CLIENT, port), (HERE, 5353)))
    }

    /// The backend's reply comes from the address of the service.
    fn is_answered(&mut self, port: u16) -> Result<()> {
        let from = |from: (u8, u16)| self.family.datagram((mac(CLIENT), mac(HERE)), from, (CLIENT, port));
        let (reply, shown) = (from((HERE, 5353)), from((self.vip, 53)));
        self.world.sends(&Origin::Pod("pb".into()), &reply, [self.net.to_node(0, &shown)])
    }

    /// The client's segment to this port of the service is answered by a reset.
    fn is_refused(&mut self, port: u16) -> Result<()> {
        let sent = self.family.packet((self.vip_mac, mac(CLIENT)), CLIENT, self.vip);
        let sent = sent.tcp(4000, port, tcp_flags::SYN).sequence(1000, 77);
        let reset = self.family.packet((mac(CLIENT), self.vip_mac), self.vip, CLIENT);
        let reset = reset.tcp(port, 4000, tcp_flags::RST | tcp_flags::ACK);
        let reset = self.net.to_node(0, &reset.sequence(0, 1001).window(0));
        self.world.sends_bytes(&Origin::Uplink, &self.net.on_wire(&sent.build()), [reset])
    }
}

/// The answering node chooses backends: one there gets the packets translated, one elsewhere by its Ethernet address.
pub(crate) fn external_clients_reach_backends<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, HERE)?;
        let mut asked = vec![];
        for port in 4000..4030 {
            let backend = wire.asks(port)?;
            if backend == HERE {
                wire.is_answered(port)?;
            }
            ensure!(wire.asks(port)? == backend, "port {port}: another backend than {backend}");
            asked.push(backend);
        }
        ensure!([HERE, THERE].iter().all(|backend| asked.contains(backend)), "not all were asked: {asked:?}");
        // One that terminates keeps its clients.
        let at = |backend: u8| asked.iter().position(|asked| *asked == backend).context("a client of each");
        let port = 4000 + u16::try_from(at(THERE)?)?;
        wire.set(&[(HERE, Readiness::Ready), (THERE, Readiness::Terminating)])?;
        ensure!(wire.asks(port)? == THERE, "the terminating backend has lost its client");
        for port in 5000..5010 {
            ensure!(wire.asks(port)? == HERE, "port {port}: the terminating backend has a new client");
        }
        wire.world.check_in_sync()?;
    }
    Ok(())
}

/// The node of one backend answers for the address, and only that one chooses.
pub(crate) fn one_node_answers_external_clients<H: Harness>() -> Result<()> {
    for (family, speaker) in Family::BOTH.into_iter().flat_map(|family| [(family, HERE), (family, THERE)]) {
        let mut wire = Wire::<H>::new(family, speaker)?;
        let (request, reply) = family.resolution(wire.vip);
        let came = wire.outcome(&request)?;
        if speaker == HERE {
            ensure!(came == [wire.net.to_node(0, &reply)], "{family:?}: {came:?}");
            continue;
        }
        ensure!(came.iter().all(|copy| copy.to != Target::Uplink), "who has answered? {came:?}");
        let came = wire.outcome(&wire.asked(4000))?;
        ensure!(came.is_empty(), "{family:?}: another node answers, but {came:?}");
    }
    Ok(())
}

/// Another node may announce the address of a service, but it is no source.
pub(crate) fn addresses_of_services_are_only_announced<H: Harness>() -> Result<()> {
    let all_nodes = ([0x33, 0x33, 0, 0, 0, 1], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, THERE)?;
        let (vip, vip_mac) = (wire.vip, wire.vip_mac);
        let announcement = |from: [u8; 6], named: [u8; 6]| match family {
            Family::V4 => Packet::eth(BROADCAST, from).arp(2, (named, ip(vip)), (BROADCAST, ip(vip))),
            Family::V6 => {
                Packet::neighbour_advertisement(all_nodes, (from, ip6(vip)), named, nd_flags::OVERRIDE)
            }
        };
        let valid = announcement(vip_mac, vip_mac);
        let came = wire.outcome(&valid)?;
        ensure!(came == [to_pod("pb", &valid)], "{family:?}: {came:?}");
        let foreign = [(CLIENT, CLIENT), (HERE, HERE)].map(|(from, named)| (mac(from), mac(named)));
        for (from, named) in foreign.into_iter().chain([(vip_mac, mac(HERE))]) {
            let came = wire.outcome(&announcement(from, named))?;
            ensure!(came.is_empty(), "{family:?} from {from:x?}, named {named:x?}: {came:?}");
        }
        let packet = family.datagram((mac(HERE), vip_mac), (vip, 53), (HERE, 4000));
        let came = wire.outcome(&packet)?;
        ensure!(came.is_empty(), "{family:?}: {came:?}");
    }
    Ok(())
}

/// The node of a backend translates what another node has sent on to it.
pub(crate) fn the_backends_node_translates_for_external_clients<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, THERE)?;
        let vip_mac = wire.vip_mac;
        for port in 4000..4010 {
            for _ in 0..2 {
                let sent = wire.request((mac(HERE), vip_mac), port);
                let came = wire.outcome(&sent)?;
                ensure!(came == [wire.arrival(vip_mac, port)], "{family:?}, port {port}: {came:?}");
                wire.is_answered(port)?;
            }
        }
    }
    Ok(())
}

/// Only backends get what is for a service, also from the node that answers. What another pod has been sent does not count: the
/// client's packets with the same port reach the backend.
pub(crate) fn only_backends_get_what_external_clients_send<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        for others in [0, 12] {
            let mut wire = Wire::<H>::with(family, THERE, Some(("pc", OTHER)))?;
            // A learning bridge gets to know the port of the client.
            wire.outcome(&family.datagram((mac(HERE), mac(CLIENT)), (CLIENT, 6000), (HERE, 6000)))?;
            // A larger set is stored in another way.
            let others = (20..20 + others).map(|last| (last, Readiness::Ready));
            let mut backends: Vec<_> = ready().into_iter().chain(others).collect();
            wire.set(&backends)?;
            let vip_mac = wire.vip_mac;
            for from in [mac(CLIENT), vip_mac] {
                for to in [mac(OTHER), [2, 0, 0, 0, 0, 9]] {
                    let came = wire.outcome(&wire.request((to, from), 4000))?;
                    ensure!(came.is_empty(), "{family:?}, from {from:x?} to {to:x?}: {came:?}");
                }
            }
            let came = wire.outcome(&wire.request((mac(HERE), vip_mac), 4000))?;
            ensure!(came == [wire.arrival(vip_mac, 4000)], "{family:?}: {came:?}");
            wire.is_answered(4000)?;
            // A backend that the service has no more.
            backends.retain(|(last, _)| *last != HERE);
            wire.set(&backends)?;
            let came = wire.outcome(&wire.request((mac(HERE), vip_mac), 4001))?;
            ensure!(came.is_empty(), "{family:?}: {came:?}");
        }
    }
    Ok(())
}

/// What is sent from the wire to the address of a service, but to none of its ports, reaches no pod, whatever Ethernet address it is
/// sent to: rules about the pod's own address would not match. A node that does not answer for the service refuses no client.
pub(crate) fn other_ports_of_a_service_reach_no_pod<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::with(family, THERE, Some(("pc", OTHER)))?;
        let (vip, vip_mac) = (wire.vip, wire.vip_mac);
        let stations = [HERE, OTHER].into_iter().flat_map(|to| [mac(CLIENT), vip_mac].map(|from| (to, from)));
        for (to, from) in stations {
            let packet = || family.packet((mac(to), from), CLIENT, vip);
            let echo = match family {
                Family::V4 => packet().icmp_echo_request(7, 1),
                Family::V6 => packet().icmpv6_echo_request(7, 1),
            };
            let frames = [
                packet().tcp(4000, 81, tcp_flags::SYN),
                packet().udp(4000, 54).payload(b"service"),
                packet().udp(4000, 80).payload(b"service"),
                echo,
                // Common header of SCTP: ports, verification tag, checksum.
                packet().protocol(132).payload(&[0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0]),
            ];
            for frame in frames {
                let came = wire.outcome(&frame)?;
                ensure!(came.is_empty(), "{family:?}, from {from:x?} to {to}, {frame:?}: {came:?}");
            }
        }
        wire.set(&[])?;
        for to in [HERE, OTHER] {
            let came = wire.outcome(&wire.request((mac(to), mac(CLIENT)), 4001))?;
            ensure!(came.is_empty(), "{family:?}, to {to} without a backend: {came:?}");
        }
    }
    Ok(())
}

/// Another node may choose a backend before it learns that the backend terminates.
pub(crate) fn terminating_backends_get_what_other_nodes_forward<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, THERE)?;
        let macs = (mac(HERE), wire.vip_mac);
        let others = [vec![(THERE, Readiness::Ready)], vec![]];
        for (mut backends, port) in others.into_iter().zip(4000..) {
            backends.push((HERE, Readiness::Terminating));
            wire.set(&backends)?;
            let came = wire.outcome(&wire.request(macs, port))?;
            ensure!(came == [wire.arrival(macs.1, port)], "{family:?}, {backends:?}: {came:?}");
            wire.is_answered(port)?;
        }
        wire.world.check_in_sync()?;
    }
    Ok(())
}

/// Rules of the backend see the client, on the backend's node.
pub(crate) fn policies_see_external_clients<H: Harness>() -> Result<()> {
    for (family, speaker) in Family::BOTH.into_iter().flat_map(|family| [(family, HERE), (family, THERE)]) {
        let mut wire = Wire::<H>::new(family, speaker)?;
        let mut port = 4000;
        while speaker == HERE && wire.asks(port)? != HERE {
            port += 1;
        }
        let macs = if speaker == HERE { (wire.vip_mac, mac(CLIENT)) } else { (mac(HERE), wire.vip_mac) };
        let request = wire.request(macs, port);
        ensure!(wire.outcome(&request)? == [wire.arrival(macs.1, port)]);
        let peer = Peer::prefix(family.address(CLIENT).into());
        let client = Rule { peer, ..rule(Direction::In, Action::Deny, 1)? };
        wire.world.set(group(7, [client])?)?;
        wire.world.set(in_group(wire.net.local("pb", HERE), 7)?)?;
        let came = wire.outcome(&request)?;
        ensure!(came.is_empty(), "{family:?}: denied, but {came:?}");
        wire.world.set(group(7, [])?)?;
        let came = wire.outcome(&request)?;
        ensure!(came == [wire.arrival(macs.1, port)], "{family:?}: allowed again, but {came:?}");
    }
    Ok(())
}

/// Session affinity: all connections of a client go to one backend, here or elsewhere.
pub(crate) fn external_clients_keep_their_backend<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, HERE)?;
        let vip = wire.vip;
        let with_affinity = |backends: &[(u8, Readiness)]| -> Result<Object> {
            let affinity = Some(Duration::from_secs(600));
            Ok(Object::Service(Service { affinity, ..family.service(vip, backends)? }))
        };
        wire.world.set(with_affinity(&ready())?)?;
        let backend = wire.asks(4000)?;
        for port in 4001..4020 {
            ensure!(wire.asks(port)? == backend, "port {port}: not {backend}");
        }
        // Its connections stay when it terminates; new ones go to the other backend.
        let readiness = |last: u8| if last == backend { Readiness::Terminating } else { Readiness::Ready };
        wire.world.set(with_affinity(&[HERE, THERE].map(|last| (last, readiness(last))))?)?;
        ensure!(wire.asks(4000)? == backend, "the terminating backend has lost its client");
        for port in 5000..5010 {
            ensure!(wire.asks(port)? != backend, "port {port}: the terminating backend has a new client");
        }
        wire.world.check_in_sync()?;
    }
    Ok(())
}

/// A connection keeps the port of its backend on the answering node when the service gets another target port, which new connections
/// go to.
pub(crate) fn external_connections_keep_their_target_port<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, HERE)?;
        let backends = [(HERE, Readiness::Ready)];
        wire.set(&backends)?;
        ensure!(wire.asks(4000)? == HERE);
        wire.is_answered(4000)?;
        let ports = vec!["53:5454:UDP".parse()?, "80:8080:TCP".parse()?];
        wire.world.set(Object::Service(Service { ports, ..family.service(wire.vip, &backends)? }))?;
        ensure!(wire.asks(4000)? == HERE);
        wire.is_answered(4000)?;
        let arrival = family.datagram((mac(HERE), mac(CLIENT)), (CLIENT, 4001), (HERE, 5454));
        let came = wire.outcome(&wire.asked(4001))?;
        ensure!(came == [to_pod("pb", &arrival)], "{family:?}: {came:?}");
        wire.world.check_in_sync()?;
    }
    Ok(())
}

/// The answering node tells clients that no backend serves a port.
pub(crate) fn external_clients_are_refused<H: Harness>() -> Result<()> {
    for family in Family::BOTH {
        let mut wire = Wire::<H>::new(family, HERE)?;
        wire.is_refused(81)?;
        wire.set(&[(HERE, Readiness::Terminating)])?;
        wire.is_refused(80)?;
    }
    Ok(())
}
