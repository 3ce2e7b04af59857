//! Services for clients outside the cluster, on the wire of a VLAN.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::Range,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{global::ArpMode, mac::Mac, service::Readiness};
use netplugin::datapath::{Backend, Datapath as _, Network, Object, Scope, Service};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, nd_flags, tcp_flags},
    patience, wait_until,
};

use crate::{
    conntrack::datapath_type,
    node::{Node, Pod, SOON, addresses, network, remote, spread, vlan},
};

const TAG: u16 = 100;
/// Pods on the first and on the second node.
const HERE: u8 = 2;
const THERE: u8 = 3;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 90);
const CLIENT_MAC: [u8; 6] = [2, 2, 10, 1, 0, 90];
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
/// Time in which nothing arrives that is not expected.
const QUIET: Duration = Duration::from_millis(300);

fn green() -> Network {
    network("green", vlan(TAG), ArpMode::Proxy)
}

fn service(vip: Ipv4Addr, backends: &[(u8, Readiness)]) -> Service {
    let network = green();
    let backend = |(n, readiness): &(u8, Readiness)| Backend {
        readiness: *readiness,
        ..Backend::on(network.encap, addresses(*n).0)
    };
    Service {
        ports: ["80:8080:TCP", "80:8080:UDP"].map(|port| port.parse().unwrap()).into(),
        backends: backends.iter().map(backend).collect(),
        ..Service::new("web:net", Scope::network(&network), vip)
    }
}

fn ready(vip: Ipv4Addr, backends: &[u8]) -> Service {
    let backends: Vec<_> = backends.iter().map(|n| (*n, Readiness::Ready)).collect();
    service(vip, &backends)
}

/// An address for which the node of this pod answers.
fn spoken_for_by(n: u8) -> Ipv4Addr {
    let vips = (200..=250).map(|last| Ipv4Addr::new(10, 1, 0, last));
    let is_answered = |vip: &Ipv4Addr| ready(*vip, &[HERE, THERE]).speaker() == Some(addresses(n).0.into());
    vips.into_iter().find(is_answered).unwrap()
}

/// The VLAN uplinks of two nodes on one switch, with a client. Its node has the network but not the service: to the other nodes it is
/// outside.
struct Wire {
    nodes: [Node; 2],
    client: Pod,
    _switch: Netns,
    _node: Node,
}

impl Wire {
    fn new(label: &str) -> Result<Wire> {
        let switch = Netns::new(&format!("{label}-sw"))?;
        switch.ip("link add br0 type bridge")?;
        switch.up("br0")?;
        let plug = |name: &str| -> Result<Node> {
            let space = Netns::new(&format!("{label}-{name}"))?;
            space.veth("trunk0", &switch, name)?;
            switch.ip(&format!("link set dev {name} master br0"))?;
            switch.up(name)?;
            space.up("trunk0")?;
            space.tx_checksum_off("trunk0")?;
            let node = Node::on(space, &["trunk0"])?;
            node.converge()?;
            node.add([Object::Network(green())])?;
            Ok(node)
        };
        let nodes = [plug("a")?, plug("b")?];
        let node = plug("c")?;
        let client = node.run_pod(&green(), 90)?;
        Ok(Wire { nodes, client, _switch: switch, _node: node })
    }

    fn set(&self, service: &Service) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.add([Object::Service(service.clone())]))
    }

    fn connect(&self, vip: Ipv4Addr) -> Result<(TcpStream, u8)> {
        let address = SocketAddr::new(vip.into(), 80);
        let mut stream =
            self.client.namespace.run(|| Ok(TcpStream::connect_timeout(&address, SOON * patience())?))?;
        stream.set_read_timeout(Some(SOON * patience()))?;
        let backend = ask(&mut stream)?;
        Ok((stream, backend))
    }

    /// The backend that answers a datagram from this port.
    fn datagram(&self, vip: Ipv4Addr, port: u16) -> Result<u8> {
        self.client.namespace.run(|| {
            let socket = UdpSocket::bind((CLIENT, port))?;
            socket.connect((vip, 80))?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            let mut answer = [0; 2];
            wait_until(SOON, "an answer", || {
                socket.send(b"?")?;
                Ok(socket.recv(&mut answer).ok().map(drop))
            })?;
            ensure!(answer[1] == 90, "the backend sees the client's address: {answer:?}");
            Ok(answer[0])
        })
    }
}

