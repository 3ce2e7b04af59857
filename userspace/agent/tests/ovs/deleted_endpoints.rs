//! Pods whose endpoint is deleted while they run.

use std::{io, net::UdpSocket, time::Duration};

use anyhow::{Context as _, Result};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Identity, Rule},
};
use netplugin::datapath::{Group, Local, Object, Op};
use testkit::{capture::Tap, needs, ovs::Switch, packet::Packet, wait_until};

use crate::node::{Node, SOON, addresses, network, vlan, vxlan};

const HOST_END: u8 = 250;
const PORT: u16 = 9000;
/// Time that the switch takes to react to an event of a link.
const REACTION: Duration = Duration::from_millis(500);

/// Packets to the host end of the pod's veth pair are those that the node would take, or route.
#[test]
fn a_pod_without_an_endpoint_does_not_reach_the_node() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ping"));
    for encap in [vxlan(5000), vlan(100)] {
        let node = Node::new("deleted", &[])?;
        node.converge()?;
        let blue = network("blue", encap, ArpMode::Proxy);
        node.add([Object::Network(blue.clone())])?;
        let (pod, _other) = (node.pod(&blue, 1)?, node.run_pod(&blue, 2)?);
        let Object::Local(local) = &pod.object else { unreachable!() };
        let ip = addresses(HOST_END).0;
        let mac = Mac::of_endpoint(ip);
        node.namespace.mac(&local.port, &mac.to_string())?;
        node.namespace.address(&local.port, &format!("{ip}/24"))?;
        let socket = node.namespace.run(|| Ok(UdpSocket::bind((ip, PORT))?))?;
        socket.set_nonblocking(true)?;
        let arrives = || match socket.recv(&mut [0; 64]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        };
        let frame = Packet::eth(mac.0, pod.mac).ipv4(addresses(1).0, ip).udp(5000, PORT).build();
        let mut tap = Tap::open(&pod.namespace, "eth0")?;
        // The control: the interface is no port of a bridge yet.
        tap.send(&frame)?;
        wait_until(SOON, "the packet", || Ok(arrives()?.then_some(())))?;

        let answered = || -> Result<Option<()>> {
            let ping = pod.namespace.ping(addresses(2).0.into(), 3, Duration::from_millis(10))?;
            Ok((ping.received > 0).then_some(()))
        };
        node.add([pod.object.clone()])?;
        wait_until(SOON, "pings", answered)?;
        // The switch alone gets what an attached pod sends.
        tap.send(&frame)?;
        wait_until(SOON, "pings", answered)?;
        assert!(!arrives()?, "attached");
        // After an event of a link, the switch looks at all of its ports again.
        for state in ["down", "up"] {
            pod.namespace.ip(&format!("link set eth0 {state}"))?;
            std::thread::sleep(REACTION);
        }
        wait_until(SOON, "pings", answered)?;
        // A socket reports that its interface was down.
        tap = Tap::open(&pod.namespace, "eth0")?;
        tap.send(&frame)?;
        wait_until(SOON, "pings", answered)?;
        assert!(!arrives()?, "an interface that was down");
        for is_orphan in [false, true] {
            if is_orphan {
                node.desired.borrow_mut().remove(&pod.object.id());
                node.restart_agent();
                node.converge()?;
            } else {
                node.remove([pod.object.id()])?;
            }
            tap.send(&frame)?;
            assert!(!arrives()?, "orphan: {is_orphan}");
            node.add([pod.object.clone()])?;
            wait_until(SOON, "pings", answered)?;
            assert!(!arrives()?, "orphan: {is_orphan}");
            // A restart changes nothing.
            node.restart_agent();
            assert!(node.converge()?.is_empty());
            assert_eq!(node.writes(), 0);
        }
    }
    Ok(())
}

/// On a VLAN, the bridge floods to the port until it is removed, and without a record no rules apply to what the pod receives.
#[test]
fn a_pod_is_cut_off_before_its_record_is_removed() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let node = Node::new("cut-off", &[])?;
    node.converge()?;
    let green = Object::Network(network("green", vlan(100), ArpMode::Proxy));
    let identity = Identity::try_from(7)?;
    let deny = Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?);
    node.add([green.clone(), Object::Group(Group::new(identity, [deny]))])?;
    let mut pod = node.pod(&network("green", vlan(100), ArpMode::Proxy), 1)?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    let port = local.port.clone();
    pod.object = Object::Local(Local { identity: Some(identity), ..local.clone() });
    node.add([pod.object.clone()])?;
    let is_up =
        || -> Result<bool> { Ok(node.namespace.ip(&format!("-o link show {port}"))?.contains(",UP")) };
    assert!(is_up()?);

    let switch: &Switch = &node.switch.borrow();
    let has_record = || -> Result<bool> {
        let flows = switch.ofctl("dump-flows", "contivVlanBridge", &["--no-stats"])?;
        Ok(flows.contains("dl_src=02:02:0a:01:00:01"))
    };
    assert!(has_record()?);
    let database = switch.database().context("the database runs")?;
    // The deletion of the network changes the zones of connections, in the database, before the port is removed.
    database.freeze()?;
    let ops = [Op::Delete(pod.object.id()), Op::Delete(green.id())];
    let killed = node.apply_until(&ops, || Ok(!has_record()?));
    let was_up = is_up();
    database.thaw()?;
    killed?;
    assert!(!was_up?, "the host end is up");
    Ok(())
}
