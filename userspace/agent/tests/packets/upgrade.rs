//! Upgrades to another ABI version, and back: the flows, sessions and counters of the other version are taken over.

mod handover;
mod load;
mod resize;
mod retention;

use std::{collections::BTreeSet, fs, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{
    ABI_VERSION, DropReason, FlowHalf, Phase,
    maps::{FLOWS, FROM_POD, NODE, REVISION},
};
use contiv_model::{
    policy::{Action, Direction, Rule},
    service::Readiness,
};
use netplugin::datapath::{Datapath as _, Object, Service, ebpf::Options};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    flow_table::{flows, open, set_phase},
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    policy::{group, pod, rule},
    run::{Code, Outcome, Target, run},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const VIP: Endpoint = Endpoint(250);
/// Address of a service with the client itself as its backend.
const SELF: Endpoint = Endpoint(251);
const SYN: u8 = tcp_flags::SYN;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const ACK: u8 = tcp_flags::ACK;
const RST: u8 = tcp_flags::RST;

/// A client in group 1, and a backend in group 2.
struct Rig {
    node: Node,
    client: Pod,
    backend: Pod,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        Rig::with(label, |_| {})
    }

    fn with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
        let mut node = Node::fresh(label, |options| {
            // On a slow machine an upgrade takes longer than an unanswered flow lives.
            let timeouts = &mut options.timeouts;
            (timeouts.tcp_opening, timeouts.unanswered) = (3600, 3600);
            adjust(options);
        })?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1).want_peer(2).want(Object::Remote(FAR.remote(&n1, Some(vtep(2)))));
        let named = |id: &str, service: Service| Object::Service(Service { id: id.into(), ..service });
        let ready = |ip: IpAddr| [(ip, Readiness::Ready)];
        node.want(named("web:t", service(VIP.ip().into(), &ready(OTHER.ip().into()))));
        node.want(named("six:t", service(VIP.ip6().into(), &ready(OTHER.ip6().into()))));
        node.want(named("self:t", service(SELF.ip().into(), &ready(HERE.ip().into()))));
        let (client, backend) = (pod(&mut node, &n1, HERE, 1)?, pod(&mut node, &n1, OTHER, 2)?);
        node.converge()?;
        Ok(Rig { node, client, backend })
    }

    /// Starts an agent with another ABI version.
    fn start_other_version(&mut self) {
        let options = &mut self.node.options;
        options.abi_version = if options.abi_version == ABI_VERSION { ABI_VERSION + 1 } else { ABI_VERSION };
        drop(self.node.restart());
    }

    /// Replaces the agent by one with another ABI version, which takes over.
    fn upgrade(&mut self) -> Result<()> {
        self.start_other_version();
        self.node.converge()?;
        ensure!(self.node.datapath.warnings().is_empty(), "{:?}", self.node.datapath.warnings());
        Ok(())
    }

    fn pod(&self, endpoint: Endpoint) -> &Pod {
        if endpoint == HERE { &self.client } else { &self.backend }
    }

    fn from(&self, endpoint: Endpoint, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.pod(endpoint).local.port, &frame.build())
    }

    #[track_caller]
    fn becomes(&self, from: Endpoint, sent: &Packet, arrives: &Packet) {
        let outcome = self.from(from, sent).unwrap();
        assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]));
        assert_eq!(outcome.bytes, arrives.build(), "left: received, right: expected");
    }

    fn event(&self, name: &str) -> u64 {
        self.node.datapath.inspect()["flows"][name].as_u64().unwrap()
    }
}

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

/// A packet of a connection, as sent and as it arrives.
type Translated = (Endpoint, Packet, Packet);

/// The packets of a connection to a service: that of the client, and that of the backend.
struct Connection {
    there: fn(u8) -> Translated,
    back: fn(u8) -> Translated,
}

