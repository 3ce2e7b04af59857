//! Connection tracking: which flows are tracked and for how long, and anti-spoofing.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use aya::maps::{Map, MapData};
use contiv_abi::{
    Flow,
    maps::FROM_POD,
    tcp::{TcpState, sent},
};
use netplugin::datapath::{Datapath as _, Object, ebpf::Options};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
    wait_until,
};

use crate::{
    flow_table::{self, slots},
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Outcome, run},
};

mod concurrent;
mod destination_address;
mod full_table;
mod shares;
mod source_address;

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

/// The kernel of an endpoint ignores an acknowledgement of what it has not sent, and ends the connection by what it has.
#[test]
fn an_acknowledgement_of_what_was_not_sent_keeps_no_connection_open() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-far-ack")?;
    for (port, ahead) in [(5, 1 << 15), (7, 1 << 30)] {
        let (client, server) = ((HERE, port), (OTHER, 6));
        open(&rig, client, server)?;
        let forged = tcp(server, client, tcp_flags::ACK).sequence(5001, 1001 + ahead);
        rig.from(&rig.second, &forged)?.assert_sent_on(&forged.build());
        let reset = tcp(client, server, tcp_flags::RST).sequence(1001, 0);
        rig.from(&rig.first, &reset)?.assert_sent_on(&reset.build());
    }
    let states: Vec<TcpState> = rig.replied()?.iter().map(state).collect();
    assert_eq!(states, [TcpState::Close; 2]);
    Ok(())
}

/// Who sends a SYN from an address that is not its own does not see the reply, whose number ends the handshake.
#[test]
fn a_handshake_ends_by_the_number_of_the_reply() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-blind")?;
    let (client, server) = ((HERE, 5), (OTHER, 6));
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    rig.exchange(
        &tcp(client, server, syn).sequence(1000, 0),
        &tcp(server, client, syn | ack).sequence(5000, 1001),
    )?;
    let after = |flags, acknowledged| -> Result<TcpState> {
        let segment = tcp(client, server, flags).sequence(1001, acknowledged);
        rig.from(&rig.first, &segment)?.assert_sent_on(&segment.build());
        let [flow] = rig.replied()?[..] else { panic!("one flow") };
        Ok(state(&flow))
    };
    for number in [77, 5000, 5002, 5001 + (1 << 31), 5001 - 1460] {
        assert_eq!(after(ack, number)?, TcpState::SynReceived, "{number}");
        assert_eq!(after(ack | tcp_flags::PSH, number)?, TcpState::SynReceived, "{number}");
    }
    assert_eq!(after(ack, 5001)?, TcpState::Established);
    Ok(())
}

/// The server sends data before the client has acknowledged its SYN (RFC 7413).
#[test]
fn a_handshake_ends_by_a_part_of_early_data() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ct-fast-open")?;
    let (syn, ack) = (tcp_flags::SYN, tcp_flags::ACK);
    for (port, acknowledged) in [(5, 5001), (7, 5003), (9, 5005)] {
        let (client, server) = ((HERE, port), (OTHER, 6));
        rig.exchange(
            &tcp(client, server, syn).sequence(1000, 0).payload(b"ask"),
            &tcp(server, client, syn | ack).sequence(5000, 1004),
        )?;
        let early = tcp(server, client, ack).sequence(5001, 1004).payload(b"data");
        rig.from(&rig.second, &early)?.assert_sent_on(&early.build());
        let segment = tcp(client, server, ack).sequence(1004, acknowledged);
        rig.from(&rig.first, &segment)?.assert_sent_on(&segment.build());
    }
    let states: Vec<TcpState> = rig.replied()?.iter().map(state).collect();
    assert_eq!(states, [TcpState::Established; 3]);
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
        let untracked = || rig.event("full") + rig.event("over-quota");
        let before = untracked();
        rig.exchange(&there, &back)?;
        // The packet goes untracked while the timer removes the expired flow, which counts for the endpoint until then.
        if untracked() == before {
            let flows = flow_table::flows(&rig.node)?;
            let [flow] = flows[..] else {
                panic!("port {port}: {flows:?}, {}", rig.node.datapath.inspect()["flows"])
            };
            assert_eq!((flow.client_port.get(), packets(&flow)), (port, [1, 1]), "{flow:?}");
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