/// The backend at the other end.
fn ask(stream: &mut TcpStream) -> Result<u8> {
    let mut answer = [0; 2];
    stream.write_all(b"?")?;
    stream.read_exact(&mut answer)?;
    ensure!(answer[1] == 90, "the backend sees the client's address: {answer:?}");
    Ok(answer[0])
}

/// Answers each byte and each datagram with the pod's number and the last byte of the client's address.
fn serve(pod: &Pod, n: u8) -> Result<()> {
    let address = (addresses(n).0, 8080);
    let (listener, socket) =
        pod.namespace.run(|| Ok((TcpListener::bind(address)?, UdpSocket::bind(address)?)))?;
    let answer = move |peer: SocketAddr| match peer {
        SocketAddr::V4(peer) => [n, peer.ip().octets()[3]],
        SocketAddr::V6(_) => [n, 0],
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let Ok(peer) = stream.peer_addr() else { return };
                let mut question = [0];
                while stream.read_exact(&mut question).is_ok() && stream.write_all(&answer(peer)).is_ok() {}
            });
        }
    });
    thread::spawn(move || {
        let mut question = [0];
        while let Ok((_, peer)) = socket.recv_from(&mut question) {
            // A client that has gone is none of the server's business.
            drop(socket.send_to(&answer(peer), peer));
        }
    });
    Ok(())
}

#[test]
fn clients_on_the_wire_reach_the_backends_of_both_nodes() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ethtool"));
    let wire = Wire::new("ext")?;
    let vip = spoken_for_by(HERE);
    let pods = [spread(&wire.nodes, 0, &green(), HERE)?, spread(&wire.nodes, 1, &green(), THERE)?];
    serve(&pods[0], HERE)?;
    serve(&pods[1], THERE)?;
    wire.set(&ready(vip, &[HERE, THERE]))?;

    let mut connections = vec![];
    for _ in 0..24 {
        connections.push(wire.connect(vip)?);
    }
    for n in [HERE, THERE] {
        ensure!(connections.iter().any(|(_, asked)| *asked == n), "pod {n} was not asked");
    }
    let asked: Vec<u8> = (5000..5016).map(|port| wire.datagram(vip, port)).collect::<Result<_>>()?;
    ensure!([HERE, THERE].iter().all(|n| asked.contains(n)), "{asked:?}");

    // The agents restart, and the backend of the other node gets no new connections.
    for node in &wire.nodes {
        node.restart_agent();
        assert_eq!((node.converge()?, node.writes()), (vec![], 0));
    }
    let draining = service(vip, &[(HERE, Readiness::Ready), (THERE, Readiness::Terminating)]);
    wire.set(&draining)?;
    let is_draining = || Ok((wire.connect(vip)?.1 == HERE && wire.connect(vip)?.1 == HERE).then_some(()));
    wait_until(SOON, "new connections go to the other backend", is_draining)?;
    for _ in 0..8 {
        ensure!(wire.connect(vip)?.1 == HERE);
    }
    for (stream, n) in &mut connections {
        ensure!(ask(stream)? == *n, "not with pod {n} any more");
    }
    // A connection that is closed takes its learned flow with it.
    let relays = || relays(&wire.nodes[0]);
    let far = connections.iter().filter(|(_, n)| *n == THERE).count();
    ensure!(relays()? == far, "{} of {far} connections to the other node are known", relays()?);
    drop(connections);
    wait_until(3 * SOON, "no relayed connection", || Ok((relays()? == 0).then_some(())))
}

/// The number of relayed connections with a learned flow.
fn relays(node: &Node) -> Result<usize> {
    let flows = node.switch.borrow().ofctl("dump-flows", "contivVlanBridge", &["table=26"])?;
    Ok(flows.lines().filter(|line| line.contains("priority=200") && line.contains("tcp")).count())
}

