//! Random rules and packets: the programs decide as the oracle does.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
};

use anyhow::{Result, ensure};
use contiv_abi::{DropReason, maps::FROM_POD};
use contiv_model::policy::{self, Connection, ICMP, ICMPV6, Side, Tier};
use netplugin::datapath::Op;
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use testkit::{needs, packet::Packet};

use super::*;
use crate::run::Target;

/// Number of configurations, each with [`PACKETS`] packets.
const CONFIGURATIONS: u32 = 200;
const PACKETS: usize = 100;
const SCTP: u8 = 132;

/// A prefix near the addresses of the pods.
fn prefix() -> impl Strategy<Value = IpNet> {
    (any::<bool>(), 0..4_u8, 0..=128_u8).prop_map(|(ip6, near, length)| {
        if ip6 {
            IpNet::new(Endpoint(near).ip6().into(), length)
        } else {
            IpNet::new(Endpoint(near).ip().into(), length % 33)
        }
        .unwrap()
        .trunc()
    })
}

/// One identity or several, a prefix, both or neither.
fn peer() -> impl Strategy<Value = Peer> {
    let identities = prop::collection::vec((1..4_u32).prop_map(number), 1..3);
    (prop::option::of(identities), prop::option::of(prefix())).prop_map(|(identities, prefix)| Peer {
        identities: identities.map(|identities| identities.into_iter().collect()),
        ..Peer::new(None, prefix)
    })
}

prop_compose! {
    fn any_rule()(
        id in 0..50_u32,
        out in any::<bool>(),
        peer in peer(),
        own in prop::option::weighted(0.2, prefix()),
        protocol in prop::option::of(prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6, SCTP])),
        ports in prop::option::of(prop::sample::select(vec![(53, 53), (80, 80), (60, 443)])),
        deny in any::<bool>(),
        priority in prop::option::weighted(0.8, prop_oneof![3 => 1..4_u8, 1 => 50..52_u8]),
    ) -> Rule {
        let direction = if out { Direction::Out } else { Direction::In };
        let action = if deny { Action::Deny } else { Action::Allow };
        let ports = ports.and_then(|(first, last)| PortRange::new(first, last));
        let tier = priority.map_or(Tier::NetworkPolicy, |priority| priority.try_into().unwrap());
        Rule {
            peer,
            own,
            protocol,
            ports: ports.filter(|_| [Some(TCP), Some(UDP)].contains(&protocol)),
            ..Rule::new(format!("{out}{id}{deny}{priority:?}"), direction, action, tier)
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    to: Endpoint,
    ip6: bool,
    protocol: u8,
    port: u16,
}

prop_compose! {
    fn sent()(
        to in prop::sample::select(vec![SERVER, FAR, Endpoint(77)]),
        ip6 in any::<bool>(),
        protocol in prop::sample::select(vec![ICMP, TCP, UDP, SCTP, 47]),
        port in prop::sample::select(vec![53_u16, 80, 443]),
    ) -> Sent {
        let protocol = if protocol == ICMP && ip6 { ICMPV6 } else { protocol };
        Sent { to, ip6, protocol, port }
    }
}

impl Sent {
    /// The packet; `n` makes it a connection of its own.
    fn packet(self, n: u16) -> Packet {
        let ip = if self.ip6 { to6(self.to) } else { to(self.to) };
        match self.protocol {
            TCP => ip.tcp(n, self.port, 2),
            UDP => ip.udp(n, self.port),
            ICMP => ip.icmp_echo_request(n, 1),
            ICMPV6 => ip.icmpv6_echo_request(n, 1),
            SCTP => {
                let [source, port] = [n.to_be_bytes(), self.port.to_be_bytes()];
                ip.protocol(SCTP).payload(&[&source[..], &port, &[0; 8]].concat())
            }
            other => ip.protocol(other).payload(&[0; 8]),
        }
    }

    /// Whether the oracle allows it here: the rules of a remote endpoint are enforced on its node.
    fn passes(self, client: &[Rule], server: &[Rule]) -> bool {
        let at = |endpoint| address(endpoint, self.ip6);
        let destination: IpAddr = at(self.to);
        let destination = match self.to {
            SERVER => Side::endpoint(destination, Some(number(2)), server),
            FAR => Side::endpoint(destination, Some(number(3)), &[]),
            _ => Side::outside(destination),
        };
        let source = Side::endpoint(at(CLIENT), Some(number(1)), client);
        let port = [TCP, UDP].contains(&self.protocol).then_some(self.port);
        let packet = policy::Packet { protocol: self.protocol, port };
        policy::decide(&Connection { source, destination, packet }).action == Action::Allow
    }
}

/// The client's program, and the number of packets dropped by policy.
struct Gate<'a> {
    rig: &'a Rig,
    program: Target,
}

impl Gate<'_> {
    fn passes(&self, packet: &Packet) -> Result<bool> {
        let before = self.stopped()?;
        let program = &self.program;
        self.rig.node.ns.run(|| program.give(&packet.build()))?;
        Ok(self.stopped()? == before)
    }

    fn stopped(&self) -> Result<u64> {
        Ok(self.rig.node.drops()?.get(&DropReason::Policy).copied().unwrap_or(0))
    }
}

#[test]
fn programs_and_oracle_agree() -> Result<()> {
    needs!(root());
    let rig = RefCell::new(Rig::new("pol-oracle")?);
    let mut runner = TestRunner::new(Config { cases: CONFIGURATIONS, ..Config::default() });
    let rules = || prop::collection::vec(any_rule(), 0..25);
    let strategy = (rules(), rules(), prop::collection::vec(sent(), PACKETS));
    // Each packet gets a port that was not used recently, so it opens a connection of its own.
    let port = Cell::new(0_u16);
    let outcome = runner.run(&strategy, |(client, server, packets)| {
        let check = || -> Result<Option<Sent>> {
            let mut rig = rig.borrow_mut();
            for group in [group(1, client.clone()), group(2, server.clone())] {
                let failed = rig.node.apply(&[Op::Set(Object::Group(group))])?;
                ensure!(failed.is_empty(), "{failed:?}");
            }
            let program = Target::new(&rig.node, FROM_POD, &rig.client.local.port)?;
            let gate = Gate { rig: &rig, program };
            for sent in &packets {
                port.set(port.get().wrapping_add(1).max(1024));
                if gate.passes(&sent.packet(port.get()))? != sent.passes(&client, &server) {
                    return Ok(Some(*sent));
                }
            }
            Ok(None)
        };
        match check() {
            Ok(None) => Ok(()),
            Ok(Some(sent)) => Err(TestCaseError::fail(format!("{sent:?}"))),
            Err(error) => Err(TestCaseError::fail(format!("{error:#}"))),
        }
    });
    outcome.map_err(|error| anyhow::anyhow!("{error}"))
}
