//! Services between real sockets.

use std::{
    collections::HashSet,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Identity, Rule},
};
use netplugin::datapath::{
    Backend, Datapath as _, Group, Local, Network, Object, Scope, Service,
    ovs::DatapathType,
    telemetry::{ServiceCounters, ServicePort},
};
use nix::{
    libc,
    sys::socket::{self, sockopt},
};
use testkit::{
    capture::Tap,
    needs,
    packet::{Packet, tcp_flags},
    patience, wait_until,
};

use crate::node::{Node, Pod, SOON, addresses, kind, network, spread, vlan, vxlan};

const VIP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 200);

/// A service of TCP port 80 with these pods as backends.
fn service(network: &Network, backends: &[u8]) -> Result<Object> {
    Ok(Object::Service(Service {
        ports: vec!["80:8080:TCP".parse()?],
        backends: backends.iter().map(|n| Backend::on(network.encap, addresses(*n).0)).collect(),
        ..Service::new("web:net", Scope::network(network), VIP)
    }))
}

/// Accepts connections on port 8080 of pod `n`, and sends its number and the client's address on each.
fn serve(pod: &Pod, n: u8) -> Result<()> {
    let listener = pod.namespace.run(|| TcpListener::bind((addresses(n).0, 8080)).context("listen"))?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = stream.and_then(|mut stream| {
                let SocketAddr::V4(client) = stream.peer_addr()? else { return Ok(()) };
                let [.., last] = client.ip().octets();
                stream.write_all(&[n, last])
            });
            // A client that has gone is none of the server's business.
            drop(answer);
        }
    });
    Ok(())
}

/// Connects from this port of the pod to the service; returns what the backend sends.
fn ask(pod: &Pod, n: u8, port: u16) -> Result<[u8; 2]> {
    pod.namespace.run(|| {
        let socket = socket::socket(
            socket::AddressFamily::Inet,
            socket::SockType::Stream,
            socket::SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        socket::setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        // The port is free again at once.
        let reset = libc::linger { l_onoff: 1, l_linger: 0 };
        socket::setsockopt(&socket, sockopt::Linger, &reset)?;
        let limit = nix::sys::time::TimeVal::new(5, 0);
        socket::setsockopt(&socket, sockopt::SendTimeout, &limit)?;
        let bind = socket::SockaddrIn::from(SocketAddrV4::new(addresses(n).0, port));
        socket::bind(socket.as_raw_fd(), &bind)?;
        let to = socket::SockaddrIn::from(SocketAddrV4::new(VIP, 80));
        socket::connect(socket.as_raw_fd(), &to).with_context(|| format!("connect from port {port}"))?;
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON * patience()))?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).with_context(|| format!("read on port {port}"))?;
        Ok(answer)
    })
}

/// The switch revalidates its cache after it has confirmed a change of the tables.
fn wait_answer(pod: &Pod, port: u16, expected: [u8; 2]) -> Result<()> {
    wait_until(SOON, &format!("{expected:?}"), || Ok((ask(pod, 1, port)? == expected).then_some(())))
}

