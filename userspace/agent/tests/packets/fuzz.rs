//! Malformed frames: every frame has a verdict, and every drop is counted.
//!
//! `cargo xtask bench fuzz` runs a million frames.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_UPLINK},
};
use contiv_model::service::Readiness;
use netplugin::datapath::Object;
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, protocol, solicited_node_mac, tcp_flags, verify},
};

use crate::{
    campaign::Campaign,
    node::{Endpoint, Node, Pod, network, vlan, vxlan},
    run::{Code, Target},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const STRANGER: Endpoint = Endpoint(99);
const VIP: Endpoint = Endpoint(250);
const FRAMES: u64 = 40_000;
/// A test run refuses IPv4 packets without the whole fixed header, and all IPv6 packets that lack theirs.
const SHORTEST: [usize; 3] = [15, 14 + 20, 14 + 40];
/// Number of frames between two checks of the counters.
const BATCH: u64 = 500;

/// SplitMix64: the same frames for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end as u64) as usize
    }

    /// Mutates a frame from offset `keep` on.
    fn mutate(&mut self, frame: &mut Vec<u8>, keep: usize, others: &[Vec<u8>]) {
        const ODD: [u8; 8] = [0, 1, 0x45, 0x60, 0x7f, 0x80, 0xfe, 0xff];
        for _ in 0..=self.below(4) {
            let at = keep + self.below(frame.len() - keep);
            match self.below(7) {
                0 => frame[at] ^= 1 << self.below(8),
                1 => frame[at] = ODD[self.below(ODD.len())],
                2 => frame[at] = self.roll() as u8,
                3 => frame.truncate(at.max(SHORTEST[0])),
                4 => frame.extend((0..self.below(64)).map(|n| n as u8)),
                // Copies the end of another frame to any offset: headers inside headers.
                5 => {
                    let other = &others[self.below(others.len())];
                    let from = self.below(other.len());
                    frame.truncate(at.max(SHORTEST[0]));
                    frame.extend_from_slice(&other[from..]);
                }
                // Length, offset and protocol fields of IP.
                _ => {
                    let field = 14 + self.below(26);
                    if let Some(byte) = frame.get_mut(field) {
                        *byte = self.roll() as u8;
                    }
                }
            }
        }
        frame.truncate(1500);
        // Frames that a test run refuses.
        let whole = match frame.get(12..14) {
            Some([0x08, 0x00]) => SHORTEST[1],
            Some([0x86, 0xdd]) => SHORTEST[2],
            _ => SHORTEST[0],
        };
        while frame.len() < whole {
            frame.push(self.roll() as u8);
        }
    }
}

