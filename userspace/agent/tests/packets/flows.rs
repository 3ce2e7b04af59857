//! Connection tracking: which flows are tracked and for how long, and anti-spoofing.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use aya::{
    maps::{HashMap, Map, MapData},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use contiv_abi::{
    DropReason, Flow, FlowKey, TimedFlow,
    maps::{FLOWS, FROM_POD, NEW_FLOWS, NEW_FLOWS_CAPACITY},
};
use contiv_model::mac::Mac;
use netplugin::datapath::{Datapath as _, Object, ebpf::Options};
use testkit::{
    needs,
    packet::{BROADCAST, Packet, mac, tcp_flags},
    wait_until,
};

use crate::{
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Outcome, run},
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const TIMEOUT: Duration = Duration::from_secs(10);

struct Rig {
    node: Node,
    first: Pod,
    second: Pod,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        Rig::with(label, |_| {})
    }

    fn with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
        let mut node = Node::with(label, adjust)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1).want_peer(2).want(Object::Remote(FAR.remote(&n1, Some(vtep(2)))));
        let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
        node.converge()?;
        Ok(Rig { node, first, second })
    }

    fn from(&self, pod: &Pod, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &pod.local.port, &frame.build())
    }

    fn map(&self, name: &str) -> PathBuf {
        self.node.datapath.maps_directory().join(name)
    }

    /// Tracked established flows.
    fn answered(&self) -> Result<Vec<(FlowKey, Flow)>> {
        let map: HashMap<MapData, FlowKey, TimedFlow> =
            Map::from_map_data(MapData::from_pin(self.map(FLOWS))?)?.try_into()?;
        Ok(map
            .iter()
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .map(|(key, timed)| (key, timed.flow))
            .collect())
    }

    fn young(&self) -> Result<usize> {
        let map: HashMap<MapData, FlowKey, Flow> =
            Map::from_map_data(MapData::from_pin(self.map(NEW_FLOWS))?)?.try_into()?;
        Ok(map.keys().count())
    }

    fn event(&self, name: &str) -> u64 {
        self.node.datapath.inspect()["flows"][name].as_u64().unwrap()
    }

    /// One packet in each direction.
    fn exchange(&self, there: &Packet, back: &Packet) -> Result<()> {
        self.from(&self.first, there)?.assert_sent_on(&there.build());
        self.from(&self.second, back)?.assert_sent_on(&back.build());
        Ok(())
    }
}

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

fn tcp(from: (Endpoint, u16), to: (Endpoint, u16), flags: u8) -> Packet {
    between(from.0, to.0).tcp(from.1, to.1, flags)
}

#[test]
fn a_flow_counts_both_directions_and_is_established_once() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-count")?;
    let (there, back) = (between(HERE, OTHER).udp(5, 6), between(OTHER, HERE).udp(6, 5).payload(b"longer"));
    rig.from(&rig.first, &there)?.assert_sent_on(&there.build());
    assert_eq!((rig.young()?, rig.answered()?.len()), (1, 0));
    rig.from(&rig.first, &there)?.assert_sent_on(&there.build());
    rig.exchange(&there, &back)?;
    rig.exchange(&there, &back)?;
    let answered = rig.answered()?;
    let [(_, flow)] = &answered[..] else { panic!("{answered:?}") };
    assert_eq!(rig.young()?, 0);
    assert_eq!(flow.packets, [4, 2]);
    assert_eq!(flow.bytes, [4 * there.build().len() as u64, 2 * back.build().len() as u64]);
    assert_eq!((rig.event("made"), rig.event("answered"), rig.event("full")), (1, 1, 0));
    Ok(())
}

#[test]
fn an_idle_flow_expires() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-silent", |options| options.timeouts.udp = 1)?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    assert_eq!(rig.answered()?.len(), 1);
    // Flows expire without an agent and without packets.
    wait_until(TIMEOUT, "the timer", || Ok(rig.answered()?.is_empty().then_some(())))?;
    assert_eq!(rig.event("expired"), 1);
    Ok(())
}

