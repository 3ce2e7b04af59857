//! A VLAN network for which the node is the gateway, when OVS replaces another datapath.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    thread,
};

use anyhow::{Result, ensure};
use contiv_model::{mac::Mac, vrf::Vrf};
use netplugin::datapath::{
    Datapath as _, Gateway, KERNEL_MAC, KERNEL_PORT, Network, Object, ObjectId, Subnet, TrackedConnection,
};
use testkit::{capture::Tap, needs, packet::Packet, patience, wait_until};

use crate::{
    conntrack::datapath_type,
    node::{Node, SOON, addresses, remote},
    takeover::{BACKEND, CLIENT, NEXT, PORT, QUIET, VIP, connections, green, macs, reply, request, service},
};

/// The lowest zone of a VRF.
const VRFS: u16 = 0x4000;
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const STAYS: &[u8] = b"stays on the node";

/// The network with its IPv4 subnet, the backend on another node, and the service.
fn objects() -> Result<[Object; 4]> {
    let network = Network { vrf: Vrf::Tenant("net".parse()?), ..green() };
    let ip: IpAddr = addresses(254).0.into();
    let subnet = Object::Subnet(Subnet {
        network: network.id.clone(),
        vrf: network.vrf.clone(),
        encap: network.encap,
        prefix: "10.1.0.0/24".parse()?,
        gateway: Some(Gateway { ip, mac: Some(Mac::ROUTER) }),
    });
    let (backend, service) = (remote(&network, BACKEND, None), service(&network)?);
    Ok([Object::Network(network), subnet, backend, service])
}

/// Zones of the connections of the client.
fn zones(node: &Node) -> Result<BTreeSet<u16>> {
    let datapath = format!("{0}@ovs-{0}", datapath_type());
    let entries = node.switch.borrow().appctl(&["dpctl/dump-conntrack", &datapath])?;
    let from = format!("orig=(src={},", addresses(CLIENT).0);
    let zone = |line: &str| line.split_once("zone=")?.1.split(',').next()?.parse::<u16>().ok();
    Ok(entries.lines().filter(|line| line.contains(&from)).filter_map(zone).collect())
}

/// The client's connection to the service goes on by the kernel.
fn check(node: &Node, tap: &Tap) -> Result<()> {
    node.namespace.up(KERNEL_PORT)?;
    let kernel = Tap::open(&node.namespace, KERNEL_PORT)?;
    let ([client, _], vip_mac) = (macs(), Mac::of_service(VIP.into()).0);
    let to_backend = (addresses(BACKEND).0, 8080);
    let asked = request(Packet::eth(KERNEL_MAC.0, client), to_backend, NEXT).build();
    wait_until(SOON, "the request", || {
        tap.send(&request(Packet::eth(vip_mac, client), (VIP, 80), NEXT).build())?;
        Ok(kernel.drain()?.iter().any(|frame| frame.bytes.starts_with(&asked)).then_some(()))
    })?;
    let shown = reply(Packet::eth(client, Mac::ROUTER.0), (VIP, 80), NEXT).build();
    wait_until(SOON, "the reply", || {
        kernel.send(&reply(Packet::eth(KERNEL_MAC.0, KERNEL_MAC.0), to_backend, NEXT).build())?;
        Ok(tap.drain()?.iter().any(|frame| frame.bytes.starts_with(&shown)).then_some(()))
    })
}

/// The interface to the kernel belongs to the other datapath until that is gone. Meanwhile nothing of the network leaves the node, and
/// its connections are in the zones in which they stay.
#[test]
fn a_routed_network_is_taken_over_before_it_has_its_port_to_the_kernel() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, wire) = Node::with_uplink("beside-routed")?;
    let [Object::Network(network), subnet, backend, service] = objects()? else { unreachable!() };
    let client = node.pod(&network, CLIENT)?;
    // Its kernel would reset connections that it does not know.
    client.namespace.ip("addr flush dev eth0")?;
    let tap = Tap::open(&client.namespace, "eth0")?;
    node.namespace.ip(&format!("link add {KERNEL_PORT} type veth peer name other0"))?;
    node.restart_agent();
    node.datapath.borrow_mut().stand_by();
    let connection: Vec<TrackedConnection> = connections(&network, NEXT).pop().into_iter().collect();
    let all = [Object::Network(network), subnet, backend, service, client.object.clone()];
    ensure!(all.iter().all(|object| node.datapath.borrow().can_stand_by(object)));
    let lacks_port = |object: &&Object| node.datapath.borrow().is_completed_by_takeover(object);
    let lacking: Vec<ObjectId> = all.iter().filter(lacks_port).map(Object::id).collect();
    node.observe()?;
    node.add(all)?;
    node.runtime.block_on(node.datapath.borrow_mut().take_over(connection))?;

    let before = zones(&node)?;
    ensure!(before.len() == 2 && before.iter().all(|zone| *zone >= VRFS), "{before:?}");
    let out = Packet::eth(Mac::ROUTER.0, client.mac).ipv4(addresses(CLIENT).0, OUTSIDE);
    let out = out.udp(PORT, PORT).payload(STAYS).build();
    (0..5).try_for_each(|_| tap.send(&out))?;
    thread::sleep(QUIET * patience());
    ensure!(!wire.drain()?.iter().any(|frame| frame.bytes.ends_with(STAYS)), "a frame is on the wire");

    node.namespace.ip(&format!("link del {KERNEL_PORT}"))?;
    assert_eq!(node.converge()?, lacking);
    check(&node, &tap)?;
    assert_eq!(zones(&node)?, before);
    Ok(())
}