const CONNECTIONS: [Connection; 3] = [
    Connection {
        there: |flags| {
            let (sent, arrives) = (between(HERE, VIP), between(HERE, OTHER));
            (HERE, sent.tcp(4000, 80, flags), arrives.tcp(4000, 8080, flags))
        },
        back: |flags| {
            let arrives = Packet::eth(HERE.mac(), OTHER.mac()).ipv4(VIP.ip(), HERE.ip());
            (OTHER, between(OTHER, HERE).tcp(8080, 4000, flags), arrives.tcp(80, 4000, flags))
        },
    },
    Connection {
        there: |flags| {
            let [.., a, b, c, d] = VIP.ip6().octets();
            let sent = Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
            let arrives = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6());
            (HERE, sent.tcp(4001, 80, flags), arrives.tcp(4001, 8080, flags))
        },
        back: |flags| {
            let sent = Packet::eth(HERE.mac(), OTHER.mac()).ipv6(OTHER.ip6(), HERE.ip6());
            let arrives = Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6());
            (OTHER, sent.tcp(8080, 4001, flags), arrives.tcp(80, 4001, flags))
        },
    },
    Connection {
        there: |flags| {
            let arrives = Packet::eth(HERE.mac(), SELF.mac()).ipv4(SELF.ip(), HERE.ip());
            (HERE, between(HERE, SELF).tcp(4002, 80, flags), arrives.tcp(4002, 8080, flags))
        },
        back: |flags| {
            let arrives = Packet::eth(HERE.mac(), SELF.mac()).ipv4(SELF.ip(), HERE.ip());
            (HERE, between(HERE, SELF).tcp(8080, 4002, flags), arrives.tcp(80, 4002, flags))
        },
    },
];

#[track_caller]
fn passes(rig: &Rig, (from, sent, arrives): Translated) {
    rig.becomes(from, &sent, &arrives);
}

#[test]
fn translated_connections_continue_with_the_backends_packet() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut _| {}, Node::clsact] {
        let mut rig = Rig::with("up-nat", mode)?;
        for connection in &CONNECTIONS {
            passes(&rig, (connection.there)(SYN));
        }
        // Before the reply, during the handshake, and after it.
        rig.upgrade()?;
        CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.back)(SYN_ACK)));
        rig.upgrade()?;
        CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.back)(SYN_ACK)));
        CONNECTIONS.iter().for_each(|connection| passes(&rig, (connection.there)(ACK)));
        rig.upgrade()?;
        for connection in &CONNECTIONS {
            passes(&rig, (connection.back)(ACK));
            passes(&rig, (connection.there)(ACK));
        }
        assert_eq!(flows(&rig.node)?.len(), CONNECTIONS.len());
        assert_eq!((rig.event("made"), rig.event("imported")), (3, 9), "imported flows are not new");
    }
    Ok(())
}

/// The parts of a direction that do not depend on the version, without the hint for the fast path.
fn known(half: &FlowHalf) -> FlowHalf {
    FlowHalf { rule: 0, receiver: 0, ..*half }
}

#[test]
fn all_that_is_known_of_a_flow_is_kept() -> Result<()> {
    needs!(root());
    // An upgrade of an emulated machine takes a while.
    let mut rig = Rig::new("up-all")?;
    let there = |flags| between(HERE, VIP).tcp(4000, 80, flags).sequence(1000, 5001);
    rig.from(HERE, &there(SYN))?;
    rig.from(OTHER, &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK).sequence(5000, 1001))?;
    rig.from(HERE, &there(ACK).payload(b"data"))?;
    rig.from(HERE, &between(HERE, OTHER).udp(53, 53))?;
    let sorted = |rig: &Rig| -> Result<_> {
        let mut flows = flows(&rig.node)?;
        flows.sort_unstable_by_key(|flow| flow.client_port.get());
        Ok(flows)
    };
    let before = sorted(&rig)?;
    for _ in 0..2 {
        rig.upgrade()?;
        let after = sorted(&rig)?;
        assert_eq!(after.len(), 2);
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before.halves.each_ref().map(known), after.halves.each_ref().map(known));
            let ends = |flow: &contiv_abi::Flow| (flow.client, flow.destination, flow.backend, flow.nat_port);
            assert_eq!(ends(before), ends(after));
            assert_eq!(before.head.flags, after.head.flags);
        }
    }
    // A RST with a number that was not sent ends nothing, as before.
    let forged = between(HERE, VIP).tcp(4000, 80, RST).sequence(3_000_000_000, 0);
    rig.from(HERE, &forged)?;
    assert!(!sorted(&rig)?.iter().any(|flow| flow.halves[0].is_closing()));
    Ok(())
}

