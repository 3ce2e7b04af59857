//! Zones of connection tracking: how long their connections stay, and how many there may be.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use anyhow::{Context as _, Result};
use contiv_abi::Timeouts;
use contiv_model::global::ArpMode;
use netplugin::datapath::{
    Network, Object,
    ovs::{DatapathType, Options},
};
use testkit::needs;

use crate::node::{Node, SOON, addresses, kind, network, vlan, vxlan};

/// Zones of the networks below: of their connections, and of clients to services.
const BLUE: [u16; 2] = [0x1000 | 907, 0x3000 | 907];
const GREEN: [u16; 2] = [100, 0x2000 | 100];
const PORT: u16 = 8080;

fn networks() -> [Network; 2] {
    [network("blue", vxlan(5000), ArpMode::Proxy), network("green", vlan(100), ArpMode::Proxy)]
}

fn vsctl(node: &Node, words: &[&str]) -> Result<String> {
    node.switch.borrow().vsctl(&[&["--timeout=20"], words].concat())
}

fn datapath_type() -> &'static str {
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
