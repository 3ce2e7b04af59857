//! Packet events.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use contiv_abi::{DropReason, maps::FROM_POD};
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{
    Datapath as _, Object, Op,
    telemetry::{PacketEvent, Tag},
};
use testkit::{needs, packet::Packet};
use tokio::time::timeout;

use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vxlan},
    policy,
    run::{Target, run},
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const TIMEOUT: Duration = Duration::from_secs(5);

fn rig(label: &str) -> Result<(Node, Pod, Pod)> {
    let mut node = Node::new(label)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    Ok((node, first, second))
}

/// Sends frames with a subscription. Returns the events and the number of lost events.
fn seen(node: &Node, port: &str, frames: &[Vec<u8>], expected: usize) -> Result<(Vec<PacketEvent>, u64)> {
    let watcher = node.datapath.telemetry().context("the datapath tells nothing")?;
    node.ns.run(|| {
        runtime()?.block_on(async {
            let mut events = watcher.subscribe()?;
            for frame in frames {
                run(node, FROM_POD, port, frame)?;
            }
            let mut seen = vec![];
            while seen.len() < expected {
                seen.push(timeout(TIMEOUT, events.next()).await.context("no event")??);
            }
            let lost = events.lost()?;
            Ok((seen, lost))
        })
    })
}

fn udp(source: [u8; 6], port: u16) -> Vec<u8> {
    Packet::eth(OTHER.mac(), source).ipv4(HERE.ip(), OTHER.ip()).udp(port, 53).payload(b"query").build()
}

#[test]
fn events_of_drops_and_flows_contain_both_addresses() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see")?;
    let ip6 = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(OTHER.ip6(), HERE.ip6()).tcp(7, 80, 2).build();
    let stp = Packet::eth([1, 0x80, 0xc2, 0, 0, 0], HERE.mac()).payload(&[0; 46]).build();
    let frames = [udp(HERE.mac(), 4000), udp(HERE.mac(), 4000), udp(OTHER.mac(), 4000), ip6, stp];
    let (seen, lost) = seen(&node, &first.local.port, &frames, 4)?;
    assert_eq!(lost, 0);
    let ends = |of: &PacketEvent| [(of.source.ip, of.source.port), (of.destination.ip, of.destination.port)];
    let (here, other): (IpAddr, IpAddr) = (first.ip(), OTHER.ip().into());
    // One event per flow, whatever its number of packets.
    let flow = &seen[0];
    assert_eq!((flow.dropped, flow.protocol, flow.ethertype), (None, 17, 0x0800));
    assert_eq!(ends(flow), [(Some(here), 4000), (Some(other), 53)]);
    assert_eq!((flow.tag, flow.backend), (Some(Tag::Vxlan(10_001)), None));
    // Dropped before the programs parse it: they parse it for the event.
    let spoofed = &seen[1];
    assert_eq!((spoofed.dropped, ends(spoofed)), (Some("spoofed-mac"), ends(flow)));
    assert_eq!((spoofed.source.mac.0, spoofed.len), (OTHER.mac(), u32::try_from(frames[2].len())?));
    assert_eq!(spoofed.interface.as_deref(), Some(&first.local.port[..]));
    let spoofed = &seen[2];
    assert_eq!((spoofed.dropped, spoofed.protocol), (Some("spoofed-ip"), 6));
    let ip6 = |endpoint: Endpoint| Some(IpAddr::from(endpoint.ip6()));
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
fn a_drop_event_names_the_rule_also_for_an_established_flow() -> Result<()> {
    needs!(root());
    let mut node = Node::new("see-rule")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let (first, _second) = (policy::pod(&mut node, &n1, HERE, 1)?, policy::pod(&mut node, &n1, OTHER, 2)?);
    node.converge()?;
    let frame = udp(HERE.mac(), 4000);
    let (flow, _) = seen(&node, &first.local.port, std::slice::from_ref(&frame), 1)?;
    assert_eq!((flow[0].dropped, &flow[0].rules[..]), (None, &[][..]));
    // The rule is set after the flow is established.
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

/// Before it is parsed for its event, a frame is known to be dropped: its ports are not those of the fragments that the owner of
/// its source address sends.
#[test]
fn the_event_of_a_spoofed_fragment_is_all_that_is_left_of_it() -> Result<()> {
    needs!(root());
    let mut node = Node::new("see-piece")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let attacker = node.pod(&n1, Endpoint(3))?;
    let (sender, _receiver) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    let headers = |mac: [u8; 6], is_ipv6: bool| {
        let eth = Packet::eth(OTHER.mac(), mac);
        if is_ipv6 { eth.ipv6(HERE.ip6(), OTHER.ip6()) } else { eth.ipv4(HERE.ip(), OTHER.ip()) }
    };
    let cases = [
        (HERE.mac(), false, "spoofed-mac"),
        (HERE.mac(), true, "spoofed-mac"),
        (attacker.endpoint.mac(), false, "spoofed-ip"),
        (attacker.endpoint.mac(), true, "spoofed-ip"),
    ];
    for (id, (mac, is_ipv6, reason)) in (1..).zip(cases) {
        let first = |mac| headers(mac, is_ipv6).fragment(id, 0, true).udp(4000, 53).payload(&[0; 24]);
        let later = headers(HERE.mac(), is_ipv6).protocol(17).fragment(id, 4, false).payload(b"the end");
        let (seen, _) = seen(&node, &attacker.local.port, &[first(mac).build()], 1)?;
        // The parser has read it.
        assert_eq!((seen[0].dropped, seen[0].source.port), (Some(reason), 4000));
        let send = |frame: &Packet| run(&node, FROM_POD, &sender.local.port, &frame.build());
        send(&later)?.assert_dropped(DropReason::UnknownFragment);
        let first = first(HERE.mac());
        send(&first)?.assert_sent_on(&first.build());
        send(&later)?.assert_sent_on(&later.build());
    }
    Ok(())
}

#[test]
fn events_above_the_rate_limit_are_counted_as_lost() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see-flood")?;
    let watcher = node.datapath.telemetry().context("the datapath tells nothing")?;
    let frame = udp(OTHER.mac(), 1);
    let target = Target::new(&node, FROM_POD, &first.local.port)?;
    const FLOOD: u64 = 3000;
    node.ns.run(|| {
        runtime()?.block_on(async {
            let mut events = watcher.subscribe()?;
            for _ in 0..FLOOD {
                target.give(&frame)?;
            }
            let mut reported = 0;
            while timeout(Duration::from_millis(50), events.next()).await.is_ok() {
                reported += 1;
            }
            // On a slow machine the lease may have expired; then lost events are not counted either.
            assert!(reported > 0 && reported + events.lost()? <= FLOOD, "{reported} and {}", events.lost()?);
            Ok(())
        })
    })
}

#[test]
fn without_a_subscriber_there_are_no_events() -> Result<()> {
    needs!(root());
    let (node, first, _second) = rig("see-not")?;
    // The subscription has ended.
    seen(&node, &first.local.port, &[udp(HERE.mac(), 1)], 1)?;
    for port in 2..10 {
        run(&node, FROM_POD, &first.local.port, &udp(HERE.mac(), port))?;
    }
    let (seen, lost) = seen(&node, &first.local.port, &[udp(HERE.mac(), 100)], 1)?;
    assert_eq!((seen[0].source.port, seen.len(), lost), (100, 1, 0));
    // Flows are tracked, none of them to a service.
    assert!(node.datapath.telemetry().context("no telemetry")?.connections()?.is_empty());
    Ok(())
}
