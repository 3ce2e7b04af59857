//! Services: connections go to backends, and replies have the address of the service.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Rule, UDP},
    service::Readiness,
};
use netplugin::datapath::{
    Backend, Object, Scope, Service,
    fake::{Delivery, Target},
};
use testkit::{
    packet::{Packet, internet_checksum, nd_flags, tcp_flags},
    wait_until,
};

use crate::{
    harness::Harness,
    scenarios::policy::{group, in_group, rule},
    topology::{Net, ip, ip6, mac, peers, pod, to_pod},
    world::World,
};

const VIP: u8 = 200;
const SOON: Duration = Duration::from_secs(5);

/// Returns a service that maps UDP port 53 to port 5353 of the backends.
pub(super) fn service(net: &Net, backends: &[(u8, Readiness)]) -> Result<Object> {
    let backend = |(last, readiness): &(u8, Readiness)| Backend {
        readiness: *readiness,
        ..Backend::on(net.encap, ip(*last))
    };
    Ok(Object::Service(Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: backends.iter().map(backend).collect(),
        ..Service::new("dns:t", Scope::network(&net.plain()), ip(VIP))
    }))
}

pub(super) fn ready(lasts: &[u8]) -> Vec<(u8, Readiness)> {
    lasts.iter().map(|last| (*last, Readiness::Ready)).collect()
}

pub(super) fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    World::new(peers().into_iter().chain([
        net.network(),
        net.local("pa", 1),
        net.local("pb", 2),
        net.local("pc", 3),
        net.remote(0, 11),
    ]))
}

pub(super) fn datagram(macs: (u8, u8), from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Packet {
    Packet::eth(mac(macs.0), mac(macs.1)).ipv4(from.0, to.0).udp(from.1, to.1).payload(b"service")
}

/// Datagram of pod 1 to the service.
pub(super) fn request(port: u16) -> Packet {
    datagram((VIP, 1), (ip(1), port), (ip(VIP), 53))
}

/// Delivery of the datagram to a backend.
pub(super) fn arrival(net: &Net, backend: u8, port: u16) -> Delivery {
    let frame = datagram((backend, 1), (ip(1), port), (ip(backend), 5353));
    match backend {
        2 => to_pod("pb", &frame),
        3 => to_pod("pc", &frame),
        _ => net.to_node(0, &frame),
    }
}

impl<H: Harness> World<H> {
    /// Sends a datagram and returns the single backend that received it.
    fn asks(&mut self, net: &Net, port: u16, backends: &[u8]) -> Result<u8> {
        let came = self.outcome(&pod("pa"), &request(port).build())?;
        let asked = backends.iter().find(|backend| came == [arrival(net, **backend, port)]);
        match asked {
            Some(backend) => Ok(*backend),
            None => bail!("port {port}: none of {backends:?} got it, but {came:?}"),
        }
    }

    /// Sends the reply of the backend; the client receives it from the address of the service.
    pub(super) fn is_answered(&mut self, net: &Net, backend: u8, port: u16) -> Result<()> {
        let reply = datagram((1, backend), (ip(backend), 5353), (ip(1), port));
        let translated = datagram((1, backend), (ip(VIP), 53), (ip(1), port));
        let expected = [to_pod("pa", &translated)];
        match backend {
            2 => self.sends(&pod("pb"), &reply, expected),
            3 => self.sends(&pod("pc"), &reply, expected),
            _ => self.sends_bytes(&net.outside(0), &net.on_wire(&reply.build()), expected),
        }
    }
}

/// Every backend gets connections, each connection stays at one backend, and replies come from the service.
pub(crate) fn connections_go_to_backends<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let all = [2, 3, 11];
        world.set(service(&net, &ready(&all))?)?;
        world.check_in_sync()?;
        let mut asked = vec![];
        for port in 4000..4030 {
            let backend = world.asks(&net, port, &all)?;
            world.is_answered(&net, backend, port)?;
            ensure!(world.asks(&net, port, &all)? == backend, "port {port}: another backend than {backend}");
            asked.push(backend);
        }
        ensure!(all.iter().all(|backend| asked.contains(backend)), "not all were asked: {asked:?}");
    }
    Ok(())
}

