//! Traces: the oracle's processing of one packet.

use std::net::IpAddr;

use contiv_model::{
    policy::{Action, Outcome},
    trace::{ConnectionState, Egress, Output, Stage, Step, Verdict},
};

use super::{
    connection::{Connection, Direction},
    forward::{Delivery, Origin, Target, deliver, locals},
    guard::{self, Class},
    network::{Network, is_multicast, networks},
    traffic::Traffic,
};
use crate::datapath::{
    Desired, KERNEL_PORT, Local,
    trace::{Findings, Ingress, Probe, read_header, to_port},
    wire::{frame::untag, packet::Packet},
};

const METHOD: &str = "oracle";

/// Traces a packet through the stages of a node with `objects` and the connections of `traffic`.
pub(super) fn trace(traffic: &Traffic, objects: &Desired, probe: &Probe) -> Findings {
    let origin = match &probe.ingress {
        Ingress::Pod { port, .. } => Origin::Pod(port.clone()),
        Ingress::Tunnel { vtep, vni } => Origin::Tunnel { vtep: *vtep, vni: *vni },
        Ingress::Uplink(_) => Origin::Uplink,
    };
    let sender = match &probe.ingress {
        Ingress::Pod { port, .. } => locals(objects).find(|local| local.port == *port),
        Ingress::Tunnel { .. } | Ingress::Uplink(_) => None,
    };
    let Some(vrf) =
        networks(objects).find(|network| network.encap == probe.encap).map(|network| &network.vrf)
    else {
        let steps = vec![Step::new(Stage::Guard, Verdict::Drop).because("the network is not on this node")];
        return Findings { method: METHOD, steps, outputs: vec![], omitted_copies: 0 };
    };
    let network = Network { objects, encap: probe.encap, vrf };
    let mut oracle = Oracle { traffic, network, origin, sender, probe, steps: vec![] };
    let copies = oracle.follow();
    let outputs: Vec<Output> = copies.unwrap_or_default().iter().map(|copy| oracle.output(copy)).collect();
    Findings { method: METHOD, steps: oracle.steps, outputs, omitted_copies: 0 }
}

struct Oracle<'a> {
    traffic: &'a Traffic,
    network: Network<'a>,
    origin: Origin,
    sender: Option<&'a Local>,
    probe: &'a Probe,
    steps: Vec<Step>,
}

