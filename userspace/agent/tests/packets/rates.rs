//! Throughput of pods of groups with a bandwidth limit, and their queues.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use contiv_abi::maps::{FROM_POD, FROM_QUEUE};
use contiv_model::group::Rate;
use netplugin::datapath::{Datapath as _, Group, Local, Network, Object, ObjectId, Op};
use testkit::{needs, packet::Packet, wait_until};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    policy::number,
    run::{Code, Target, run},
};

const MTU: usize = 1450;
/// A rate so low that the passed traffic is small compared with the offered traffic, also on a machine that is busy
/// for seconds.
const RATE: u64 = 400_000;
const BURST: u64 = 125_000;
/// Number of datagrams sent at once.
const DATAGRAMS: u32 = 2000;
/// Bytes that a connection transfers: more than the burst, and more than in ten times the rate.
const STREAM: usize = 250_000;
/// Largest GSO packet. A bucket passes a packet while it is not empty.
const PACKET: u64 = 64 << 10;
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const ONE: u32 = 1;
const FOUR_MEGABITS: u64 = 4_194_000;

fn limited(rate: Option<u64>) -> Object {
    let rate = rate.map(|bits_per_second| Rate { bits_per_second, burst_bytes: BURST });
    Object::Group(Group { rate, ..Group::new(number(ONE), []) })
}

/// Creates a pod in the group.
fn member(node: &mut Node, network: &Network, endpoint: Endpoint) -> Result<Pod> {
    let mut pod = node.pod(network, endpoint)?;
    pod.local = Local { identity: Some(number(ONE)), ..pod.local };
    node.want(Object::Local(pod.local.clone()));
    Ok(pod)
}

/// Two pods of a node, the first one in the group.
fn pods(node: &mut Node) -> Result<(Pod, Pod)> {
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    Ok((member(node, &n1, Endpoint(1))?, node.pod(&n1, Endpoint(2))?))
}

/// Maximum number of bytes that may have passed since then. A slow machine allows more, never less.
fn at_most(start: Instant, packet: u64) -> u64 {
    BURST + (start.elapsed().as_secs_f64() * (RATE / 8) as f64) as u64 + packet
}

/// Number of bytes that a pod has received.
fn arrived(pod: &Pod) -> Result<u64> {
    let text = pod.ns.run(|| Ok(fs::read_to_string("/proc/thread-self/net/dev")?))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("eth0:"));
    let first = line.and_then(|line| line.split_whitespace().next());
    Ok(first.with_context(|| format!("no eth0 in {text}"))?.parse()?)
}

/// Sends far more datagrams than may pass. The burst arrives at once, the queued datagrams later.
fn datagrams_are_held(from: &Pod, to: &Pod) -> Result<()> {
    let frame = MTU as u64 + 14;
    let receiver = to.ns.run(|| Ok(UdpSocket::bind((to.ip(), 0))?))?;
    let sender = from.ns.run(|| Ok(UdpSocket::bind((from.ip(), 0))?))?;
    sender.connect(receiver.local_addr()?)?;
    sender.set_nonblocking(true)?;
    let (start, before) = (Instant::now(), arrived(to)?);
    for _ in 0..DATAGRAMS {
        match sender.send(&[7; MTU - 28]) {
            // The queue holds as many as the socket's send buffer allows.
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
            sent => assert_eq!(sent?, MTU - 28),
        }
    }
    let came = arrived(to)? - before;
    let may = at_most(start, 2 * frame);
    ensure!(came <= may, "{came} bytes from {}, {may} may have", from.ip());
    wait_until(WAIT_TIMEOUT, "what waits", || Ok((arrived(to)? - before > BURST + 10 * frame).then_some(())))
}

/// A connection completes, within the rate.
fn streams_are_held(from: &Pod, to: &Pod) -> Result<()> {
    let listener = to.ns.run(|| Ok(TcpListener::bind((to.ip(), 0))?))?;
    let address = listener.local_addr()?;
    let start = Instant::now();
    let mut sender = from.ns.run(|| Ok(TcpStream::connect(address)?))?;
    let sending = thread::spawn(move || sender.write_all(&[7; STREAM]));
    let (mut receiver, _) = listener.accept()?;
    receiver.set_read_timeout(Some(WAIT_TIMEOUT))?;
    receiver.read_exact(&mut [0; STREAM])?;
    let may = at_most(start, PACKET);
    ensure!(STREAM as u64 <= may, "{STREAM} bytes from {}, {may} may have", from.ip());
    sending.join().map_err(|_| anyhow!("the sender panicked"))?.context("send")
}

/// Checks both directions, and that the kernel reports the group's rate.
fn assert_held(node: &Node, limited: &Pod, other: &Pod) -> Result<()> {
    let shown = format!(" rate {}Kbit ", RATE / 1000);
    for (kind, link) in [("class", "contivq0"), ("qdisc", &limited.local.port)] {
        let reported = node.ns.output("tc", &[kind, "show", "dev", link])?;
        ensure!(reported.contains(&shown), "{link}: {reported}");
    }
    for (from, to) in [(limited, other), (other, limited)] {
        datagrams_are_held(from, to)?;
        streams_are_held(from, to)?;
    }
    Ok(())
}

#[test]
fn pods_of_one_node_are_limited_to_their_rate() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-local")?;
    let (a, b) = pods(&mut node)?;
    node.want(limited(Some(RATE)));
    node.converge()?;
    assert_held(&node, &a, &b)?;
    ensure!(node.drops()?.is_empty(), "{:?}", node.drops()?);
    Ok(())
}