/// The network of the service answers requests for its address, in each ARP mode; other networks do not.
pub(crate) fn requests_for_the_address_are_answered<H: Harness>() -> Result<()> {
    let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
    let [vip_mac, vip6_mac] = [IpAddr::from(ip(VIP)), ip6(VIP).into()].map(|vip| Mac::of_service(vip).0);
    let owner = (vip6_mac, ip6(VIP));
    let pairs = [
        (
            Packet::arp_request(mac(1), ip(1), ip(VIP)),
            Packet::eth(mac(1), mac(VIP)).arp(2, (vip_mac, ip(VIP)), (mac(1), ip(1))),
        ),
        (
            Packet::neighbour_solicitation(mac(1), ip6(1), ip6(VIP)),
            Packet::neighbour_advertisement((mac(1), ip6(1)), owner, vip6_mac, flags),
        ),
    ];
    for (net, other) in [(Net::vxlan(1)?, Net::vxlan(2)?), (Net::vlan(100)?, Net::vlan(101)?)] {
        let pods = [net.local("pa", 1), net.local("pb", 2), other.local("oa", 1), other.local("ob", 2)];
        let networks = [net.network(), other.network()];
        let mut world = World::<H>::new(peers().into_iter().chain(networks).chain(pods))?;
        world.set(service(&net, &[])?)?;
        world.set(Object::Service(Service::new("dns6:t", Scope::network(&net.plain()), ip6(VIP))))?;
        for arp in [ArpMode::Proxy, ArpMode::Flood] {
            world.set(net.network_with(arp))?;
            world.set(other.network_with(arp))?;
            for (request, reply) in &pairs {
                world.sends(&pod("pa"), request, [to_pod("pa", reply)])?;
                let flooded = other.to_other_nodes(request).into_iter().chain([to_pod("ob", request)]);
                world.sends(&pod("oa"), request, flooded)?;
            }
            // A kernel refreshes an entry with a unicast request.
            let (solicitation, reply) = &pairs[1];
            let renewal = [&vip6_mac[..], &solicitation.build()[6..]].concat();
            world.sends_bytes(&pod("pa"), &to_unicast(&renewal, ip6(VIP)), [to_pod("pa", reply)])?;
        }
    }
    Ok(())
}

/// The solicitation with this destination, instead of a group.
fn to_unicast(solicitation: &[u8], to: Ipv6Addr) -> Vec<u8> {
    let mut frame = solicitation.to_vec();
    frame[38..54].copy_from_slice(&to.octets());
    frame[56..58].fill(0);
    let pseudo = [&frame[22..54], &(frame.len() as u32 - 54).to_be_bytes(), &[0, 0, 0, 58]].concat();
    let checksum = internet_checksum(&[&pseudo, &frame[54..]]);
    frame[56..58].copy_from_slice(&checksum.to_be_bytes());
    frame
}

/// New backends get new connections; draining backends keep only established ones.
pub(crate) fn backends_come_and_go<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    world.set(service(&net, &ready(&[2]))?)?;
    ensure!(world.asks(&net, 4000, &[2, 3])? == 2);
    world.set(service(&net, &[(2, Readiness::Terminating), (3, Readiness::Ready)])?)?;
    world.check_in_sync()?;
    // The established connection stays at its draining backend.
    ensure!(world.asks(&net, 4000, &[2, 3])? == 2);
    world.is_answered(&net, 2, 4000)?;
    for port in 4001..4010 {
        ensure!(world.asks(&net, port, &[2, 3])? == 3);
    }
    Ok(())
}

