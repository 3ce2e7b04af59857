//! Services for clients outside the cluster, on the wire of a VLAN.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::{
    policy::{Action, Direction, Peer, Rule},
    service::Readiness,
};
use netplugin::datapath::{
    Backend, Object, Scope, Service,
    fake::{Delivery, Origin, Target},
};
use testkit::packet::{BROADCAST, Packet, tcp_flags};

use crate::{
    harness::Harness,
    scenarios::policy::{group, in_group, rule},
    topology::{Net, ip, mac, to_pod},
    world::World,
};

/// The backend on the node, and the one on another node.
const HERE: u8 = 2;
const THERE: u8 = 11;
const CLIENT: u8 = 90;

fn service(vip: u8, backends: &[(u8, Readiness)]) -> Result<Service> {
    let net = Net::vlan(100)?;
    let backend = |(last, readiness): &(u8, Readiness)| Backend {
        readiness: *readiness,
        ..Backend::on(net.encap, ip(*last))
    };
    Ok(Service {
        ports: vec!["53:5353:UDP".parse()?, "80:8080:TCP".parse()?],
        backends: backends.iter().map(backend).collect(),
        ..Service::new("dns:t", Scope::network(&net.plain()), ip(vip))
    })
}

fn ready() -> [(u8, Readiness); 2] {
    [HERE, THERE].map(|last| (last, Readiness::Ready))
}

/// Last byte of an address for which the node of this backend answers.
fn spoken_for_by(backend: u8) -> Result<u8> {
    for vip in 200..250 {
        if service(vip, &ready())?.speaker() == Some(ip(backend).into()) {
            return Ok(vip);
        }
    }
    bail!("the backend {backend} speaks for no address")
}

struct Wire<H> {
    world: World<H>,
    net: Net,
    vip: u8,
}

impl<H: Harness> Wire<H> {
    fn new(speaker: u8) -> Result<Wire<H>> {
        let (net, vip) = (Net::vlan(100)?, spoken_for_by(speaker)?);
        let mut world = World::new([net.network(), net.local("pb", HERE), net.remote(0, THERE)])?;
        world.set(Object::Service(service(vip, &ready())?))?;
        world.check_in_sync()?;
        Ok(Wire { world, net, vip })
    }

    /// The client's datagram to the service, to this Ethernet address and from this one.
    fn request(&self, macs: (u8, u8), port: u16) -> Packet {
        datagram(macs, (ip(CLIENT), port), (ip(self.vip), 53))
    }

    /// What leaves the node for a client's frame.
    fn outcome(&mut self, frame: &Packet) -> Result<Vec<Delivery>> {
        let bytes = self.net.on_wire(&frame.build());
        self.world.outcome(&Origin::Uplink, &bytes)
    }

    /// Sends a datagram to the service; returns the backend that got it, or to whose node it was sent on.
    fn asks(&mut self, port: u16) -> Result<u8> {
        let sent = self.request((self.vip, CLIENT), port);
        let came = self.outcome(&sent)?;
        if came == [self.arrival(CLIENT, port)] {
            return Ok(HERE);
        }
        let relayed = self.request((THERE, self.vip), port);
        ensure!(came == [self.net.to_node(0, &relayed)], "port {port}: {came:?}");
        Ok(THERE)
    }

    /// Delivery of the datagram to the backend here, from the client's Ethernet address or from that of the service.
    fn arrival(&self, from: u8, port: u16) -> Delivery {
        to_pod("pb", &datagram((HERE, from), (ip(CLIENT), port), (ip(HERE), 5353)))
    }

    /// The backend's reply comes from the address of the service.
    fn is_answered(&mut self, port: u16) -> Result<()> {
        let reply = datagram((CLIENT, HERE), (ip(HERE), 5353), (ip(CLIENT), port));
        let shown = datagram((CLIENT, HERE), (ip(self.vip), 53), (ip(CLIENT), port));
        self.world.sends(&Origin::Pod("pb".into()), &reply, [self.net.to_node(0, &shown)])
    }

    /// The client's segment to this port of the service is answered by a reset.
    fn is_refused(&mut self, port: u16) -> Result<()> {
        let eth = |to: u8, from: u8| Packet::eth(mac(to), mac(from)).ipv4(ip(from), ip(to));
        let sent = eth(self.vip, CLIENT).tcp(4000, port, tcp_flags::SYN).sequence(1000, 77);
        let reset = eth(CLIENT, self.vip).tcp(port, 4000, tcp_flags::RST | tcp_flags::ACK);
        let reset = self.net.to_node(0, &reset.sequence(0, 1001).window(0));
        self.world.sends_bytes(&Origin::Uplink, &self.net.on_wire(&sent.build()), [reset])
    }
}

