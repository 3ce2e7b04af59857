//! Connection tracking: which flows are tracked and for how long, and anti-spoofing.

use std::{
    path::PathBuf,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use aya::{
    maps::{Map, MapData},
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use contiv_abi::{
    DropReason, Flow,
    maps::FROM_POD,
    tcp::{TcpState, sent},
};
use contiv_model::{mac::Mac, service::Readiness};
use netplugin::datapath::{Datapath as _, Object, ebpf::Options};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use testkit::{
    needs,
    packet::{BROADCAST, Packet, mac, tcp_flags},
    wait_until,
};

use crate::{
    flow_table::{self, slots},
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Code, Outcome, run},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const VIP: Endpoint = Endpoint(250);
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

    fn replied(&self) -> Result<Vec<Flow>> {
        flow_table::replied(&self.node)
    }

    fn unreplied(&self) -> Result<usize> {
        Ok(flow_table::flows(&self.node)?.iter().filter(|flow| !flow.is_replied()).count())
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
    assert_eq!((rig.unreplied()?, rig.replied()?.len()), (1, 0));
    rig.from(&rig.first, &there)?.assert_sent_on(&there.build());
    rig.exchange(&there, &back)?;
    rig.exchange(&there, &back)?;
    let replied = rig.replied()?;
    let [flow] = &replied[..] else { panic!("{replied:?}") };
    assert_eq!(rig.unreplied()?, 0);
    assert_eq!(packets(flow), [4, 2]);
    let bytes = [4 * there.build().len() as u64, 2 * back.build().len() as u64];
    assert_eq!(flow.halves.map(|half| half.bytes), bytes);
    assert_eq!((rig.event("made"), rig.event("answered"), rig.event("full")), (1, 1, 0));
    Ok(())
}

#[test]
fn an_idle_flow_expires() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-silent", |options| options.timeouts.udp = 1)?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    assert_eq!(rig.replied()?.len(), 1);
    // Flows expire without an agent and without packets.
    wait_until(TIMEOUT, "the timer", || Ok(rig.replied()?.is_empty().then_some(())))?;
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
    wait_until(TIMEOUT, "the timer", || Ok((rig.replied()?.len() == 1).then_some(())))?;
    assert_eq!(rig.replied()?[0].client_port.get(), 7);
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
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!((packets(&flow), flow.halves.map(|half| half.sent & sent::RST)), ([2, 1], [sent::RST, 0]));
    assert_eq!((rig.event("made"), rig.event("answered"), rig.event("reused")), (2, 2, 1));
    // An unreplied connection.
    rig.from(&rig.first, &syn)?.assert_sent_on(&syn.build());
    let [flow] = flow_table::flows(&rig.node)?[..] else { panic!("one flow") };
    assert_eq!((packets(&flow), flow.is_replied()), ([1, 0], false));
    // From the other end it is a new connection.
    rig.exchange(&syn, &syn_ack)?;
    rig.from(&rig.first, &rst)?.assert_sent_on(&rst.build());
    let syn = tcp(server, client, tcp_flags::SYN);
    rig.from(&rig.second, &syn)?.assert_sent_on(&syn.build());
    rig.from(&rig.first, &tcp(client, server, tcp_flags::SYN | tcp_flags::ACK))?;
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!((flow.client_port.get(), packets(&flow)), (6, [1, 1]));
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
    wait_until(TIMEOUT, "the timer", || Ok(flow_table::flows(&rig.node)?.is_empty().then_some(())))
}

fn packets(flow: &Flow) -> [u64; 2] {
    flow.halves.map(|half| half.packets)
}

fn flood(rig: &Rig, frames: impl Iterator<Item = Vec<u8>> + Send) -> Result<()> {
    flood_from(rig, &rig.first, frames)
}

/// Runs the program once per frame, without reading counters in between.
fn flood_from(rig: &Rig, pod: &Pod, frames: impl Iterator<Item = Vec<u8>> + Send) -> Result<()> {
    let ifindex = rig.node.ifindex(&pod.local.port)?;
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
    const CAPACITY: u32 = 2048;
    let rig = Rig::with("ct-flood", |options| options.flows = CAPACITY)?;
    let connection = |port| (between(HERE, OTHER).udp(port, 6), between(OTHER, HERE).udp(6, port));
    for port in 1000..1100 {
        let (there, back) = connection(port);
        rig.exchange(&there, &back)?;
    }
    let before = rig.replied()?;
    let count = 5 * CAPACITY;
    let started = Instant::now();
    flood(&rig, (0..count).map(|n| tcp((HERE, n as u16), (OTHER, 7000), tcp_flags::SYN).build()))?;
    println!("{count} new flows in {:?}", started.elapsed());
    assert_eq!(rig.replied()?, before);
    let quota = CAPACITY as usize / 4;
    assert!(rig.unreplied()? <= quota, "{}", rig.unreplied()?);
    assert_eq!(slots(&rig.node)?, 2 * flow_table::flows(&rig.node)?.len(), "each flow has two slots");
    // Existing connections continue, and other endpoints begin new ones.
    let (there, back) = connection(1000);
    rig.exchange(&there, &back)?;
    let flow = rig.replied()?.into_iter().find(|flow| flow.client_port.get() == 1000).unwrap();
    assert_eq!(packets(&flow), [2, 2]);
    let (there, back) = (between(OTHER, HERE).udp(1, 2), between(HERE, OTHER).udp(2, 1));
    rig.from(&rig.second, &there)?.assert_sent_on(&there.build());
    rig.from(&rig.first, &back)?.assert_sent_on(&back.build());
    assert_eq!(rig.replied()?.len(), before.len() + 1);
    Ok(())
}

/// The endpoints of a node take the whole table together; then new flows evict unreplied ones of any endpoint, and established
/// ones stay.
#[test]
fn a_full_table_evicts_unreplied_flows_only() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    let mut rig = Rig::with("ct-evict", |options| options.flows = CAPACITY)?;
    let n1 = network("n1.t", vxlan(10_001));
    let senders: Vec<Pod> =
        (20..25).map(|number| rig.node.pod(&n1, Endpoint(number))).collect::<Result<_>>()?;
    rig.node.converge()?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    let before = rig.replied()?;
    for sender in &senders {
        let frames =
            (0..CAPACITY).map(|n| tcp((sender.endpoint, n as u16), (OTHER, 80), tcp_flags::SYN).build());
        flood_from(&rig, sender, frames)?;
    }
    assert_eq!(rig.replied()?, before);
    assert!(rig.event("evicted") > 0);
    // New connections of the others find room, and become established.
    let mut tracked = 0;
    for port in 100..200 {
        let made = rig.event("made");
        rig.exchange(&between(HERE, OTHER).udp(port, 6), &between(OTHER, HERE).udp(6, port))?;
        tracked += rig.event("made") - made;
    }
    assert!(tracked >= 95, "{tracked} of 100");
    assert_eq!(slots(&rig.node)?, 2 * flow_table::flows(&rig.node)?.len(), "each flow has two slots");
    Ok(())
}

