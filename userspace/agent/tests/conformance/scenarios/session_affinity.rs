//! Session affinity of services with several ports.

use std::{net::IpAddr, ops::Range, time::Duration};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{
    mac::Mac,
    service::{Port, Protocol},
};
use netplugin::datapath::{Backend, Object, Scope, Service};
use testkit::packet::Packet;

use crate::{
    harness::Harness,
    topology::{Net, ip, ip6, mac, peers, pod, to_pod},
    world::World,
};

const VIP: u8 = 200;
/// On this node and on another one.
const BACKENDS: [u8; 3] = [2, 3, 11];
const PORTS: Range<u16> = 50..58;
/// Added to a port for its target port.
const TARGET: u16 = 5300;
const CLIENT_PORT: u16 = 4000;

fn address(last: u8, v6: bool) -> IpAddr {
    if v6 { ip6(last).into() } else { ip(last).into() }
}

/// A client has one backend for all ports of a service.
pub(crate) fn clients_have_one_backend_for_all_ports<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    for v6 in [false, true] {
        let locals = [("pa", 1), ("pb", 2), ("pc", 3)].map(|(port, last)| net.local(port, last));
        let objects = peers().into_iter().chain([net.network(), net.remote(0, 11)]).chain(locals);
        let mut world = World::<H>::new(objects)?;
        let port = |port: u16| Port { protocol: Protocol::Udp, port, target: TARGET + port };
        world.set(Object::Service(Service {
            ports: PORTS.map(port).collect(),
            backends: BACKENDS.map(|last| Backend::on(net.encap, address(last, v6))).into(),
            affinity: Some(Duration::from_secs(600)),
            ..Service::new("dns:t", Scope::network(&net.plain()), address(VIP, v6))
        }))?;
        world.check_in_sync()?;
        let asked: Vec<u8> = PORTS.map(|port| asks(&mut world, &net, v6, port)).collect::<Result<_>>()?;
        ensure!(asked.iter().all(|backend| *backend == asked[0]), "IPv6 {v6}: several backends: {asked:?}");
    }
    Ok(())
}

/// Sends a datagram to a port of the service, and returns the backend that received it.
fn asks<H: Harness>(world: &mut World<H>, net: &Net, v6: bool, port: u16) -> Result<u8> {
    let datagram = |to_mac: [u8; 6], to: u8, port: u16| {
        let eth = Packet::eth(to_mac, mac(1));
        let packet = if v6 { eth.ipv6(ip6(1), ip6(to)) } else { eth.ipv4(ip(1), ip(to)) };
        packet.udp(CLIENT_PORT, port).payload(b"service")
    };
    let arrival = |backend: u8| {
        let frame = datagram(mac(backend), backend, TARGET + port);
        match backend {
            2 => to_pod("pb", &frame),
            3 => to_pod("pc", &frame),
            _ => net.to_node(0, &frame),
        }
    };
    let request = datagram(Mac::of_service(address(VIP, v6)).0, VIP, port);
    let came = world.outcome(&pod("pa"), &request.build())?;
    let backend = BACKENDS.into_iter().find(|backend| came == [arrival(*backend)]);
    backend.with_context(|| format!("port {port}: no backend got it, but {came:?}"))
}
