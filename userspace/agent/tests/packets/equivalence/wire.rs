//! Packets that come from the wire of the second network, and what its endpoints here answer.

use std::{collections::HashSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{
    group::GroupNumber,
    policy::{Action, Direction, ICMP, ICMPV6, Packet as Asked, Side, TCP, UDP, deciding_rule},
};
use testkit::packet::Packet;

use super::{
    BUSY, Told,
    errors::{Error, INVENTED, Quote},
    expected::{Described, Fate, Oracle, Way},
    rig::{From, Rig},
    scene::{Arrival, Complaint, Content, Piece, Stranger, VLAN, address, outside},
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
        match number % 3 {
            0 if before => arriving.is_answered(rig, told).context("first")?,
            1 => arriving.errors(rig, before, told).context("errors first")?,
            _ => {}
        }
        for _ in 0..2 {
            arriving.comes(rig, told).with_context(|| format!("from the wire, {number}, {arrival:?}"))?;
        }
        if before || arriving.may() {
            accepted.insert(number);
            arriving.is_answered(rig, told)?;
            for _ in 0..BUSY {
                arriving.comes(rig, told).with_context(|| format!("answered, {number}, {arrival:?}"))?;
            }
            for _ in 0..BUSY {
                arriving.is_answered(rig, told)?;
            }
        }
        arriving.errors(rig, before || arriving.may(), told)?;
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

    fn group(&self) -> Option<GroupNumber> {
        match self.arrival.from {
            Stranger::Endpoint(who) => self.oracle.scene.group_of(who),
            Stranger::Outside(_) => None,
        }
    }

    /// Whether the rules on this node let the connection be: those of the sender are for its own node.
    fn may(&self) -> bool {
        let Arrival { ip6, content, port, .. } = *self.arrival;
        let protocol = content.protocol(ip6);
        let asked = Asked { protocol, port: matches!(protocol, TCP | UDP).then_some(port) };
        self.lets(Direction::In, (self.source().0, self.group()), asked)
    }

    /// Likewise of a packet between the endpoint here and somebody.
    fn lets(
        &self,
        direction: Direction,
        (address, group): (IpAddr, Option<GroupNumber>),
        asked: Asked,
    ) -> bool {
        let scene = self.oracle.scene;
        let Some(own) = scene.wired_group(self.arrival.to) else { return true };
        let peer = Side { group, ..Side::outside(address) };
        let rules = &scene.profile(self.oracle.stage, own).rules;
        let rule = deciding_rule(rules, direction, self.here(), &peer, asked);
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }

    /// The address of the endpoint here.
    fn here(&self) -> IpAddr {
        address(self.arrival.to, self.arrival.ip6)
    }

    /// What packets of the endpoint here are marked with, and whether they wait.
    fn treated(&self) -> (u8, bool) {
        let scene = self.oracle.scene;
        let profile = scene.wired_group(self.arrival.to).map(|group| scene.profile(self.oracle.stage, group));
        let tos = self.arrival.tos;
        let marked = profile.and_then(|profile| profile.dscp).map_or(tos, |dscp| dscp << 2 | tos & 3);
        (marked, profile.is_some_and(|profile| profile.rate.is_some()))
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
        let (source, mac) = self.source();
        let ends = ((address(to, ip6), port), (source, FIRST + self.number as u16));
        let (marked, waits) = self.treated();
        let frame = |tos| {
            self.described(content.answer(), tos, Way::Back).build(
                Packet::eth(mac, Who(to).mac()),
                ends.0,
                ends.1,
            )
        };
        let fate = if self.may() {
            // The tag is beside the bytes.
            Fate::Arrives { place: source, bytes: frame(marked), translated: false }
        } else {
            Fate::Denied { backend: None }
        };
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

    /// ICMP errors about packets of the connection, which is there if it is `known`.
    fn errors(&self, rig: &Rig, known: bool, told: &mut Told) -> Result<()> {
        let scene = self.oracle.scene;
        let about =
            scene.complaints.iter().filter(|error| error.about.index(scene.arrivals.len()) == self.number);
        for complaint in about.filter(|error| known || error.invented) {
            // What has no ports is all one connection.
            if !(complaint.invented && matches!(self.arrival.content, Content::Gre)) {
                self.error(complaint, rig, told)
                    .with_context(|| format!("{complaint:?}, about {:?}", self.arrival))?;
            }
        }
        Ok(())
    }

    /// From the wire about what the endpoint here has sent, by the other end or a router; or from here about what has come.
    fn error(&self, complaint: &Complaint, rig: &Rig, told: &mut Told) -> Result<()> {
        let Complaint { of_answer, by, trouble, quoted, invented, .. } = *complaint;
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let ((source, mac), own) = (self.source(), Who(to).mac());
        let number = self.number + if invented { INVENTED } else { 0 };
        let (there, here) = ((source, FIRST + number as u16), (self.here(), port));
        let described = |content, way| Described { content, ip6, id: FIRST + number as u16, tos, way };
        let quote = if of_answer {
            Quote::new(&described(content.answer(), Way::Back), (here, there), quoted)
        } else {
            Quote::new(&described(content, Way::There(Piece::Whole)), (there, here), quoted)
        };
        let error = |eth, tos, from, to| Error { trouble, tos, quote: &quote.bytes }.build(eth, from, to);
        let alone = Asked { protocol: if ip6 { ICMPV6 } else { ICMP }, port: None };
        let (way, frame, place, bytes, waits, direction, peer) = if of_answer {
            let (from, group) = if by.is_some() { (outside(1, ip6), None) } else { (source, self.group()) };
            let eth = Packet::eth(own, mac);
            let frame = error(eth.clone().vlan(VLAN), tos, from, here.0);
            (From::Wire, frame, here.0, error(eth, tos, from, here.0), false, Direction::In, (from, group))
        } else {
            let (marked, waits) = self.treated();
            let sent = |tos| error(Packet::eth(mac, own), tos, here.0, source);
            (From::Wired(to), sent(tos), source, sent(marked), waits, Direction::Out, (source, self.group()))
        };
        let belongs = !invented && quote.is_readable;
        let may = if belongs { self.may() } else { self.lets(direction, peer, alone) };
        let fate = match may {
            true => Fate::Arrives { place, bytes, translated: false },
            false => Fate::Denied { backend: None },
        };
        let outcome = rig.run(way, &frame, waits)?;
        told.cases += 1;
        told.errors += 1;
        told.waited += usize::from(waits);
        ensure!(fate.is(&outcome), "{frame:02x?} became {outcome:02x?}, but should have become {fate:02x?}");
        Ok(())
    }
}