#[test]
fn the_node_of_one_backend_answers_for_the_service() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, tap) = Node::with_uplink("extarp")?;
    let vip = spoken_for_by(HERE);
    let mac = Mac::of_endpoint(vip).0;
    node.add([Object::Network(green())])?;
    node.add([remote(&green(), THERE, None), Object::Service(ready(vip, &[HERE, THERE]))])?;
    let request = Packet::eth(BROADCAST, CLIENT_MAC).vlan(TAG).arp(1, (CLIENT_MAC, CLIENT), ([0; 6], vip));
    let reply = Packet::eth(CLIENT_MAC, mac).vlan(TAG).arp(2, (mac, vip), (CLIENT_MAC, CLIENT)).build();
    let announcement = Packet::eth(BROADCAST, mac).vlan(TAG).arp(2, (mac, vip), (BROADCAST, vip)).build();
    let is_answered = || -> Result<bool> {
        tap.drain()?;
        tap.send(&request.build())?;
        thread::sleep(QUIET * patience());
        Ok(tap.drain()?.iter().any(|frame| frame.bytes.starts_with(&reply)))
    };
    // The backend is not on the node yet.
    ensure!(!is_answered()?);
    let pod = node.run_pod(&green(), HERE)?;
    let announced = || {
        // The tasks of the agent run only in here.
        assert!(!node.resync_needed(Duration::from_millis(50)));
        let announced = tap.drain()?.iter().filter(|frame| frame.bytes.starts_with(&announcement)).count();
        Ok((announced > 0).then_some(()))
    };
    wait_until(SOON, "the announcement", announced)?;
    ensure!(is_answered()?);
    wait_until(SOON, "the announcement again", announced)?;
    let sent = || node.datapath.borrow().stats().announcements;
    assert_eq!(sent(), [("sent", 2), ("failed", 0), ("left-out", 0)]);
    // Another agent has nothing to announce.
    node.restart_agent();
    assert_eq!((node.converge()?, node.writes()), (vec![], 0));
    ensure!(is_answered()?);
    // Also while its backend terminates; not without it.
    node.add([Object::Service(service(vip, &[(HERE, Readiness::Terminating), (THERE, Readiness::Ready)]))])?;
    ensure!(is_answered()?);
    node.remove([pod.object.id()])?;
    ensure!(!is_answered()?);
    assert_eq!(sent(), [("sent", 0), ("failed", 0), ("left-out", 0)]);
    Ok(())
}

#[test]
fn the_addresses_of_ipv6_services_are_announced() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, tap) = Node::with_uplink("extna")?;
    let network = green();
    let vip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 200);
    let mac = Mac::of_service(vip.into()).0;
    let backends = vec![Backend::on(network.encap, addresses(HERE).1)];
    let service = Service { backends, ..Service::new("web6:net", Scope::network(&network), vip) };
    node.add([Object::Network(network.clone())])?;
    let _pod = node.run_pod(&network, HERE)?;
    let all_nodes = ([0x33, 0x33, 0, 0, 0, 1], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let frame = Packet::neighbour_advertisement(all_nodes, (mac, vip), mac, nd_flags::OVERRIDE).build();
    let announcement = [&frame[..12], &[0x81, 0, 0, TAG as u8], &frame[12..]].concat();
    tap.drain()?;
    node.add([Object::Service(service)])?;
    wait_until(SOON, "the announcement", || {
        // The tasks of the agent run only in here.
        assert!(!node.resync_needed(Duration::from_millis(50)));
        Ok(tap.drain()?.iter().any(|frame| frame.bytes.starts_with(&announcement)).then_some(()))
    })
}

/// Frames of one node, whose service has a backend there and one on another node.
struct Frames {
    node: Node,
    wire: Tap,
    pod: Tap,
    vip: Ipv4Addr,
    _spaces: (Netns, Pod),
}

impl Frames {
    fn new(label: &str, speaker: u8) -> Result<Frames> {
        let (node, outside, wire) = Node::with_uplink(label)?;
        let vip = spoken_for_by(speaker);
        node.add([
            Object::Network(green()),
            remote(&green(), THERE, None),
            Object::Service(ready(vip, &[HERE, THERE])),
        ])?;
        let pod = node.run_pod(&green(), HERE)?;
        let tap = Tap::open(&pod.namespace, "eth0")?;
        Ok(Frames { node, wire, pod: tap, vip, _spaces: (outside, pod) })
    }

    /// Sends a frame of the client to this Ethernet address.
    fn send(&self, to: [u8; 6], from_client: impl Fn(Packet) -> Packet) -> Result<()> {
        let (mac, vip) = (CLIENT_MAC, self.vip);
        self.wire.drain()?;
        self.pod.drain()?;
        self.wire.send(&from_client(Packet::eth(to, mac).vlan(TAG).ipv4(CLIENT, vip)).build())
    }