#[test]
fn a_closed_connection_expires_sooner() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-close", |options| options.timeouts.tcp_closing = 1)?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    let open = |port| {
        let client = (HERE, port);
        rig.exchange(
            &tcp(client, server, tcp_flags::SYN),
            &tcp(server, client, tcp_flags::SYN | tcp_flags::ACK),
        )
    };
    open(5)?;
    open(7)?;
    let fin = tcp_flags::FIN | tcp_flags::ACK;
    rig.exchange(&tcp(client, server, fin), &tcp(server, client, fin))?;
    wait_until(TIMEOUT, "the timer", || Ok((rig.answered()?.len() == 1).then_some(())))?;
    assert_eq!(rig.answered()?[0].0.low_port.get(), 7);
    // The ports of a closed connection may be reused at once, as a new connection.
    let rst = tcp((HERE, 7), server, tcp_flags::RST);
    rig.from(&rig.first, &rst)?.assert_sent_on(&rst.build());
    open(7)?;
    assert_eq!(rig.event("reused"), 1);
    Ok(())
}

#[test]
fn a_connection_reuses_the_entry_of_a_closed_one_with_the_same_ports() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-reuse")?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    let (syn, rst) = (tcp(client, server, tcp_flags::SYN), tcp(client, server, tcp_flags::RST));
    let syn_ack = tcp(server, client, tcp_flags::SYN | tcp_flags::ACK);
    for _ in 0..2 {
        rig.exchange(&syn, &syn_ack)?;
        rig.from(&rig.first, &rst)?.assert_sent_on(&rst.build());
    }
    let [(_, flow)] = rig.answered()?[..] else { panic!("one flow") };
    assert_eq!((flow.packets, flow.tcp, flow.flags), ([2, 1], [Flow::RST, 0], 0));
    assert_eq!((rig.event("made"), rig.event("answered"), rig.event("reused")), (2, 2, 1));
    // An unreplied connection.
    rig.from(&rig.first, &syn)?.assert_sent_on(&syn.build());
    let [(_, flow)] = rig.answered()?[..] else { panic!("one flow") };
    assert_eq!((flow.packets, flow.tcp, flow.flags), ([1, 0], [0, 0], Flow::OPENING));
    assert_eq!(rig.young()?, 0);
    // From the other end it is a new connection.
    rig.exchange(&syn, &syn_ack)?;
    rig.from(&rig.first, &rst)?.assert_sent_on(&rst.build());
    let syn = tcp(server, client, tcp_flags::SYN);
    rig.from(&rig.second, &syn)?.assert_sent_on(&syn.build());
    rig.from(&rig.first, &tcp(client, server, tcp_flags::SYN | tcp_flags::ACK))?;
    let [(key, flow)] = rig.answered()?[..] else { panic!("one flow") };
    assert_eq!((key.original(flow.origin_is_low != 0).source_port.get(), flow.packets), (6, [1, 1]));
    Ok(())
}

#[test]
fn a_reused_entry_expires_when_it_stays_unreplied() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-reuse-un", |options| {
        (options.timeouts.tcp_closing, options.timeouts.tcp_opening) = (2, 1);
    })?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    let syn = tcp(client, server, tcp_flags::SYN);
    rig.exchange(&syn, &tcp(server, client, tcp_flags::SYN | tcp_flags::ACK))?;
    rig.from(&rig.first, &tcp(client, server, tcp_flags::RST))?;
    rig.from(&rig.first, &syn)?.assert_sent_on(&syn.build());
    wait_until(TIMEOUT, "the timer", || Ok(rig.answered()?.is_empty().then_some(())))
}

