//! Maps the tables of an account to stages.

use std::net::IpAddr;

use contiv_model::{
    name::RuleId,
    policy::{TCP, UDP},
    tag::{Encap, Vni},
    trace::{ConnectionState, Egress, Header, Output, Stage, Step, Verdict},
};

use super::{
    Request,
    account::{Account, CONTROLLER, HASH, IN_PORT, MatchedFlow, Pass, Visit},
};
use crate::datapath::{
    ObjectId,
    ovs::{
        bridge::BridgeKind,
        pipeline::{ANSWER_TABLES, counted_rules, is_misread, stage_of},
        tables::cookie::Cookie,
    },
    trace::{Findings, Ingress},
};

/// Reason for dropping packets that the kernel and ovs-vswitchd may parse differently.
const MISREAD: &str = "it looks like a packet that the switch misreads";

impl Request {
    pub(super) fn findings(&self, account: &Account) -> Findings {
        let outputs: Vec<Output> = account.passes.iter().flat_map(|pass| self.outputs(pass)).collect();
        let backend = self.backend(account);
        let visits = account.passes.iter().flat_map(|pass| &pass.visits);
        // The stage that sends the packet to the agent is the stage that rejects it.
        let visits: Vec<&Visit> = visits.filter(|visit| !ANSWER_TABLES.contains(&visit.table)).collect();
        let mut ports = account.passes.iter().flat_map(|pass| pass.outputs.iter().chain(&pass.datapath));
        // The agent rejects a packet with an answer. The switch outputs its own answers to the ingress port.
        let is_refused = ports.any(|name| name == CONTROLLER);
        let is_dropped = outputs.is_empty() || is_refused;
        let last = match (is_dropped, visits.last()) {
            (true, Some(visit)) => stage_of(visit.table),
            _ => Stage::Forward,
        };
        let mut steps = vec![];
        for stage in Stage::ALL.into_iter().filter(|stage| *stage <= last) {
            let of_stage: Vec<&Visit> =
                visits.iter().filter(|visit| stage_of(visit.table) == stage).copied().collect();
            let step = self.step(stage, &of_stage, stage == last && is_dropped, backend);
            let details = of_stage.iter().map(|visit| describe(visit)).collect();
            steps.push(Step { details, ..step });
        }
        if let Some(step) = steps.last_mut().filter(|step| step.verdict == Verdict::Drop) {
            let problems = account.passes.iter().flat_map(|pass| &pass.problems);
            let matched = visits.last().and_then(|visit| visit.flow.as_ref());
            if step.reason.is_empty() && step.rule.is_none() {
                step.reason = match (problems.last(), is_refused) {
                    (_, true) if step.stage == Stage::Service => "no-backend".into(),
                    (_, true) => "ttl-exceeded".into(),
                    _ if matched.is_some_and(|flow| is_misread(flow.priority)) => MISREAD.into(),
                    (Some(problem), false) => problem.clone(),
                    (None, false) => "no flow accepts it".into(),
                };
            }
        }
        Findings { method: super::COMMAND, steps, outputs, omitted_copies: 0 }
    }

    fn step(
        &self,
        stage: Stage,
        visits: &[&Visit],
        is_dropped: bool,
        backend: Option<(IpAddr, u16)>,
    ) -> Step {
        let verdict = if is_dropped { Verdict::Drop } else { Verdict::Pass };
        let Header { source, destination, .. } = &self.probe.header;
        let step = Step::new(stage, verdict);
        match stage {
            Stage::Guard | Stage::Forward => step,
            Stage::Service if backend.is_some() || is_dropped => {
                Step { service: self.probe.service.as_ref().map(ToString::to_string), backend, ..step }
            }
            Stage::Service => Step::new(stage, Verdict::Skip),
            // The connection state is an input of the trace.
            Stage::Connection if visits.is_empty() => Step::new(stage, Verdict::Skip),
            Stage::Connection => Step { connection: Some(ConnectionState::New), ..step },
            Stage::PolicyOut | Stage::PolicyIn => {
                let end = if stage == Stage::PolicyOut {
                    *source
                } else {
                    backend.map_or(*destination, |(ip, _)| ip)
                };
                let rule = visits.iter().rev().find_map(|visit| self.rule(visit));
                match rule {
                    Some(rule) => Step { rule: Some(rule.to_string()), ..step },
                    None if is_dropped || self.here.contains(&end) => step,
                    None => Step::new(stage, Verdict::Skip).because("the endpoint is not on this node"),
                }
            }
        }
    }

