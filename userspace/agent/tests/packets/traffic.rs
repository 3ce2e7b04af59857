//! Traffic between pods, with real stacks and links.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::service::Readiness;
use netplugin::datapath::{Network, Object, Scope};
use testkit::{capture::Tap, needs, patience};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    services::service,
};

const QUICK: Duration = Duration::from_millis(10);

#[track_caller]
fn assert_reaches(from: &Pod, to: IpAddr) -> Result<()> {
    let ping = from.ns.ping(to, 5, QUICK)?;
    ensure!(ping.received == 5, "{} of 5 pings from {} to {to} came back", ping.received, from.ip());
    Ok(())
}

fn assert_cut_off(from: &Pod, to: IpAddr) -> Result<()> {
    let ping = from.ns.ping(to, 2, QUICK)?;
    ensure!(ping.received == 0, "{} of 2 pings from {} to {to} came back", ping.received, from.ip());
    Ok(())
}

/// Sends 1 MB; the server returns its sum.
fn assert_tcp(client: &Pod, server: &Pod, address: IpAddr) -> Result<()> {
    const SIZE: usize = 1 << 20;
    let listener = server.ns.run(|| Ok(TcpListener::bind(SocketAddr::new(address, 0))?))?;
    let target = listener.local_addr()?;
    let served = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut data = vec![0; SIZE];
        stream.read_exact(&mut data)?;
        let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
        stream.write_all(&sum.to_be_bytes())?;
        Ok(())
    });
    let data: Vec<u8> = (0..SIZE).map(|n| n as u8).collect();
    let answer = client.ns.run(|| {
        let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))
            .with_context(|| format!("connect to {target}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10) * patience()))?;
        stream.write_all(&data)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(u64::from_be_bytes(answer))
    })?;
    assert_eq!(answer, data.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    served.join().map_err(|_| anyhow::anyhow!("the server failed"))?
}

pub(crate) fn assert_all_ways(a: &Pod, b: &Pod) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        assert_reaches(from, to.ip())?;
        assert_reaches(from, to.ip6())?;
        assert_tcp(from, to, to.ip())?;
        assert_tcp(from, to, to.ip6())?;
    }
    Ok(())
}

/// Frames received by a pod, without the MLD and IGMP reports that stacks send at any time.
/// listen to, whenever they like.
fn received(tap: &Tap) -> Result<Vec<Vec<u8>>> {
    const HOP_BY_HOP: u8 = 0;
    let is_report = |frame: &[u8]| frame[12..14] == [0x86, 0xdd] && frame[20] == HOP_BY_HOP;
    let frames = tap.drain()?.into_iter().map(|frame| frame.bytes);
    Ok(frames.filter(|frame| !is_report(frame)).collect())
}

/// Configures both nodes with the network, each other, and both pods.
fn introduce(a: (&mut Node, &Pod), b: (&mut Node, &Pod), network: &Network) {
    let tunnelled = matches!(network.encap, contiv_model::tag::Encap::Vxlan { .. });
    let place = |n| tunnelled.then(|| vtep(n));
    a.0.want_network(network).want_peer(2).want(Object::Remote(b.1.endpoint.remote(network, place(2))));
    b.0.want_network(network).want_peer(1).want(Object::Remote(a.1.endpoint.remote(network, place(1))));
}

#[test]
fn two_pods_of_a_node_communicate_and_their_requests_stay_local() -> Result<()> {
    needs!(root(), binary("ping"));
    let mut node = Node::new("local")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let pods = [1, 2, 3].map(|n| node.pod(&n1, Endpoint(n)).unwrap());
    node.converge()?;
    let bystander = Tap::open(&pods[2].ns, "eth0")?;
    assert_all_ways(&pods[0], &pods[1])?;
    let received = received(&bystander)?;
    assert!(received.is_empty(), "the third pod received {received:02x?}");
    Ok(())
}

#[test]
fn networks_with_equal_addresses_are_isolated() -> Result<()> {
    needs!(root(), binary("ping"));
    let mut node = Node::new("two-nets")?;
    let (red, blue) = (network("n1.red", vxlan(10_001)), network("n1.blue", vxlan(10_002)));
    node.want_network(&red).want_network(&blue);
    let (red_1, _red_2) = (node.pod(&red, Endpoint(1))?, node.pod(&red, Endpoint(2))?);
    let (blue_1, blue_3) = (node.pod(&blue, Endpoint(1))?, node.pod(&blue, Endpoint(3))?);
    node.converge()?;
    let tap = Tap::open(&blue_1.ns, "eth0")?;
    assert_reaches(&red_1, Endpoint(2).ip().into())?;
    assert_reaches(&blue_1, Endpoint(3).ip().into())?;
    tap.drain()?;
    assert_cut_off(&red_1, blue_3.ip())?;
    assert_cut_off(&red_1, blue_3.ip6())?;
    assert_cut_off(&blue_1, Endpoint(2).ip().into())?;
    // The blue pod received only its own unanswered requests, and nothing of the red network.
    let received = received(&tap)?;
    assert!(received.is_empty(), "{received:02x?}");
    Ok(())
}

