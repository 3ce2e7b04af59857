//! Packets that come from the wire of the second network, and what its endpoints here answer.

use std::{collections::HashSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use contiv_model::policy::{Action, Direction, Packet as Asked, Side, TCP, UDP, deciding};
use testkit::packet::Packet;

use super::{
    Told,
    expected::{Described, Fate, Oracle, Way},
    rig::{From, Rig},
    scene::{Arrival, Content, Piece, Stranger, VLAN, address, outside},
};
use crate::node::Who;

/// The first source port, and identifier.
const FIRST: u16 = 30_000;
/// What frames from nobody's address are from.
const ROUTER: [u8; 6] = [2, 2, 9, 9, 9, 1];

/// All packets that come, twice, and the answers of those that came through; some may have done so in an earlier stage.
pub(super) fn packets(
    rig: &Rig,
    oracle: &Oracle<'_>,
    accepted: &mut HashSet<usize>,
    told: &mut Told,
) -> Result<()> {
    for (number, arrival) in oracle.scene.arrivals.iter().enumerate() {
        let arriving = Arriving { oracle, number, arrival };
        let before = accepted.contains(&number);
        // What is seen first of a connection after a change of the rules may be either.
        if before && number % 2 == 0 {
            arriving.is_answered(rig, told).context("first")?;
        }
        for _ in 0..2 {
            arriving.comes(rig, told).with_context(|| format!("from the wire, {number}, {arrival:?}"))?;
        }
        if before || arriving.may() {
            accepted.insert(number);
            arriving.is_answered(rig, told)?;
            arriving.comes(rig, told).with_context(|| format!("answered, {number}, {arrival:?}"))?;
        }
    }
    Ok(())
}

struct Arriving<'a> {
    oracle: &'a Oracle<'a>,
    number: usize,
    arrival: &'a Arrival,
}

impl Arriving<'_> {
    fn source(&self) -> (IpAddr, [u8; 6]) {
        match self.arrival.from {
            Stranger::Endpoint(who) => (address(who, self.arrival.ip6), Who(who).mac()),
            Stranger::Outside(which) => (outside(which, self.arrival.ip6), ROUTER),
        }
    }

    /// Whether the rules on this node let the connection be: those of the sender are for its own node.
    fn may(&self) -> bool {
        let Arrival { from, to, ip6, content, port, .. } = *self.arrival;
        let scene = self.oracle.scene;
        let protocol = content.protocol(ip6);
        let asked = Asked { protocol, port: matches!(protocol, TCP | UDP).then_some(port) };
        let Some(group) = scene.wired_group(to) else { return true };
        let (source, _) = self.source();
        let peer = match from {
            Stranger::Endpoint(who) => {
                Side { address: source, group: scene.group_of(who), rules: &[], dscp: None }
            }
            Stranger::Outside(_) => Side::outside(source),
        };
        let rules = &scene.profile(self.oracle.stage, group).rules;
        let rule = deciding(rules, Direction::In, address(to, ip6), &peer, asked);
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }

    fn described(&self, content: Content, tos: u8, way: Way) -> Described {
        Described { content, ip6: self.arrival.ip6, id: FIRST + self.number as u16, tos, way }
    }

    fn comes(&self, rig: &Rig, told: &mut Told) -> Result<()> {
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let (source, mac) = self.source();
        let ends = ((source, FIRST + self.number as u16), (address(to, ip6), port));
        let described = self.described(content, tos, Way::There(Piece::Whole));
        let eth = || Packet::eth(Who(to).mac(), mac);
        let fate = if self.may() {
            Fate::Arrives {
                place: ends.1.0,
                bytes: described.build(eth(), ends.0, ends.1),
                translated: false,
            }
        } else {
            Fate::Denied { backend: None }
        };
        let outcome = rig.run(From::Wire, &described.build(eth().vlan(VLAN), ends.0, ends.1), false)?;
        told.cases += 1;
        told.from_wire += 1;
        told.arrived += usize::from(fate.place().is_some());
        told.denied += usize::from(fate.is_denied());
        ensure!(fate.is(&outcome), "it became {outcome:?}, but should have become {fate:?}");
        Ok(())
    }

    /// The receiver sends an answer: it goes out by the uplink, unless the rules of today are against the connection.
    fn is_answered(&self, rig: &Rig, told: &mut Told) -> Result<()> {
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let scene = self.oracle.scene;
        let content = match content {
            Content::Tcp { .. } => Content::Tcp { flags: 0x12 },
            other => other,
        };
        let (source, mac) = self.source();
        let ends = ((address(to, ip6), port), (source, FIRST + self.number as u16));
        let profile = scene.wired_group(to).map(|group| scene.profile(self.oracle.stage, group));
        let marked = profile.and_then(|profile| profile.dscp).map_or(tos, |dscp| dscp << 2 | tos & 3);
        let frame = |tos| {
            self.described(content, tos, Way::Back).build(Packet::eth(mac, Who(to).mac()), ends.0, ends.1)
        };
        let fate = if self.may() {
            // The tag is beside the bytes.
            Fate::Arrives { place: source, bytes: frame(marked), translated: false }
        } else {
            Fate::Denied { backend: None }
        };
        let waits = profile.is_some_and(|profile| profile.rate.is_some());
        let outcome = rig.run(From::Wired(to), &frame(tos), waits)?;
        told.cases += 1;
        told.waited += usize::from(waits);
        told.answers += usize::from(fate.place().is_some());
        ensure!(
            fate.is(&outcome),
            "the answer to {}, {:?}: it became {outcome:?}, but should have become {fate:?}",
            self.number,
            self.arrival
        );
        Ok(())
    }
}