/// Through the tunnel and through the uplink.
#[test]
fn pods_of_two_nodes_are_limited_to_their_rate() -> Result<()> {
    needs!(root());
    for encap in [vxlan(10_001), vlan(100)] {
        let (mut here, mut there) = Node::pair("rate-two")?;
        let n1 = network("n1.t", encap);
        let (a, b) = (member(&mut here, &n1, Endpoint(1))?, there.pod(&n1, Endpoint(2))?);
        let remote = |endpoint: Endpoint, n| {
            Object::Remote(endpoint.remote(&n1, (encap == vxlan(10_001)).then(|| vtep(n))))
        };
        here.want_network(&n1).want_peer(2).want(remote(b.endpoint, 2)).want(limited(Some(RATE)));
        there.want_network(&n1).want_peer(1).want(remote(a.endpoint, 1));
        here.converge()?;
        there.converge()?;
        assert_held(&here, &a, &b)?;
    }
    Ok(())
}

#[test]
fn queues_survive_restarts_and_are_deleted_with_their_pods() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-life")?;
    let (a, b) = pods(&mut node)?;
    node.converge()?;
    assert!(node.ifindex("contivq0").is_err(), "no group has a rate yet");
    for rate in [Some(FOUR_MEGABITS), Some(1_048_000), Some(80_000_000_000), None, Some(FOUR_MEGABITS)] {
        node.want(limited(rate));
        node.converge()?;
        node.restart();
        node.converge()?;
        assert_eq!(node.datapath.writes(), 0, "after a restart with {rate:?}");
    }
    assert_eq!(classes(&node)?, 1);
    // The other pod joins the group.
    node.want(Object::Local(Local { identity: Some(number(ONE)), ..b.local.clone() }));
    node.converge()?;
    assert_eq!(classes(&node)?, 2);
    for pod in [&a, &b] {
        let id = ObjectId::Local(pod.local.id.clone());
        node.desired.remove(&id);
        let failed = node.apply(&[Op::Delete(id)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        let observed = node.observe()?;
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
    }
    assert_eq!(classes(&node)?, 0);
    node.cleanup()?;
    assert!(node.ifindex("contivq0").is_err());
    assert!(!node.ns.output("tc", &["qdisc", "show"])?.contains("tbf"));
    Ok(())
}

fn classes(node: &Node) -> Result<usize> {
    Ok(node.ns.output("tc", &["class", "show", "dev", "contivq0"])?.lines().count())
}

#[test]
fn changed_queues_are_repaired() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-drift")?;
    let (a, _b) = pods(&mut node)?;
    let port = a.local.port.clone();
    node.want(limited(Some(FOUR_MEGABITS)));
    node.converge()?;
    let id = ObjectId::Local(a.local.id.clone());
    for damage in [
        format!("tc qdisc del dev {port} root"),
        format!("tc qdisc change dev {port} root handle c0: tbf rate 1mbit burst 100k limit 100k"),
        "tc class change dev contivq0 classid c0:1 htb rate 1mbit".to_owned(),
        "tc qdisc replace dev contivq0 parent c0:1 bfifo limit 1000".to_owned(),
        "tc class del dev contivq0 classid c0:1".to_owned(),
        "tc qdisc del dev contivq0 root".to_owned(),
        "ip link del contivq0".to_owned(),
    ] {
        let (program, arguments) = damage.split_once(' ').unwrap();
        node.ns.output(program, &arguments.split(' ').collect::<Vec<_>>())?;
        assert!(!node.observe()?.in_sync.contains(&id), "{damage}");
        node.converge()?;
    }
    // Add orphans.
    node.ns.output("tc", &["class", "add", "dev", "contivq0", "classid", "c0:77", "htb", "rate", "1mbit"])?;
    assert_eq!(node.observe()?.orphans, 1);
    node.converge()
}

#[test]
fn queued_packets_are_processed_as_packets_of_their_port() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-queue")?;
    let (a, b) = pods(&mut node)?;
    node.want(limited(Some(FOUR_MEGABITS)));
    node.converge()?;
    let frame = Packet::eth(b.endpoint.mac(), a.endpoint.mac())
        .ipv4(a.endpoint.ip(), b.endpoint.ip())
        .udp(4000, 53)
        .build();
    // The frame enters the queue unchanged.
    run(&node, FROM_POD, &a.local.port, &frame)?.assert_sent_on(&frame);
    let spoofed = Packet::eth(b.endpoint.mac(), a.endpoint.mac())
        .ipv4([10, 1, 1, 9], b.endpoint.ip())
        .udp(4000, 53)
        .build();
    run(&node, FROM_POD, &a.local.port, &spoofed)?.assert_dropped(contiv_abi::DropReason::SpoofedIp);
    let marked = Target::new(&node, FROM_QUEUE, "contivq1")?.marked(node.ifindex(&a.local.port)?);
    let (code, bytes) = node.ns.run(|| marked.give(&frame))?;
    assert_eq!((code, bytes), (Code::Redirect, frame.clone()));
    // The port was deleted meanwhile.
    let gone = Target::new(&node, FROM_QUEUE, "contivq1")?.marked(9999);
    assert_eq!(node.ns.run(|| gone.give(&frame))?.0, Code::Shot);
    // The mark of no port.
    let unmarked = Target::new(&node, FROM_QUEUE, "contivq1")?;
    assert_eq!(node.ns.run(|| unmarked.give(&frame))?.0, Code::Next);
    Ok(())
}