    /// Returns the rule whose flow matched.
    fn rule(&self, visit: &Visit) -> Option<RuleId> {
        let MatchedFlow { matching, priority, cookie } = visit.flow.as_ref()?;
        let is_owner = |identity| Cookie::of(&ObjectId::Group(identity)).0 == *cookie;
        let group = self.groups.iter().find(|group| is_owner(group.identity))?;
        let sorted = |text: &str| {
            let mut parts: Vec<String> = text.split(',').map(str::to_owned).collect();
            parts.sort_unstable();
            parts
        };
        let matched = sorted(matching);
        let flows = counted_rules(group).into_iter();
        let mut candidates = flows
            .filter(|(flow, rule)| flow.table == visit.table && flow.priority == *priority && rule.is_some());
        let is_matched = |matching: &openflow_rs::Match| sorted(&matching.to_string()) == matched;
        candidates.find(|(flow, _)| is_matched(&flow.matching)).and_then(|(_, rule)| rule)
    }

    fn outputs(&self, pass: &Pass) -> Vec<Output> {
        let names = match self.bridge {
            BridgeKind::Vxlan => &pass.outputs,
            BridgeKind::Vlan => &pass.datapath,
        };
        let own = self.ports.get(&self.in_port.to_string());
        let is_from_fabric = matches!(self.probe.ingress, Ingress::Uplink(_));
        // The bridge has no other bond than the uplinks: the hash selects the member.
        let bond = match self.probe.encap {
            Encap::Vlan(vlan) => Some(Egress::Uplink { vlan }),
            Encap::Vxlan { .. } => None,
        };
        let mut outputs: Vec<Output> = vec![];
        for name in names {
            let bond = bond.as_ref().filter(|_| name.starts_with(HASH));
            let to = match self.ports.get(name).or(bond) {
                _ if *name == CONTROLLER => Egress::Answer,
                // A packet from outside the cluster to another node returns to the fabric.
                _ if *name == IN_PORT && is_from_fabric => match own {
                    Some(uplink) => uplink.clone(),
                    None => continue,
                },
                _ if *name == IN_PORT => Egress::Answer,
                // The switch outputs its answers to the ingress port.
                Some(egress) if own == Some(egress) && !is_from_fabric => Egress::Answer,
                Some(Egress::Tunnel { vtep, vni }) => {
                    Egress::Tunnel { vtep: *vtep, vni: tunnel_id(pass).unwrap_or(*vni) }
                }
                Some(egress) => egress.clone(),
                None => continue,
            };
            let packet = (to != Egress::Answer).then(|| self.header(pass));
            let output = Output { to, packet };
            if !outputs.contains(&output) {
                outputs.push(output);
            }
        }
        outputs
    }

    /// Returns the headers at the end of a pass.
    pub(super) fn header(&self, pass: &Pass) -> Header {
        let header = &self.probe.header;
        let field = |names: &[&str]| names.iter().find_map(|name| pass.fields.get(*name));
        let address =
            |names: &[&str], old: IpAddr| field(names).and_then(|ip| ip.parse().ok()).unwrap_or(old);
        let has_ports = [TCP, UDP].contains(&header.protocol);
        let port = |name: &str, old: u16| {
            let new = field(&[name]).filter(|_| has_ports).and_then(|port| port.parse().ok());
            new.unwrap_or(old)
        };
        let mac = |name: &str, old| field(&[name]).and_then(|mac| mac.parse().ok()).unwrap_or(old);
        let tos: Option<u8> = field(&["nw_tos"]).and_then(|tos| tos.parse().ok());
        Header {
            source_mac: mac("dl_src", header.source_mac),
            destination_mac: mac("dl_dst", header.destination_mac),
            source: address(&["nw_src", "ipv6_src"], header.source),
            destination: address(&["nw_dst", "ipv6_dst"], header.destination),
            source_port: port("tp_src", header.source_port),
            destination_port: port("tp_dst", header.destination_port),
            dscp: tos.map_or(header.dscp, |tos| tos >> 2),
            ..header.clone()
        }
    }
}

/// Returns the VNI of a packet at the end of a pass. It differs from that of the probe if the packet is routed.
fn tunnel_id(pass: &Pass) -> Option<Vni> {
    let digits = pass.fields.get("tun_id")?.strip_prefix("0x")?;
    u32::from_str_radix(digits, 16).ok()?.try_into().ok()
}