#[test]
fn pods_of_two_nodes_communicate_over_vxlan() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut a, mut b) = Node::pair("vx")?;
    let n1 = network("n1.t", vxlan(10_001));
    let (pod_a, pod_b) = (a.pod(&n1, Endpoint(1))?, b.pod(&n1, Endpoint(2))?);
    introduce((&mut a, &pod_a), (&mut b, &pod_b), &n1);
    a.converge()?;
    b.converge()?;
    // A stack may send reports at any time, also before the node knows the network.
    let before = (a.drops()?, b.drops()?);
    assert_all_ways(&pod_a, &pod_b)?;
    assert_eq!((a.drops()?, b.drops()?), before);
    Ok(())
}

#[test]
fn pods_of_two_nodes_communicate_over_a_vlan_trunk() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut a, mut b) = Node::pair("vl")?;
    let (n1, n2) = (network("n1.t", vlan(100)), network("n2.t", vlan(200)));
    let (pod_a, pod_b) = (a.pod(&n1, Endpoint(1))?, b.pod(&n1, Endpoint(2))?);
    introduce((&mut a, &pod_a), (&mut b, &pod_b), &n1);
    // Another tag with the same addresses: its pod on b is unreachable from a.
    b.want_network(&n2);
    let other = b.pod(&n2, Endpoint(3))?;
    a.converge()?;
    b.converge()?;
    assert_all_ways(&pod_a, &pod_b)?;
    assert_cut_off(&pod_a, other.ip())
}

#[test]
fn an_unknown_endpoint_is_reached_by_flooding() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut a, mut b) = Node::pair("fl")?;
    let n1 = network("n1.t", vxlan(10_001));
    a.want_network(&n1).want_peer(2);
    b.want_network(&n1).want_peer(1);
    let (pod_a, pod_b) = (a.pod(&n1, Endpoint(1))?, b.pod(&n1, Endpoint(2))?);
    a.converge()?;
    b.converge()?;
    assert_all_ways(&pod_a, &pod_b)
}

#[test]
fn a_moved_endpoint_is_reached() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut a, mut b) = Node::pair("mv")?;
    let n1 = network("n1.t", vxlan(10_001));
    let (pod_a, pod_b) = (a.pod(&n1, Endpoint(1))?, b.pod(&n1, Endpoint(2))?);
    introduce((&mut a, &pod_a), (&mut b, &pod_b), &n1);
    a.converge()?;
    b.converge()?;
    assert_reaches(&pod_a, pod_b.ip())?;

    // The namespace moves to a. Its id was a remote endpoint there; the old entry is removed afterwards.
    let remote = Object::Remote(Endpoint(2).remote(&n1, Some(vtep(2)))).id();
    let moved = a.pod(&n1, Endpoint(2))?;
    assert!(
        a.apply(&[
            netplugin::datapath::Op::Set(Object::Local(moved.local.clone())),
            netplugin::datapath::Op::Delete(remote.clone()),
        ])?
        .is_empty()
    );
    a.desired.remove(&remote);
    let observed = a.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (a.desired.len(), 0));
    assert_reaches(&pod_a, moved.ip())
}

/// TCP over IPv4 to a service with `server` as its only backend, while the agent of the client's node restarts.
fn assert_served(client: (&mut Node, &Pod), server: &Pod, network: &Network) -> Result<()> {
    const VIP: Endpoint = Endpoint(250);
    const PORT: u16 = 8080;
    let (node, pod) = client;
    let mut service = service(VIP.ip().into(), &[(server.ip(), Readiness::Ready)]);
    service.scope = Scope::network(network);
    service.backends[0].encap = Some(network.encap);
    node.want(Object::Service(service));
    node.converge()?;
    let listener = server.ns.run(|| Ok(TcpListener::bind(SocketAddr::new(server.ip(), PORT))?))?;
    let echo = thread::spawn(move || -> Result<()> {
        let (mut stream, from) = listener.accept()?;
        ensure!(
            from.ip() == IpAddr::from(Endpoint(1).ip()) || from.ip() == IpAddr::from(VIP.ip()),
            "from {from}"
        );
        let mut data = [0; 1 << 14];
        loop {
            match stream.read(&mut data)? {
                0 => return Ok(()),
                n => stream.write_all(&data[..n])?,
            }
        }
    });
    let target = SocketAddr::new(VIP.ip().into(), 80);
    let mut stream = pod.ns.run(|| {
        let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))
            .with_context(|| format!("connect to {target}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10) * patience()))?;
        Ok(stream)
    })?;
    let (sent, mut back) = ([7; 1 << 14], vec![0; 1 << 14]);
    for round in 0..60 {
        stream.write_all(&sent)?;
        stream.read_exact(&mut back)?;
        assert!(back == sent);
        if round % 20 == 10 {
            node.restart();
            node.observe()?;
        }
    }
    drop(stream);
    echo.join().map_err(|_| anyhow::anyhow!("the server failed"))?
}

#[test]
fn services_work_over_both_encapsulations_while_agents_restart() -> Result<()> {
    needs!(root());
    for network in [network("n1.t", vxlan(10_001)), network("n1.t", vlan(100))] {
        let (mut a, mut b) = Node::pair("svc")?;
        let (pod_a, pod_b) = (a.pod(&network, Endpoint(1))?, b.pod(&network, Endpoint(2))?);
        introduce((&mut a, &pod_a), (&mut b, &pod_b), &network);
        b.converge()?;
        // A backend on another node, on the same node, and the client itself.
        assert_served((&mut a, &pod_a), &pod_b, &network)?;
        let near = a.pod(&network, Endpoint(3))?;
        assert_served((&mut a, &pod_a), &near, &network)?;
        assert_served((&mut a, &pod_a), &pod_a, &network)?;
    }
    Ok(())
}