/// A backend is reachable by its own address, also for a client of the service.
pub(crate) fn backends_are_reachable_directly<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    world.set(service(&net, &ready(&[2]))?)?;
    world.asks(&net, 4000, &[2])?;
    let direct = datagram((2, 1), (ip(1), 4001), (ip(2), 5353));
    world.sends(&pod("pa"), &direct, [to_pod("pb", &direct)])?;
    let reply = datagram((1, 2), (ip(2), 5353), (ip(1), 4001));
    world.sends(&pod("pb"), &reply, [to_pod("pa", &reply)])?;
    world.is_answered(&net, 2, 4000)
}

/// Policies see the address and port of the backend, not those of the service.
pub(crate) fn policies_see_the_backend<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world =
        World::<H>::new([net.network(), in_group(net.local("pa", 1), 1)?, in_group(net.local("pb", 2), 2)?])?;
    world.set(service(&net, &ready(&[2]))?)?;
    let deny = |port: u16| -> Result<Rule> {
        Ok(Rule { protocol: Some(UDP), ports: Some(port.into()), ..rule(Direction::Out, Action::Deny, 1)? })
    };
    world.set(group(1, [deny(53)?])?)?;
    world.asks(&net, 4000, &[2])?;
    world.set(group(1, [deny(5353)?])?)?;
    world.sends(&pod("pa"), &request(4001), [])?;
    let theirs = Rule { direction: Direction::In, ..deny(5353)? };
    world.set(group(1, [])?)?;
    world.set(group(2, [theirs])?)?;
    world.sends(&pod("pa"), &request(4002), [])
}

/// A TCP connection over IPv6, from the handshake to the end, and a second one with the same ports.
pub(crate) fn tcp_connections_over_ipv6<H: Harness>() -> Result<()> {
    const VIP_MAC: [u8; 6] = [2, 2, 0, 0, 0, 200];
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(Object::Service(Service {
            ports: vec!["80:8080:TCP".parse()?],
            backends: vec![Backend::on(net.encap, ip6(2))],
            ..Service::new("web:t", Scope::network(&net.plain()), ip6(VIP))
        }))?;
        let there = |mac: [u8; 6], to: u8, port: u16, flags: u8, numbers: (u32, u32)| {
            let packet = Packet::eth(mac, self::mac(1)).ipv6(ip6(1), ip6(to)).tcp(4000, port, flags);
            packet.sequence(numbers.0, numbers.1)
        };
        let back = |from: u8, port: u16, flags: u8, numbers: (u32, u32)| {
            let packet = Packet::eth(mac(1), mac(2)).ipv6(ip6(from), ip6(1)).tcp(port, 4000, flags);
            packet.sequence(numbers.0, numbers.1)
        };
        for first in [1000, 500_000] {
            let ack = first + 1;
            for (is_request, flags, numbers) in [
                (true, tcp_flags::SYN, (first, 0)),
                (false, tcp_flags::SYN | tcp_flags::ACK, (7000, ack)),
                (true, tcp_flags::ACK, (ack, 7001)),
                (true, tcp_flags::FIN | tcp_flags::ACK, (ack, 7001)),
                (false, tcp_flags::FIN | tcp_flags::ACK, (7001, ack + 1)),
                (true, tcp_flags::ACK, (ack + 1, 7002)),
            ] {
                if is_request {
                    let arrives = there(mac(2), 2, 8080, flags, numbers);
                    world.sends(
                        &pod("pa"),
                        &there(VIP_MAC, VIP, 80, flags, numbers),
                        [to_pod("pb", &arrives)],
                    )?;
                } else {
                    let arrives = back(VIP, 80, flags, numbers);
                    world.sends(&pod("pb"), &back(2, 8080, flags, numbers), [to_pod("pa", &arrives)])?;
                }
            }
        }
    }
    Ok(())
}