/// Runs the program once per frame, without reading counters in between.
fn flood(rig: &Rig, frames: impl Iterator<Item = Vec<u8>> + Send) -> Result<()> {
    let ifindex = rig.node.ifindex(&rig.first.local.port)?;
    let pin = rig.node.pin(FROM_POD);
    rig.node.ns.run(|| {
        let program = SchedClassifier::from_pin(&pin)?;
        let mut context = [0; 192];
        context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
        for frame in frames {
            program.test_run(TestRunOptions {
                data_in: Some(&frame),
                ctx_in: Some(&context),
                ..TestRunOptions::new()
            })?;
        }
        Ok(())
    })
}

#[test]
fn a_flood_of_new_flows_evicts_no_established_flow() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-flood")?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    let before = rig.answered()?;
    let count = NEW_FLOWS_CAPACITY as u32 + 5000;
    let started = Instant::now();
    flood(&rig, (0..count).map(|n| between(HERE, OTHER).udp(n as u16, (n >> 16) as u16 + 100).build()))?;
    println!("{count} new flows in {:?}", started.elapsed());
    assert_eq!(rig.answered()?, before);
    assert!(rig.young()? <= NEW_FLOWS_CAPACITY);
    assert_eq!(rig.event("made"), u64::from(count) + 1);
    // The existing connection continues.
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    assert_eq!(rig.answered()?[0].1.packets, [2, 2]);
    Ok(())
}

#[test]
fn packets_pass_when_the_flow_table_is_full() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-full", |options| options.flows = 4)?;
    for port in 0..10 {
        for _ in 0..2 {
            rig.exchange(&between(HERE, OTHER).udp(port, 6), &between(OTHER, HERE).udp(6, port))?;
        }
    }
    assert!(rig.answered()?.len() <= 4);
    assert!(rig.event("full") >= 6, "{}", rig.event("full"));
    assert_eq!(rig.event("made"), 10);
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

#[test]
fn the_flow_table_is_resized_only_when_it_is_empty() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("ct-size", |options| (options.flows, options.timeouts.udp) = (64, 1))?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    rig.node.options.flows = 128;
    rig.node.restart();
    rig.node.observe()?;
    let size = |rig: &Rig| Ok::<_, anyhow::Error>(MapData::from_pin(rig.map(FLOWS))?.info()?.max_entries());
    assert_eq!(size(&rig)?, 64, "established connections keep their entries");
    let reported = rig.node.datapath.warnings().concat();
    let why = "connections: capacity 64 instead of 128 (--conntrack-max) until the map ctv_ct is empty";
    assert!(reported.starts_with(why) && reported.contains("netplugin cleanup"), "{reported}");
    // Forwarding continues meanwhile, and nothing is written.
    rig.from(&rig.first, &between(HERE, OTHER).udp(5, 6))?;
    assert_eq!((rig.answered()?.len(), rig.node.datapath.writes()), (1, 0));
    wait_until(TIMEOUT, "the timer", || Ok(rig.answered()?.is_empty().then_some(())))?;
    // The agent detects it with the next `observe`, without a restart.
    rig.node.converge()?;
    assert_eq!(size(&rig)?, 128);
    assert_eq!(rig.node.datapath.warnings(), Vec::<String>::new());
    rig.exchange(&between(HERE, OTHER).udp(7, 6), &between(OTHER, HERE).udp(6, 7))?;
    assert_eq!(rig.answered()?.len(), 1, "the programs use the new one");
    rig.node.restart();
    rig.node.observe()?;
    assert_eq!(rig.node.datapath.writes(), 0);
    Ok(())
}

