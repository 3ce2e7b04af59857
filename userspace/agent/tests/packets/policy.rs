//! Rules, DSCP and rates of groups, with single frames.

use std::net::IpAddr;

use anyhow::Result;
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_UPLINK},
    policy::Branch,
};
use contiv_model::{
    group::{Dscp, Rate},
    policy::{Action, Direction, Identity, Peer, PortRange, Rule, TCP, UDP},
};
use ipnet::IpNet;
use netplugin::datapath::{Group, Object, ObjectId, Op};
use testkit::{
    needs,
    packet::{BROADCAST, Packet, verify},
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    restart::chain,
    run::{Code, Outcome, run},
};

mod denied;
mod ip_reuse;
mod opening;
mod oracle;
mod regrouped;

const CLIENT: Endpoint = Endpoint(1);
const SERVER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);

pub(crate) fn number(n: u32) -> Identity {
    Identity::try_from(n).unwrap()
}

pub(crate) fn rule(id: &str, direction: Direction, action: Action, priority: u8) -> Rule {
    Rule::new(id, direction, action, priority.try_into().unwrap())
}

pub(crate) fn group(n: u32, rules: Vec<Rule>) -> Group {
    Group::new(number(n), rules)
}

/// A client in group 1 and a server in group 2 on one node, and an endpoint of group 3 on another.
struct Rig {
    node: Node,
    client: Pod,
    server: Pod,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        let mut node = Node::new(label)?;
        let n1 = network("n1.t", vxlan(10_001));
        let far = netplugin::datapath::Remote { identity: Some(number(3)), ..FAR.remote(&n1, Some(vtep(2))) };
        node.want_network(&n1).want_peer(2).want(Object::Remote(far));
        let client = pod(&mut node, &n1, CLIENT, 1)?;
        let server = pod(&mut node, &n1, SERVER, 2)?;
        node.converge()?;
        Ok(Rig { node, client, server })
    }

    fn set(&mut self, group: Group) -> Result<()> {
        self.node.want(Object::Group(group.clone()));
        let failed = self.node.apply(&[Op::Set(Object::Group(group))])?;
        anyhow::ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }

    fn send(&self, packet: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.client.local.port, &packet.build())
    }

    fn answer(&self, packet: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.server.local.port, &packet.build())
    }

    fn packets(&self, id: &str) -> Result<u64> {
        Ok(self.counted(id)?.0)
    }

    /// Packets and bytes.
    fn counted(&self, id: &str) -> Result<(u64, u64)> {
        let counts = self.node.datapath.counters()?.rules;
        let count = counts.iter().find(|(name, _)| name.as_str() == id);
        Ok(count.map_or((0, 0), |(_, count)| (count.packets, count.bytes)))
    }
}

/// A pod of a group.
pub(crate) fn pod(
    node: &mut Node,
    network: &netplugin::datapath::Network,
    endpoint: Endpoint,
    group: u32,
) -> Result<Pod> {
    let mut pod = node.pod(network, endpoint)?;
    pod.local.identity = Some(number(group));
    node.want(Object::Local(pod.local.clone()));
    Ok(pod)
}

fn to(endpoint: Endpoint) -> Packet {
    Packet::eth(endpoint.mac(), CLIENT.mac()).ipv4(CLIENT.ip(), endpoint.ip())
}

fn to6(endpoint: Endpoint) -> Packet {
    Packet::eth(endpoint.mac(), CLIENT.mac()).ipv6(CLIENT.ip6(), endpoint.ip6())
}

fn back() -> Packet {
    Packet::eth(CLIENT.mac(), SERVER.mac()).ipv4(SERVER.ip(), CLIENT.ip())
}

#[track_caller]
fn passes(outcome: &Outcome) {
    assert_eq!((outcome.code, &outcome.dropped[..]), (Code::Redirect, &[][..]));
}

