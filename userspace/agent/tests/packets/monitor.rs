//! What the programs tell of packets.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use contiv_abi::maps::FROM_POD;
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{
    Datapath as _, Object, Op,
    telemetry::{PacketEvent, Tag},
};
use testkit::{needs, packet::Packet};
use tokio::time::timeout;

use crate::{
    node::{Node, Pod, Who, network, runtime, vxlan},
    policy,
    run::{Target, run},
};

const HERE: Who = Who(1);
const OTHER: Who = Who(2);
const SOON: Duration = Duration::from_secs(5);

fn rig(label: &str) -> Result<(Node, Pod, Pod)> {
    let mut node = Node::new(label)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    Ok((node, first, second))
}

/// Sends frames while somebody watches; what is seen, and how much was lost.
fn seen(node: &Node, port: &str, frames: &[Vec<u8>], expected: usize) -> Result<(Vec<PacketEvent>, u64)> {
    let watcher = node.datapath.telemetry().context("the datapath tells nothing")?;
    node.ns.run(|| {
        runtime()?.block_on(async {
            let mut sightings = watcher.subscribe()?;
            for frame in frames {
                run(node, FROM_POD, port, frame)?;
            }
            let mut seen = vec![];
            while seen.len() < expected {
                seen.push(timeout(SOON, sightings.next()).await.context("it is not told")??);
            }
            let lost = sightings.lost()?;
            Ok((seen, lost))
        })
    })
}

fn udp(source: [u8; 6], port: u16) -> Vec<u8> {
    Packet::eth(OTHER.mac(), source).ipv4(HERE.ip(), OTHER.ip()).udp(port, 53).payload(b"query").build()
}

#[test]
fn drops_and_flows_are_told_with_their_ends() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see")?;
    let ip6 = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(OTHER.ip6(), HERE.ip6()).tcp(7, 80, 2).build();
    let stp = Packet::eth([1, 0x80, 0xc2, 0, 0, 0], HERE.mac()).payload(&[0; 46]).build();
    let frames = [udp(HERE.mac(), 4000), udp(HERE.mac(), 4000), udp(OTHER.mac(), 4000), ip6, stp];
    let (seen, lost) = seen(&node, &first.local.port, &frames, 4)?;
    assert_eq!(lost, 0);
    let ends = |of: &PacketEvent| [(of.source.ip, of.source.port), (of.destination.ip, of.destination.port)];
    let (here, other): (IpAddr, IpAddr) = (first.ip(), OTHER.ip().into());
    // A flow once, however many packets it has.
    let flow = &seen[0];
    assert_eq!((flow.dropped, flow.protocol, flow.ethertype), (None, 17, 0x0800));
    assert_eq!(ends(flow), [(Some(here), 4000), (Some(other), 53)]);
    assert_eq!((flow.tag, flow.backend), (Some(Tag::Vxlan(10_001)), None));
    // Dropped before it was read: it is read for who watches.
    let spoofed = &seen[1];
    assert_eq!((spoofed.dropped, ends(spoofed)), (Some("spoofed-mac"), ends(flow)));
    assert_eq!((spoofed.source.mac.0, spoofed.len), (OTHER.mac(), u32::try_from(frames[2].len())?));
    assert_eq!(spoofed.interface.as_deref(), Some(&first.local.port[..]));
    let spoofed = &seen[2];
    assert_eq!((spoofed.dropped, spoofed.protocol), (Some("spoofed-ip"), 6));
    let ip6 = |who: Who| Some(IpAddr::from(who.ip6()));
    assert_eq!(ends(spoofed), [(ip6(OTHER), 7), (ip6(HERE), 80)]);
    let other = &seen[3];
    assert_eq!((other.dropped, other.protocol), (Some("link-local-group"), 0));
    assert_eq!(ends(other), [(None, 0), (None, 0)]);
    Ok(())
}

/// The only rule of the receiver's group.
fn govern(node: &mut Node, id: &str, action: Action) -> Result<()> {
    let group = policy::group(2, vec![policy::rule(id, Direction::In, action, 10)]);
    let failed = node.apply(&[Op::Set(Object::Group(group))])?;
    anyhow::ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}

#[test]
fn a_drop_tells_the_rule_also_of_a_flow_that_was_let_through() -> Result<()> {
    needs!(root());
    let mut node = Node::new("see-rule")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let (first, _second) = (policy::pod(&mut node, &n1, HERE, 1)?, policy::pod(&mut node, &n1, OTHER, 2)?);
    node.converge()?;
    let frame = udp(HERE.mac(), 4000);
    let (flow, _) = seen(&node, &first.local.port, std::slice::from_ref(&frame), 1)?;
    assert_eq!((flow[0].dropped, &flow[0].rules[..]), (None, &[][..]));
    // The rule comes when the flow is there.
    govern(&mut node, "keep-out", Action::Deny)?;
    let new = udp(HERE.mac(), 4001);
    let (drops, _) = seen(&node, &first.local.port, &[frame, new], 2)?;
    for (drop, port) in drops.iter().zip([4000, 4001]) {
        assert_eq!((drop.dropped, drop.source.port), (Some("policy"), port));
        assert_eq!(drop.rules, ["keep-out".into()]);
    }
    govern(&mut node, "come-in", Action::Allow)?;
    let (flow, _) = seen(&node, &first.local.port, &[udp(HERE.mac(), 4002)], 1)?;
    assert_eq!((flow[0].dropped, &flow[0].rules[..]), (None, &["come-in".into()][..]));
    Ok(())
}

#[test]
fn a_flood_is_told_in_part_and_counted() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see-flood")?;
    let watcher = node.datapath.telemetry().context("the datapath tells nothing")?;
    let frame = udp(OTHER.mac(), 1);
    let target = Target::new(&node, FROM_POD, &first.local.port)?;
    const FLOOD: u64 = 3000;
    node.ns.run(|| {
        runtime()?.block_on(async {
            let mut sightings = watcher.subscribe()?;
            for _ in 0..FLOOD {
                target.give(&frame)?;
            }
            let mut told = 0;
            while timeout(Duration::from_millis(50), sightings.next()).await.is_ok() {
                told += 1;
            }
            // The lease may have run out on a slow machine, and then nobody counts either.
            assert!(told > 0 && told + sightings.lost()? <= FLOOD, "{told} and {}", sightings.lost()?);
            Ok(())
        })
    })
}

#[test]
fn nothing_is_told_to_nobody() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see-not")?;
    // Somebody was there, and is gone.
    seen(&node, &first.local.port, &[udp(HERE.mac(), 1)], 1)?;
    for port in 2..10 {
        run(&node, FROM_POD, &first.local.port, &udp(HERE.mac(), port))?;
    }
    let (seen, lost) = seen(&node, &first.local.port, &[udp(HERE.mac(), 100)], 1)?;
    assert_eq!((seen[0].source.port, seen.len(), lost), (100, 1, 0));
    // Flows are remembered, and none of them is to a service.
    assert!(node.datapath.telemetry().context("no watcher")?.connections()?.is_empty());
    Ok(())
}