    /// Neither the wire nor the pod gets a packet to the service or from it.
    fn expect_nothing(&self) -> Result<()> {
        // The tasks of the agent run only in here.
        assert!(!self.node.resync_needed(QUIET * patience()));
        let client = CLIENT.octets();
        for frame in self.wire.drain()?.into_iter().chain(self.pod.drain()?) {
            let ip = if frame.bytes[12..14] == [0x81, 0] { &frame.bytes[18..] } else { &frame.bytes[14..] };
            let is_of_client =
                ip.len() > 20 && ip[0] >> 4 == 4 && (ip[12..16] == client || ip[16..20] == client);
            ensure!(!is_of_client, "{:02x?}", frame.bytes);
        }
        Ok(())
    }

    /// The backend that gets the packet; checks its bytes.
    fn asked(
        &self,
        from_client: impl Fn(Packet) -> Packet,
        translated: impl Fn(Packet) -> Packet,
    ) -> Result<u8> {
        let vip_mac = Mac::of_endpoint(self.vip).0;
        let [here, there] = [HERE, THERE].map(|n| Mac::of_endpoint(addresses(n).0).0);
        let relayed = from_client(Packet::eth(there, vip_mac).vlan(TAG).ipv4(CLIENT, self.vip)).build();
        let delivered = translated(Packet::eth(here, CLIENT_MAC).ipv4(CLIENT, addresses(HERE).0)).build();
        self.send(vip_mac, &from_client)?;
        wait_until(SOON, "the packet at a backend", || {
            let has = |tap: &Tap, frame: &[u8]| -> Result<bool> {
                Ok(tap.drain()?.iter().any(|seen| seen.bytes.starts_with(frame)))
            };
            Ok(match (has(&self.wire, &relayed)?, has(&self.pod, &delivered)?) {
                (true, false) => Some(THERE),
                (false, true) => Some(HERE),
                _ => None,
            })
        })
    }

    fn asked_tcp(&self, port: u16, flags: u8) -> Result<u8> {
        let packet = |to: u16| move |ip: Packet| ip.tcp(port, to, flags).payload(b"x");
        self.asked(packet(80), packet(8080))
    }

    /// Sends packets to the service, one from each port, until each has been relayed to the other node.
    fn relayed(&self, ports: Range<u16>, flags: u8) -> Result<()> {
        let (vip_mac, there) = (Mac::of_endpoint(self.vip).0, Mac::of_endpoint(addresses(THERE).0).0);
        let mut left: BTreeSet<u16> = ports.collect();
        wait_until(8 * SOON, "the packets on the wire", || {
            let ports: Vec<u16> = left.iter().copied().collect();
            for some in ports.chunks(64) {
                for port in some {
                    let packet = Packet::eth(vip_mac, CLIENT_MAC).vlan(TAG).ipv4(CLIENT, self.vip);
                    self.wire.send(&packet.tcp(*port, 80, flags).build())?;
                }
                for frame in self.wire.drain()?.iter().filter(|frame| frame.bytes.starts_with(&there)) {
                    left.remove(&u16::from_be_bytes(frame.bytes[38..40].try_into()?));
                }
            }
            Ok(left.is_empty().then_some(()))
        })
    }

