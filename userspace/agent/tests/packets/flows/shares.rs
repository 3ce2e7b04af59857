//! Whose flows have room in the table: an endpoint keeps its own, whatever others begin.

use anyhow::Result;
use contiv_abi::{
    DropReason, Flow, FlowHalf, TCP,
    maps::{FROM_POD, FROM_UPLINK},
};
use contiv_model::policy::{Action, Direction, Peer, Rule};
use ipnet::IpNet;
use netplugin::datapath::{Datapath as _, Local, Object, Op, ebpf::Options};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use super::{HERE, OTHER, Rig, between, open, tcp};
use crate::{
    flow_table::{self, HOUR, slots},
    node::{Endpoint, Node, Pod, network, vlan, vxlan},
    policy::{group, number, rule},
    run::run,
};

const CAPACITY: u32 = 1024;
const QUOTA: usize = CAPACITY as usize / 4;

/// However slow the machine is, no flow ends before it is counted.
fn options(options: &mut Options) {
    options.flows = CAPACITY;
    let timeouts = &mut options.timeouts;
    (timeouts.tcp_opening, timeouts.udp, timeouts.unanswered) = (2 * HOUR, 2 * HOUR, 2 * HOUR);
}

/// The number of flows that use this quota.
fn owned(node: &Node, owner: u32) -> Result<usize> {
    Ok(flow_table::flows(node)?.iter().filter(|flow| flow.halves[0].owner == owner).count())
}

/// A pod elsewhere sends requests that an endpoint answers. That takes the endpoint neither the room for its own connections, nor
/// for long that for other requests.
#[test]
fn requests_from_elsewhere_take_an_endpoint_no_room_for_its_own() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire_with("ct-received", options)?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1).want(Object::Remote(OTHER.remote(&n1, None)));
    let pod = node.pod(&n1, HERE)?;
    node.converge()?;
    let made = || node.datapath.inspect()["flows"]["made"].as_u64().unwrap();
    let request = |port: u16| -> Result<()> {
        let frame = Packet::eth(HERE.mac(), OTHER.mac()).vlan(100).ipv4(OTHER.ip(), HERE.ip()).udp(port, 53);
        run(&node, FROM_UPLINK, "trunk", &frame.build())?
            .assert_sent_on(&between(OTHER, HERE).udp(port, 53).build());
        Ok(())
    };
    let ifindex = node.ifindex(&pod.local.port)?;
    for ports in [0..QUOTA as u16, QUOTA as u16..2 * QUOTA as u16] {
        for port in ports {
            request(port)?;
            run(&node, FROM_POD, &pod.local.port, &between(HERE, OTHER).udp(53, port).build())?;
            // A flow that the answer has begun is an established one by now.
            request(port)?;
        }
        assert_eq!(owned(&node, ifindex | FlowHalf::RECEIVED)?, QUOTA);
        // The second half finds no quiet flow, which it might replace.
        flow_table::keep_fresh(&node)?;
    }
    for port in 0..QUOTA as u16 {
        let syn = tcp((HERE, port), (OTHER, 80), tcp_flags::SYN).build();
        run(&node, FROM_POD, &pod.local.port, &syn)?;
    }
    assert_eq!(owned(&node, ifindex)?, QUOTA);
    let syns = |flow: &Flow| flow.head.protocol == TCP && flow.halves[0].owner == ifindex;
    assert_eq!(flow_table::flows(&node)?.iter().filter(|flow| syns(flow)).count(), QUOTA / 2);
    // Ten seconds after their last packets others may ask, too.
    flow_table::change(&node, |flow| {
        if flow.halves[0].owner == ifindex | FlowHalf::RECEIVED {
            flow.halves.iter_mut().for_each(|half| half.seen = half.seen.wrapping_sub(2 * HOUR + 10));
        }
    })?;
    let before = made();
    for port in 1000..1100 {
        request(port)?;
    }
    assert!(made() - before >= 95, "{} of 100", made() - before);
    assert_eq!(slots(&node)?, 2 * flow_table::flows(&node)?.len(), "each flow has two slots");
    Ok(())
}

/// Hosts on the wire open more connections to an endpoint than it has a quota for. Its answers to the others begin flows of its own,
/// which take at most half of the room for its own connections.
#[test]
fn answers_to_untracked_connections_take_half_of_an_endpoints_room() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire_with("ct-answers", options)?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1).want(Object::Remote(OTHER.remote(&n1, None)));
    let pod = node.pod(&n1, HERE)?;
    node.converge()?;
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    let ifindex = node.ifindex(&pod.local.port)?;
    let arrives = |port: u16, flags: u8, numbers: (u32, u32)| {
        let frame = Packet::eth(HERE.mac(), OTHER.mac()).vlan(100).ipv4(OTHER.ip(), HERE.ip());
        let frame = frame.tcp(port, 80, flags).sequence(numbers.0, numbers.1).build();
        run(&node, FROM_UPLINK, "trunk", &frame)
    };
    let leaves = |frame: &Packet| run(&node, FROM_POD, &pod.local.port, &frame.build());
    for port in 0..2 * QUOTA as u16 {
        arrives(port, syn, (1000, 0))?;
        leaves(&tcp((HERE, 80), (OTHER, port), syn | ack).sequence(5000, 1001))?;
        arrives(port, ack, (1001, 5001))?;
    }
    assert_eq!(owned(&node, ifindex | FlowHalf::RECEIVED)?, QUOTA);
    assert_eq!(owned(&node, ifindex)?, QUOTA / 2);
    let made = || node.datapath.inspect()["flows"]["made"].as_u64().unwrap();
    let before = made();
    for port in 0..QUOTA as u16 / 2 {
        leaves(&tcp((HERE, port), (OTHER, 81), syn))?;
    }
    assert_eq!((made() - before, owned(&node, ifindex)?), (QUOTA as u64 / 2, QUOTA));
    Ok(())
}

