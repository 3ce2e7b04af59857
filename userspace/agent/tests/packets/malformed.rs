//! Truncated frames.

use std::time::Duration;

use anyhow::Result;
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_UPLINK},
};
use testkit::{
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vxlan},
    run::{Code, run},
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
/// Length of an Ethernet header, which neither a test run nor a packet socket accepts alone.
const SHORTEST: usize = 15;
/// Length of Ethernet and IP headers: a test run refuses shorter frames, so these are sent on a link.
const WHOLE_IPV4: usize = 14 + 20;
const WHOLE_IPV6: usize = 14 + 40;
const TIMEOUT: Duration = Duration::from_secs(5);

struct Rig {
    node: Node,
    first: Pod,
    _second: Pod,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        let mut node = Node::new(label)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1);
        let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
        node.converge()?;
        Ok(Rig { node, first, _second: second })
    }

    /// Runs all lengths from `shortest` on: malformed until the request is complete, then answered.
    fn assert_answered_from(&self, frame: &[u8], shortest: usize, complete: usize) -> Result<()> {
        for length in shortest..=frame.len() {
            let outcome = run(&self.node, FROM_POD, &self.first.local.port, &frame[..length])?;
            if length < complete {
                outcome.assert_dropped(DropReason::Malformed);
            } else {
                assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]), "{length} bytes");
            }
        }
        Ok(())
    }
}

#[test]
fn truncated_requests_are_handled() -> Result<()> {
    needs!(root());
    let rig = Rig::new("short-ask")?;
    let arp = Packet::arp_request(HERE.mac(), HERE.ip(), OTHER.ip()).build();
    rig.assert_answered_from(&arp, SHORTEST, arp.len())?;
    let solicitation = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), OTHER.ip6()).build();
    rig.assert_answered_from(&solicitation, WHOLE_IPV6, solicitation.len())?;
    Ok(())
}

#[test]
fn arbitrary_ip_headers_are_handled() -> Result<()> {
    needs!(root());
    let rig = Rig::new("short-ip")?;
    let sender = Tap::open(&rig.first.ns, "eth0")?;
    let solicitation = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), OTHER.ip6()).build();
    // Without next header and hop limit, the kind of packet is unknown.
    const READABLE: usize = 14 + 8;
    for length in SHORTEST..READABLE {
        sender.send(&solicitation[..length])?;
        let count = u64::try_from(length + 1 - SHORTEST)?;
        let counted = || Ok((rig.node.drops()?.get(&DropReason::Malformed) == Some(&count)).then_some(()));
        wait_until(TIMEOUT, "the drop", counted)?;
    }
    let before = rig.node.drops()?.get(&DropReason::Malformed).copied().unwrap_or(0);
    let udp = Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip()).udp(1, 2).build();
    for length in SHORTEST..WHOLE_IPV4 {
        sender.send(&udp[..length])?;
        let count = before + u64::try_from(length + 1 - SHORTEST)?;
        let counted = || Ok((rig.node.drops()?.get(&DropReason::Malformed) == Some(&count)).then_some(()));
        wait_until(TIMEOUT, "the drop", counted)?;
    }
    Ok(())
}

#[test]
fn truncated_frames_are_handled() -> Result<()> {
    needs!(root());
    let rig = Rig::new("short-any")?;
    let to_other = || Packet::eth(OTHER.mac(), HERE.mac());
    // A frame is not shorter than the packet in it.
    for packet in [
        to_other().ipv4(HERE.ip(), OTHER.ip()).udp(1, 2),
        to_other().ipv4(HERE.ip(), OTHER.ip()).ip_options(&[7, 3, 4, 0]).tcp(1, 2, 2),
        to_other().ipv6(HERE.ip6(), OTHER.ip6()).tcp(1, 2, 2),
    ] {
        let frame = packet.build();
        let needed = frame.len();
        for length in WHOLE_IPV4..=frame.len() {
            let frame = &frame[..length];
            // A test run refuses IPv6 packets without the whole header.
            if frame[12] == 0x86 && length < WHOLE_IPV6 {
                continue;
            }
            let outcome = run(&rig.node, FROM_POD, &rig.first.local.port, frame)?;
            if length < needed {
                outcome.assert_dropped(DropReason::Malformed);
            } else {
                outcome.assert_sent_on(frame);
            }
        }
    }
    Ok(())
}

#[test]
fn truncated_tagged_frames_are_handled() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire("short-up")?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1);
    let _pod = node.pod(&n1, HERE)?;
    node.converge()?;
    let (sender, asked) = ((OTHER.mac(), OTHER.ip()), ([0; 6], HERE.ip()));
    let frame = Packet::eth(BROADCAST, OTHER.mac()).vlan(100).arp(1, sender, asked).build();
    for length in SHORTEST..=frame.len() {
        let outcome = run(&node, FROM_UPLINK, "trunk", &frame[..length])?;
        match length {
            // Without the whole tag, the frame is not known to belong to a network.
            ..16 => assert_eq!(outcome.code, Code::Next, "{length} bytes"),
            // The tag cannot be removed, or the rest cannot be parsed.
            16..46 => assert_eq!(outcome.code, Code::Shot, "{length} bytes"),
            _ => assert_eq!(outcome.code, Code::Redirect, "{length} bytes"),
        }
    }
    Ok(())
}