#[test]
fn an_endpoint_uses_at_most_its_share_of_the_table() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    const QUOTA: usize = CAPACITY as usize / 4;
    let rig = Rig::with("ct-quota", |options| {
        options.flows = CAPACITY;
        // However slow the machine is, no flow ends before it is counted.
        (options.timeouts.udp, options.timeouts.unanswered) = (3600, 3600);
    })?;
    let connection = |port| (between(HERE, OTHER).udp(port, 6), between(OTHER, HERE).udp(6, port));
    for port in 0..2 * QUOTA as u16 {
        let (there, back) = connection(port);
        // Packets pass, tracked or not.
        rig.exchange(&there, &back)?;
    }
    let of = |pod: &Pod| -> Result<usize> {
        let owner = rig.node.ifindex(&pod.local.port)?;
        Ok(flow_table::flows(&rig.node)?.iter().filter(|flow| flow.halves[0].owner == owner).count())
    };
    assert_eq!(of(&rig.first)?, QUOTA);
    assert!(rig.event("over-quota") > 0);
    // The endpoint that it talks to has its own share.
    let started = of(&rig.second)?;
    for port in 0..20 {
        let (there, back) = (between(OTHER, HERE).udp(port, 9), between(HERE, OTHER).udp(9, port));
        rig.from(&rig.second, &there)?.assert_sent_on(&there.build());
        rig.from(&rig.first, &back)?.assert_sent_on(&back.build());
    }
    assert_eq!(of(&rig.second)?, (started + 20).min(QUOTA));
    // When its flows end, it may begin others.
    flow_table::expire(&rig.node)?;
    wait_until(TIMEOUT, "the timer", || Ok(flow_table::flows(&rig.node)?.is_empty().then_some(())))?;
    assert_eq!(slots(&rig.node)?, 0);
    let (there, back) = connection(1);
    rig.exchange(&there, &back)?;
    assert_eq!(of(&rig.first)?, 1);
    Ok(())
}