/// Every chain of headers that the programs parse, and some others.
fn corpus() -> Vec<Vec<u8>> {
    let to = || Packet::eth(OTHER.mac(), HERE.mac());
    let v4 = || to().ipv4(HERE.ip(), OTHER.ip());
    let v6 = || to().ipv6(HERE.ip6(), OTHER.ip6());
    let to_service = || Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip());
    let inner4 = Packet::bare().ipv4(OTHER.ip(), HERE.ip()).udp(53, 4000).payload(b"question").build();
    let inner6 = Packet::bare().ipv6(OTHER.ip6(), HERE.ip6()).tcp(80, 4000, tcp_flags::SYN).build();
    // Hop-by-hop options, a routing header and a fragment header before UDP.
    let chain = [
        &[43, 0, 1, 4, 0, 0, 0, 0][..],
        &[44, 0, 0, 0, 0, 0, 0, 0],
        &[17, 0, 0, 1, 0, 0, 0, 7],
        &[0x0f, 0xa0, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4],
    ]
    .concat();
    [
        v4().udp(4000, 53).payload(b"query"),
        v4().udp_unchecked(4000, 53).payload(b"query"),
        v4().tcp(4000, 80, tcp_flags::SYN),
        v4().tcp(4000, 80, tcp_flags::ACK | tcp_flags::PSH).payload(&[7; 200]),
        v4().ip_options(&[7, 3, 4, 0]).tcp(4000, 80, tcp_flags::RST),
        v4().icmp_echo_request(7, 1).payload(&[1; 56]),
        v4().icmp(3, 4, [0, 0, 5, 0]).payload(&inner4),
        v4().protocol(132).payload(&[0x0f, 0xa0, 0, 80, 0, 0, 0, 0, 1, 2, 3, 4]),
        v4().udp(4000, 53).fragment(7, 0, true).payload(&[1; 64]),
        v4().udp(4000, 53).fragment(7, 64, true).payload(&[1; 64]),
        v4().udp(4000, 53).fragment(9, 128, false).payload(&[1; 64]),
        to_service().tcp(4000, 80, tcp_flags::SYN),
        to_service().udp(4000, 80).payload(b"query"),
        to_service().ip_options(&[7, 3, 4, 0]).udp(4001, 80).payload(b"query"),
        to_service().udp(4002, 80).fragment(11, 0, true).payload(&[1; 64]),
        to_service().tcp(4000, 81, tcp_flags::SYN),
        v6().udp(4000, 53).payload(b"query"),
        v6().tcp(4000, 80, tcp_flags::SYN),
        v6().icmpv6_echo_request(7, 1).payload(&[1; 56]),
        v6().icmpv6(2, 0, [0, 0, 5, 0]).payload(&inner6),
        v6().protocol(0).payload(&chain),
        v6().protocol(protocol::FRAGMENT).payload(&chain[16..]),
        Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), OTHER.ip6()),
        Packet::arp_request(HERE.mac(), HERE.ip(), OTHER.ip()),
        Packet::arp_reply(HERE.mac(), HERE.ip(), OTHER.mac(), OTHER.ip()),
        Packet::eth(BROADCAST, HERE.mac()).ipv4(HERE.ip(), [255; 4]).udp(68, 67).payload(&[0; 64]),
        Packet::eth(solicited_node_mac(OTHER.ip6()), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6()).udp(1, 2),
        Packet::eth(STRANGER.mac(), HERE.mac()).ipv4(HERE.ip(), STRANGER.ip()).udp(1, 2),
        to().vlan(100).ipv4(HERE.ip(), OTHER.ip()).udp(1, 2),
    ]
    .iter()
    .map(Packet::build)
    .collect()
}

/// A node with a network of two pods, and pods of other networks, which must not receive anything.
struct Rig {
    node: Node,
    first: Pod,
    _second: Pod,
    _outside: Netns,
    strangers: Vec<(Pod, Tap)>,
}

impl Rig {
    fn new() -> Result<Rig> {
        let (mut node, outside) = Node::on_wire("fuzz")?;
        let mine = network("n1.t", vxlan(10_001));
        let backends = [HERE, OTHER].map(|endpoint| (endpoint.ip().into(), Readiness::Ready));
        node.want_network(&mine).want(Object::Service(service(VIP.ip().into(), &backends)));
        let (first, second) = (node.pod(&mine, HERE)?, node.pod(&mine, OTHER)?);
        let mut strangers = vec![];
        for other in [network("n2.t", vxlan(10_002)), network("n3.t", vlan(100))] {
            node.want_network(&other);
            let pod = node.pod(&other, OTHER)?;
            let tap = Tap::open(&pod.ns, "eth0")?;
            strangers.push((pod, tap));
        }
        node.converge()?;
        // Drops of what the pods' kernels send, as listeners or in answer to copies of frames, would be counted too.
        for pod in [&first, &second].into_iter().chain(strangers.iter().map(|(pod, _)| pod)) {
            pod.ns.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1")?;
            pod.ns.ip("address flush dev eth0")?;
        }
        Ok(Rig { node, first, _second: second, _outside: outside, strangers })
    }

    /// Number of drops, and of drops whose sender may have received a reply.
    fn counted(&self) -> Result<(u64, u64)> {
        let drops = self.node.drops()?;
        let refused = [DropReason::NoService, DropReason::NoBackend];
        Ok((drops.values().sum(), refused.iter().filter_map(|reason| drops.get(reason)).sum()))
    }