/// A pod that is a backend reaches itself; it sees the address of the service.
pub(crate) fn a_pod_reaches_itself<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(service(&net, &ready(&[1]))?)?;
        for _ in 0..2 {
            let from_service = |from: u16, to: u16| datagram((1, VIP), (ip(VIP), from), (ip(1), to));
            world.sends(&pod("pa"), &request(4000), [to_pod("pa", &from_service(4000, 5353))])?;
            let reply = datagram((VIP, 1), (ip(1), 5353), (ip(VIP), 4000));
            world.sends(&pod("pa"), &reply, [to_pod("pa", &from_service(53, 4000))])?;
        }
        // To no port of the service.
        let stray = datagram((VIP, 1), (ip(1), 5353), (ip(VIP), 4001));
        let came = world.outcome(&pod("pa"), &stray.build())?;
        ensure!(came.iter().all(is_refusal), "a packet to no port of the service came: {came:?}");
    }
    Ok(())
}

/// A client gets errors about the packets that it has sent, not about those to the backend.
pub(crate) fn errors_are_about_the_service<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(service(&net, &ready(&[2]))?)?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.is_answered(&net, 2, 4000)?;
        let sent = datagram((VIP, 1), (ip(1), 4000), (ip(VIP), 53)).build();
        let arrived = datagram((2, 1), (ip(1), 4000), (ip(2), 5353)).build();
        let error = |from: Ipv4Addr, quoted: &[u8]| {
            let error = Packet::eth(mac(1), mac(2)).ipv4(from, ip(1));
            error.icmp(3, 3, [0; 4]).payload(&quoted[14..14 + 28])
        };
        let shown = error(ip(VIP), &sent);
        world.sends(&pod("pb"), &error(ip(2), &arrived), [to_pod("pa", &shown)])?;
    }
    Ok(())
}

/// A connection keeps the port of its backend when the service gets another target port, which new connections go to.
pub(crate) fn connections_keep_their_target_port<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(service(&net, &ready(&[2]))?)?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.is_answered(&net, 2, 4000)?;
        let Object::Service(before) = service(&net, &ready(&[2]))? else { bail!("a service") };
        world.set(Object::Service(Service { ports: vec!["53:5454:UDP".parse()?], ..before }))?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.is_answered(&net, 2, 4000)?;
        let arrives = datagram((2, 1), (ip(1), 4001), (ip(2), 5454));
        world.sends(&pod("pa"), &request(4001), [to_pod("pb", &arrives)])?;
    }
    Ok(())
}

/// The backend gets a client's errors, about the packets that it has sent.
pub(crate) fn errors_of_clients_go_to_the_backend<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(service(&net, &ready(&[2]))?)?;
        let error = |to: u8, reply: &[u8]| {
            let error = Packet::eth(mac(to), mac(1)).ipv4(ip(1), ip(to));
            error.icmp(3, 4, [0, 0, 5, 0]).payload(&reply[14..14 + 28])
        };
        let reply = |from: u8, port: u16| datagram((1, from), (ip(from), port), (ip(1), 4000)).build();
        let sent = error(VIP, &reply(VIP, 53));
        world.sends(&pod("pa"), &sent, [])?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.is_answered(&net, 2, 4000)?;
        world.sends(&pod("pa"), &sent, [to_pod("pb", &error(2, &reply(2, 5353)))])?;
        // About no packet of a connection, and no error at all.
        world.sends(&pod("pa"), &error(VIP, &reply(VIP, 54)), [])?;
        world.sends(
            &pod("pa"),
            &Packet::eth(mac(VIP), mac(1)).ipv4(ip(1), ip(VIP)).icmp_echo_request(7, 1),
            [],
        )?;
    }
    Ok(())
}

/// The connection of a client whose backend is deleted goes to another one, also if the client never stops to send.
pub(crate) fn a_deleted_backend_is_replaced<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(service(&net, &ready(&[2]))?)?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.is_answered(&net, 2, 4000)?;
        world.set(service(&net, &ready(&[2, 3]))?)?;
        ensure!(world.asks(&net, 4000, &[2])? == 2);
        world.delete(net.local("pb", 2).id())?;
        world.set(service(&net, &ready(&[3]))?)?;
        // It may be this packet that shows that the backend is gone.
        let _first = world.outcome(&pod("pa"), &request(4000).build())?;
        ensure!(world.asks(&net, 4000, &[3])? == 3);
    }
    Ok(())
}