/// Established connections of endpoints that fill the table make room for those of one with less than half as many.
#[test]
fn a_full_table_takes_from_those_with_most() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("ct-fair", options)?;
    let n1 = network("n1.t", vxlan(10_001));
    let hogs: Vec<Pod> = (20..24).map(|number| rig.node.pod(&n1, Endpoint(number))).collect::<Result<_>>()?;
    rig.node.converge()?;
    for hog in &hogs {
        for port in 0..QUOTA as u16 {
            let (client, server) = ((hog.endpoint, port), (OTHER, 80));
            let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
            rig.from(hog, &tcp(client, server, syn).sequence(1000, 0))?;
            rig.from(&rig.second, &tcp(server, client, syn | ack).sequence(5000, 1001))?;
            rig.from(hog, &tcp(client, server, ack).sequence(1001, 5001))?;
        }
    }
    let of_hogs = || -> Result<Vec<usize>> {
        hogs.iter().map(|hog| owned(&rig.node, rig.node.ifindex(&hog.local.port)?)).collect()
    };
    let all: usize = of_hogs()?.iter().sum();
    assert!(all > CAPACITY as usize * 9 / 10, "{all} flows fill the table");
    let ifindex = rig.node.ifindex(&rig.first.local.port)?;
    for port in 0..80 {
        open(&rig, (HERE, port), (OTHER, 81))?;
    }
    assert!(owned(&rig.node, ifindex)? >= 75, "{} of 80", owned(&rig.node, ifindex)?);
    // One with many connections takes nothing from them.
    for port in 80..2 * QUOTA as u16 {
        open(&rig, (HERE, port), (OTHER, 81))?;
    }
    let (own, least) = (owned(&rig.node, ifindex)?, of_hogs()?.into_iter().min());
    assert!(least > Some(own), "{own} flows, and the others at least {least:?}");
    assert_eq!(slots(&rig.node)?, 2 * flow_table::flows(&rig.node)?.len(), "each flow has two slots");
    Ok(())
}

/// Flows that rules deny later take the endpoint that they reach no room, once it has been silent.
#[test]
fn denied_flows_of_a_silent_server_make_room() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire_with("ct-denied", options)?;
    let n1 = network("n1.t", vlan(100));
    let third = Endpoint(9);
    node.want_network(&n1).want(Object::Remote(OTHER.remote(&n1, None)));
    node.want(Object::Remote(third.remote(&n1, None)));
    let mut pod = node.pod(&n1, HERE)?;
    pod.local = Local { identity: Some(number(2)), ..pod.local };
    node.want(Object::Group(group(2, vec![]))).want(Object::Local(pod.local.clone()));
    node.converge()?;
    let ifindex = node.ifindex(&pod.local.port)?;
    let request = |node: &Node, from: Endpoint, port: u16| {
        let frame = Packet::eth(HERE.mac(), from.mac()).vlan(100).ipv4(from.ip(), HERE.ip()).udp(port, 53);
        run(node, FROM_UPLINK, "trunk", &frame.build())
    };
    for port in 0..QUOTA as u16 {
        request(&node, OTHER, port)?;
        run(&node, FROM_POD, &pod.local.port, &between(HERE, OTHER).udp(53, port).build())?;
    }
    assert_eq!(owned(&node, ifindex | FlowHalf::RECEIVED)?, QUOTA);
    let peer = Peer::prefix(IpNet::new(OTHER.ip().into(), 32)?);
    let denied = Rule { peer, ..rule("deny", Direction::In, Action::Deny, 1) };
    assert!(node.apply(&[Op::Set(Object::Group(group(2, vec![denied])))])?.is_empty());
    let made = |node: &Node| node.datapath.inspect()["flows"]["made"].as_u64().unwrap();
    for (is_silent, most) in [(false, 0..=0), (true, 95..=100)] {
        if is_silent {
            flow_table::change(&node, |flow| {
                flow.halves[1].seen = flow.halves[1].seen.wrapping_sub(2 * HOUR + 10);
            })?;
        }
        for port in 0..QUOTA as u16 {
            request(&node, OTHER, port)?.assert_dropped(DropReason::Policy);
        }
        let before = made(&node);
        for port in 1000..1100 {
            request(&node, third, port)?;
        }
        assert!(most.contains(&(made(&node) - before)), "{} of 100", made(&node) - before);
    }
    Ok(())
}