    fn port_to(&self, n: u8) -> Result<u16> {
        let found = (4000..4100).find_map(|port| match self.asked_tcp(port, SYN) {
            Ok(asked) if asked == n => Some(Ok(port)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        });
        found.with_context(|| format!("no connection goes to pod {n}"))?
    }

    /// The pod accepts the connection from this port. Connection tracking of the kernel expects it before the client's next packet.
    fn accept(&self, port: u16) -> Result<()> {
        let (backend, mac) = (addresses(HERE).0, Mac::of_endpoint(addresses(HERE).0).0);
        let from_backend = Packet::eth(CLIENT_MAC, mac).ipv4(backend, CLIENT);
        self.pod.send(&from_backend.tcp(8080, port, SYN | ACK).build())?;
        let shown = Packet::eth(CLIENT_MAC, mac).vlan(TAG).ipv4(self.vip, CLIENT);
        let shown = shown.tcp(80, port, SYN | ACK).build();
        self.wire.expect(SOON, "the answer", |frame| frame.starts_with(&shown).then_some(()))
    }

    fn set(&self, backends: &[(u8, Readiness)]) -> Result<()> {
        self.node.add([Object::Service(service(self.vip, backends))])
    }
}

#[test]
fn packets_to_a_backend_elsewhere_go_back_to_the_wire_unchanged() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let frames = Frames::new("extdsr", HERE)?;
    let (here, there) = (frames.port_to(HERE)?, frames.port_to(THERE)?);
    frames.accept(here)?;
    for (port, n) in [(here, HERE), (there, THERE)] {
        for flags in [ACK, ACK | tcp_flags::PSH, ACK] {
            assert_eq!(frames.asked_tcp(port, flags)?, n);
        }
    }
    let datagram = |to: u16| move |ip: Packet| ip.udp(4000, to).payload(b"x");
    let asked = frames.asked(datagram(80), datagram(8080))?;
    assert_eq!(frames.asked(datagram(80), datagram(8080))?, asked);
    // A terminating backend keeps its connections and gets no new ones.
    frames.set(&[(HERE, Readiness::Ready), (THERE, Readiness::Terminating)])?;
    for port in [6000, 6001, 6002, 6003] {
        wait_until(SOON, "a connection to the other backend", || {
            Ok((frames.asked_tcp(port, SYN)? == HERE).then_some(()))
        })?;
    }
    assert_eq!((frames.asked_tcp(here, ACK)?, frames.asked_tcp(there, ACK)?), (HERE, THERE));
    // The agent is not needed.
    frames.node.restart_agent();
    assert_eq!((frames.asked_tcp(here, ACK)?, frames.asked_tcp(there, ACK)?), (HERE, THERE));
    assert_eq!((frames.node.converge()?, frames.node.writes()), (vec![], 0));
    // A connection whose backend is gone goes to another one, as a pod's.
    frames.set(&[(HERE, Readiness::Ready)])?;
    wait_until(SOON, "the other backend", || Ok((frames.asked_tcp(there, ACK)? == HERE).then_some(())))
}

/// The port is in the mark of the client's connection.
#[test]
fn a_connection_from_outside_keeps_its_target_port() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let frames = Frames::new("extport", HERE)?;
    let port = frames.port_to(HERE)?;
    frames.accept(port)?;
    let datapath = format!("{0}@ovs-{0}", datapath_type());
    let entries = frames.node.switch.borrow().appctl(&["dpctl/dump-conntrack", &datapath])?;
    let (source, mark) = (format!("sport={port},"), format!("mark={}", 0x1f90_0003));
    ensure!(entries.lines().any(|line| line.contains(&source) && line.contains(&mark)), "{entries}");
    let changed = Service { ports: vec!["80:9090:TCP".parse()?], ..ready(frames.vip, &[HERE]) };
    frames.node.add([Object::Service(changed)])?;
    assert_eq!(frames.asked_tcp(port, ACK)?, HERE);
    let opening = |to: u16| move |ip: Packet| ip.tcp(6000, to, SYN).payload(b"x");
    assert_eq!(frames.asked(opening(80), opening(9090))?, HERE);
    assert_eq!(frames.asked_tcp(port, ACK)?, HERE);
    Ok(())
}

/// Packets that open connections leave nothing in the switch. The learned flows of a service are limited; connections without one
/// reach the backend, too.
#[test]
fn a_flood_does_not_fill_the_switch() -> Result<()> {
    const PLACES: u16 = 8192;
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let frames = Frames::new("extfl", HERE)?;
    frames.set(&[(HERE, Readiness::Terminating), (THERE, Readiness::Ready)])?;
    frames.relayed(1000..2000, SYN)?;
    assert_eq!(relays(&frames.node)?, 0);
    frames.relayed(10_000..10_000 + PLACES, ACK)?;
    frames.relayed(30_000..30_100, ACK)?;
    assert_eq!(relays(&frames.node)?, usize::from(PLACES));
    frames.relayed(30_000..30_100, ACK | tcp_flags::PSH)
}