fn between_nodes(label: &str, network: &Network) -> Result<()> {
    let nodes = Node::pair(label)?;
    for node in &nodes {
        node.converge()?;
        node.add([Object::Network(network.clone())])?;
    }
    let client = spread(&nodes, 0, network, 1)?;
    let [near, far] = [spread(&nodes, 0, network, 2)?, spread(&nodes, 1, network, 3)?];
    for (pod, n) in [(&client, 1), (&near, 2), (&far, 3)] {
        serve(pod, n)?;
    }
    nodes[0].add([service(network, &[2, 3])?])?;
    let mut asked = vec![];
    for port in 4000..4020 {
        let [backend, from] = ask(&client, 1, port)?;
        ensure!(from == 1, "the backend sees the client's address: {from}");
        asked.push(backend);
    }
    ensure!([2, 3].iter().all(|n| asked.contains(n)), "not all backends were asked: {asked:?}");
    let counted = || -> Result<Option<()>> {
        let telemetry = nodes[0].datapath.borrow().telemetry().context("the datapath counts")?;
        let read = async { tokio::task::spawn_blocking(move || telemetry.counters()).await };
        let counters = nodes[0].runtime.block_on(read)??;
        let is_port = |port: &ServicePort| port.to_string() == "web:net:TCP:80";
        let of_port = counters.services.into_iter().find(|(port, _)| is_port(port));
        // Each connection sends at least a SYN, an ACK and a RST; and receives a SYN, data and a FIN.
        let is_complete = |counters: &ServiceCounters| {
            counters.connections == 20
                && counters.to_backends.packets >= 60
                && counters.to_clients.packets >= 40
        };
        Ok(of_port.filter(|(_, counters)| is_complete(counters)).map(drop))
    };
    wait_until(SOON, "the counters of 20 connections", counted)?;
    // Ports are used again at once, also for another backend.
    for _ in 0..3 {
        for port in 4000..4004 {
            ask(&client, 1, port)?;
        }
    }
    // A backend reaches itself; it sees the service.
    nodes[0].add([service(network, &[1])?])?;
    wait_answer(&client, 4100, [1, 200])?;
    // Policies see the backend.
    nodes[0].add([service(network, &[2])?])?;
    let deny = Rule::new("deny", Direction::Out, Action::Deny, 1.try_into()?);
    let identity = Identity::try_from(7)?;
    let Object::Local(local) = &client.object else { unreachable!() };
    let member = Object::Local(Local { identity: Some(identity), ..local.clone() });
    let rule = |port: u16| Rule { protocol: Some(6), ports: Some(port.into()), ..deny.clone() };
    nodes[0].add([Object::Group(Group::new(identity, [rule(80)])), member])?;
    wait_answer(&client, 4200, [2, 1])?;
    nodes[0].add([Object::Group(Group::new(identity, [rule(8080)]))])?;
    wait_until(SOON, "the denied connection", || Ok(ask(&client, 1, 4201).is_err().then_some(())))?;
    nodes[0].add([Object::Group(Group::new(identity, []))])?;
    // The agent is not needed.
    nodes[0].restart_agent();
    wait_until(SOON, "a connection without an agent", || Ok(ask(&client, 1, 4300).ok().map(drop)))?;
    assert_eq!(nodes[0].converge()?, []);
    assert_eq!(nodes[0].writes(), 0);
    // Without a backend.
    nodes[0].add([service(network, &[])?])?;
    wait_until(SOON, "no connection without a backend", || Ok(ask(&client, 1, 4400).is_err().then_some(())))
}