fn datagram(macs: (u8, u8), from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Packet {
    Packet::eth(mac(macs.0), mac(macs.1)).ipv4(from.0, to.0).udp(from.1, to.1).payload(b"service")
}

/// The answering node chooses backends: one there gets the packets translated, one elsewhere by its Ethernet address.
pub(crate) fn external_clients_reach_backends<H: Harness>() -> Result<()> {
    let mut wire = Wire::<H>::new(HERE)?;
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
    let draining = [(HERE, Readiness::Ready), (THERE, Readiness::Terminating)];
    wire.world.set(Object::Service(service(wire.vip, &draining)?))?;
    ensure!(wire.asks(port)? == THERE, "the terminating backend has lost its client");
    for port in 5000..5010 {
        ensure!(wire.asks(port)? == HERE, "port {port}: the terminating backend has a new client");
    }
    wire.world.check_in_sync()
}

/// The node of one backend answers ARP for the address, and only that one chooses.
pub(crate) fn one_node_answers_external_clients<H: Harness>() -> Result<()> {
    for speaker in [HERE, THERE] {
        let mut wire = Wire::<H>::new(speaker)?;
        let vip = wire.vip;
        let request =
            Packet::eth(BROADCAST, mac(CLIENT)).arp(1, (mac(CLIENT), ip(CLIENT)), ([0; 6], ip(vip)));
        let reply = Packet::eth(mac(CLIENT), mac(vip)).arp(2, (mac(vip), ip(vip)), (mac(CLIENT), ip(CLIENT)));
        let came = wire.outcome(&request)?;
        if speaker == HERE {
            ensure!(came == [wire.net.to_node(0, &reply)], "{came:?}");
            continue;
        }
        ensure!(came.iter().all(|copy| copy.to != Target::Uplink), "who has answered? {came:?}");
        let sent = wire.request((vip, CLIENT), 4000);
        let came = wire.outcome(&sent)?;
        ensure!(came.is_empty(), "another node answers, but {came:?}");
    }
    Ok(())
}

/// The node of a backend translates what another node has sent on to it.
pub(crate) fn the_backends_node_translates_for_external_clients<H: Harness>() -> Result<()> {
    let mut wire = Wire::<H>::new(THERE)?;
    for port in 4000..4010 {
        for _ in 0..2 {
            let sent = wire.request((HERE, wire.vip), port);
            let came = wire.outcome(&sent)?;
            ensure!(came == [wire.arrival(wire.vip, port)], "port {port}: {came:?}");
            wire.is_answered(port)?;
        }
    }
    Ok(())
}

/// Rules of the backend see the client, on the backend's node.
pub(crate) fn policies_see_external_clients<H: Harness>() -> Result<()> {
    for speaker in [HERE, THERE] {
        let mut wire = Wire::<H>::new(speaker)?;
        let mut port = 4000;
        while speaker == HERE && wire.asks(port)? != HERE {
            port += 1;
        }
        let macs = if speaker == HERE { (wire.vip, CLIENT) } else { (HERE, wire.vip) };
        let request = wire.request(macs, port);
        ensure!(wire.outcome(&request)? == [wire.arrival(macs.1, port)]);
        let peer = Peer::prefix(format!("{}/32", ip(CLIENT)).parse()?);
        let client = Rule { peer, ..rule(Direction::In, Action::Deny, 1)? };
        wire.world.set(group(7, [client])?)?;
        wire.world.set(in_group(wire.net.local("pb", HERE), 7)?)?;
        let came = wire.outcome(&request)?;
        ensure!(came.is_empty(), "denied, but {came:?}");
        wire.world.set(group(7, [])?)?;
        let came = wire.outcome(&request)?;
        ensure!(came == [wire.arrival(macs.1, port)], "allowed again, but {came:?}");
    }
    Ok(())
}

/// Session affinity: all connections of a client go to one backend, here or elsewhere.
pub(crate) fn external_clients_keep_their_backend<H: Harness>() -> Result<()> {
    let mut wire = Wire::<H>::new(HERE)?;
    let with_affinity = |vip: u8, backends: &[(u8, Readiness)]| -> Result<Object> {
        Ok(Object::Service(Service { affinity: Some(Duration::from_secs(600)), ..service(vip, backends)? }))
    };
    let vip = wire.vip;
    wire.world.set(with_affinity(vip, &ready())?)?;
    let backend = wire.asks(4000)?;
    for port in 4001..4020 {
        ensure!(wire.asks(port)? == backend, "port {port}: not {backend}");
    }
    // Its connections stay when it terminates; new ones go to the other backend.
    let readiness = |last: u8| if last == backend { Readiness::Terminating } else { Readiness::Ready };
    wire.world.set(with_affinity(vip, &[HERE, THERE].map(|last| (last, readiness(last))))?)?;
    ensure!(wire.asks(4000)? == backend, "the terminating backend has lost its client");
    for port in 5000..5010 {
        ensure!(wire.asks(port)? != backend, "port {port}: the terminating backend has a new client");
    }
    wire.world.check_in_sync()
}

/// The answering node tells clients that no backend serves a port.
pub(crate) fn external_clients_are_refused<H: Harness>() -> Result<()> {
    let mut wire = Wire::<H>::new(HERE)?;
    let vip = wire.vip;
    wire.is_refused(81)?;
    wire.world.set(Object::Service(service(vip, &[(HERE, Readiness::Terminating)])?))?;
    wire.is_refused(80)
}
