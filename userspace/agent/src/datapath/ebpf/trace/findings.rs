//! Translates the records of the programs to the findings of a trace.

use std::net::{IpAddr, Ipv6Addr};

use contiv_abi::{DropReason, LogResult, LogStage, TRACED_COPIES, Vtep};
use contiv_model::{
    name::RuleId,
    tag::Vni,
    trace::{ConnectionState, Egress, Output, Stage, Step, Verdict},
};

use super::{Request, run::Pass};
use crate::datapath::{
    ebpf::{maps::foreign::Record, programs::kernel_port::KernelPort},
    trace::{Findings, Ingress, read_header},
};

/// How the programs are run.
const METHOD: &str = "BPF_PROG_TEST_RUN";

/// The stage of a record.
const fn stage_of(stage: LogStage) -> Stage {
    match stage {
        LogStage::Source | LogStage::Neighbour => Stage::Guard,
        LogStage::Track => Stage::Connection,
        LogStage::Service => Stage::Service,
        LogStage::Policy => Stage::PolicyOut,
        LogStage::Insert | LogStage::Verdict => Stage::Forward,
    }
}

/// Stages that log, in the order that packets pass them.
const LOGGED: [LogStage; 7] = [
    LogStage::Source,
    LogStage::Neighbour,
    LogStage::Track,
    LogStage::Service,
    LogStage::Policy,
    LogStage::Insert,
    LogStage::Verdict,
];

impl Request {
    pub(super) fn findings(&self, pass: &Pass) -> Findings {
        let outputs = self.outputs(pass);
        let end = End::of(pass, &outputs);
        let mut steps = vec![];
        for stage in Stage::ALL.into_iter().filter(|stage| *stage <= end.stage) {
            let step = self.step(stage, pass);
            steps.push(Step { details: details(stage, pass), ..step });
        }
        if let (Some(reason), Some(step)) = (end.reason, steps.last_mut()) {
            step.verdict = Verdict::Drop;
            if step.rule.is_none() {
                step.reason = reason.to_owned();
            }
        }
        let omitted_copies = pass.traced.copies.saturating_sub(TRACED_COPIES as u32);
        if omitted_copies > 0
            && let Some(step) = steps.last_mut()
        {
            step.details.push(format!("{omitted_copies} more copies"));
        }
        Findings { method: METHOD, steps, outputs, omitted_copies }
    }

    /// A step as if the packet passed the stage.
    fn step(&self, stage: Stage, pass: &Pass) -> Step {
        let passed = Step::new(stage, Verdict::Pass);
        let skipped = Step::new(stage, Verdict::Skip);
        match stage {
            Stage::Guard | Stage::Forward => passed,
            Stage::Service if pass.is(LogStage::Service, LogResult::BackendChosen) => {
                Step { backend: backend(&pass.packet), ..self.of_service(passed) }
            }
            Stage::Service if pass.is(LogStage::Service, LogResult::NoService) => skipped,
            Stage::Service => match pass.result(LogStage::Service) {
                None => skipped,
                Some(_) => self.of_service(passed),
            },
            Stage::Connection => match pass.result(LogStage::Track) {
                Some(result) => Step { connection: Some(state(result)), ..passed },
                None => skipped,
            },
            Stage::PolicyOut | Stage::PolicyIn => {
                let is_in = stage == Stage::PolicyIn;
                let end = if is_in { "place.ifindex" } else { "source_port" };
                let is_here = pass.packet.number(end).is_some_and(|ifindex| ifindex != 0);
                let rule = self.rule(&pass.packet, is_in);
                match (pass.result(LogStage::Policy), rule) {
                    (None, _) => skipped,
                    (Some(_), Some(rule)) => Step { rule: Some(rule.to_string()), ..passed },
                    (Some(_), None) if is_here => passed,
                    (Some(_), None) => skipped.because("the endpoint is not on this node"),
                }
            }
        }
    }

    fn of_service(&self, step: Step) -> Step {
        Step { service: self.probe.service.as_ref().map(ToString::to_string), ..step }
    }

    /// The rule that decided on one side.
    fn rule(&self, packet: &Record, is_in: bool) -> Option<RuleId> {
        self.rules.lookup([rules_of(packet)[usize::from(is_in)]]).pop()
    }

    fn outputs(&self, pass: &Pass) -> Vec<Output> {
        let traced = &pass.traced;
        let copies = traced.copy.iter().take(traced.copies as usize);
        let mut ways: Vec<(u32, Vtep)> = copies.map(|copy| (copy.ifindex, copy.vtep)).collect();
        if traced.ifindex != 0 {
            let vtep = pass.packet.bytes("place.vtep").map_or_else(Vtep::default, contiv_abi::Address);
            ways.push((traced.ifindex, vtep));
        }
        let outputs = ways.into_iter().map(|(ifindex, vtep)| {
            let to = self.egress(ifindex, vtep, pass);
            let packet = if to == Egress::Answer { None } else { read_header(&pass.frame) };
            Output { to, packet }
        });
        outputs.collect()
    }