#[test]
fn a_rule_drops_matching_packets_and_counts_them() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-stop")?;
    let deny =
        Rule { protocol: Some(TCP), ports: Some(80.into()), ..rule("deny", Direction::In, Action::Deny, 10) };
    rig.set(group(2, vec![deny]))?;
    for ip in [to(SERVER), to6(SERVER)] {
        rig.send(&ip.clone().tcp(4000, 80, 2))?.assert_dropped(DropReason::Policy);
        passes(&rig.send(&ip.clone().tcp(4000, 81, 2))?);
        passes(&rig.send(&ip.udp(4000, 80))?);
    }
    assert_eq!(rig.packets("deny")?, 2);
    // The rule does not apply to the other direction.
    passes(&rig.answer(&back().tcp(4001, 80, 2))?);
    Ok(())
}

/// Not of an earlier packet.
#[test]
fn a_rule_counts_the_bytes_of_broadcasts() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-bytes")?;
    rig.set(group(1, vec![Rule { protocol: Some(UDP), ..rule("deny", Direction::Out, Action::Deny, 10) }]))?;
    passes(&rig.send(&to(SERVER).tcp(4000, 81, 2).payload(&[7; 1000]))?);
    let broadcast = Packet::eth(BROADCAST, CLIENT.mac()).ipv4(CLIENT.ip(), [255; 4]).udp(4000, 53);
    rig.send(&broadcast)?;
    let (packets, bytes) = rig.counted("deny")?;
    assert!(packets > 0);
    assert_eq!(bytes, packets * broadcast.build().len() as u64);
    Ok(())
}

#[test]
fn the_matching_rule_of_highest_priority_decides() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-urgent")?;
    let from = |subnet: &str| Peer::prefix(subnet.parse::<IpNet>().unwrap());
    let all = rule("all", Direction::In, Action::Deny, 1);
    let some = Rule { peer: from("10.1.0.0/16"), ..rule("some", Direction::In, Action::Allow, 2) };
    let group_1 = Peer::identity(number(1));
    let few = Rule {
        peer: group_1,
        ports: Some(80.into()),
        protocol: Some(TCP),
        ..rule("few", Direction::In, Action::Deny, 3)
    };
    rig.set(group(2, vec![all, few, some]))?;
    passes(&rig.send(&to(SERVER).tcp(4000, 81, 2))?);
    rig.send(&to(SERVER).tcp(4000, 80, 2))?.assert_dropped(DropReason::Policy);
    rig.send(&to6(SERVER).tcp(4000, 81, 2))?.assert_dropped(DropReason::Policy);
    assert_eq!((rig.packets("all")?, rig.packets("few")?, rig.packets("some")?), (1, 1, 1));
    Ok(())
}

#[test]
fn egress_rules_are_enforced_on_the_node_of_the_source() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-out")?;
    let peer = Peer::identity(number(3));
    rig.set(group(1, vec![Rule { peer, ..rule("far", Direction::Out, Action::Deny, 1) }]))?;
    rig.send(&to(FAR).udp(4000, 53))?.assert_dropped(DropReason::Policy);
    passes(&rig.send(&to(SERVER).udp(4000, 53))?);
    Ok(())
}

#[test]
fn replies_pass_and_a_policy_change_applies_to_established_connections() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-change")?;
    let all = || rule("all", Direction::In, Action::Deny, 1);
    let web = || Rule {
        protocol: Some(TCP),
        ports: Some(80.into()),
        ..rule("web", Direction::In, Action::Allow, 2)
    };
    rig.set(group(1, vec![all()]))?;
    rig.set(group(2, vec![all(), web()]))?;
    passes(&rig.send(&to(SERVER).tcp(4000, 80, 2))?);
    // Group 1 accepts no connections, but it has opened this one.
    passes(&rig.answer(&back().tcp(80, 4000, 0x12))?);
    passes(&rig.send(&to(SERVER).tcp(4000, 80, 0x10))?);
    assert_eq!(rig.packets("web")?, 1);
    rig.answer(&back().tcp(80, 4001, 0x12))?.assert_dropped(DropReason::Policy);

    rig.set(group(2, vec![all()]))?;
    rig.send(&to(SERVER).tcp(4000, 80, 0x10))?.assert_dropped(DropReason::Policy);
    rig.answer(&back().tcp(80, 4000, 0x10))?.assert_dropped(DropReason::Policy);
    // The flow entry still exists when the rule returns.
    rig.set(group(2, vec![all(), web()]))?;
    passes(&rig.answer(&back().tcp(80, 4000, 0x10))?);
    passes(&rig.send(&to(SERVER).tcp(4000, 80, 0x10))?);
    Ok(())
}

