//! Connections of the datapath that this one replaces.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use contiv_model::{global::ArpMode, mac::Mac, policy::Identity, service::Protocol};
use netplugin::datapath::{
    Backend, Datapath as _, Group, Local, Network, Object, Op, Scope, SequenceNumbers, Service,
    TrackedConnection,
};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{Packet, tcp_flags},
    patience, wait_until,
};

use crate::node::{Node, Pod, SOON, addresses, network, remote, vlan};

const TAG: u16 = 100;
pub(crate) const CLIENT: u8 = 2;
pub(crate) const BACKEND: u8 = 3;
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 200);
pub(crate) const PORT: u16 = 4000;
const ACK: u8 = tcp_flags::ACK;
/// Time in which the switch counts what has come in.
pub(crate) const QUIET: Duration = Duration::from_millis(700);
/// Connections before the one that is used, whose takeover takes a while.
const OTHERS: u16 = 2000;
/// What client and backend send next.
pub(crate) type Next = [u32; 2];
pub(crate) const NEXT: Next = [1000, 5000];
/// Later, further than a window.
const LATER: Next = [2_000_000_000, 3_000_000_000];

pub(crate) fn green() -> Network {
    network("green", vlan(TAG), ArpMode::Proxy)
}

pub(crate) fn service(network: &Network) -> Result<Object> {
    Ok(Object::Service(Service {
        ports: vec!["80:8080:TCP".parse()?],
        backends: vec![Backend::on(network.encap, addresses(BACKEND).0)],
        ..Service::new("web:net", Scope::network(network), VIP)
    }))
}

/// Connections of the client to the service, the last of which is used.
pub(crate) fn connections(network: &Network, [own, other]: Next) -> Vec<TrackedConnection> {
    let sent = |next, acknowledged| SequenceNumbers { next, acknowledged };
    let connection = |port| TrackedConnection {
        vrf: network.vrf.clone(),
        network: network.id.clone(),
        encap: network.encap,
        protocol: Protocol::Tcp,
        client: SocketAddr::from((addresses(CLIENT).0, port)),
        destination: SocketAddr::from((VIP, 80)),
        backend: Some(SocketAddr::from((addresses(BACKEND).0, 8080))),
        is_closing: false,
        numbers: Some([sent(own, other), sent(other, own)]),
    };
    (PORT + 1..=PORT + OTHERS).chain([PORT]).map(connection).collect()
}

/// A segment of the backend, or of the service, to the client.
pub(crate) fn reply(eth: Packet, from: (Ipv4Addr, u16), [own, other]: Next) -> Packet {
    eth.ipv4(from.0, addresses(CLIENT).0).tcp(from.1, PORT, ACK).sequence(other, own).payload(b"reply")
}

/// A segment of the client to the service, or to the backend.
pub(crate) fn request(eth: Packet, to: (Ipv4Addr, u16), [own, other]: Next) -> Packet {
    eth.ipv4(addresses(CLIENT).0, to.0).tcp(PORT, to.1, ACK).sequence(own, other).payload(b"request")
}

/// A node with a client, and the wire on which the backend is.
struct Site {
    node: Node,
    client: Pod,
    tap: Tap,
    wire: Tap,
    _outside: Netns,
}

impl Site {
    fn new(label: &str) -> Result<Site> {
        let (node, outside, wire) = Node::with_uplink(label)?;
        let client = node.pod(&green(), CLIENT)?;
        // Its kernel would reset connections that it does not know.
        client.namespace.ip("addr flush dev eth0")?;
        let tap = Tap::open(&client.namespace, "eth0")?;
        Ok(Site { node, client, tap, wire, _outside: outside })
    }

    fn objects(&self) -> Result<[Object; 4]> {
        let green = green();
        let (backend, service) = (remote(&green, BACKEND, None), service(&green)?);
        Ok([Object::Network(green), backend, service, self.client.object.clone()])
    }

    /// The backend's segment on the wire.
    fn from_backend(next: Next) -> Vec<u8> {
        let [client, backend] = macs();
        reply(Packet::eth(client, backend).vlan(TAG), (addresses(BACKEND).0, 8080), next).build()
    }

