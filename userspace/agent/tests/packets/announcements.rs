//! Announcements of new endpoints on the VLAN uplink.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::Result;
use netplugin::datapath::{Datapath as _, Object, ObjectId, Op};
use testkit::{capture::Tap, needs, packet::Packet, wait_until};

use crate::node::{Endpoint, Node, network, vlan, vxlan};

const TAG: u16 = 100;
const BROADCAST: [u8; 6] = [0xff; 6];
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until both addresses of an endpoint are announced so often.
fn wait_for(tap: &Tap, seen: &mut BTreeMap<IpAddr, usize>, endpoint: Endpoint, times: usize) -> Result<()> {
    wait_until(TIMEOUT, &format!("{times} announcements of {}", endpoint.ip()), || {
        for frame in tap.drain()? {
            let Some(source) = frame.bytes.get(6..12) else { continue };
            for endpoint in (1..=9).map(Endpoint).filter(|endpoint| endpoint.mac() == source) {
                let (mac, ip) = (endpoint.mac(), endpoint.ip());
                let arp = Packet::eth(BROADCAST, mac).vlan(TAG).arp(2, (mac, ip), (BROADCAST, ip)).build();
                if frame.bytes == arp {
                    *seen.entry(ip.into()).or_default() += 1;
                } else if frame.bytes.get(58) == Some(&136) && frame.bytes.get(62) == Some(&0x20) {
                    *seen.entry(endpoint.ip6().into()).or_default() += 1;
                }
            }
        }
        let reached = |ip: IpAddr| seen.get(&ip).is_some_and(|n| *n >= times);
        Ok((reached(endpoint.ip().into()) && reached(endpoint.ip6().into())).then_some(()))
    })
}

#[test]
fn new_endpoints_are_announced() -> Result<()> {
    needs!(root());
    let (mut node, outside) = Node::on_wire_with("announce", |options| options.announce = true)?;
    let tap = Tap::open(&outside, "wire")?;
    let (green, blue) = (network("n1.t", vlan(TAG)), network("n2.t", vxlan(10_001)));
    node.want_network(&green).want_network(&blue);
    let mut seen = BTreeMap::new();
    let one = node.pod(&green, Endpoint(1))?;
    let _other = node.pod(&blue, Endpoint(5))?;
    node.converge()?;
    wait_for(&tap, &mut seen, Endpoint(1), 2)?;
    // What is in place is not announced again.
    assert!(node.apply(&[Op::Set(Object::Local(one.local.clone()))])?.is_empty());
    node.restart();
    node.converge()?;

    let three = node.pod(&green, Endpoint(3))?;
    node.converge()?;
    wait_for(&tap, &mut seen, Endpoint(3), 1)?;
    let id = ObjectId::Local(three.local.id.clone());
    node.desired.remove(&id);
    assert!(node.apply(&[Op::Delete(id)])?.is_empty());
    // Twice, if the removal was later than the repetition.
    wait_for(&tap, &mut seen, Endpoint(3), 1)?;
    let of_removed = seen.get(&Endpoint(3).ip().into()).copied().unwrap_or(0);
    // The next one is announced twice, so that the time of the repetition has passed.
    let _four = node.pod(&green, Endpoint(4))?;
    node.converge()?;
    wait_for(&tap, &mut seen, Endpoint(4), 2)?;
    let expected = [(1, 2), (3, of_removed), (4, 2)]
        .map(|(n, times)| [(IpAddr::from(Endpoint(n).ip()), times), (Endpoint(n).ip6().into(), times)]);
    assert_eq!(seen, expected.into_iter().flatten().collect());
    // Counted since the restart, behind the frames; services have a counter of their own.
    let count = 2 * (of_removed as u64 + 2);
    wait_until(TIMEOUT, &format!("{count} announcements are counted"), || {
        let stats = node.datapath.stats();
        let counted = |sent| vec![("sent", sent), ("failed", 0), ("left-out", 0)];
        let all = (stats.endpoint_announcements, stats.announcements);
        Ok((all == (counted(count), counted(0))).then_some(()))
    })
}