    fn egress(&self, ifindex: u32, vtep: Vtep, pass: &Pass) -> Egress {
        let interfaces = &self.interfaces;
        if let Some((endpoint, port)) = interfaces.endpoints.get(&ifindex).filter(|_| ifindex != self.ifindex)
        {
            return Egress::Endpoint { endpoint: endpoint.to_string(), port: port.clone() };
        }
        // The frame returns to its ingress, as an answer or for the node of a service's backend.
        if ifindex == self.ifindex {
            return match &self.probe.ingress {
                Ingress::Uplink(vlan) if !is_answer(pass) => Egress::Uplink { vlan: *vlan },
                _ => Egress::Answer,
            };
        }
        let vni = pass.packet.number("segment.vni").and_then(|vni| Vni::try_from(vni).ok());
        match (vni, self.vlan()) {
            (Some(vni), _) if ifindex == interfaces.overlay => {
                Egress::Tunnel { vtep: Ipv6Addr::from(vtep.0).to_canonical(), vni }
            }
            (_, Some(vlan)) if ifindex == interfaces.uplink => Egress::Uplink { vlan },
            _ => {
                let mut kernel = KernelPort::ALL.into_iter().zip(interfaces.kernel);
                let port = kernel.find(|(_, peer)| *peer == ifindex);
                Egress::Interface(
                    port.map_or_else(|| format!("ifindex {ifindex}"), |(port, _)| port.name().to_owned()),
                )
            }
        }
    }
}

/// Reports whether the frame has become an answer to the physical network: a refusal, or a reply to ARP or ND.
fn is_answer(pass: &Pass) -> bool {
    pass.is(LogStage::Verdict, LogResult::Refused) || pass.is(LogStage::Neighbour, LogResult::Answered)
}

/// The last stage, and the reason why the packet was dropped there.
struct End {
    stage: Stage,
    reason: Option<&'static str>,
}

impl End {
    fn of(pass: &Pass, outputs: &[Output]) -> End {
        let verdict = pass.result(LogStage::Verdict);
        let dropped = verdict.and_then(reason_of);
        let failed = || LOGGED.into_iter().find_map(|stage| Some((stage, reason_of(pass.result(stage)?)?)));
        // A refusal is logged as such; the stage before has the reason.
        let is_refused = verdict == Some(LogResult::Refused as u32);
        let reason = dropped.or_else(|| if is_refused { failed().map(|(_, reason)| reason) } else { None });
        let Some(reason) = reason else {
            // The programs do not log the choice of a backend for packets from the physical network.
            if is_refused {
                return End { stage: End::after(pass), reason: Some("refused") };
            }
            return End { stage: Stage::Forward, reason: outputs.is_empty().then_some("no receiver") };
        };
        let stage = match failed() {
            Some((LogStage::Policy, DropReason::UnknownSource)) => Stage::PolicyIn,
            // The rules of the source are evaluated first.
            Some((LogStage::Policy, _)) if rules_of(&pass.packet)[1] != 0 => Stage::PolicyIn,
            Some((stage, _)) if stage != LogStage::Verdict => stage_of(stage),
            _ => End::after(pass),
        };
        End { stage, reason: Some(reason.as_str()) }
    }

    /// The stage after the last one that has logged a result.
    fn after(pass: &Pass) -> Stage {
        let logged = |stage| pass.result(stage).is_some();
        if logged(LogStage::Policy) {
            Stage::Forward
        } else if logged(LogStage::Track) || logged(LogStage::Source) {
            Stage::Connection
        } else {
            Stage::Guard
        }
    }
}

/// The reason, if the result is one.
fn reason_of(result: u32) -> Option<DropReason> {
    DropReason::ALL.iter().find(|reason| **reason as u32 == result).copied()
}

fn state(result: u32) -> ConnectionState {
    if result == LogResult::NoFlow as u32 { ConnectionState::New } else { ConnectionState::Established }
}

/// Numbers of the rules that decided at the source and at the destination; zero for none.
fn rules_of(packet: &Record) -> [u32; 2] {
    let [out, into] = *packet.bytes::<8>("rules").unwrap_or_default().as_chunks::<4>().0 else {
        return [0; 2];
    };
    [out, into].map(u32::from_ne_bytes)
}

/// Returns the translated destination of the packet.
fn backend(packet: &Record) -> Option<(IpAddr, u16)> {
    let ip = packet.bytes::<16>("wanted.destination")?;
    let port = packet.bytes::<2>("wanted.destination_port")?;
    Some((Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port)))
}

/// The records of a stage.
fn details(stage: Stage, pass: &Pass) -> Vec<String> {
    let line = |(of, result): &(u32, u32)| {
        let logged = LOGGED.into_iter().find(|logged| *logged as u32 == *of)?;
        let text = LogResult::text(*result).map(str::to_owned);
        let text = text.or_else(|| Some(format!("dropped, {}", reason_of(*result)?.as_str())))?;
        (stage_of(logged) == stage).then(|| format!("{}: {text}", LogStage::text(*of).unwrap_or_default()))
    };
    pass.records.iter().filter_map(line).collect()
}
