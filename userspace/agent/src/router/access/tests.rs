use anyhow::Context as _;
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{Packet, tcp_flags},
};
use tokio::time::timeout;

use super::*;
use crate::router::ruleset::Ruleset;

const SOON: Duration = Duration::from_secs(10);
/// Interface of the node on an infra network.
const INFRA: &str = "contivh1";
/// Waits for something that must not happen.
const A_MOMENT: Duration = Duration::from_millis(200);

fn table() -> NatTable {
    NatTable {
        subnet: "172.19.0.0/16".parse().unwrap(),
        tunnels: [].into(),
        closed: [HOST_PORT.to_owned(), INFRA.to_owned()].into(),
        leaves: [[192, 0, 2, 9].into()].into(),
        pods: 16,
    }
}

/// As a kernel without `nft_connlimit`.
fn load_uncounted(script: &str) -> io::Result<()> {
    if script.contains("ct count") {
        Err(io::Error::other("No such file or directory"))
    } else {
        load(script)
    }
}

/// A node between what its pods send, on its infra network also, and a host outside.
struct Node {
    namespace: Netns,
    _outside: Netns,
    pods: Tap,
    infra: Tap,
    host: Tap,
}

impl Node {
    fn new(label: &str, quota: Quota) -> anyhow::Result<Node> {
        let [namespace, outside] = [label, "out"].map(Netns::new);
        let (namespace, outside) = (namespace?, outside?);
        for (link, peer, mac) in [
            (HOST_PORT, "pods", "02:00:00:00:00:01"),
            ("up", "host", "02:00:00:00:00:02"),
            (INFRA, "infra", "02:00:00:00:00:03"),
        ] {
            namespace.veth(link, &outside, peer)?;
            namespace.mac(link, mac)?;
            namespace.up(link)?;
            outside.up(peer)?;
        }
        namespace.address(HOST_PORT, "172.19.255.254/16")?;
        namespace.address("up", "192.0.2.1/24")?;
        namespace.address(INFRA, "10.3.0.2/24")?;
        namespace.ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev up")?;
        namespace.sysctl("net/ipv4/ip_forward", "1")?;
        namespace.run(|| Ok(replace(Some(&(table(), quota)), load)?))?;
        let [pods, infra, host] = ["pods", "infra", "host"].map(|peer| Tap::open(&outside, peer));
        Ok(Node { namespace, pods: pods?, infra: infra?, host: host?, _outside: outside })
    }

    /// Opens a connection to this port.
    fn open(&self, pod: u8, port: u16) -> anyhow::Result<()> {
        self.send(pod, port, tcp_flags::SYN)
    }

    fn send(&self, pod: u8, port: u16, flags: u8) -> anyhow::Result<()> {
        let frame = Packet::eth([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 7]);
        let frame = frame.ipv4([172, 19, 0, pod], [192, 0, 2, 9]).tcp(4000, port, flags);
        self.pods.send(&frame.build())
    }

    /// Opens a connection from an address to this port of the host, through the interface of the node with the last part of its
    /// Ethernet address.
    fn open_from(&self, tap: &Tap, last: u8, from: [u8; 4], port: u16) -> anyhow::Result<()> {
        let frame = Packet::eth([2, 0, 0, 0, 0, last], [2, 0, 0, 0, 0, 7]);
        tap.send(&frame.ipv4(from, [192, 0, 2, 9]).tcp(4000, port, tcp_flags::SYN).build())
    }

    /// Waits for the connection to this port. Returns the ports of other segments before.
    fn until(&self, port: u16) -> anyhow::Result<Vec<u16>> {
        let mut others = vec![];
        self.host.expect(SOON, "a connection", |frame| {
            // IPv4 without options, TCP.
            let is_tcp = frame.get(12..15) == Some(&[8, 0, 0x45][..]) && frame.get(23) == Some(&6);
            let to = frame.get(36..38).filter(|_| is_tcp)?;
            let to = u16::from_be_bytes([to[0], to[1]]);
            if to != port {
                others.push(to);
            }
            (to == port).then_some(())
        })?;
        Ok(others)
    }
}

