//! Zones of connection tracking: how long their connections stay, and how many there may be.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use contiv_abi::Timeouts;
use contiv_model::{global::ArpMode, mac::Mac};
use netplugin::datapath::{
    Network, Object, Op,
    ovs::{DatapathType, Options},
};
use testkit::{capture::Tap, needs, packet::Packet};

use crate::node::{Node, SOON, addresses, kind, network, peer, remote, spread, vlan, vtep, vxlan};

/// Zones of the networks below: of their connections, and of clients to services.
const BLUE: [u16; 2] = [0x1000 | 907, 0x3000 | 907];
const GREEN: [u16; 2] = [100, 0x2000 | 100];
const PORT: u16 = 8080;
/// Last parts of the addresses of an endpoint on another node, and of none.
const FAR: u8 = 9;
const UNKNOWN: u8 = 99;
/// More than the time for which the switch waits for the other fragments of a datagram.
const INCOMPLETE: Duration = Duration::from_secs(16);

fn networks() -> [Network; 2] {
    [network("blue", vxlan(5000), ArpMode::Proxy), network("green", vlan(100), ArpMode::Proxy)]
}

fn vsctl(node: &Node, words: &[&str]) -> Result<String> {
    node.switch.borrow().vsctl(&[&["--timeout=20"], words].concat())
}

pub(crate) fn datapath_type() -> &'static str {
    match kind() {
        DatapathType::System => "system",
        DatapathType::Netdev => "netdev",
    }
}

/// A line for each zone of the datapath that has timeouts.
pub(crate) fn zones(node: &Node) -> Result<Vec<String>> {
    let lines = vsctl(node, &["list-zone-tp", datapath_type()])?;
    Ok(lines.lines().map(str::to_owned).collect())
}

fn assert_zones(node: &Node, expected: &[u16]) -> Result<()> {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let lines = zones(node)?;
    let number = |line: &String| line.strip_prefix("Zone:")?.split(',').next()?.parse::<u16>().ok();
    assert_eq!(lines.iter().filter_map(number).collect::<Vec<_>>(), expected, "{lines:?}");
    let Timeouts { tcp, udp, .. } = Timeouts::default();
    for time in [format!("tcp_established={tcp} "), format!("udp_multiple={udp} ")] {
        assert!(lines.iter().all(|line| format!("{line} ").contains(&time)), "{time}: {lines:?}");
    }
    Ok(())
}

/// Only these zones have a limit, if the datapath has limits.
fn assert_limits(node: &Node, expected: &[u16]) -> Result<()> {
    if kind() == DatapathType::System {
        return Ok(());
    }
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    let text = node.switch.borrow().appctl(&["dpctl/ct-get-limits", "netdev@ovs-netdev"])?;
    let limit = format!(",limit={},", 8 * Options::CONNECTIONS);
    let zone = |line: &str| line.strip_prefix("zone=")?.split_once(&limit)?.0.parse::<u16>().ok();
    assert_eq!(text.lines().filter_map(zone).collect::<Vec<_>>(), expected, "{text}");
    Ok(())
}

fn set_limits(node: &Node, command: &str, zones: &str) -> Result<()> {
    if kind() == DatapathType::Netdev {
        node.switch.borrow().appctl(&[command, "netdev@ovs-netdev", zones])?;
    }
    Ok(())
}

/// The remaining seconds of the connection between two pods.
fn remaining(node: &Node) -> Result<u32> {
    let datapath = format!("{0}@ovs-{0}", datapath_type());
    let entries = node.switch.borrow().appctl(&["dpctl/dump-conntrack", "-s", &datapath])?;
    let port = format!("dport={PORT}");
    let entry = entries.lines().find(|line| line.starts_with("tcp") && line.contains(&port));
    let (_, rest) = entry
        .and_then(|line| line.split_once(",timeout="))
        .with_context(|| format!("no timeout of the connection in {entries}"))?;
    Ok(rest.split(',').next().unwrap_or_default().parse()?)
}

#[test]
fn connections_have_the_timeouts_of_flows() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("timeouts", &[])?;
    node.converge()?;
    let [blue, _] = networks();
    node.add([Object::Network(blue.clone())])?;
    let pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    pods[0].reaches(2)?;
    let listener = pods[1].namespace.run(|| Ok(TcpListener::bind(("0.0.0.0", PORT))?))?;
    let mut client = pods[0].namespace.run(|| Ok(TcpStream::connect((addresses(2).0, PORT))?))?;
    client.write_all(&[1])?;
    let (mut server, _) = listener.accept()?;
    server.read_exact(&mut [0])?;
    // Both datapaths have longer ones of their own.
    let seconds = remaining(&node)?;
    assert!(seconds <= Timeouts::default().tcp, "{seconds} s");
    Ok(())
}