/// The agent refuses a client, but only so often. Without an agent the client is told nothing, and the next agent tells it.
#[test]
fn refusals_are_bounded() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    const SENT: u16 = 3000;
    let node = Node::new("svcrefuse", &[])?;
    node.converge()?;
    let network = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(network.clone())])?;
    let pod = node.run_pod(&network, 1)?;
    node.add([service(&network, &[])?])?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    let syn = |port: u16| {
        let packet = Packet::eth(Mac::of_endpoint(VIP).0, pod.mac).ipv4(addresses(1).0, VIP);
        packet.tcp(port, 80, tcp_flags::SYN).sequence(0, 0).build()
    };
    let reset = |port: u16| {
        let packet = Packet::eth(pod.mac, Mac::of_endpoint(VIP).0).ipv4(VIP, addresses(1).0);
        packet.tcp(80, port, tcp_flags::RST | tcp_flags::ACK).sequence(0, 1).window(0).build()
    };
    // Encoded once: while this test works, the agent does not.
    let of_the_burst: HashSet<_> = (1000..1000 + SENT).map(reset).collect();
    let resets = |to: Option<u16>| -> Result<usize> {
        // The tasks of the agent run only in here.
        node.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
        let only = to.map(reset);
        let is_expected = |frame: &Vec<u8>| match &only {
            Some(reset) => frame == reset,
            None => of_the_burst.contains(frame),
        };
        Ok(tap.drain()?.iter().filter(|frame| is_expected(&frame.bytes)).count())
    };
    let answered = |port: u16| {
        wait_until(SOON, "a reset", || {
            tap.send(&syn(port))?;
            Ok((resets(Some(port))? > 0).then_some(()))
        })
    };
    answered(900)?;
    let begun = Instant::now();
    let mut told = 0;
    for port in 1000..1000 + SENT {
        tap.send(&syn(port))?;
        if port % 500 == 0 {
            told += resets(None)?;
        }
    }
    // An emulated machine takes its time: it is done when nothing has come for a second.
    let mut quiet = 0;
    let ended = wait_until(6 * SOON, "resets, and their end", || {
        let more = resets(None)?;
        told += more;
        quiet = if more == 0 && told > 0 { quiet + 1 } else { 0 };
        Ok((quiet == 50).then_some(()))
    });
    ended.with_context(|| format!("{told} resets to {SENT} clients"))?;
    let most = 1000 * (begun.elapsed().as_secs() as usize + 2);
    ensure!((1..=most).contains(&told), "{told} resets, at most {most} are sent");
    node.restart_agent();
    tap.send(&syn(901))?;
    for _ in 0..20 {
        ensure!(resets(Some(901))? == 0, "who has told the client?");
    }
    assert_eq!(node.converge()?, []);
    assert_eq!(node.writes(), 0);
    answered(902)?;
    // With the meter go the flows that use it.
    node.switch.borrow().ofctl("del-meters", "contivVxlanBridge", &[])?;
    node.converge()?;
    answered(903)
}

/// One pod does not use up the answers that others get.
#[test]
fn a_flood_of_one_pod_leaves_refusals_for_others() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    const ROUNDS: u16 = 20;
    let node = Node::new("svcflood", &[])?;
    node.converge()?;
    let network = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(network.clone())])?;
    let pods = [node.run_pod(&network, 1)?, node.run_pod(&network, 2)?];
    node.add([service(&network, &[])?])?;
    let (hostile, other) = (Tap::open(&pods[0].namespace, "eth0")?, Tap::open(&pods[1].namespace, "eth0")?);
    let syn = |n: u8, port: u16| {
        let packet = Packet::eth(Mac::of_endpoint(VIP).0, pods[usize::from(n) - 1].mac);
        packet.ipv4(addresses(n).0, VIP).tcp(port, 80, tcp_flags::SYN).sequence(0, 0).build()
    };
    let reset = |port: u16| {
        let packet = Packet::eth(pods[1].mac, Mac::of_endpoint(VIP).0).ipv4(VIP, addresses(2).0);
        packet.tcp(80, port, tcp_flags::RST | tcp_flags::ACK).sequence(0, 1).window(0).build()
    };
    for round in 0..ROUNDS {
        for port in 0..200 {
            hostile.send(&syn(1, 2000 + round * 200 + port))?;
        }
        other.send(&syn(2, 1000 + round))?;
    }
    let expected: HashSet<_> = (1000..1000 + ROUNDS).map(reset).collect();
    let mut refused = HashSet::new();
    wait_until(SOON, "resets of most connections of the other pod", || {
        // The tasks of the agent run only in here.
        node.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
        let frames = other.drain()?.into_iter().map(|frame| frame.bytes);
        refused.extend(frames.filter(|frame| expected.contains(frame)));
        Ok((refused.len() > usize::from(ROUNDS / 2)).then_some(()))
    })
}

/// The data of a datagram of this size.
fn data(size: usize) -> Vec<u8> {
    (0..size).map(|n| (n % 251) as u8 + 1).collect()
}

