//! Connections of the datapath that this one replaces.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use anyhow::{Result, ensure};
use contiv_model::{global::ArpMode, mac::Mac, service::Protocol};
use netplugin::datapath::{
    Backend, Datapath as _, Network, Object, Scope, SequenceNumbers, Service, TrackedConnection,
};
use testkit::{
    capture::Tap,
    needs,
    packet::{Packet, tcp_flags},
    wait_until,
};

use crate::node::{Node, SOON, addresses, network, remote, vlan};

const TAG: u16 = 100;
const CLIENT: u8 = 2;
const BACKEND: u8 = 3;
const VIP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 200);
const PORT: u16 = 4000;
const ACK: u8 = tcp_flags::ACK;
/// Connections before the one that is used, whose takeover takes a while.
const OTHERS: u16 = 2000;
/// What client and backend send next.
const NEXT: [u32; 2] = [1000, 5000];

fn green() -> Network {
    network("green", vlan(TAG), ArpMode::Proxy)
}

fn service() -> Result<Service> {
    let network = green();
    Ok(Service {
        ports: vec!["80:8080:TCP".parse()?],
        backends: vec![Backend::on(network.encap, addresses(BACKEND).0)],
        ..Service::new("web:net", Scope::network(&network), VIP)
    })
}

/// A connection of the client to the service.
fn connection(port: u16) -> TrackedConnection {
    let network = green();
    let [own, other] = NEXT;
    let sent = |next, acknowledged| SequenceNumbers { next, acknowledged };
    TrackedConnection {
        vrf: network.vrf,
        network: network.id,
        encap: network.encap,
        protocol: Protocol::Tcp,
        client: SocketAddr::from((addresses(CLIENT).0, port)),
        destination: SocketAddr::from((VIP, 80)),
        backend: Some(SocketAddr::from((addresses(BACKEND).0, 8080))),
        is_closing: false,
        numbers: Some([sent(own, other), sent(other, own)]),
    }
}

/// A segment of the backend, or of the service, to the client.
fn reply(eth: Packet, from: (Ipv4Addr, u16)) -> Packet {
    let [own, other] = NEXT;
    eth.ipv4(from.0, addresses(CLIENT).0).tcp(from.1, PORT, ACK).sequence(other, own).payload(b"reply")
}

/// A segment of the client to the service, or to the backend.
fn request(eth: Packet, to: (Ipv4Addr, u16)) -> Packet {
    let [own, other] = NEXT;
    eth.ipv4(addresses(CLIENT).0, to.0).tcp(PORT, to.1, ACK).sequence(own, other).payload(b"request")
}

/// A backend does not wait until the bridges have all flows: what it sends before opens no connection.
#[test]
fn connections_to_services_are_inherited_while_backends_send() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    taken_over("inherit", |node, objects, all| {
        node.datapath.borrow_mut().inherit(all);
        node.add(objects)
    })
}

/// Beside a datapath that forwards, until it has stopped.
#[test]
fn connections_to_services_are_taken_over_while_backends_send() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    taken_over("beside", |node, objects, all| {
        node.datapath.borrow_mut().stand_by();
        let objects = objects.into_iter();
        let stand_by: Vec<_> = objects.filter(|object| node.datapath.borrow().can_stand_by(object)).collect();
        ensure!(stand_by.len() == 4, "{stand_by:?}");
        node.add(stand_by)?;
        // Where the frames of networks go.
        let flows = node.switch.borrow().ofctl("dump-flows", "contivVlanBridge", &["table=14"])?;
        let has_come = |line: &str| line.contains("n_packets=") && !line.contains("n_packets=0,");
        ensure!(!flows.lines().any(has_come), "a frame of the network has come in: {flows}");
        node.runtime.block_on(node.datapath.borrow_mut().take_over(all))?;
        Ok(())
    })
}

/// The client's connection goes on behind `take`.
fn taken_over(
    label: &str,
    take: impl FnOnce(&Node, Vec<Object>, Vec<TrackedConnection>) -> Result<()>,
) -> Result<()> {
    let (node, _outside, wire) = Node::with_uplink(label)?;
    let [client, backend] = [CLIENT, BACKEND].map(|n| Mac::of_endpoint(addresses(n).0).0);
    let vip_mac = Mac::of_service(VIP.into()).0;
    let pod = node.pod(&green(), CLIENT)?;
    // Its kernel would reset connections that it does not know.
    pod.namespace.ip("addr flush dev eth0")?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    let to_client = reply(Packet::eth(client, backend).vlan(TAG), (addresses(BACKEND).0, 8080)).build();

    let all: Vec<_> = (PORT + 1..=PORT + OTHERS).chain([PORT]).map(connection).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !done.load(Relaxed) {
                wire.send(&to_client)?;
                // The switch has other work, too.
                thread::yield_now();
            }
            anyhow::Ok(())
        });
        let objects = vec![
            Object::Network(green()),
            remote(&green(), BACKEND, None),
            Object::Service(service()?),
            pod.object.clone(),
        ];
        let taken = take(&node, objects, all);
        done.store(true, Relaxed);
        taken?;
        flood.join().unwrap()
    })?;

    wire.drain()?;
    tap.drain()?;
    tap.send(&request(Packet::eth(vip_mac, client), (VIP, 80)).build())?;
    let translated = request(Packet::eth(backend, client).vlan(TAG), (addresses(BACKEND).0, 8080)).build();
    wire.expect(SOON, "the request", |frame| frame.starts_with(&translated).then_some(()))?;
    let shown = reply(Packet::eth(client, backend), (VIP, 80)).build();
    let foreign = reply(Packet::eth(client, backend), (addresses(BACKEND).0, 8080)).build();
    // The switch may drop more for a moment, until it has seen that its flows have changed.
    wait_until(SOON, "the reply", || {
        wire.send(&to_client)?;
        let frames = tap.drain()?;
        let has = |one: &[u8]| frames.iter().any(|frame| frame.bytes.starts_with(one));
        ensure!(!has(&foreign), "a reply has the address of the backend");
        Ok(has(&shown).then_some(()))
    })?;
    // No flow is left of the takeover.
    node.restart_agent();
    assert_eq!((node.converge()?, node.writes()), (vec![], 0));
    Ok(())
}