/// The destinations of datagrams from this address that connection tracking has an entry of.
fn tracked(node: &Node, source: Ipv4Addr) -> Result<Vec<String>> {
    let datapath = format!("{0}@ovs-{0}", datapath_type());
    let entries = node.switch.borrow().appctl(&["dpctl/dump-conntrack", &datapath])?;
    let from = format!("udp,orig=(src={source},dst=");
    let to = |line: &str| Some(line.strip_prefix(from.as_str())?.split(',').next()?.to_owned());
    Ok(entries.lines().filter_map(to).collect())
}

/// The headers of a datagram between these addresses, and the datagram behind Ethernet headers.
fn datagram(from: u8, to: u8) -> (Packet, impl Fn(Packet) -> Vec<u8>) {
    let [source, destination] = [from, to].map(|n| addresses(n).0);
    let eth = Packet::eth(Mac::of_endpoint(destination).0, Mac::of_endpoint(source).0);
    (eth, move |eth| eth.ipv4(source, destination).udp(4000, PORT).payload(b"to one station").build())
}

/// The userspace datapath releases the fragments of a datagram that is not complete after 15 s behind the next packet that it looks up,
/// whosever that is.
#[test]
fn fragments_of_incomplete_datagrams_go_to_nobody_else() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("released", &[])?;
    node.converge()?;
    let [blue, green] = networks();
    node.add([Object::Network(blue.clone()), Object::Network(green.clone())])?;
    let pods = [
        node.run_pod(&blue, 1)?,
        node.run_pod(&blue, 2)?,
        node.run_pod(&green, 1)?,
        node.run_pod(&green, 2)?,
    ];
    let [blue, _, green, receiver] = pods.each_ref().map(|pod| Tap::open(&pod.namespace, "eth0"));
    let (blue, green, receiver) = (blue?, green?, receiver?);
    let (to_pod, _) = datagram(1, 2);
    let [source, destination] = [1, 2].map(|n| addresses(n).0);
    for id in 0..3 {
        let last = to_pod.clone().ipv4(source, destination).protocol(17).fragment(id, 200, false);
        blue.send(&last.payload(b"of a datagram").build())?;
    }
    thread::sleep(INCOMPLETE);
    // Of one datagram for each packet that is looked up.
    for port in 1..=20 {
        let whole = to_pod.clone().ipv4(source, destination).udp(port, PORT).payload(b"whole").build();
        green.send(&whole)?;
        receiver.expect(SOON, "the datagram", |received| {
            assert!(!received.ends_with(b"of a datagram"), "{received:02x?}");
            received.starts_with(&whole).then_some(())
        })?;
    }
    assert!(receiver.drain()?.iter().all(|frame| !frame.bytes.ends_with(b"of a datagram")));
    Ok(())
}

/// A host outside, or a pod elsewhere whose frames to an unknown address are flooded, cannot fill the connection tracking of the node.
#[test]
fn frames_for_no_endpoint_here_are_not_tracked() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let expect = |tap: &Tap, frame: &[u8]| {
        tap.expect(SOON, "the datagram", |received| received.starts_with(frame).then_some(()))
    };
    let [blue, green] = networks();

    let (node, _outside, wire) = Node::with_uplink("untracked")?;
    node.add([Object::Network(green.clone()), remote(&green, FAR, None)])?;
    let pod = node.run_pod(&green, 1)?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    for to in [UNKNOWN, FAR, 1] {
        let (eth, frame) = datagram(90, to);
        wire.send(&frame(eth.clone().vlan(100)))?;
        expect(&tap, &frame(eth))?;
    }
    assert_eq!(tracked(&node, addresses(90).0)?, [addresses(1).0.to_string()]);

    let nodes = Node::pair("untracked")?;
    for node in &nodes {
        node.converge()?;
        node.add([Object::Network(blue.clone())])?;
    }
    // For the sender it is on the other node, for that on a third one.
    let third = IpAddr::from([192, 168, 9, 3]);
    nodes[0].add([remote(&blue, FAR, Some(vtep(1)))])?;
    nodes[1].add([peer(third), remote(&blue, FAR, Some(third))])?;
    let pods = [spread(&nodes, 0, &blue, 1)?, spread(&nodes, 1, &blue, 2)?];
    pods[0].reaches(2)?;
    let [sender, receiver] = [0, 1].map(|n: usize| Tap::open(&pods[n].namespace, "eth0"));
    let (sender, receiver) = (sender?, receiver?);
    for to in [UNKNOWN, FAR, 2] {
        let (eth, frame) = datagram(1, to);
        let frame = frame(eth);
        sender.send(&frame)?;
        expect(&receiver, &frame)?;
    }
    assert_eq!(tracked(&nodes[1], addresses(1).0)?, [addresses(2).0.to_string()]);
    Ok(())
}