impl Oracle<'_> {
    /// Returns `None` for a dropped packet; the last step has the reason.
    fn follow(&mut self) -> Option<Vec<Delivery>> {
        let Network { objects, encap, vrf } = self.network;
        let inner = self.probe.frame();
        let Some(class) = guard::check(objects, (encap, vrf), &inner, &self.origin) else {
            return self
                .drop(Step::new(Stage::Guard, Verdict::Drop).because("address or form is not allowed"));
        };
        self.steps.push(Step::new(Stage::Guard, Verdict::Pass));
        match class {
            Class::Ip(packet) if is_multicast(&inner) => Some(self.replicate(inner, packet)),
            Class::Ip(packet) => self.unicast(inner, packet),
            Class::Neighbour | Class::Probe | Class::Other => {
                let copies = deliver(objects, &self.network.framed(inner, &self.origin), &self.origin);
                self.forwarded(copies)
            }
        }
    }

    fn replicate(&mut self, mut inner: Vec<u8>, packet: Packet) -> Vec<Delivery> {
        for stage in [Stage::Service, Stage::Connection, Stage::PolicyOut, Stage::PolicyIn] {
            let skipped = Step::new(stage, Verdict::Skip);
            self.steps.push(match stage {
                Stage::PolicyOut | Stage::PolicyIn => skipped.because("evaluated for each receiver"),
                _ => skipped.because("not for multicast"),
            });
        }
        let dscp = self.sender.and_then(|sender| self.network.group(sender.identity?)?.dscp);
        if let Some(dscp) = dscp {
            packet.set_dscp(&mut inner, dscp);
        }
        let frame = self.network.framed(inner, &self.origin);
        let copies = deliver(self.network.objects, &frame, &self.origin);
        let copies = self.network.replicate(copies, packet.tuple, self.probe.header.source_mac);
        self.forwarded(copies).unwrap_or_default()
    }

    fn unicast(&mut self, mut inner: Vec<u8>, packet: Packet) -> Option<Vec<Delivery>> {
        let to = self.probe.header.destination_mac;
        let for_router = self.sender.filter(|_| self.network.is_for_router(to, packet.tuple));
        if let Some(sender) = for_router
            && let Some(answer) = self.network.answer(&inner, &packet)
        {
            let reply = |frame| Delivery { to: Target::Pod(sender.port.clone()), frame };
            return self.forwarded(answer.map(reply).into_iter().collect());
        }
        let known = self.traffic.known(&self.network, &packet, &inner);
        let service = self.probe.service.as_ref().map(ToString::to_string);
        let opened = || Some((self.network.open(packet.tuple, self.sender.is_some())?, Direction::Original));
        let is_known = known.is_some();
        let Some((connection, direction)) = known.or_else(opened) else {
            let has_port = self.network.has_service_port(packet.tuple);
            let why = if has_port { "no ready backend" } else { "the service has no such port" };
            let refused = Step::new(Stage::Service, Verdict::Drop).because(why);
            self.steps.push(Step { service, ..refused });
            return self.sender.and_then(|sender| self.network.refuse(&inner, &packet, sender));
        };
        self.steps.push(match connection.is_translated() && direction == Direction::Original {
            true => {
                Step { service, backend: Some(connection.to), ..Step::new(Stage::Service, Verdict::Pass) }
            }
            false => Step::new(Stage::Service, Verdict::Skip),
        });
        let state = match (is_known, direction) {
            (false, _) => ConnectionState::New,
            (true, Direction::Original) => ConnectionState::Established,
            (true, Direction::Reply) => ConnectionState::Reply,
        };
        self.steps.push(Step { connection: Some(state), ..Step::new(Stage::Connection, Verdict::Pass) });
        self.policy(&connection, direction)?;
        if self.network.rewrite(&mut inner, packet, &connection, direction, self.sender).is_none() {
            return self
                .drop(Step::new(Stage::Forward, Verdict::Drop).because("the backend is not known here"));
        }
        let sent = (&connection, direction);
        let copies = self.network.forward(inner, packet, sent, for_router.is_some(), &self.origin);
        self.forwarded(copies.unwrap_or_default())
    }

    /// Evaluates the rules of the endpoints on this node; `None` if one denies.
    fn policy(&mut self, connection: &Connection, direction: Direction) -> Option<()> {
        let Probe { header, .. } = self.probe;
        let macs = match direction {
            Direction::Original => [header.source_mac, header.destination_mac],
            Direction::Reply => [header.destination_mac, header.source_mac],
        };
        let decision = self.network.decision(&connection.clone().between(macs));
        let sides = [
            (Stage::PolicyOut, connection.tuple.source.0, decision.out),
            (Stage::PolicyIn, connection.to.0, decision.into),
        ];
        for (stage, address, outcome) in sides {
            let step = match (self.is_here(address), outcome) {
                (_, Outcome::Rule(rule)) => {
                    Step { rule: Some(rule.id.to_string()), ..Step::new(stage, verdict(outcome)) }
                }
                (_, Outcome::UnknownSource) => Step::new(stage, verdict(outcome)).because("unknown-source"),
                (true, Outcome::Default) => Step::new(stage, Verdict::Pass),
                (false, Outcome::Default) => {
                    Step::new(stage, Verdict::Skip).because("the endpoint is not on this node")
                }
            };
            let is_dropped = step.verdict == Verdict::Drop;
            self.steps.push(step);
            if is_dropped {
                return None;
            }
        }
        Some(())
    }

    fn is_here(&self, address: IpAddr) -> bool {
        self.network.identity_at(address).is_some_and(|(_, is_here)| is_here)
    }

    fn forwarded(&mut self, copies: Vec<Delivery>) -> Option<Vec<Delivery>> {
        if copies.is_empty() {
            return self.drop(Step::new(Stage::Forward, Verdict::Drop).because("no receiver"));
        }
        self.steps.push(Step::new(Stage::Forward, Verdict::Pass));
        Some(copies)
    }

    fn drop(&mut self, step: Step) -> Option<Vec<Delivery>> {
        self.steps.push(step);
        None
    }

    fn output(&self, copy: &Delivery) -> Output {
        let to = match (&copy.to, &self.origin) {
            (Target::Pod(port), Origin::Pod(sender)) if port == sender => Egress::Answer,
            (Target::Pod(port), _) => to_port(self.network.objects, port),
            (Target::Tunnel { vtep, vni, .. }, _) => Egress::Tunnel { vtep: *vtep, vni: *vni },
            (Target::Uplink, _) => match untag(&copy.frame) {
                Some((vlan, inner)) => {
                    return Output { to: Egress::Uplink { vlan }, packet: read_header(&inner) };
                }
                None => Egress::Answer,
            },
            (Target::Kernel, _) => Egress::Interface(KERNEL_PORT.to_owned()),
        };
        let packet = Some(to != Egress::Answer).filter(|is_packet| *is_packet);
        Output { to, packet: packet.and_then(|_| read_header(&copy.frame)) }
    }
}

fn verdict(outcome: Outcome<'_>) -> Verdict {
    match outcome.action() {
        Action::Allow => Verdict::Pass,
        Action::Deny => Verdict::Drop,
    }
}

#[cfg(test)]
mod tests;
