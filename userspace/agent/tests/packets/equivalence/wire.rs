//! Packets from the uplink of the second network, and the replies of its endpoints here.

use std::{collections::HashSet, net::IpAddr};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::DropReason;
use contiv_model::policy::{Action, Direction, Identity, Packet as Asked, Side, TCP, UDP, deciding_rule};
use testkit::packet::Packet;

use super::{
    BUSY, EventState,
    errors::{Error, INVENTED, Quote},
    expected::{Described, Fate, Oracle, Way},
    rig::{From, Rig},
    scene::{Arrival, Complaint, Content, Piece, Stranger, VLAN, address, outside},
};
use crate::node::Endpoint;

/// First source port or identifier.
const FIRST: u16 = 30_000;
/// MAC address of frames from unassigned addresses.
const ROUTER: [u8; 6] = [2, 2, 9, 9, 9, 1];

/// Sends all packets twice, and replies to those that arrived; some may have arrived in an earlier stage.
pub(super) fn packets(
    rig: &Rig,
    oracle: &Oracle<'_>,
    accepted: &mut HashSet<usize>,
    reported: &mut EventState,
) -> Result<()> {
    for (number, arrival) in oracle.scene.arrivals.iter().enumerate() {
        let arriving = Arriving { oracle, number, arrival };
        let before = accepted.contains(&number);
        // After a change of the rules, the first packet may come from either side.
        match number % 3 {
            0 if before => arriving.is_answered(rig, reported).context("first")?,
            1 => arriving.errors(rig, before, reported).context("errors first")?,
            _ => {}
        }
        for _ in 0..2 {
            arriving.comes(rig, reported).with_context(|| format!("from the wire, {number}, {arrival:?}"))?;
        }
        if before || arriving.may() {
            accepted.insert(number);
            arriving.is_answered(rig, reported)?;
            for _ in 0..BUSY {
                arriving.comes(rig, reported).with_context(|| format!("answered, {number}, {arrival:?}"))?;
            }
            for _ in 0..BUSY {
                arriving.is_answered(rig, reported)?;
            }
        }
        arriving.errors(rig, before || arriving.may(), reported)?;
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
            Stranger::Endpoint(endpoint) => (address(endpoint, self.arrival.ip6), Endpoint(endpoint).mac()),
            Stranger::Outside(which) => (outside(which, self.arrival.ip6), ROUTER),
        }
    }

    fn group(&self) -> Option<Identity> {
        match self.arrival.from {
            Stranger::Endpoint(endpoint) => self.oracle.scene.group_of(endpoint),
            Stranger::Outside(_) => None,
        }
    }

    /// Whether the rules enforced on this node allow the connection; the sender's node enforces the sender's rules.
    fn may(&self) -> bool {
        let Arrival { ip6, content, port, .. } = *self.arrival;
        let protocol = content.protocol(ip6);
        let asked = Asked { protocol, port: matches!(protocol, TCP | UDP).then_some(port) };
        self.lets(Direction::In, (self.source().0, self.group()), asked)
    }

    /// Whether the rules on this node allow a packet between the endpoint here and another one.
    fn lets(&self, direction: Direction, (address, group): (IpAddr, Option<Identity>), asked: Asked) -> bool {
        let scene = self.oracle.scene;
        let Some(own) = scene.wired_group(self.arrival.to) else { return true };
        let peer = Side::endpoint(address, group, &[]);
        let rules = &scene.profile(self.oracle.stage, own).rules;
        let rule = deciding_rule(rules, direction, self.here(), &peer, asked);
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }

    /// Address of the endpoint here.
    fn here(&self) -> IpAddr {
        address(self.arrival.to, self.arrival.ip6)
    }

    /// DSCP of the packets of the endpoint here, and whether they are queued.
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

    fn comes(&self, rig: &Rig, reported: &mut EventState) -> Result<()> {
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let (source, mac) = self.source();
        let ends = ((source, FIRST + self.number as u16), (address(to, ip6), port));
        let described = self.described(content, tos, Way::There(Piece::Whole));
        let eth = || Packet::eth(Endpoint(to).mac(), mac);
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
        reported.cases += 1;
        reported.from_wire += 1;
        reported.arrived += usize::from(fate.place().is_some());
        reported.denied += usize::from(fate.is_denied());
        ensure!(fate.is(&outcome), "it became {outcome:?}, but should have become {fate:?}");
        Ok(())
    }

    /// The receiver replies through the uplink, unless the current rules deny the connection.
    fn is_answered(&self, rig: &Rig, reported: &mut EventState) -> Result<()> {
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let (source, mac) = self.source();
        let ends = ((address(to, ip6), port), (source, FIRST + self.number as u16));
        let (marked, waits) = self.treated();
        let frame = |tos| {
            self.described(content.answer(), tos, Way::Back).build(
                Packet::eth(mac, Endpoint(to).mac()),
                ends.0,
                ends.1,
            )
        };
        let fate = if self.may() {
            // The tag is hardware-accelerated, not in the bytes.
            Fate::Arrives { place: source, bytes: frame(marked), translated: false }
        } else {
            Fate::Denied { backend: None }
        };
        let outcome = rig.run(From::Wired(to), &frame(tos), waits)?;
        reported.cases += 1;
        reported.waited += usize::from(waits);
        reported.answers += usize::from(fate.place().is_some());
        ensure!(
            fate.is(&outcome),
            "the answer to {}, {:?}: it became {outcome:?}, but should have become {fate:?}",
            self.number,
            self.arrival
        );
        Ok(())
    }

    /// ICMP errors about packets of the connection, which exists if it is `known`.
    fn errors(&self, rig: &Rig, known: bool, reported: &mut EventState) -> Result<()> {
        let scene = self.oracle.scene;
        let about =
            scene.complaints.iter().filter(|error| error.about.index(scene.arrivals.len()) == self.number);
        for complaint in about.filter(|error| known || error.invented) {
            // Protocols without ports have one connection per address pair.
            if !(complaint.invented && matches!(self.arrival.content, Content::Gre)) {
                self.error(complaint, rig, reported)
                    .with_context(|| format!("{complaint:?}, about {:?}", self.arrival))?;
            }
        }
        Ok(())
    }

    /// Errors from the uplink about packets of the endpoint here, from the other end or a router; or errors from here
    /// about received packets.
    fn error(&self, complaint: &Complaint, rig: &Rig, reported: &mut EventState) -> Result<()> {
        let Complaint { of_answer, by, trouble, quoted, invented, .. } = *complaint;
        let Arrival { to, ip6, content, port, tos, .. } = *self.arrival;
        let ((source, mac), own) = (self.source(), Endpoint(to).mac());
        let number = self.number + if invented { INVENTED } else { 0 };
        let (there, here) = ((source, FIRST + number as u16), (self.here(), port));
        let described = |content, way| Described { content, ip6, id: FIRST + number as u16, tos, way };
        let quote = if of_answer {
            Quote::new(&described(content.answer(), Way::Back), (here, there), quoted)
        } else {
            Quote::new(&described(content, Way::There(Piece::Whole)), (there, here), quoted)
        };
        let error = |eth, tos, from, to| Error { trouble, tos, quote: &quote.bytes }.build(eth, from, to);
        let (way, frame, place, bytes, waits) = if of_answer {
            let from = if by.is_some() { outside(1, ip6) } else { source };
            let eth = Packet::eth(own, mac);
            let frame = error(eth.clone().vlan(VLAN), tos, from, here.0);
            (From::Wire, frame, here.0, error(eth, tos, from, here.0), false)
        } else {
            let (marked, waits) = self.treated();
            let sent = |tos| error(Packet::eth(mac, own), tos, here.0, source);
            (From::Wired(to), sent(tos), source, sent(marked), waits)
        };
        let belongs = !invented && quote.is_readable;
        let fate = match self.may() {
            _ if !belongs => Fate::Refused(DropReason::UnrelatedIcmpError),
            true => Fate::Arrives { place, bytes, translated: false },
            false => Fate::Denied { backend: None },
        };
        let outcome = rig.run(way, &frame, waits)?;
        reported.cases += 1;
        reported.errors += 1;
        reported.waited += usize::from(waits);
        ensure!(fate.is(&outcome), "{frame:02x?} became {outcome:02x?}, but should have become {fate:02x?}");
        Ok(())
    }
}