/// Expired flows of others are no room for an endpoint that has used its share.
#[test]
fn an_endpoint_over_its_quota_takes_no_expired_flow_of_another() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    const QUOTA: usize = CAPACITY as usize / 4;
    let rig = Rig::with("ct-takes", |options| {
        options.flows = CAPACITY;
        (options.timeouts.udp, options.timeouts.unanswered) = (3600, 3600);
    })?;
    let there = |port| between(HERE, OTHER).udp(port, 6);
    let back = |port| between(OTHER, HERE).udp(6, port);
    for port in 0..QUOTA as u16 {
        rig.exchange(&there(port), &back(port))?;
    }
    let owned = |pod: &Pod| -> Result<usize> {
        let owner = rig.node.ifindex(&pod.local.port)?;
        Ok(flow_table::flows(&rig.node)?.iter().filter(|flow| flow.halves[0].owner == owner).count())
    };
    assert_eq!(owned(&rig.first)?, QUOTA);
    let other = rig.node.ifindex(&rig.second.local.port)?;
    for port in 0..QUOTA as u16 {
        rig.from(&rig.second, &between(OTHER, HERE).udp(port, 9))?;
    }
    flow_table::change(&rig.node, |flow| {
        if flow.halves[0].owner == other {
            flow.halves.iter_mut().for_each(|half| half.seen = half.seen.wrapping_sub(1 << 20));
        }
    })?;
    // The timer has not removed them all yet.
    for port in 0..32 {
        let frame = there(5000 + port);
        rig.from(&rig.first, &frame)?.assert_sent_on(&frame.build());
        assert!(owned(&rig.first)? <= QUOTA, "after {port} flows");
    }
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
    assert!(rig.replied()?.len() <= 4);
    assert!(rig.event("over-quota") + rig.event("full") >= 6);
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

/// Another CPU may have written a time that is later than the clock that this one has read.
#[test]
fn a_flow_with_a_packet_in_the_future_has_not_expired() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-ahead")?;
    let (there, back) = (between(HERE, OTHER).udp(5, 6), between(OTHER, HERE).udp(6, 5));
    rig.exchange(&there, &back)?;
    flow_table::change(&rig.node, |flow| {
        for half in &mut flow.halves {
            half.seen += 5;
        }
    })?;
    rig.exchange(&there, &back)?;
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!((packets(&flow), rig.event("made")), ([2, 2], 1));
    Ok(())
}

fn open(rig: &Rig, client: (Endpoint, u16), server: (Endpoint, u16)) -> Result<()> {
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    rig.exchange(
        &tcp(client, server, syn).sequence(1000, 0),
        &tcp(server, client, syn | ack).sequence(5000, 1001),
    )?;
    let ack = tcp(client, server, ack).sequence(1001, 5001);
    rig.from(&rig.first, &ack)?.assert_sent_on(&ack.build());
    Ok(())
}

fn state(flow: &Flow) -> TcpState {
    TcpState::of(flow.halves[0].sent, flow.halves[1].sent)
}

