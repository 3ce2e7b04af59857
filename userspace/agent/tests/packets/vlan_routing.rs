//! VLAN networks that the node routes, with what the conformance scenarios do not do: a taken interface, and late records.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Result, ensure};
use contiv_abi::{
    DropReason, KERNEL_MAC,
    maps::{FROM_POD, FROM_UPLINK},
};
use contiv_model::{
    mac::Mac,
    policy::{Action, Direction, Peer, Rule},
    vrf::Vrf,
};
use netplugin::datapath::{Datapath as _, Gateway, KERNEL_PORT, Local, Network, Object, Op, Remote, Subnet};
use testkit::{
    needs,
    packet::{BROADCAST, Packet},
};

use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vlan},
    policy::{group, number, rule},
    routing::{HERE, ROUTER, sent},
    run::{Code, run},
};

/// On another node.
const FAR: Endpoint = Endpoint(2);
const TAG: u16 = 101;

fn routed() -> Network {
    Network { vrf: Vrf::Tenant("t".parse().unwrap()), ..network("n1.t", vlan(TAG)) }
}

/// Wants the network with its IPv4 subnet and a pod.
fn want(node: &mut Node) -> Result<Pod> {
    let net = routed();
    let ip: IpAddr = Endpoint(254).ip().into();
    let subnet = Subnet {
        network: net.id.clone(),
        vrf: net.vrf.clone(),
        encap: net.encap,
        prefix: "10.1.1.0/24".parse()?,
        gateway: Some(Gateway { ip, mac: Some(Mac::ROUTER) }),
    };
    node.want_network(&net).want(Object::Subnet(subnet));
    node.pod(&net, HERE)
}

/// Without the interface to the kernel its packets are dropped, and its frames stay on the node all the same.
#[test]
fn frames_stay_on_the_node_without_its_kernel() -> Result<()> {
    needs!(root());
    let (mut node, _wire) = Node::on_wire("vr-taken")?;
    let pod = want(&mut node)?;
    node.ns.ip(&format!("link add {KERNEL_PORT} type veth peer name other0"))?;
    node.observe()?;
    let ops: Vec<Op> = node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
    for _ in 0..2 {
        let failed = node.apply(&ops)?;
        let said = format!("{}: {}", failed[0].error, failed[0].error.source);
        ensure!(failed.len() == 1 && said.contains("create the interface inb01"), "{said}");
        let to_all = Packet::eth(BROADCAST, HERE.mac()).payload(b"to all").build();
        run(&node, FROM_POD, &pod.local.port, &to_all)?.assert_flooded();
        let unknown = Packet::eth([2, 0, 0, 0, 0, 9], HERE.mac()).payload(b"unknown").build();
        run(&node, FROM_POD, &pod.local.port, &unknown)?.assert_flooded();
        let out = sent(HERE, FAR.ip()).udp(4000, 53).build();
        run(&node, FROM_POD, &pod.local.port, &out)?.assert_dropped(DropReason::NoUplink);
        let from_wire = Packet::eth(HERE.mac(), FAR.mac()).vlan(TAG).ipv4(FAR.ip(), HERE.ip()).udp(53, 4000);
        ensure!(run(&node, FROM_UPLINK, "trunk", &from_wire.build())?.code == Code::Next);
        // As at a resync.
        let observed = node.observe()?;
        let missing = node.desired.iter().filter(|(id, _)| !observed.in_sync.contains(id));
        ensure!(missing.count() == 1 && observed.orphans == 0, "{observed:?}");
        ensure!(node.apply(&[Op::GarbageCollect])?.is_empty());
    }
    node.ns.ip(&format!("link del {KERNEL_PORT}"))?;
    node.converge()?;
    let out = sent(HERE, FAR.ip()).udp(4000, 53);
    let outcome = run(&node, FROM_POD, &pod.local.port, &out.build())?;
    let leaves = Packet::eth(KERNEL_MAC, HERE.mac()).ipv4(HERE.ip(), FAR.ip()).udp(4000, 53);
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, leaves.build()));
    ensure!(ROUTER == out.build()[..6]);
    Ok(())
}