    /// Takes over while the backend sends.
    fn take_over(&self, next: Next, take: impl FnOnce(Vec<TrackedConnection>) -> Result<()>) -> Result<()> {
        let (done, to_client, wire) = (AtomicBool::new(false), Site::from_backend(next), &self.wire);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                while !done.load(Relaxed) {
                    wire.send(&to_client)?;
                    // The switch has other work, too.
                    thread::yield_now();
                }
                anyhow::Ok(())
            });
            let taken = take(connections(&green(), next));
            done.store(true, Relaxed);
            taken?;
            flood.join().unwrap()
        })
    }

    /// Sets the objects in a resync that takes the connections over.
    fn inherit(&self, connections: Vec<TrackedConnection>) -> Result<()> {
        self.node.datapath.borrow_mut().inherit(connections);
        for object in self.objects()? {
            self.node.desired.borrow_mut().insert(object);
        }
        self.node.converge().map(drop)
    }

    /// The client's connection to the service goes on.
    fn check(&self, next: Next) -> Result<()> {
        let ([client, backend], vip_mac) = (macs(), Mac::of_service(VIP.into()).0);
        let to_backend = (addresses(BACKEND).0, 8080);
        self.wire.drain()?;
        self.tap.drain()?;
        let translated = request(Packet::eth(backend, client).vlan(TAG), to_backend, next).build();
        // The switch may drop more for a moment, until it has seen that its flows have changed.
        wait_until(SOON, "the request", || {
            self.tap.send(&request(Packet::eth(vip_mac, client), (VIP, 80), next).build())?;
            let frames = self.wire.drain()?;
            Ok(frames.iter().any(|frame| frame.bytes.starts_with(&translated)).then_some(()))
        })?;
        let shown = reply(Packet::eth(client, backend), (VIP, 80), next).build();
        let foreign = reply(Packet::eth(client, backend), to_backend, next).build();
        wait_until(SOON, "the reply", || {
            self.wire.send(&Site::from_backend(next))?;
            let frames = self.tap.drain()?;
            let has = |one: &[u8]| frames.iter().any(|frame| frame.bytes.starts_with(one));
            ensure!(!has(&foreign), "a reply has the address of the backend");
            Ok(has(&shown).then_some(()))
        })?;
        // No flow is left of the takeover.
        self.node.restart_agent();
        assert_eq!((self.node.converge()?, self.node.writes()), (vec![], 0));
        Ok(())
    }
}

/// Ethernet addresses of client and backend.
pub(crate) fn macs() -> [[u8; 6]; 2] {
    [CLIENT, BACKEND].map(|n| Mac::of_endpoint(addresses(n).0).0)
}

/// A backend does not wait until the bridges have all flows: what it sends before opens no connection.
#[test]
fn connections_to_services_are_inherited_while_backends_send() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let site = Site::new("inherit")?;
    site.take_over(NEXT, |all| site.inherit(all))?;
    site.check(NEXT)
}

/// Some objects could not be set beside the other datapath. The resync that sets them sets groups first, in a batch of their own, and then
/// services and endpoints: until these are set, and the connections are recorded, the bridges stay closed.
#[test]
fn bridges_are_closed_until_the_last_batch_of_a_takeover() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let site = Site::new("inherit-late")?;
    let node = &site.node;
    let is_closed = || node.runtime.block_on(node.datapath.borrow().is_closed());
    node.restart_agent();
    node.datapath.borrow_mut().stand_by();
    node.observe()?;
    node.add([Object::Network(green())])?;
    ensure!(is_closed()?);
    site.take_over(NEXT, |all| {
        node.datapath.borrow_mut().inherit(all);
        let group = Object::Group(Group::new(Identity::try_from(7)?, []));
        let objects = site.objects()?;
        for object in objects.iter().chain([&group]) {
            node.desired.borrow_mut().insert(object.clone());
        }
        ensure!(node.observe()?.orphans > 0);
        let failures = node.apply(&[Op::Set(group)])?;
        ensure!(failures.is_empty() && is_closed()?, "{failures:?}");
        let rest = objects.into_iter().map(Op::Set).chain([Op::GarbageCollect]);
        let failures = node.apply(&rest.collect::<Vec<_>>())?;
        ensure!(failures.is_empty() && !is_closed()?, "{failures:?}");
        Ok(())
    })?;
    site.check(NEXT)
}