/// Else it would leave the node's other programs, and other pods, no room.
#[test]
fn a_pod_has_a_quota_of_the_nodes_connections() {
    needs!(root(), binary("nft"));
    let unbounded = Quota::POD;
    let of_rate = Quota { rate: "1/day", burst: 3, ..unbounded };
    for (label, quota) in [("count", Quota { connections: Some(3), ..unbounded }), ("rate", of_rate)] {
        let node = Node::new(label, quota).unwrap();
        for port in 1..=3 {
            node.open(1, port).unwrap();
        }
        assert_eq!(node.until(3).unwrap(), [1, 2], "{label}");
        node.open(1, 4).unwrap();
        node.open(2, 5).unwrap();
        assert!(node.until(5).unwrap().is_empty(), "{label}");
        // What the sets have of pods is no change.
        let replaced = node.namespace.run(|| Ok(replace(Some(&(table(), quota)), load)?)).unwrap();
        assert_eq!(replaced, Replacement::default(), "{label}");
    }
}

/// A pod of an infra network, or that is routed to it, reaches the node without host access.
#[test]
fn a_pod_of_an_infra_network_has_such_a_quota() {
    needs!(root(), binary("nft"));
    let of_count = Quota { connections: Some(3), ..Quota::POD };
    let of_rate = Quota { rate: "1/day", burst: 3, ..Quota::POD };
    for (label, quota) in [("infra-count", of_count), ("infra-rate", of_rate)] {
        let node = Node::new(label, quota).unwrap();
        let open = |pod, port| node.open_from(&node.infra, 3, [10, 3, 0, pod], port).unwrap();
        for port in 1..=4 {
            open(9, port);
        }
        open(10, 5);
        assert_eq!(node.until(5).unwrap(), [1, 2, 3], "{label}");
    }
}

/// It would leave with the address of the node: tunnels and infra networks take what comes from there.
#[test]
fn the_address_of_a_pod_is_not_taken_from_other_interfaces() {
    needs!(root(), binary("nft"));
    let node = Node::new("strange", Quota::POD).unwrap();
    node.namespace.sysctl("net/ipv4/conf/all/rp_filter", "0").unwrap();
    for (interface, (tap, last)) in [("up", (&node.host, 2)), (INFRA, (&node.infra, 3))] {
        node.namespace.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
        node.open_from(tap, last, [172, 19, 0, 7], 4789).unwrap();
    }
    node.open(7, 80).unwrap();
    assert_eq!(node.until(80).unwrap(), [0; 0]);
}

/// Without the table, pods would have no host access at all.
#[test]
fn a_kernel_that_does_not_count_connections_bounds_their_rate() {
    needs!(root(), binary("nft"));
    let quota = Quota { connections: Some(1), rate: "1/day", burst: 3 };
    let node = Node::new("uncounted", quota).unwrap();
    let changed = Quota { connections: Some(2), ..quota };
    let uncounted = || {
        let replaced = replace(Some(&(table(), changed)), load_uncounted)?;
        anyhow::Ok((replaced.is_changed, replaced.refused.is_some()))
    };
    assert_eq!(node.namespace.run(uncounted).unwrap(), (true, true));
    assert_eq!(node.namespace.run(uncounted).unwrap(), (false, true), "it is as it can be");
    for port in 1..=3 {
        node.open(1, port).unwrap();
    }
    assert_eq!(node.until(3).unwrap(), [1, 2]);
    node.open(1, 4).unwrap();
    node.open(2, 5).unwrap();
    assert!(node.until(5).unwrap().is_empty());
    let counted = node.namespace.run(|| Ok(replace(Some(&(table(), changed)), load)?)).unwrap();
    assert_eq!(counted, Replacement { is_changed: true, refused: None });
}