#[test]
fn a_half_closed_connection_stays() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-half", |options| options.timeouts.tcp_closing = 1)?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    open(&rig, client, server)?;
    let ack = tcp_flags::ACK;
    rig.exchange(
        &tcp(client, server, tcp_flags::FIN | ack).sequence(1001, 5001),
        &tcp(server, client, ack).sequence(5001, 1002),
    )?;
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!(state(&flow), TcpState::CloseWait);
    // Older than a closing connection, and younger than a half-closed one may be.
    flow_table::change(&rig.node, |flow| {
        flow.halves.iter_mut().for_each(|half| half.seen = half.seen.wrapping_sub(600));
    })?;
    rig.exchange(
        &tcp(client, server, ack).sequence(1002, 5001),
        &tcp(server, client, ack).sequence(5001, 1002).payload(b"still"),
    )?;
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!((packets(&flow), rig.event("made")), ([4, 3], 1));
    // The server closes its half: both have acknowledged, and the flow expires soon.
    rig.exchange(
        &tcp(client, server, ack).sequence(1002, 5006),
        &tcp(server, client, tcp_flags::FIN | ack).sequence(5006, 1002),
    )?;
    let last = tcp(client, server, ack).sequence(1002, 5007);
    rig.from(&rig.first, &last)?.assert_sent_on(&last.build());
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!(state(&flow), TcpState::TimeWait);
    wait_until(TIMEOUT, "the timer", || Ok(rig.replied()?.is_empty().then_some(())))
}

#[test]
fn a_reset_or_fin_outside_of_the_window_ends_nothing() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-reset", |options| options.timeouts.tcp_closing = 1)?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    open(&rig, client, server)?;
    for sequence in [5000 - 1, 5001 + (1 << 20), 0, 1 << 31] {
        for flags in [tcp_flags::RST, tcp_flags::FIN | tcp_flags::ACK] {
            let spoofed = tcp(server, client, flags).sequence(sequence, 1001);
            rig.from(&rig.second, &spoofed)?.assert_sent_on(&spoofed.build());
            let [flow] = rig.replied()?[..] else { panic!("one flow") };
            assert_eq!(state(&flow), TcpState::Established, "{sequence}");
        }
    }
    let reset = tcp(server, client, tcp_flags::RST).sequence(5001, 0);
    rig.from(&rig.second, &reset)?.assert_sent_on(&reset.build());
    let [flow] = rig.replied()?[..] else { panic!("one flow") };
    assert_eq!(state(&flow), TcpState::Close);
    wait_until(TIMEOUT, "the timer", || Ok(rig.replied()?.is_empty().then_some(())))
}

/// The frame for a client port.
type Frames = dyn Fn(u16) -> Vec<u8> + Sync;

/// Both replies to one UDP socket's two requests (A and AAAA) may be the first reply on two CPUs at once.
#[test]
fn concurrent_first_packets_and_replies_make_one_flow() -> Result<()> {
    needs!(root());
    const ROUNDS: u16 = 400;
    let mut node = Node::new("ct-race")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    node.want(Object::Service(service(VIP.ip().into(), &ready)));
    let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    let ports = [&first, &second].map(|pod| node.ifindex(&pod.local.port).unwrap());
    let pin = node.pin(FROM_POD);
    let (ask, answer) = (
        |port: u16| Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).udp(port, 80).build(),
        |port: u16| between(OTHER, HERE).udp(8080, port).build(),
    );
    let frames: [(u32, &Frames); 2] = [(ports[0], &ask), (ports[1], &answer)];
    let barrier = Barrier::new(2);
    node.ns.run(|| {
        thread::scope(|scope| -> Result<()> {
            let workers = [0, 1].map(|cpu| {
                let (barrier, frames, pin) = (&barrier, &frames, &pin);
                scope.spawn(move || -> Result<()> {
                    let mut set = CpuSet::new();
                    set.set(cpu % thread::available_parallelism()?.get())?;
                    sched_setaffinity(Pid::from_raw(0), &set)?;
                    let program = SchedClassifier::from_pin(pin)?;
                    for port in 1000..1000 + ROUNDS {
                        for (ifindex, frame) in frames {
                            let mut context = [0; 192];
                            context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
                            let frame = frame(port);
                            barrier.wait();
                            program.test_run(TestRunOptions {
                                data_in: Some(&frame),
                                ctx_in: Some(&context),
                                ..TestRunOptions::new()
                            })?;
                            barrier.wait();
                        }
                    }
                    Ok(())
                })
            });
            for worker in workers {
                worker.join().map_err(|_| anyhow::anyhow!("a thread has failed"))??;
            }
            Ok(())
        })
    })?;
    assert_eq!(node.drops()?, [].into());
    let flows = flow_table::flows(&node)?;
    assert_eq!(flows.len(), usize::from(ROUNDS));
    assert!(flows.iter().all(|flow| flow.is_replied() && flow.nat_port == flow.client_port));
    assert_eq!(slots(&node)?, 2 * flows.len());
    let events = node.datapath.inspect()["flows"].clone();
    assert_eq!((&events["made"], &events["failed"]), (&ROUNDS.into(), &0.into()));
    Ok(())
}

