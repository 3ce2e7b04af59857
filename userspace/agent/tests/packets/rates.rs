//! What pods of groups with a rate get through, and what becomes of the queues in which the rest waits.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use contiv_abi::maps::{FROM_POD, FROM_QUEUE};
use contiv_model::group::Rate;
use netplugin::datapath::{Datapath as _, Group, Local, Network, Object, ObjectId, Op};
use testkit::{Load, Netns, needs, packet::Packet, throughput};

use crate::{
    node::{Node, Pod, Who, network, vlan, vtep, vxlan},
    policy::number,
    run::{Code, Target, run},
};

const MTU: usize = 1450;
/// Until the burst is spent.
const A_WHILE: Duration = Duration::from_secs(2);
const ONE: u32 = 1;
const FOUR_MEGABITS: u64 = 4_194_000;

fn limited(rate: Option<u64>) -> Object {
    let rate = rate.map(|bits_per_second| Rate { bits_per_second, burst_bytes: 125_000 });
    Object::Group(Group { number: number(ONE), dscp: None, rate, rules: Arc::from([]) })
}

/// A pod in the group.
fn member(node: &mut Node, network: &Network, who: Who) -> Result<Pod> {
    let mut pod = node.pod(network, who)?;
    pod.local = Local { group: Some(number(ONE)), ..pod.local };
    node.want(Object::Local(pod.local.clone()));
    Ok(pod)
}

/// Two pods of a node, the first of them in the group.
fn pods(node: &mut Node) -> Result<(Pod, Pod)> {
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    Ok((member(node, &n1, Who(1))?, node.pod(&n1, Who(2))?))
}

/// What arrives, as a part of a rate.
fn part(from: &Netns, to: &Netns, address: IpAddr, load: Load, rate: u64) -> Result<f64> {
    Ok(throughput(from, to, address, load, A_WHILE, A_WHILE)? / rate as f64)
}

/// In both directions, TCP and UDP are held to the rate and reach it.
fn assert_held(limited: &Pod, other: &Pod, rate: u64) -> Result<()> {
    for load in [Load::Tcp, Load::Udp { offered: rate * 2, mtu: MTU }] {
        for (from, to) in [(limited, other), (other, limited)] {
            let part = part(&from.ns, &to.ns, to.ip(), load, rate)?;
            println!("{rate} {load:?} from {}: {part:.3}", from.ip());
            // TCP without queues has less than half; a busy machine may not send all that it could.
            ensure!((0.6..1.05).contains(&part), "{load:?} from {}: {part:.3} of the rate", from.ip());
        }
    }
    Ok(())
}

#[test]
fn pods_of_a_node_are_held_to_their_rate_and_reach_it() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-local")?;
    let (a, b) = pods(&mut node)?;
    node.want(limited(Some(FOUR_MEGABITS)));
    node.converge()?;
    assert_held(&a, &b, FOUR_MEGABITS)?;
    ensure!(node.drops()?.is_empty(), "{:?}", node.drops()?);
    Ok(())
}

/// By the tunnel and by the uplink.
#[test]
fn pods_of_two_nodes_are_held_to_their_rate_and_reach_it() -> Result<()> {
    needs!(root());
    for encap in [vxlan(10_001), vlan(100)] {
        let (mut here, mut there) = Node::pair("rate-two")?;
        let n1 = network("n1.t", encap);
        let (a, b) = (member(&mut here, &n1, Who(1))?, there.pod(&n1, Who(2))?);
        let remote = |who: Who, n| Object::Remote(who.remote(&n1, (encap == vxlan(10_001)).then(|| vtep(n))));
        here.want_network(&n1).want_peer(2).want(remote(b.who, 2)).want(limited(Some(FOUR_MEGABITS)));
        there.want_network(&n1).want_peer(1).want(remote(a.who, 1));
        here.converge()?;
        there.converge()?;
        assert_held(&a, &b, FOUR_MEGABITS)?;
    }
    Ok(())
}

#[test]
fn queues_stay_over_restarts_and_go_with_their_pods() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-life")?;
    let (a, b) = pods(&mut node)?;
    node.converge()?;
    assert!(node.ifindex("contivq0").is_err(), "nobody has a rate yet");
    for rate in [Some(FOUR_MEGABITS), Some(1_048_000), Some(80_000_000_000), None, Some(FOUR_MEGABITS)] {
        node.want(limited(rate));
        node.converge()?;
        node.restart();
        node.converge()?;
        assert_eq!(node.datapath.writes(), 0, "after a restart with {rate:?}");
    }
    assert_eq!(classes(&node)?, 1);
    // The other pod joins the group.
    node.want(Object::Local(Local { group: Some(number(ONE)), ..b.local.clone() }));
    node.converge()?;
    assert_eq!(classes(&node)?, 2);
    for pod in [&a, &b] {
        let id = ObjectId::Local(pod.local.id.clone());
        node.desired.remove(&id);
        let failed = node.apply(&[Op::Delete(id)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        let observed = node.observe()?;
        ensure!(observed.strays == 0, "{} strays", observed.strays);
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
fn queues_that_somebody_changed_are_mended() -> Result<()> {
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
        assert!(!node.observe()?.same.contains(&id), "{damage}");
        node.converge()?;
    }
    // Litter.
    node.ns.output("tc", &["class", "add", "dev", "contivq0", "classid", "c0:77", "htb", "rate", "1mbit"])?;
    assert_eq!(node.observe()?.strays, 1);
    node.converge()
}

#[test]
fn what_has_waited_goes_on_as_of_its_port() -> Result<()> {
    needs!(root());
    let mut node = Node::new("rate-queue")?;
    let (a, b) = pods(&mut node)?;
    node.want(limited(Some(FOUR_MEGABITS)));
    node.converge()?;
    let frame = Packet::eth(b.who.mac(), a.who.mac()).ipv4(a.who.ip(), b.who.ip()).udp(4000, 53).build();
    // Into the queue as it was sent.
    run(&node, FROM_POD, &a.local.port, &frame)?.assert_sent_on(&frame);
    let spoofed = Packet::eth(b.who.mac(), a.who.mac()).ipv4([10, 1, 1, 9], b.who.ip()).udp(4000, 53).build();
    run(&node, FROM_POD, &a.local.port, &spoofed)?.assert_dropped(contiv_abi::DropReason::SpoofedIp);
    let marked = Target::new(&node, FROM_QUEUE, "contivq1")?.marked(node.ifindex(&a.local.port)?);
    let (code, bytes) = node.ns.run(|| marked.give(&frame))?;
    assert_eq!((code, bytes), (Code::Redirect, frame.clone()));
    // A port that has gone meanwhile.
    let gone = Target::new(&node, FROM_QUEUE, "contivq1")?.marked(9999);
    assert_eq!(node.ns.run(|| gone.give(&frame))?.0, Code::Shot);
    // Nobody's.
    let unmarked = Target::new(&node, FROM_QUEUE, "contivq1")?;
    assert_eq!(node.ns.run(|| unmarked.give(&frame))?.0, Code::Next);
    Ok(())
}
