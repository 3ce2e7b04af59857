//! Packets whose length contradicts their header: the kernel's switch takes sound packets for them until it decides again.

use std::{thread, time::Duration};

use anyhow::Result;
use contiv_model::global::ArpMode;
use netplugin::datapath::Object;
use testkit::{capture::Tap, needs, packet::Packet, wait_until};

use crate::node::{Node, Pod, SOON, addresses, network, vlan, vxlan};

/// Table of the flows that expire, and the action of those that drop what is misread.
const EXPIRING: &str = "table=60";
const LEARNS: &str = "learn(table=60";
/// Protocols: nothing behind the header (RFC 8200), and one for experiments (RFC 3692).
const NO_NEXT_HEADER: u8 = 59;
const EXPERIMENTAL: u8 = 253;
/// Between datagrams: they keep what the switch has decided for them in use.
const PAUSE: Duration = Duration::from_millis(50);

struct Talk<'a> {
    one: &'a Tap,
    two: &'a Tap,
    headers: Packet,
    number: u32,
}

impl Talk<'_> {
    /// Sends datagrams until one arrives.
    fn passes(&mut self, what: &str) -> Result<()> {
        wait_until(SOON, what, || {
            self.number += 1;
            let text = [b"sound".as_slice(), &self.number.to_be_bytes()].concat();
            self.one.send(&self.headers.clone().udp(4000, 5000).payload(&text).build())?;
            thread::sleep(PAUSE);
            let has_arrived = self.two.drain()?.iter().any(|frame| frame.bytes.ends_with(&text));
            Ok(has_arrived.then_some(()))
        })
    }
}

fn talk<'a>(taps: &'a [Tap; 2], pods: &[Pod; 2], is_ipv4: bool) -> Talk<'a> {
    let [(here, here6), (there, there6)] = [1, 2].map(addresses);
    let ethernet = Packet::eth(pods[1].mac, pods[0].mac);
    let headers = if is_ipv4 { ethernet.ipv4(here, there) } else { ethernet.ipv6(here6, there6) };
    Talk { one: &taps[0], two: &taps[1], headers, number: 0 }
}

/// The kernel takes fragments with false extension headers for such packets.
#[test]
fn packets_with_no_next_header_are_dropped() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("misn", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    let taps = [Tap::open(&pods[0].namespace, "eth0")?, Tap::open(&pods[1].namespace, "eth0")?];
    let mut talk = talk(&taps, &pods, false);
    let ends = |protocol: u8| talk.headers.clone().protocol(protocol).payload(b"the end").build();
    talk.one.send(&ends(NO_NEXT_HEADER))?;
    talk.one.send(&ends(EXPERIMENTAL))?;
    wait_until(SOON, "the one of another protocol arrives", || {
        let arrived: Vec<_> =
            talk.two.drain()?.into_iter().filter(|f| f.bytes.ends_with(b"the end")).collect();
        assert!(arrived.iter().all(|frame| frame.bytes[20] == EXPERIMENTAL), "{arrived:?}");
        Ok((!arrived.is_empty()).then_some(()))
    })?;
    talk.passes("a datagram")
}

#[test]
fn sound_packets_pass_again_after_misread_ones() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap, bridge) in
        [("misx", vxlan(5000), "contivVxlanBridge"), ("misl", vlan(100), "contivVlanBridge")]
    {
        let node = Node::new(label, &[])?;
        node.converge()?;
        let blue = network("blue", encap, ArpMode::Proxy);
        node.add([Object::Network(blue.clone())])?;
        let pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
        let taps = [Tap::open(&pods[0].namespace, "eth0")?, Tap::open(&pods[1].namespace, "eth0")?];
        let before = node.tables()?;
        for is_ipv4 in [true, false] {
            let mut talk = talk(&taps, &pods, is_ipv4);
            talk.passes("a datagram")?;
            let (length, header) = if is_ipv4 { (16..18, 20) } else { (18..20, 0) };
            // Longer than the frame, and as long as the header.
            for false_length in [u16::MAX, header] {
                let mut misread = talk.headers.clone().udp(4000, 5000).payload(b"misread").build();
                misread[length.clone()].copy_from_slice(&false_length.to_be_bytes());
                talk.one.send(&misread)?;
                talk.passes("a datagram after a misread one")?;
            }
        }
        wait_until(SOON, "those of both families are counted", || {
            let flows = node.switch.borrow().ofctl("dump-flows", bridge, &[])?;
            let dropped =
                flows.lines().filter(|flow| flow.contains(LEARNS) && !flow.contains("n_packets=0,"));
            Ok((dropped.count() >= 2).then_some(()))
        })?;
        // What the switch has learned is no flow of the agent, and not one that it misses.
        let learned = || node.switch.borrow().ofctl("dump-flows", bridge, &["--no-stats", EXPIRING]);
        assert_eq!(node.converge()?, []);
        wait_until(SOON, "what was learned has expired", || {
            Ok((!learned()?.contains("priority")).then_some(()))
        })?;
        assert_eq!(node.tables()?, before);
    }
    Ok(())
}