/// A leaf switch takes a connection from the address of a node for that of its BGP speaker.
#[test]
fn pods_do_not_reach_the_speaker_of_the_leaf_switch() {
    needs!(root(), binary("nft"));
    let node = Node::new("leaf", Quota::POD).unwrap();
    node.open(7, 179).unwrap();
    node.open(7, 80).unwrap();
    assert_eq!(node.until(80).unwrap(), [0; 0]);
}

/// It would have the private address of the pod.
#[test]
fn a_segment_of_no_connection_does_not_leave_the_node() {
    needs!(root(), binary("nft"));
    let node = Node::new("invalid", Quota::POD).unwrap();
    // Connection tracking accepts no segment with these flags.
    node.send(7, 80, tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST).unwrap();
    node.open(7, 81).unwrap();
    assert_eq!(node.until(81).unwrap(), [0; 0]);
}

/// Else the table would be replaced at each comparison.
#[test]
fn the_table_is_as_nft_lists_it() {
    needs!(root(), binary("nft"));
    let node = Netns::new("nft").unwrap();
    let table = |closed: &[&str]| NatTable {
        tunnels: [4789, 8472].into(),
        closed: closed.iter().map(|name| (*name).to_owned()).collect(),
        ..table()
    };
    let (one, two) = ((table(&[HOST_PORT]), Quota::POD), (table(&[HOST_PORT, "contivh1"]), Quota::POD));
    let replace =
        |table: Option<&(NatTable, Quota)>| node.run(|| Ok(replace(table, load)?.is_changed)).unwrap();
    let changed = [None, Some(&one), Some(&one), Some(&two), Some(&two), None, None].map(replace);
    assert_eq!(changed, [false, true, false, true, false, true, false]);
}

#[test]
fn tables_are_compared_in_one_spelling() {
    let table = NatTable { tunnels: [4789].into(), closed: ["or".to_owned()].into(), ..table() };
    let text = table.text(Quota::POD);
    for (from, to) in [(" | ", " or "), ("0x00002000", "0x2000")] {
        let other = text.replace(from, to);
        assert_ne!(other, text);
        assert_eq!(spelled_alike(&other), spelled_alike(&text), "{to}");
    }
    for (from, to) in [("mark | ", "mark & "), ("meta mark | ", ""), ("0x00002000", "0x00020000")] {
        let other = text.replace(from, to);
        assert_ne!(spelled_alike(&other), spelled_alike(&text), "{to}");
    }
}

fn nft(words: &str) -> anyhow::Result<()> {
    let status = Command::new("nft").args(words.split(' ')).status()?;
    anyhow::ensure!(status.success(), "nft {words}");
    Ok(())
}

#[test]
fn a_flushed_table_is_noticed_at_once() {
    needs!(root(), binary("nft"));
    let node = Netns::new("flush").unwrap();
    let table = NatTable { tunnels: [4789].into(), ..table() };
    let follow = async {
        replace(Some(&(table, Quota::POD)), load)?;
        let mut ruleset = Ruleset::follow()?;
        nft("add table ip other")?;
        let early = timeout(A_MOMENT, ruleset.changed(TABLE)).await;
        anyhow::ensure!(early.is_err(), "noticed another table: {early:?}");
        for words in ["flush ruleset", "add table ip contiv-host-access"] {
            nft(words)?;
            timeout(SOON, ruleset.changed(TABLE)).await.with_context(|| words.to_owned())??;
        }
        anyhow::Ok(())
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    node.run(|| runtime()?.block_on(follow)).unwrap();
}

#[test]
fn a_table_that_is_listed_in_another_form_is_not_replaced_all_the_time() {
    let compared = Some((Some((table(), Quota::POD)), Instant::now()));
    for (repairs, is_compared) in [(0, true), (1, true), (MAX_REPAIRS, false)] {
        let mut access = HostAccess { compared: compared.clone(), repairs, ..HostAccess::default() };
        access.notice();
        assert_eq!(access.compared.is_none(), is_compared, "{repairs}");
    }
}