/// A flow that was evaluated by removed rules is evaluated again when the group gets others, however much later.
#[test]
fn a_policy_revision_is_used_once() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-revision")?;
    let web =
        Rule { protocol: Some(TCP), ports: Some(80.into()), ..rule("web", Direction::In, Action::Allow, 2) };
    let all = || rule("all", Direction::In, Action::Deny, 1);
    for restarts in [false, true] {
        rig.set(group(2, vec![web.clone()]))?;
        passes(&rig.send(&to(SERVER).tcp(4000, 80, 2))?);
        passes(&rig.answer(&back().tcp(80, 4000, 0x12))?);
        passes(&rig.send(&to(SERVER).tcp(4000, 80, 0x10))?);
        rig.set(group(2, vec![]))?;
        if restarts {
            rig.node.restart();
        }
        rig.node.observe()?;
        rig.set(group(2, vec![all()]))?;
        rig.send(&to(SERVER).tcp(4000, 80, 0x10))?.assert_dropped(DropReason::Policy);
        rig.answer(&back().tcp(80, 4000, 0x10))?.assert_dropped(DropReason::Policy);
        rig.set(group(2, vec![]))?;
    }
    Ok(())
}

#[test]
fn a_deleted_group_leaves_no_entries() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-gone")?;
    let peer = |n: u8| Peer::prefix(IpNet::new(Endpoint(n).ip().into(), 32).unwrap());
    let rules =
        (1..100).map(|n| Rule { peer: peer(n), ..rule(&format!("r{n}"), Direction::In, Action::Deny, 1) });
    rig.set(group(2, rules.collect()))?;
    rig.send(&to(SERVER).udp(4000, 53))?.assert_dropped(DropReason::Policy);
    let id = ObjectId::Group(number(2));
    rig.node.desired.remove(&id);
    assert!(rig.node.apply(&[Op::Delete(id)])?.is_empty());
    passes(&rig.send(&to(SERVER).udp(4000, 53))?);
    assert_eq!(rig.node.observe()?.orphans, 0);
    let inside = netplugin::datapath::Datapath::inspect(&rig.node.datapath);
    assert_eq!(inside["entries"]["ctv_rules"], 0);
    assert_eq!(inside["rules"], serde_json::json!({}));
    Ok(())
}

#[test]
fn a_restart_adopts_rules_and_repairs_damaged_ones() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-restart")?;
    let own = Some(IpNet::new(SERVER.ip().into(), 32).unwrap());
    let subnet = Some("10.1.1.0/24".parse().unwrap());
    let rules = || {
        vec![
            Rule { own, ..rule("own", Direction::In, Action::Deny, 5) },
            Rule { peer: Peer::new(None, subnet), ..rule("net", Direction::In, Action::Allow, 4) },
            rule("out", Direction::Out, Action::Allow, 4),
        ]
    };
    let whole = Group { dscp: Some(Dscp::try_from(46).unwrap()), ..group(2, rules()) };
    rig.set(whole.clone())?;
    rig.send(&to(SERVER).udp(4000, 53))?.assert_dropped(DropReason::Policy);

    rig.node.restart();
    rig.node.converge()?;
    assert_eq!(netplugin::datapath::Datapath::writes(&rig.node.datapath), 0);
    assert_eq!(rig.packets("own")?, 1, "the count is still the rule's");
    rig.send(&to(SERVER).udp(4001, 53))?.assert_dropped(DropReason::Policy);
    assert_eq!(rig.packets("own")?, 2);

    // Another process changes a rule.
    let map = aya::maps::MapData::from_pin(rig.node.datapath.maps_directory().join("ctv_rules"))?;
    let mut branches: aya::maps::Array<_, Branch> = aya::maps::Array::try_from(aya::maps::Map::Array(map))?;
    let first = branches.get(&0, 0)?;
    assert!(first.starts[0] < Branch::NEVER);
    branches.set(0, Branch { starts: [first.starts[0] + 1; 7], ..first }, 0)?;
    assert!(!rig.node.observe()?.in_sync.contains(&ObjectId::Group(number(2))));
    rig.node.converge()?;
    rig.send(&to(SERVER).udp(4002, 53))?.assert_dropped(DropReason::Policy);
    Ok(())
}