/// A connection of a network is none of the next one with its tag, whose rules it would pass as a reply.
#[test]
fn a_network_does_not_inherit_connections_with_its_zone() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let [_, green] = networks();
    let (node, _outside, wire) = Node::with_uplink("zone-reuse")?;
    node.add([Object::Network(green.clone())])?;
    let pod = node.run_pod(&green, 1)?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    let (eth, frame) = datagram(90, 1);
    let expected = frame(eth.clone());
    wire.send(&frame(eth.vlan(100)))?;
    tap.expect(SOON, "the datagram", |received| received.starts_with(&expected).then_some(()))?;
    let connections = || tracked(&node, addresses(90).0);
    assert_eq!(connections()?, [addresses(1).0.to_string()]);

    // A restart of the agent is no reason to forget connections.
    node.restart_agent();
    assert_eq!(node.converge()?, []);
    assert_eq!(connections()?, [addresses(1).0.to_string()]);

    // The next network comes in the batch in which the last one goes.
    let red = network("red", vlan(100), ArpMode::Proxy);
    let gone = [pod.object.id(), Object::Network(green).id()];
    for id in &gone {
        node.desired.borrow_mut().remove(id);
    }
    node.desired.borrow_mut().insert(Object::Network(red.clone()));
    let [pod, network_of_pod] = gone.map(Op::Delete);
    assert!(node.apply(&[pod, network_of_pod, Op::Set(Object::Network(red.clone()))])?.is_empty());
    assert_eq!(connections()?, Vec::<String>::new());

    // Both while the agent is away.
    let pod = node.run_pod(&red, 2)?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    let (eth, frame) = datagram(90, 2);
    let expected = frame(eth.clone());
    wire.send(&frame(eth.vlan(100)))?;
    tap.expect(SOON, "the datagram", |received| received.starts_with(&expected).then_some(()))?;
    assert_eq!(connections()?, [addresses(2).0.to_string()]);
    for id in [pod.object.id(), Object::Network(red).id()] {
        node.desired.borrow_mut().remove(&id);
    }
    let next = network("next", vlan(100), ArpMode::Proxy);
    node.desired.borrow_mut().insert(Object::Network(next));
    node.restart_agent();
    node.converge()?;
    assert_eq!(connections()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn zones_follow_the_networks() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("zones", &[])?;
    node.converge()?;
    let [blue, green] = networks().map(Object::Network);
    node.add([blue, green.clone()])?;
    assert_zones(&node, &[BLUE, GREEN].concat())?;
    assert_limits(&node, &[BLUE, GREEN].concat())?;
    node.restart_agent();
    assert_eq!((node.converge()?, node.writes()), (vec![], 0));

    // What others change comes back with the next resync.
    let policy = vsctl(&node, &["--bare", "--columns=_uuid", "list", "CT_Timeout_Policy"])?;
    vsctl(&node, &["set", "CT_Timeout_Policy", policy.trim(), "timeouts:tcp_established=7"])?;
    vsctl(&node, &["del-zone-tp", datapath_type(), &format!("zone={}", GREEN[0])])?;
    set_limits(&node, "dpctl/ct-set-limits", &format!("zone={},limit=7", BLUE[0]))?;
    set_limits(&node, "dpctl/ct-del-limits", &format!("zone={}", GREEN[1]))?;
    assert_eq!(node.converge()?, []);
    assert_zones(&node, &[BLUE, GREEN].concat())?;
    assert_limits(&node, &[BLUE, GREEN].concat())?;

    // Zones of other programs stay.
    vsctl(&node, &["add-zone-tp", datapath_type(), "zone=9", "tcp_established=8000", "udp_multiple=180"])?;
    node.remove([green.id()])?;
    assert_zones(&node, &[&BLUE[..], &[9]].concat())?;
    assert_limits(&node, &BLUE)
}

#[test]
fn limits_return_after_a_restart_of_the_switch() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("limits", &[])?;
    node.converge()?;
    node.add(networks().map(Object::Network))?;
    node.switch.borrow_mut().kill_vswitchd()?;
    assert!(node.resync_needed(SOON));
    node.switch.borrow_mut().start_vswitchd()?;
    node.converge()?;
    assert_limits(&node, &[BLUE, GREEN].concat())?;
    assert_eq!(node.warnings(), Vec::<String>::new());
    Ok(())
}