/// Another pod gets the client's address, and the backend goes on: what it sends is of a connection of its own, and not translated.
#[test]
fn replies_to_an_inherited_connection_reach_no_successor() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let site = Site::new("inherit-next")?;
    site.inherit(connections(&green(), NEXT))?;
    let [client, backend] = macs();
    let from = |end| reply(Packet::eth(client, backend), end, NEXT).build();
    let (shown, own) = (from((VIP, 80)), from((addresses(BACKEND).0, 8080)));
    let arrives = |tap: &Tap, wanted: &[u8], other: &[u8]| {
        wait_until(SOON, "a frame of the backend", || {
            site.wire.send(&Site::from_backend(NEXT))?;
            let frames = tap.drain()?;
            let has = |one: &[u8]| frames.iter().any(|frame| frame.bytes.starts_with(one));
            ensure!(!has(other), "a frame of the backend has the other address");
            Ok(has(wanted).then_some(()))
        })
    };
    arrives(&site.tap, &shown, &own)?;
    site.node.remove([site.client.object.id()])?;
    let successor = site.node.pod(&green(), CLIENT)?;
    successor.namespace.ip("addr flush dev eth0")?;
    let tap = Tap::open(&successor.namespace, "eth0")?;
    let Object::Local(local) = &successor.object else { unreachable!() };
    site.node.add([Object::Local(Local { id: "green.net-next".into(), ..local.clone() })])?;
    // Until then, the switch may use what it has cached before.
    site.node.switch.borrow().appctl(&["revalidator/wait"])?;
    arrives(&tap, &own, &shown)
}

/// Beside a datapath that forwards, until it has stopped. A node that has changed its datapath before has entries of that time.
#[test]
fn connections_to_services_are_taken_over_while_backends_send() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let site = Site::new("beside")?;
    for next in [NEXT, LATER] {
        site.node.restart_agent();
        site.take_over(next, |all| {
            site.node.datapath.borrow_mut().stand_by();
            let objects = site.objects()?;
            ensure!(objects.iter().all(|object| site.node.datapath.borrow().can_stand_by(object)));
            site.node.observe()?;
            site.node.add(objects)?;
            // Where the frames of networks go.
            let count = |text: &str| -> Option<u64> {
                let counts = text.split("n_packets=").skip(1);
                counts.map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum()
            };
            let arrived = || -> Result<Option<u64>> {
                let switch = site.node.switch.borrow();
                Ok(count(&switch.ofctl("dump-flows", "contivVlanBridge", &["table=14"])?))
            };
            // Of before.
            thread::sleep(QUIET * patience());
            let before = arrived()?;
            thread::sleep(QUIET * patience());
            ensure!(before.is_some() && arrived()? == before, "frames of the network come in");
            site.node.runtime.block_on(site.node.datapath.borrow_mut().take_over(all))?;
            Ok(())
        })?;
        site.check(next)?;
    }
    Ok(())
}

/// An agent that was killed after it had stopped the datapath is followed by one that may have no store.
#[test]
fn stopped_bridges_go_on_as_they_were() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let site = Site::new("resume")?;
    site.node.add(site.objects()?)?;
    let [client, backend] = macs();
    let packet = |eth: Packet| eth.ipv4(addresses(CLIENT).0, addresses(BACKEND).0).udp(PORT, PORT).build();
    let sent = packet(Packet::eth(backend, client));
    let arrives = packet(Packet::eth(backend, client).vlan(TAG));
    let passes = || -> Result<Option<()>> {
        site.tap.send(&sent)?;
        Ok(site.wire.drain()?.iter().any(|frame| frame.bytes.starts_with(&arrives)).then_some(()))
    };
    let is_closed = || site.node.runtime.block_on(site.node.datapath.borrow().is_closed());
    wait_until(SOON, "a frame before", passes)?;
    ensure!(!is_closed()?);
    site.node.runtime.block_on(site.node.datapath.borrow_mut().stop())?;
    ensure!(is_closed()?);
    // The switch may forward more for a moment.
    thread::sleep(QUIET * patience());
    site.wire.drain()?;
    for _ in 0..10 {
        ensure!(passes()?.is_none(), "a frame passes closed bridges");
    }
    thread::sleep(QUIET * patience());
    ensure!(passes()?.is_none(), "a frame passes closed bridges");
    site.node.restart_agent();
    site.node.runtime.block_on(site.node.datapath.borrow_mut().resume())?;
    ensure!(!is_closed()?);
    wait_until(SOON, "a frame afterwards", passes)
}