fn describe(visit: &Visit) -> String {
    match &visit.flow {
        None => format!("table {}: no match", visit.table),
        Some(MatchedFlow { matching, priority, cookie }) => {
            format!("table {}: priority {priority}, cookie {cookie:#x}: {matching}", visit.table)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use contiv_model::{mac::Mac, policy::ICMP, tag::Vlan, trace::TcpFlags};

    use super::*;
    use crate::datapath::trace::Probe;

    const POD: [u8; 4] = [10, 1, 0, 1];
    const OTHER: [u8; 4] = [10, 1, 0, 254];

    /// Returns a request for a packet from the pod to the other address that enters at port 1.
    fn request(ingress: Ingress, protocol: u8, egress: Egress) -> Request {
        let vlan: Vlan = 100.try_into().unwrap();
        let header = Header {
            source_mac: Mac::of_endpoint(POD.into()),
            destination_mac: Mac::of_endpoint(OTHER.into()),
            source: POD.into(),
            destination: OTHER.into(),
            protocol,
            source_port: 4000,
            destination_port: 53,
            tcp_flags: TcpFlags::SYN,
            dscp: 0,
        };
        let encap = Encap::Vlan(vlan);
        Request {
            probe: Probe { ingress, network: "blue.net".into(), encap, header, service: None },
            socket: "db.sock".into(),
            bridge: BridgeKind::Vlan,
            in_port: 1,
            ports: HashMap::from([("1".to_owned(), egress.clone()), ("eth1".to_owned(), egress)]),
            groups: vec![],
            here: vec![POD.into()],
        }
    }

    fn of_pod(protocol: u8) -> Request {
        let ingress = Ingress::Pod { endpoint: "blue.net-pod1".into(), port: "eth1".into() };
        let egress = Egress::Endpoint { endpoint: "blue.net-pod1".into(), port: "eth1".into() };
        request(ingress, protocol, egress)
    }

    /// Returns the account of a packet that passes these tables and leaves through this port with these addresses.
    fn account(tables: &[u8], (from, to): ([u8; 4], [u8; 4]), port: &str) -> Account {
        let visits: String = tables.iter().map(|table| format!("{table:2}. ip, priority 1\n")).collect();
        let [from, to] = [from, to].map(std::net::Ipv4Addr::from);
        Account::parse(&format!(
            "Flow: ip,in_port=1\n{visits}\nFinal flow: ip,in_port=1,nw_src={from},nw_dst={to},tp_dst=53\n\
             Datapath actions: {port}\n"
        ))
    }

    fn end(findings: &Findings) -> (Stage, Verdict, Vec<Egress>) {
        let step = findings.steps.last().unwrap();
        (step.stage, step.verdict, findings.outputs.iter().map(|output| output.to.clone()).collect())
    }

    #[test]
    fn a_packet_that_returns_to_its_port_is_forwarded() {
        // A ping of the gateway: the switch swaps its addresses.
        let (ping, answered) = (of_pod(ICMP), account(&[0, 11], (OTHER, POD), "eth1"));
        assert_eq!(ping.backend(&answered), None);
        let forwarded = (Stage::Forward, Verdict::Pass, vec![Egress::Answer]);
        assert_eq!(end(&ping.findings(&answered)), forwarded);
        // A packet to a service whose backend is the pod itself.
        let (hairpin, returned) = (of_pod(UDP), account(&[0, 29, 6, 9], (OTHER, POD), "eth1"));
        assert_eq!(hairpin.backend(&returned), Some((POD.into(), 53)));
        assert_eq!(end(&hairpin.findings(&returned)), forwarded);
        // The agent rejects the packet.
        let refused = account(&[0, 27, 31], (POD, OTHER), "controller(reason=1)");
        assert_eq!(end(&hairpin.findings(&refused)), (Stage::Service, Verdict::Drop, vec![Egress::Answer]));
    }

    #[test]
    fn a_packet_for_the_bond_leaves_by_the_uplink() {
        let sent = account(&[0, 9], (POD, OTHER), "push_vlan(vid=100,pcp=0),br0,hash(l4(0)),recirc(0x2)");
        let uplink = Egress::Uplink { vlan: 100.try_into().unwrap() };
        assert_eq!(end(&of_pod(UDP).findings(&sent)), (Stage::Forward, Verdict::Pass, vec![uplink]));
    }

    #[test]
    fn a_packet_that_returns_to_the_fabric_leaves_by_the_uplink() {
        let vlan: Vlan = 100.try_into().unwrap();
        let relay = request(Ingress::Uplink(vlan), UDP, Egress::Uplink { vlan });
        let relayed = account(&[0, 32, 9], (POD, OTHER), "eth1");
        let expected = (Stage::Forward, Verdict::Pass, vec![Egress::Uplink { vlan }]);
        assert_eq!(end(&relay.findings(&relayed)), expected);
    }
}