/// Scrambles the bits, so that adjacent numbers differ in their first and last bits.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The rules that need the most nodes: each for one IPv6 host and its own port.
fn hosts(direction: Direction, numbers: std::ops::Range<u32>) -> impl Iterator<Item = Rule> {
    numbers.map(move |n| {
        let host = std::net::Ipv6Addr::from_bits(u128::from(n).wrapping_mul(SPREAD));
        let peer = Peer::prefix(IpNet::new(host.into(), 128).unwrap());
        let protocol = Some(if n < 60_000 { TCP } else { UDP });
        let ports = Some(PortRange::from((n % 60_000) as u16));
        Rule { peer, protocol, ports, ..rule(&format!("{direction}{n}"), direction, Action::Deny, 1) }
    })
}

#[test]
fn too_many_rules_are_refused_and_the_group_keeps_its_rules() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-full")?;
    let web = || Rule {
        protocol: Some(TCP),
        ports: Some(80.into()),
        ..rule("web", Direction::In, Action::Deny, 2)
    };
    let ssh = || Rule {
        protocol: Some(TCP),
        ports: Some(22.into()),
        ..rule("ssh", Direction::In, Action::Deny, 2)
    };
    rig.set(group(2, vec![web()]))?;
    // The rules fit once, but not twice.
    rig.set(group(3, hosts(Direction::In, 0..6_250).collect()))?;
    let entries = |rig: &Rig| netplugin::datapath::Datapath::inspect(&rig.node.datapath)["entries"].clone();
    let before = entries(&rig);
    let as_before = |rig: &Rig| -> Result<()> {
        rig.send(&to(SERVER).tcp(4000, 80, 2))?.assert_dropped(DropReason::Policy);
        passes(&rig.send(&to(SERVER).tcp(4000, 22, 2))?);
        assert_eq!(entries(rig), before);
        Ok(())
    };
    // A change of one rule in many; a group whose rules of one direction fit; a group whose rules do not.
    for refused in [
        group(3, hosts(Direction::In, 1..6_251).collect()),
        group(2, hosts(Direction::Out, 0..6_250).chain([web(), ssh()]).collect()),
        group(2, hosts(Direction::In, 0..6_250).chain([web(), ssh()]).collect()),
    ] {
        let failed = rig.node.apply(&[Op::Set(Object::Group(refused))])?;
        let [failed] = &failed[..] else { panic!("{} failed", failed.len()) };
        let said = chain(&failed.error);
        assert!(said.contains("the map ctv_rules, which is full (32768 entries; --bpf-rules"), "{said}");
        as_before(&rig)?;
    }
    // Groups that fit are set, and deleted groups free their nodes.
    rig.set(group(2, vec![web(), ssh()]))?;
    rig.send(&to(SERVER).tcp(4001, 22, 2))?.assert_dropped(DropReason::Policy);
    assert!(rig.node.apply(&[Op::Delete(ObjectId::Group(number(3)))])?.is_empty());
    rig.set(group(2, hosts(Direction::In, 0..6_250).chain([web()]).collect()))?;
    rig.send(&to(SERVER).tcp(4002, 80, 2))?.assert_dropped(DropReason::Policy);
    passes(&rig.send(&to(SERVER).tcp(4002, 22, 2))?);
    Ok(())
}

/// No rule can name such a peer. A full resync removes what no object owns.
#[test]
fn a_group_that_cannot_be_encoded_keeps_its_rules() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-encode")?;
    let all = rule("all", Direction::In, Action::Deny, 1);
    rig.set(group(2, vec![all.clone()]))?;
    let refused = group(
        2,
        vec![
            all,
            Rule { peer: Peer::identity(number(40_000)), ..rule("x", Direction::In, Action::Allow, 2) },
        ],
    );
    for how in ["as before", "restarted"] {
        rig.node.want(Object::Group(refused.clone()));
        rig.node.observe()?;
        let failed = rig.node.apply(&[Op::Set(Object::Group(refused.clone())), Op::GarbageCollect])?;
        assert_eq!(failed.len(), 1, "{how}");
        for packet in [to(SERVER).tcp(4000, 80, 2), to(SERVER).udp(4000, 53)] {
            rig.send(&packet)?.assert_dropped(DropReason::Policy);
        }
        drop(rig.node.restart());
    }
    Ok(())
}