/// The inserting CPU may be interrupted between the two slots of a flow, longer than others can wait.
#[test]
fn a_packet_of_a_flow_that_is_being_inserted_passes() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("ct-arriving")?;
    let ready = [(OTHER.ip().into(), Readiness::Ready)];
    rig.node.want(Object::Service(service(VIP.ip().into(), &ready)));
    rig.node.converge()?;
    let to_service = Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip()).udp(1000, 80);
    for frame in [to_service, between(HERE, OTHER).udp(1001, 6)] {
        let first = rig.from(&rig.first, &frame)?;
        assert_eq!((first.code, &first.dropped[..]), (Code::Redirect, &[][..]));
        flow_table::remove_original_slots(&rig.node)?;
        assert_eq!(rig.from(&rig.first, &frame)?, first);
    }
    assert_eq!((slots(&rig.node)?, rig.event("made"), rig.event("failed")), (2, 2, 0));
    Ok(())
}

/// A record that is reused for another flow is not found by the tuple of the first one.
#[test]
fn a_reused_record_belongs_to_the_new_flow() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-generation", |options| options.flows = 1)?;
    let mut reused = 0;
    for port in 1..200 {
        let (there, back) = (between(HERE, OTHER).udp(port, 6), between(OTHER, HERE).udp(6, port));
        let full = rig.event("full");
        rig.exchange(&there, &back)?;
        // The packet goes untracked while the timer removes the expired flow.
        if rig.event("full") == full {
            let [flow] = rig.replied()?[..] else { panic!("one flow") };
            assert_eq!((flow.client_port.get(), packets(&flow)), (port, [1, 1]));
            let made = rig.event("made");
            assert_eq!((u64::from(flow.head.generation), slots(&rig.node)?), (2 * made - 1, 2));
            reused += 1;
        }
        flow_table::expire(&rig.node)?;
        if reused == 50 {
            return Ok(());
        }
    }
    panic!("only {reused} flows had the record")
}

/// The timer keeps the program that armed it; new programs arm it again.
#[test]
fn flows_expire_after_the_programs_were_replaced() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with("ct-replace", |options| options.timeouts.udp = 1)?;
    let (there, back) = (between(HERE, OTHER).udp(5, 6), between(OTHER, HERE).udp(6, 5));
    rig.exchange(&there, &back)?;
    let pin = rig.map("ctv_build");
    let mut build: aya::maps::Array<_, [u8; 16]> = Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    build.set(0, [1; 16], 0)?;
    rig.node.restart();
    rig.node.converge()?;
    for port in [7, 8] {
        rig.exchange(&between(HERE, OTHER).udp(port, 6), &between(OTHER, HERE).udp(6, port))?;
        wait_until(TIMEOUT, "the timer", || Ok(rig.replied()?.is_empty().then_some(())))?;
    }
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
    assert_eq!(rig.unreplied()?, 1, "all of them are the same flow");
    rig.from(&rig.first, &chain(5))?.assert_dropped(DropReason::TooManyHeaders);
    Ok(())
}