/// With session affinity there is a flow for each client, and a flood has many.
#[test]
fn a_flood_of_clients_does_not_fill_the_switch() -> Result<()> {
    const PLACES: usize = 8192;
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let frames = Frames::new("extaf", HERE)?;
    let affine = Service { affinity: Some(Duration::from_secs(3600)), ..ready(frames.vip, &[HERE, THERE]) };
    frames.node.add([Object::Service(affine)])?;
    let vip_mac = Mac::of_endpoint(frames.vip).0;
    let flood = |clients: Range<u32>| -> Result<usize> {
        for chunk in clients.collect::<Vec<_>>().chunks(64) {
            for client in chunk {
                let source = Ipv4Addr::from_bits(Ipv4Addr::new(100, 64, 0, 0).to_bits() + client);
                let packet = Packet::eth(vip_mac, CLIENT_MAC).vlan(TAG).ipv4(source, frames.vip);
                frames.wire.send(&packet.tcp(4000, 80, SYN).build())?;
            }
            frames.wire.drain()?;
        }
        let flows = frames.node.switch.borrow().ofctl("dump-flows", "contivVlanBridge", &["table=26"])?;
        Ok(flows.lines().filter(|line| line.contains("nw_src=100.")).count())
    };
    wait_until(8 * SOON, "a flow for each client", || Ok((flood(0..9000)? == PLACES).then_some(())))?;
    assert_eq!(flood(9000..10_000)?, PLACES);
    Ok(())
}

#[test]
fn the_chosen_backend_gets_what_another_node_has_sent_on() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    // The other node answers for the service.
    let frames = Frames::new("extin", THERE)?;
    let [here, vip_mac] = [addresses(HERE).0, frames.vip].map(|ip| Mac::of_endpoint(ip).0);
    for port in 4000..4004 {
        for flags in [SYN, ACK] {
            frames.send(here, |ip| ip.tcp(port, 80, flags))?;
            let delivered = Packet::eth(here, CLIENT_MAC).ipv4(CLIENT, addresses(HERE).0);
            let delivered = delivered.tcp(port, 8080, flags).build();
            frames.pod.expect(SOON, "the packet", |frame| frame.starts_with(&delivered).then_some(()))?;
            let reply =
                |from: (Ipv4Addr, u16), eth: Packet| eth.ipv4(from.0, CLIENT).tcp(from.1, port, ACK).build();
            frames.pod.send(&reply((addresses(HERE).0, 8080), Packet::eth(CLIENT_MAC, here)))?;
            let shown = reply((frames.vip, 80), Packet::eth(CLIENT_MAC, here).vlan(TAG));
            frames.wire.expect(SOON, "the reply", |frame| frame.starts_with(&shown).then_some(()))?;
        }
    }
    // To the service, for which another node answers.
    frames.send(vip_mac, |ip| ip.tcp(4100, 80, SYN))?;
    frames.expect_nothing()?;
    // Not to a port of the service, and in pieces.
    frames.send(here, |ip| ip.tcp(4100, 81, SYN))?;
    frames.expect_nothing()?;
    frames.send(here, |ip| ip.fragment(7, 0, true).protocol(17).payload(&[0; 32]))?;
    frames.expect_nothing()
}

#[test]
fn clients_on_the_wire_are_refused() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let frames = Frames::new("extref", HERE)?;
    let vip_mac = Mac::of_endpoint(frames.vip).0;
    let refused = |port: u16| {
        frames.send(vip_mac, |ip| ip.tcp(4000, port, SYN).sequence(7, 0))?;
        let reset = Packet::eth(CLIENT_MAC, vip_mac).vlan(TAG).ipv4(frames.vip, CLIENT).ip_id(0);
        let reset = reset.tcp(port, 4000, tcp_flags::RST | ACK).sequence(0, 8).window(0).build();
        wait_until(SOON, "the reset", || {
            // The tasks of the agent run only in here.
            assert!(!frames.node.resync_needed(Duration::from_millis(20)));
            let seen = frames.wire.drain()?.iter().any(|frame| frame.bytes.starts_with(&reset));
            Ok(seen.then_some(()))
        })
    };
    // A port that the service does not have; and no backend that gets new connections.
    refused(81)?;
    frames.set(&[(HERE, Readiness::Terminating)])?;
    wait_until(SOON, "a refusal", || Ok(refused(80).ok()))?;
    frames.send(vip_mac, |ip| ip.fragment(7, 0, true).protocol(17).payload(&[0; 32]))?;
    frames.expect_nothing()
}