#[test]
fn a_pod_sends_only_with_its_own_addresses() -> Result<()> {
    needs!(root());
    let rig = Rig::new("spoof")?;
    let dropped = |frame: Packet, reason| -> Result<()> {
        rig.from(&rig.first, &frame)?.assert_dropped(reason);
        Ok(())
    };
    let (spoofed_mac, spoofed_ip) = (DropReason::SpoofedMac, DropReason::SpoofedIp);
    dropped(Packet::eth(FAR.mac(), OTHER.mac()).ipv4(HERE.ip(), FAR.ip()).udp(1, 2), spoofed_mac)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv4(OTHER.ip(), FAR.ip()).udp(1, 2), spoofed_ip)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv6(OTHER.ip6(), FAR.ip6()).udp(1, 2), spoofed_ip)?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv4([0, 0, 0, 0], FAR.ip()).udp(1, 2), spoofed_ip)?;
    let foreign: std::net::Ipv6Addr = "fe80::1".parse()?;
    dropped(Packet::eth(FAR.mac(), HERE.mac()).ipv6(foreign, FAR.ip6()).udp(1, 2), spoofed_ip)?;
    dropped(
        Packet::eth(FAR.mac(), HERE.mac()).ipv6(foreign, FAR.ip6()).icmpv6_echo_request(1, 1),
        spoofed_ip,
    )?;
    // The address that the pod's kernel forms.
    let link_local = Mac(HERE.mac()).link_local();
    // ARP requests and replies with the address of another endpoint.
    dropped(Packet::arp_request(HERE.mac(), OTHER.ip(), FAR.ip()), spoofed_ip)?;
    dropped(Packet::arp_reply(HERE.mac(), OTHER.ip(), FAR.mac(), FAR.ip()), spoofed_ip)?;
    dropped(
        Packet::eth(BROADCAST, HERE.mac()).arp(2, (OTHER.mac(), HERE.ip()), (FAR.mac(), FAR.ip())),
        spoofed_ip,
    )?;
    // ND with the address of another endpoint.
    let claim =
        Packet::neighbour_advertisement((FAR.mac(), FAR.ip6()), (HERE.mac(), OTHER.ip6()), HERE.mac(), 0);
    dropped(claim, spoofed_ip)?;
    let claim =
        Packet::neighbour_advertisement((FAR.mac(), FAR.ip6()), (HERE.mac(), HERE.ip6()), HERE.mac(), 0)
            .build();
    let outcome = run(&rig.node, FROM_POD, &rig.first.local.port, &claim)?;
    outcome.assert_sent_on(&claim);
    let mut claim = claim;
    claim[62..78].copy_from_slice(&OTHER.ip6().octets());
    run(&rig.node, FROM_POD, &rig.first.local.port, &claim)?.assert_dropped(spoofed_ip);
    // Packets of a stack without an address: broadcasts, and link-local ICMPv6.
    let ask = Packet::eth(BROADCAST, HERE.mac()).ipv4([0, 0, 0, 0], [255, 255, 255, 255]).udp(68, 67);
    rig.from(&rig.first, &ask)?.assert_flooded();
    let report = Packet::eth(mac("33:33:00:00:00:16"), HERE.mac())
        .ipv6(link_local, "ff02::16".parse::<std::net::Ipv6Addr>()?);
    rig.from(&rig.first, &report.icmpv6(143, 0, [0; 4]))?.assert_flooded();
    let ping = Packet::eth(FAR.mac(), HERE.mac()).ipv6(link_local, FAR.ip6()).icmpv6_echo_request(1, 1);
    rig.from(&rig.first, &ping)?.assert_sent_on(&ping.build());
    Ok(())
}

#[test]
fn extension_headers_are_parsed_up_to_a_limit() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ext")?;
    let chain = |count: usize| {
        let udp = Packet::bare().ipv6(HERE.ip6(), OTHER.ip6()).udp(1, 2).build();
        let mut payload = vec![];
        for left in (0..count).rev() {
            payload.extend([if left > 0 { 60 } else { 17 }, 0, 1, 4, 0, 0, 0, 0]);
        }
        payload.extend(&udp[40..]);
        let next = if count > 0 { 60 } else { 17 };
        Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6()).protocol(next).payload(&payload)
    };
    for count in 0..=4 {
        rig.from(&rig.first, &chain(count))?.assert_sent_on(&chain(count).build());
    }
    assert_eq!(rig.young()?, 1, "all of them are the same flow");
    rig.from(&rig.first, &chain(5))?.assert_dropped(DropReason::TooManyHeaders);
    Ok(())
}