    /// A batch of frames to one known receiver: each is forwarded, answered, or dropped and counted.
    fn batch(&self, target: &Target, dice: &mut Dice, seeds: &[Vec<u8>], keep: usize) -> Result<()> {
        let before = self.counted()?;
        let mut shot = 0;
        let mut last = vec![];
        for _ in 0..BATCH {
            let mut frame = seeds[dice.below(seeds.len())].clone();
            dice.mutate(&mut frame, keep, seeds);
            let (code, out) = target.give(&frame).with_context(|| format!("give {frame:02x?}"))?;
            shot += u64::from(code == Code::Shot);
            if code == Code::Redirect && verify(&frame).is_ok() {
                let result = verify(&out);
                ensure!(result.is_ok(), "{frame:02x?} became {out:02x?}: {result:?}");
            }
            last = frame;
        }
        let (counted, refused) = self.counted()?;
        let (counted, refused) = (counted - before.0, refused - before.1);
        // A flooded frame ends with `TC_ACT_SHOT` after its copies were sent; a frame to a known receiver only if it
        // is dropped.
        let known = seeds.iter().all(|frame| frame[..6] == OTHER.mac()) && keep >= 6;
        ensure!(
            counted <= shot + refused && (!known || counted >= shot),
            "{shot} of {BATCH} frames went no further, {counted} were counted; the last was {last:02x?}"
        );
        Ok(())
    }
}

#[test]
fn every_frame_has_a_verdict_and_every_drop_is_counted() -> Result<()> {
    needs!(root());
    let mut campaign = Campaign::new("FUZZ", FRAMES, Some(1))?;
    let rig = Rig::new()?;
    let seeds = corpus();
    let to = |endpoint: Endpoint| {
        seeds.iter().filter(move |frame| frame[..6] == endpoint.mac()).cloned().collect()
    };
    let (for_one, for_service): (Vec<_>, Vec<_>) = (to(OTHER), to(VIP));
    let tagged: Vec<Vec<u8>> =
        seeds.iter().map(|frame| [&frame[..12], &[0x81, 0, 0, 200], &frame[12..]].concat()).collect();
    let mut dice = Dice(campaign.seed);
    rig.node.ns.run(|| {
        let from_pod = Target::new(&rig.node, FROM_POD, &rig.first.local.port)?;
        let from_uplink = Target::new(&rig.node, FROM_UPLINK, "trunk")?;
        for batch in 0..campaign.cases.div_ceil(BATCH) {
            campaign.progress(batch * BATCH, campaign.seed);
            match batch % 5 {
                // Keep both MAC addresses, so that the frame passes the first checks.
                0 | 1 => rig.batch(&from_pod, &mut dice, &for_one, 12)?,
                2 => rig.batch(&from_pod, &mut dice, &seeds, 0)?,
                // No endpoint has the service's MAC address: other frames to it are flooded.
                3 => rig.batch(&from_pod, &mut dice, &for_service, 12)?,
                // A tag without a network: the host's frame, unless a mutation makes the tag ours.
                _ => rig.batch(&from_uplink, &mut dice, &tagged, 0)?,
            }
        }
        Ok(())
    })?;
    let reasons: BTreeSet<_> = rig.node.drops()?.into_keys().collect();
    campaign.finish(campaign.cases, &format!("drops: {:?}", rig.node.drops()?));
    assert!(reasons.len() >= 6, "only {reasons:?} were met");
    for (pod, tap) in &rig.strangers {
        // From the first network; frames from the uplink may belong to the third by their tag.
        let received = tap.drain()?;
        let theirs = received.iter().filter(|frame| frame.bytes.get(6..12) == Some(&HERE.mac()[..]));
        assert!(pod.local.network.to_string() != "n2.t" || theirs.count() == 0, "{received:02x?}");
    }
    Ok(())
}