/// Clients of a service without backends, and of a port that no service has, are told at once.
pub(crate) fn refused_clients_are_told<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        for v6 in [false, true] {
            let vip = if v6 { IpAddr::from(ip6(VIP)) } else { ip(VIP).into() };
            let with_backends = |backends: Vec<Backend>| -> Result<Object> {
                let service = Service::new("web:t", Scope::network(&net.plain()), vip);
                Ok(Object::Service(Service {
                    ports: vec!["80:8080:TCP".parse()?, "53:53:UDP".parse()?],
                    backends,
                    ..service
                }))
            };
            world.set(with_backends(vec![])?)?;
            world.is_refused(v6, 80, 53)?;
            world.set(with_backends(vec![Backend::on(
                net.encap,
                if v6 { ip6(2).into() } else { IpAddr::from(ip(2)) },
            )])?)?;
            world.is_refused(v6, 81, 54)?;
            world.set(with_backends(vec![])?)?;
            world.is_refused(v6, 80, 53)?;
        }
        world.check_in_sync()?;
    }
    Ok(())
}

impl<H: Harness> World<H> {
    /// Sends segments and a datagram of pod 1 to ports of the service that refuse them.
    fn is_refused(&mut self, v6: bool, tcp: u16, udp: u16) -> Result<()> {
        let eth = |to: u8, from: u8| {
            // As in `tcp_connections_over_ipv6`.
            let [to_mac, from_mac] =
                [to, from].map(|last| if v6 && last == VIP { [2, 2, 0, 0, 0, VIP] } else { mac(last) });
            let packet = Packet::eth(to_mac, from_mac);
            if v6 { packet.ipv6(ip6(from), ip6(to)) } else { packet.ipv4(ip(from), ip(to)) }
        };
        let segments = [
            (tcp_flags::SYN, tcp_flags::RST | tcp_flags::ACK, (0, 1001)),
            (tcp_flags::ACK, tcp_flags::RST, (77, 0)),
        ];
        for (sent, answer, numbers) in segments {
            let sent = eth(VIP, 1).tcp(4000, tcp, sent).sequence(1000, 77);
            let reset = eth(1, VIP).tcp(tcp, 4000, answer).sequence(numbers.0, numbers.1).window(0);
            self.sends(&pod("pa"), &sent, [to_pod("pa", &reset)])?;
        }
        self.sends(&pod("pa"), &eth(VIP, 1).tcp(4000, tcp, tcp_flags::RST), [])?;
        let sent = eth(VIP, 1).udp(4000, udp).payload(b"a question that is longer than what is quoted");
        let bytes = sent.build();
        let unreachable = if v6 {
            eth(1, VIP).icmpv6(1, 4, [0; 4]).payload(&bytes[14..14 + 48])
        } else {
            eth(1, VIP).icmp(3, 3, [0; 4]).payload(&bytes[14..14 + 28])
        };
        self.sends(&pod("pa"), &sent, [to_pod("pa", &unreachable)])
    }
}

/// An answer of the node to the pod that sent a packet: ICMP.
fn is_refusal(delivery: &Delivery) -> bool {
    const PROTOCOL: usize = 23;
    delivery.to == Target::Pod("pa".into()) && delivery.frame.get(PROTOCOL) == Some(&1)
}