#[test]
fn flows_of_another_version_are_evaluated_by_the_current_rules() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-rules")?;
    let deny = |port: u16| Rule {
        protocol: Some(6),
        ports: Some(port.into()),
        ..rule("deny", Direction::In, Action::Deny, 10)
    };
    let revision = |rig: &Rig| -> Result<u64> {
        Ok(open::<u64>(&rig.node.datapath.maps_directory(), REVISION)?.get(&0, 0)?)
    };
    rig.node.want(Object::Group(group(2, vec![deny(99)])));
    rig.node.converge()?;
    let direct = |port, flags| between(HERE, OTHER).tcp(port, 81, flags);
    rig.from(HERE, &direct(5000, SYN))?.assert_sent_on(&direct(5000, SYN).build());
    passes(&rig, (CONNECTIONS[0].there)(SYN));
    for (denied, allowed) in [(8080, true), (81, false)] {
        // The rules change while no agent runs.
        rig.node.want(Object::Group(group(2, vec![deny(denied)])));
        let before = revision(&rig)?;
        rig.upgrade()?;
        assert!(revision(&rig)? > before, "numbers are never used twice");
        let (_, sent, _) = (CONNECTIONS[0].there)(ACK);
        let outcomes = [rig.from(HERE, &sent)?, rig.from(HERE, &direct(5000, ACK))?];
        let dropped = outcomes.map(|outcome| outcome.dropped);
        let policy = vec![DropReason::Policy];
        assert_eq!(dropped, if allowed { [policy, vec![]] } else { [vec![], policy] });
        // Nor does the reply of a denied flow begin a flow of its own.
        let (_, reply, _) = (CONNECTIONS[0].back)(ACK);
        let reply = if allowed { reply } else { between(OTHER, HERE).tcp(81, 5000, ACK) };
        rig.from(OTHER, &reply)?.assert_dropped(DropReason::Policy);
    }
    Ok(())
}

#[test]
fn retired_programs_pass_frames_on() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-retired")?;
    let target = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
    let old = |rig: &Rig, frame: &Packet| rig.node.ns.run(|| target.give(&frame.build()));
    let frame = between(HERE, OTHER).udp(1, 2);
    assert_eq!(old(&rig, &frame)?.0, Code::Redirect);
    rig.start_other_version();
    // The maps of the new version are not filled yet.
    rig.node.observe()?;
    assert_eq!(old(&rig, &between(HERE, OTHER).udp(3, 4))?.0, Code::Redirect);
    rig.node.converge()?;
    assert_eq!(old(&rig, &frame)?.0, Code::Next);
    assert_eq!(flows(&rig.node)?.len(), 2, "also those that began after the start");
    assert_eq!(node_phase(&rig)?, Phase::RUNNING);
    Ok(())
}

fn node_phase(rig: &Rig) -> Result<u32> {
    let node = open::<contiv_abi::Node>(&rig.node.datapath.maps_directory(), NODE)?;
    Ok(node.get(&0, 0)?.phase)
}

#[test]
fn packets_that_may_belong_to_a_flow_wait_for_its_import() -> Result<()> {
    needs!(root());
    let rig = Rig::new("up-hold")?;
    let held = DropReason::FlowImport;
    let unknown = [
        between(OTHER, HERE).tcp(8080, 4000, SYN_ACK),
        between(OTHER, HERE).tcp(8080, 4000, ACK),
        between(OTHER, HERE).udp(8080, 4000),
    ];
    let new = [between(HERE, OTHER).tcp(5000, 81, SYN), between(HERE, VIP).udp(5000, 80)];
    set_phase(&rig.node, Phase::HOLDING)?;
    for packet in unknown.iter().chain(&new) {
        rig.from(if packet.build()[6..12] == HERE.mac() { HERE } else { OTHER }, packet)?
            .assert_dropped(held);
    }
    set_phase(&rig.node, Phase::IMPORTING)?;
    for packet in &unknown {
        rig.from(OTHER, packet)?.assert_dropped(held);
    }
    // It may be a connection with a backend that new ones do not get.
    rig.from(HERE, &between(HERE, VIP).tcp(6000, 80, ACK))?.assert_dropped(held);
    for packet in &new {
        assert_eq!(rig.from(HERE, packet)?.code, Code::Redirect);
    }
    // Known flows pass.
    let reply = between(OTHER, HERE).tcp(81, 5000, SYN_ACK);
    rig.from(OTHER, &reply)?.assert_sent_on(&reply.build());
    Ok(())
}

#[test]
fn a_version_without_phases_is_detached() -> Result<()> {
    needs!(root());
    for mode in [|_: &mut _| {}, Node::clsact] {
        let mut rig = Rig::with("up-old", mode)?;
        passes(&rig, (CONNECTIONS[0].there)(SYN));
        fs::remove_file(rig.node.datapath.maps_directory().join(NODE))?;
        rig.upgrade()?;
        passes(&rig, (CONNECTIONS[0].back)(SYN_ACK));
        assert_eq!(node_phase(&rig)?, Phase::RUNNING);
    }
    Ok(())
}