/// Another datapath, which is removed later, has the interface to the kernel. The network is routed from the first frame on.
#[test]
fn a_routed_network_stands_by_without_the_kernel() -> Result<()> {
    needs!(root());
    let mut node = Node::fresh("vr-beside", |options| options.uplinks = vec!["trunk".into()])?;
    node.ns.ip("link add trunk type veth peer name wire")?;
    node.ns.ip(&format!("link add {KERNEL_PORT} type veth peer name other0"))?;
    let pod = want(&mut node)?;
    node.datapath.stand_by();
    ensure!(node.desired.iter().all(|(_, object)| node.datapath.can_stand_by(object)));
    node.observe()?;
    let ops: Vec<Op> = node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
    let failed = node.apply(&ops)?;
    ensure!(failed.is_empty(), "{failed:?}");
    let Node { ns, datapath, .. } = &mut node;
    ns.run(|| Ok(runtime()?.block_on(datapath.take_over(vec![]))?))?;
    let to_all = Packet::eth(BROADCAST, HERE.mac()).payload(b"to all").build();
    run(&node, FROM_POD, &pod.local.port, &to_all)?.assert_flooded();
    let out = sent(HERE, FAR.ip()).udp(4000, 53).build();
    run(&node, FROM_POD, &pod.local.port, &out)?.assert_dropped(DropReason::NoUplink);
    let from_wire = Packet::eth(HERE.mac(), FAR.mac()).vlan(TAG).ipv4(FAR.ip(), HERE.ip()).udp(53, 4000);
    ensure!(run(&node, FROM_UPLINK, "trunk", &from_wire.build())?.code == Code::Next);
    node.ns.ip(&format!("link del {KERNEL_PORT}"))?;
    node.converge()?;
    ensure!(run(&node, FROM_POD, &pod.local.port, &out)?.code == Code::Redirect);
    Ok(())
}

/// A flow that began before it was known whose its receiver's address is does not evade the rules about that group.
#[test]
fn a_late_record_ends_flows_that_rules_deny() -> Result<()> {
    needs!(root());
    let mut node = Node::new("vr-late")?;
    let pod = want(&mut node)?;
    let deny = Rule { peer: Peer::identity(number(3)), ..rule("deny", Direction::Out, Action::Deny, 1) };
    node.want(Object::Group(group(1, vec![deny])));
    node.want(Object::Local(Local { identity: Some(number(1)), ..pod.local.clone() }));
    node.converge()?;
    let frame = sent(HERE, FAR.ip()).udp(4000, 53).build();
    let send = |node: &Node| run(node, FROM_POD, &pod.local.port, &frame);
    for _ in 0..2 {
        ensure!(send(&node)?.code == Code::Redirect);
    }
    let far = FAR.remote(&routed(), None);
    node.want(Object::Remote(Remote { identity: Some(number(3)), ..far }));
    node.converge()?;
    send(&node)?.assert_dropped(DropReason::StaleFlow);
    for _ in 0..2 {
        send(&node)?.assert_dropped(DropReason::Policy);
    }
    Ok(())
}

/// The kernel would take such a packet for its own: the address of its interface to the networks is on its link.
#[test]
fn link_local_addresses_of_the_kernel_are_not_reached() -> Result<()> {
    needs!(root());
    let mut node = Node::new("vr-link")?;
    let pod = want(&mut node)?;
    let net = routed();
    node.want(Object::Subnet(Subnet {
        network: net.id.clone(),
        vrf: net.vrf.clone(),
        encap: net.encap,
        prefix: "fd00::/64".parse()?,
        gateway: Some(Gateway { ip: Endpoint(254).ip6().into(), mac: Some(Mac::ROUTER) }),
    }));
    node.converge()?;
    let to = |to: Ipv6Addr| Packet::eth(ROUTER, HERE.mac()).ipv6(HERE.ip6(), to).udp(4000, 53);
    let far = to("2001:db8:ffff::9".parse()?);
    ensure!(run(&node, FROM_POD, &pod.local.port, &far.build())?.code == Code::Redirect);
    for link_local in [to("fe80::1".parse()?), to(Mac(FAR.mac()).link_local())] {
        for packet in [link_local.clone(), link_local.ttl(1)] {
            run(&node, FROM_POD, &pod.local.port, &packet.build())?.assert_dropped(DropReason::NoRoute);
        }
    }
    Ok(())
}