/// Session affinity: all connections of a client go to one backend, those of other clients to any.
pub(crate) fn clients_keep_their_backend<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let with_affinity = |backends: &[(u8, Readiness)]| -> Result<Object> {
        let Object::Service(service) = service(&net, backends)? else { bail!("a service") };
        Ok(Object::Service(Service { affinity: Some(Duration::from_secs(600)), ..service }))
    };
    let all = [2, 3, 11];
    world.set(with_affinity(&ready(&all))?)?;
    let backend = world.asks(&net, 4000, &all)?;
    for port in 4001..4020 {
        ensure!(world.asks(&net, port, &all)? == backend, "port {port}: not {backend}");
    }
    // Without its backend the client gets another one, and keeps it.
    let rest: Vec<u8> = all.into_iter().filter(|other| *other != backend).collect();
    world.set(with_affinity(&ready(&rest))?)?;
    let next = world.asks(&net, 4100, &rest)?;
    for port in 4101..4110 {
        ensure!(world.asks(&net, port, &rest)? == next, "port {port}: not {next}");
    }
    world.check_in_sync()
}

/// A client's connections that begin at once go to one backend, too: the first one decides before the node has learned of it.
pub(crate) fn connections_at_once_keep_their_backend<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let backends = [2, 3, 11];
    world.set(Object::Service(Service {
        ports: vec!["80:8080:TCP".parse()?],
        backends: backends.map(|last| Backend::on(net.encap, ip(last))).into(),
        affinity: Some(Duration::from_secs(600)),
        ..Service::new("web:t", Scope::network(&net.plain()), ip(VIP))
    }))?;
    let syn = |to: u8, port: u16, target: u16| {
        Packet::eth(mac(to), mac(1)).ipv4(ip(1), ip(to)).tcp(port, target, tcp_flags::SYN)
    };
    let ports = 5000..5032;
    for port in ports.clone() {
        world.node.emit(&pod("pa"), &syn(VIP, port, 80).build())?;
    }
    let at = |backend: u8, port: u16| match backend {
        2 => to_pod("pb", &syn(2, port, 8080)),
        3 => to_pod("pc", &syn(3, port, 8080)),
        _ => net.to_node(0, &syn(backend, port, 8080)),
    };
    let expected: Vec<_> = backends
        .into_iter()
        .flat_map(|backend| ports.clone().map(move |port| (backend, port)))
        .map(|(backend, port)| (backend, at(backend, port)))
        .collect();
    let mut asked = vec![];
    wait_until(SOON, "all connections at backends", || {
        let came = world.node.arrivals()?;
        asked.extend(
            expected.iter().filter(|(_, delivery)| came.contains(delivery)).map(|(backend, _)| *backend),
        );
        Ok((asked.len() == ports.len()).then_some(()))
    })?;
    ensure!(asked.iter().all(|backend| *backend == asked[0]), "several backends: {asked:?}");
    world.check_in_sync()
}

/// A restarted agent finds services and connections as they are; a removed service leaves nothing.
pub(crate) fn services_survive_a_restart<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let other = Object::Service(Service {
            ports: vec!["54:5353:UDP".parse()?],
            backends: vec![Backend::on(net.encap, ip(3))],
            affinity: Some(Duration::from_secs(600)),
            ..Service::new("another:t", Scope::network(&net.plain()), ip(VIP + 1))
        });
        world.set(service(&net, &ready(&[2, 3, 11]))?)?;
        world.set(other.clone())?;
        let backend = world.asks(&net, 4000, &[2, 3, 11])?;
        world.node.restart()?;
        world.is_answered(&net, backend, 4000)?;
        world.check_in_sync()?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
        ensure!(world.asks(&net, 4000, &[2, 3, 11])? == backend, "another backend after the restart");
        // The other one keeps what it has when the first one goes.
        world.delete(service(&net, &[])?.id())?;
        world.check_in_sync()?;
        let request = datagram((VIP + 1, 1), (ip(1), 4001), (ip(VIP + 1), 54));
        let arrives = datagram((3, 1), (ip(1), 4001), (ip(3), 5353));
        world.sends(&pod("pa"), &request, [to_pod("pc", &arrives)])?;
        world.delete(other.id())?;
        world.check_in_sync()?;
    }
    Ok(())
}