#[test]
fn lost_flows_are_reported() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-lost")?;
    passes(&rig, (CONNECTIONS[0].there)(SYN));
    fs::remove_file(rig.node.datapath.maps_directory().join(FLOWS))?;
    rig.start_other_version();
    rig.node.converge()?;
    let warnings = rig.node.datapath.warnings().concat();
    let expected = format!("connections: all flows of ABI version {ABI_VERSION} are lost: ");
    assert!(warnings.starts_with(&expected) && warnings.contains("ctv_flows"), "{warnings}");
    assert_eq!(flows(&rig.node)?.len(), 0);
    Ok(())
}

#[test]
fn an_interrupted_takeover_is_completed() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-half")?;
    passes(&rig, (CONNECTIONS[0].there)(SYN));
    // The other version's programs were retired, and the process ended before the last pass.
    set_phase(&rig.node, Phase::RETIRED)?;
    rig.start_other_version();
    rig.node.observe()?;
    set_phase(&rig.node, Phase::IMPORTING)?;
    rig.node.restart();
    rig.node.converge()?;
    assert_eq!(node_phase(&rig)?, Phase::RUNNING);
    passes(&rig, (CONNECTIONS[0].back)(SYN_ACK));
    Ok(())
}

#[test]
fn an_agent_that_returns_to_its_retired_programs_runs_them_again() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-return")?;
    passes(&rig, (CONNECTIONS[0].there)(SYN));
    // The newer agent has attached its programs, and ended after it had retired the others.
    rig.start_other_version();
    rig.node.observe()?;
    rig.start_other_version();
    set_phase(&rig.node, Phase::RETIRED)?;
    rig.node.converge()?;
    assert_eq!(node_phase(&rig)?, Phase::RUNNING);
    passes(&rig, (CONNECTIONS[0].back)(SYN_ACK));
    Ok(())
}

#[test]
fn clients_keep_their_backends() -> Result<()> {
    needs!(root());
    for six in [false, true] {
        let mut rig = Rig::new("up-sticky")?;
        let ip =
            |endpoint: Endpoint| -> IpAddr { if six { endpoint.ip6().into() } else { endpoint.ip().into() } };
        let sticky = |backends: &[Endpoint]| {
            let ready: Vec<_> = backends.iter().map(|endpoint| (ip(*endpoint), Readiness::Ready)).collect();
            let id = if six { "six:t" } else { "web:t" };
            let affinity = Some(Duration::from_secs(600));
            Object::Service(Service { id: id.into(), affinity, ..service(ip(VIP), &ready) })
        };
        let backend = |rig: &Rig, port| -> Result<[u8; 6]> {
            let [.., a, b, c, d] = VIP.ip6().octets();
            let packet = match six {
                true => Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()),
                false => between(HERE, VIP),
            };
            let outcome = rig.from(HERE, &packet.udp(port, 80))?;
            Ok(*outcome.bytes.first_chunk().context("no frame")?)
        };
        rig.node.want(sticky(&[OTHER]));
        rig.node.converge()?;
        assert_eq!(backend(&rig, 1)?, OTHER.mac());
        // More backends do not move the client, here and there; without affinity, half of the connections would move.
        rig.node.want(sticky(&[OTHER, FAR]));
        for round in 0..4_u16 {
            rig.upgrade()?;
            let found: BTreeSet<_> =
                (0..20).map(|port| backend(&rig, 1000 * (round + 1) + port)).collect::<Result<_>>()?;
            assert_eq!(found, BTreeSet::from([OTHER.mac()]), "{round}");
        }
    }
    Ok(())
}

#[test]
fn counters_continue() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("up-count")?;
    let spoofed = between(OTHER, VIP).udp(1, 2);
    let connections = |rig: &Rig| -> Result<u64> {
        let services = rig.node.datapath.counters()?.services;
        let web = services.iter().find(|(port, _)| port.service.to_string() == "web:t" && port.port == 80);
        Ok(web.map_or(0, |(_, counters)| counters.connections))
    };
    for round in 1..4 {
        rig.from(HERE, &spoofed)?.assert_dropped(DropReason::SpoofedMac);
        rig.from(HERE, &between(HERE, VIP).tcp(4000 + round, 80, SYN))?;
        let round = u64::from(round);
        assert_eq!((rig.node.drops()?[&DropReason::SpoofedMac], rig.event("made")), (round, round));
        assert_eq!(connections(&rig)?, round);
        rig.upgrade()?;
        assert_eq!((rig.node.drops()?[&DropReason::SpoofedMac], rig.event("made")), (round, round));
        assert_eq!(connections(&rig)?, round);
    }
    Ok(())
}
