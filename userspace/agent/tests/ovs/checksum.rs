//! Checksums that pods leave to the kernel, in places of their choice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::util::KernelVersion;
use contiv_model::{
    global::ArpMode,
    group::Rate,
    mac::Mac,
    policy::{Action, Direction, Identity, PortRange, Rule, UDP},
};
use netplugin::datapath::{Datapath as _, Group, Local, Object, ovs::DatapathType};
use testkit::{
    capture::{OffloadSender, Tap},
    needs,
    packet::Packet,
    wait_until,
};

use crate::node::{Node, Pod, SOON, addresses, kind, network, remote, vlan};

const TAG: u16 = 100;
/// Bytes of an 802.1Q tag.
const TAG_LEN: usize = 4;
const HERE: u8 = 1;
const THERE: u8 = 9;
/// Offsets of the transport header.
const V4: u16 = 34;
const V6: u16 = 54;
/// Offsets in the header of UDP.
const PORT: u16 = 2;
const CHECKSUM: u16 = 6;
/// Behind Ethernet, as far as the kernel accepts it, and from there to the last bytes of the sender's address.
const IP: u16 = 20;
const SOURCE: u16 = 8;
const SOURCE_6: u16 = 16;
const QUESTIONS: u16 = 53;
/// Time that the switch takes to react to an event of a link.
const REACTION: Duration = Duration::from_millis(500);

fn query() -> Packet {
    let [here, there] = [HERE, THERE].map(|n| addresses(n).0);
    let frame = Packet::eth(Mac::of_endpoint(there).0, Mac::of_endpoint(here).0);
    frame.ipv4(here, there).udp(4000, QUESTIONS).payload(b"query")
}

fn query6() -> Packet {
    let [(here, here6), (there, there6)] = [HERE, THERE].map(addresses);
    let frame = Packet::eth(Mac::of_endpoint(there).0, Mac::of_endpoint(here).0);
    frame.ipv6(here6, there6).udp(4000, QUESTIONS).payload(b"query")
}

/// A group that may only ask.
fn group(identity: Identity) -> Result<Object> {
    let deny = Rule::new("deny", Direction::Out, Action::Deny, 1.try_into()?);
    let allow = Rule {
        protocol: Some(UDP),
        ports: PortRange::new(QUESTIONS, QUESTIONS),
        ..Rule::new("allow", Direction::Out, Action::Allow, 2.try_into()?)
    };
    Ok(Object::Group(Group::new(identity, [deny, allow])))
}

/// A pod on a VLAN whose kernel leaves checksums to the device as one of a new pod does, on a node whose uplink writes them.
fn pod(node: &Node, identity: Identity) -> Result<Pod> {
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    node.namespace.tx_checksum_off("up0")?;
    let mut pod = node.pod(&green, HERE)?;
    if !node.datapath.borrow().port_requirements().disable_tx_offload {
        pod.namespace.output("ethtool", &["-K", "eth0", "tx", "on"])?;
    }
    if let Object::Local(local) = &pod.object {
        pod.object = Object::Local(Local { identity: Some(identity), ..local.clone() });
    }
    node.add([Object::Network(green.clone()), group(identity)?, remote(&green, THERE, None)])?;
    node.add([pod.object.clone()])?;
    Ok(pod)
}

/// Sets the interface of the pod down and up, and gives the switch time to notice.
fn reopen(pod: &Pod) -> Result<()> {
    for state in ["down", "up"] {
        pod.namespace.ip(&format!("link set eth0 {state}"))?;
        std::thread::sleep(REACTION);
    }
    Ok(())
}

/// The next datagram on the wire, without its tag.
fn next_datagram(wire: &Tap) -> Result<Vec<u8>> {
    const UDP: u8 = 17;
    wire.expect(SOON, "a datagram", |bytes| {
        let frame = [bytes.get(..12)?, bytes.get(12 + TAG_LEN..)?].concat();
        let protocol = match frame.get(12..14)? {
            [8, 0] => frame.get(23)?,
            [0x86, 0xdd] => frame.get(20)?,
            _ => return None,
        };
        (*protocol == UDP).then_some(frame)
    })
}

fn malformed(node: &Node) -> u64 {
    let drops = node.datapath.borrow().stats().drops;
    drops.iter().find(|(reason, _)| *reason == "malformed").map_or(0, |(_, count)| *count)
}

/// What leaves the node is what was evaluated, whatever the sender has told the kernel to write.
fn assert_checked(node: &Node, pod: &Pod, wire: &Tap) -> Result<()> {
    let sender = OffloadSender::open(&pod.namespace, "eth0")?;
    let attempts = [
        ("the destination port", query(), V4, PORT),
        ("the destination port over IPv6", query6(), V6, PORT),
        ("the source address", query(), IP, SOURCE),
        ("the IPv6 source address", query6(), IP, SOURCE_6),
    ];
    wire.drain()?;
    let before = malformed(node);
    for (what, packet, start, offset) in &attempts {
        sender.send(&packet.build(), *start, *offset).context(*what)?;
    }
    if kind() == DatapathType::System {
        wait_until(SOON, "the frames to be dropped", || {
            let dropped = malformed(node) - before;
            ensure!(dropped <= attempts.len() as u64, "{dropped} frames are dropped");
            Ok((dropped == attempts.len() as u64).then_some(()))
        })?;
    }
    // Nothing of it is on the wire before frames that are sent afterwards, with the sum of nothing in the place of the checksum.
    for (packet, start) in [(query(), V4), (query6(), V6)] {
        sender.send(&packet.build(), start, CHECKSUM)?;
        let (seen, sent) = (next_datagram(wire)?, packet.build());
        let checksum = usize::from(start + CHECKSUM)..usize::from(start + CHECKSUM) + 2;
        let without = |frame: &[u8]| [&frame[..checksum.start], &frame[checksum.end..]].concat();
        assert_eq!(without(&seen), without(&sent));
    }
    Ok(())
}

#[test]
fn checksums_are_written_only_where_nothing_is_evaluated() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ethtool"));
    let (node, _outside, wire) = Node::with_uplink("sums")?;
    let identity = Identity::try_from(7)?;
    let pod = pod(&node, identity)?;
    assert_checked(&node, &pod, &wire).context("a new pod")?;

    // The switch replaces what is attached to the interface.
    let Object::Group(group) = group(identity)? else { unreachable!() };
    let rate = Some(Rate { bits_per_second: 10_000_000, burst_bytes: 100_000 });
    node.add([Object::Group(Group { rate, ..group })])?;
    assert_checked(&node, &pod, &wire).context("a pod with a rate")?;

    // The switch looks at all of its ports again after an event of a link.
    reopen(&pod)?;
    if KernelVersion::current()? < KernelVersion::new(6, 6, 0) {
        // There is no TCX: the switch has removed the filter.
        node.converge()?;
    }
    assert_checked(&node, &pod, &wire).context("a pod that has set its interface down and up")?;

    node.restart_agent();
    assert_eq!(node.converge()?, []);
    assert_checked(&node, &pod, &wire).context("an agent that has restarted")?;

    node.switch.borrow_mut().kill_vswitchd()?;
    assert!(node.resync_needed(SOON));
    node.switch.borrow_mut().start_vswitchd()?;
    node.converge()?;
    assert_checked(&node, &pod, &wire).context("a switch that has restarted")
}