/// Answers datagrams on port 5353 of the pod: the first two bytes are the size of the answer.
fn echo(pod: &Pod) -> Result<()> {
    let socket = pod.namespace.run(|| UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 5353)).context("bind"))?;
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let size = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
            let is_whole = buffer[2..length] == data(length)[2..];
            // A client that has gone is none of the server's business.
            drop(socket.send_to(&data(size)[..if is_whole { size } else { 0 }], from));
        }
    });
    Ok(())
}

/// Sends a datagram of `sent` bytes there, for an answer of `asked` bytes; returns whether it comes.
fn exchange(pod: &Pod, to: SocketAddr, sent: usize, asked: usize) -> Result<bool> {
    pod.namespace.run(|| {
        let own =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv6Addr::UNSPECIFIED) };
        let socket = UdpSocket::bind((own, 0))?;
        let mut request = data(sent);
        request[..2].copy_from_slice(&u16::try_from(asked)?.to_be_bytes());
        socket.connect(to)?;
        socket.set_read_timeout(Some(Duration::from_millis(500) * patience()))?;
        socket.send(&request)?;
        let mut buffer = [0; 8192];
        let Ok(length) = socket.recv(&mut buffer) else { return Ok(false) };
        ensure!(buffer[..length] == data(asked), "{length} bytes of an answer of {asked}");
        Ok(true)
    })
}

/// Between pods they arrive. To a service, the kernel datapath reassembles them; the userspace datapath would damage them, and
/// drops them.
fn fragmented_datagrams(label: &str, network: &Network) -> Result<()> {
    let nodes = Node::pair(label)?;
    for node in &nodes {
        node.converge()?;
        node.add([Object::Network(network.clone())])?;
    }
    let (client, backend) = (spread(&nodes, 0, network, 1)?, spread(&nodes, 1, network, 2)?);
    for pod in [&client, &backend] {
        pod.namespace.ip("link set eth0 mtu 1400")?;
    }
    const SIZES: [(usize, usize); 4] = [(4000, 10), (10, 4000), (4000, 4000), (1500, 1500)];
    echo(&backend)?;
    let (ip, ip6) = addresses(2);
    for to in [ip.into(), IpAddr::from(ip6)].map(|ip| SocketAddr::new(ip, 5353)) {
        wait_until(SOON, "an answer", || Ok(exchange(&client, to, 10, 10)?.then_some(())))?;
        for (sent, asked) in SIZES {
            ensure!(exchange(&client, to, sent, asked)?, "{to}: {sent} bytes there and {asked} back");
        }
    }
    let vip = SocketAddr::new(VIP.into(), 53);
    let dns = Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: vec![Backend::on(network.encap, addresses(2).0)],
        ..Service::new("dns:net", Scope::network(network), VIP)
    };
    nodes[0].add([Object::Service(dns)])?;
    wait_until(SOON, "an answer", || Ok(exchange(&client, vip, 10, 10)?.then_some(())))?;
    let passes = kind() == DatapathType::System;
    for (sent, asked) in SIZES {
        ensure!(
            exchange(&client, vip, sent, asked)? == passes,
            "{sent} bytes there and {asked} back: {}",
            !passes
        );
    }
    ensure!(exchange(&client, vip, 10, 10)?, "a datagram in one piece has no answer any more");
    Ok(())
}

#[test]
fn fragmented_datagrams_on_vxlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    fragmented_datagrams("svfx", &network("blue", vxlan(5000), ArpMode::Proxy))
}

#[test]
fn fragmented_datagrams_on_vlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    fragmented_datagrams("svfl", &network("blue", vlan(100), ArpMode::Proxy))
}

#[test]
fn tcp_connections_on_vxlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    between_nodes("svcx", &network("blue", vxlan(5000), ArpMode::Proxy))
}

#[test]
fn tcp_connections_on_vlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    between_nodes("svcl", &network("blue", vlan(100), ArpMode::Proxy))
}