#[test]
fn rules_apply_to_unicast_ip_in_l2_multicast() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pol-many")?;
    for to_all in [
        Packet::eth(BROADCAST, CLIENT.mac()).ipv4(CLIENT.ip(), SERVER.ip()).udp(4000, 53),
        Packet::eth(BROADCAST, CLIENT.mac()).ipv6(CLIENT.ip6(), SERVER.ip6()).udp(4000, 53),
    ] {
        rig.send(&to_all)?.assert_dropped(DropReason::UnicastInMulticast);
    }
    let to_all = Packet::eth(BROADCAST, CLIENT.mac()).ipv4(CLIENT.ip(), [255, 255, 255, 255]).udp(68, 67);
    rig.send(&to_all)?.assert_flooded();
    Ok(())
}

#[test]
fn packets_are_marked_with_the_dscp_of_their_group() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-dscp")?;
    rig.set(Group { dscp: Some(Dscp::try_from(46).unwrap()), ..group(1, vec![]) })?;
    for endpoint in [SERVER, FAR] {
        // The ECN bits belong to the connection.
        for (before, after) in [(0x00, 0xb8), (0x03, 0xbb), (0x28, 0xb8)] {
            for ip in [to(endpoint), to6(endpoint)] {
                let sent = ip.udp(4000, 53).payload(b"query");
                let outcome = rig.send(&sent.clone().tos(before))?;
                outcome.assert_sent_on(&sent.tos(after).build());
                verify(&outcome.bytes).unwrap();
            }
        }
    }
    // Only packets that the group sends.
    let sent = back().udp(53, 4000).build();
    rig.answer(&back().udp(53, 4000))?.assert_sent_on(&sent);
    Ok(())
}

#[test]
fn a_pod_sends_and_receives_at_most_its_burst_at_once() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pol-rate")?;
    // MLD reports of the pods' stacks (RFC 3810), seconds after the start, would also use tokens.
    for pod in [&rig.client, &rig.server] {
        pod.ns.output("ip", &["link", "set", "eth0", "down"])?;
    }
    let frame = to(SERVER).udp(4000, 53).payload(&[0; 958]);
    assert_eq!(frame.build().len(), 1000);
    // So slow that refill is negligible: a byte takes 8 seconds.
    let rate = Some(Rate { bits_per_second: 1, burst_bytes: 4000 });
    for limited in [1, 2] {
        rig.set(Group { rate, ..group(limited, vec![]) })?;
        // The bucket passes a packet while it is not empty, so one more than its content.
        for _ in 0..5 {
            passes(&rig.send(&frame)?);
        }
        rig.send(&frame)?.assert_dropped(DropReason::RateLimit);
        rig.set(group(limited, vec![]))?;
        passes(&rig.send(&frame)?);
    }
    Ok(())
}

#[test]
fn rules_apply_to_frames_from_the_uplink() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire("pol-wire")?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1);
    let server = pod(&mut node, &n1, SERVER, 2)?;
    let subnet = Some("192.0.2.0/25".parse().unwrap());
    let deny = Rule { peer: Peer::new(None, subnet), ..rule("deny", Direction::In, Action::Deny, 1) };
    node.want(Object::Group(group(2, vec![Rule { protocol: Some(UDP), ..deny }])));
    node.converge()?;
    let from = |ip: [u8; 4]| {
        let frame = Packet::eth(server.endpoint.mac(), [2, 0, 0, 0, 0, 9]).vlan(100).ipv4(ip, SERVER.ip());
        run(&node, FROM_UPLINK, "trunk", &frame.udp(4000, 53).build())
    };
    from([192, 0, 2, 1])?.assert_dropped(DropReason::Policy);
    passes(&from([192, 0, 2, 129])?);
    Ok(())
}

/// The same rules for the oracle.
pub(crate) fn address(endpoint: Endpoint, ip6: bool) -> IpAddr {
    if ip6 { endpoint.ip6().into() } else { endpoint.ip().into() }
}
