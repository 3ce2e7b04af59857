//! Traces of both datapaths: the packets, the rules that decide about them, and the findings in short.

use std::net::IpAddr;

use anyhow::Result;
use contiv_model::{
    policy::{Action, Direction, Identity, Peer, PortRange, Rule, TCP},
    trace::{Egress, Ingress, Query, TcpFlags},
};
use netplugin::datapath::{Group, trace::Findings};

/// Group of the traced endpoints.
pub(crate) const GROUP: u32 = 7;

/// A packet that opens a TCP connection.
pub(crate) fn query(ingress: Ingress, source: IpAddr, destination: IpAddr, port: u16) -> Query {
    Query {
        ingress,
        source: Some(source),
        destination,
        protocol: TCP,
        source_port: 40_000,
        destination_port: port,
        tcp_flags: TcpFlags::SYN,
        dscp: 0,
        source_mac: None,
        destination_mac: None,
    }
}

/// Stages and rules up to the last, and outputs.
pub(crate) fn summary(findings: &Findings) -> (Vec<String>, Vec<Egress>) {
    let lines = findings.steps.iter().map(ToString::to_string).collect();
    (lines, findings.outputs.iter().map(|output| output.to.clone()).collect())
}

/// [`GROUP`], which denies TCP ports 22 to 25 in, from two groups, and 23 out.
pub(crate) fn group() -> Result<Group> {
    let rule = |id: &str, direction, action, priority: u8, ports: (u16, u16)| -> Result<Rule> {
        Ok(Rule {
            protocol: Some(TCP),
            ports: PortRange::new(ports.0, ports.1),
            ..Rule::new(id, direction, action, priority.try_into()?)
        })
    };
    let peers = [3, GROUP].map(Identity::try_from).into_iter().collect::<Result<_, _>>()?;
    let ssh = Rule {
        peer: Peer { identities: Some(peers), ..Peer::any() },
        ..rule("no-ssh-in", Direction::In, Action::Deny, 2, (22, 25))?
    };
    let telnet = rule("no-telnet-out", Direction::Out, Action::Deny, 2, (23, 23))?;
    let web = rule("web-in", Direction::In, Action::Allow, 1, (80, 80))?;
    Ok(Group::new(Identity::try_from(GROUP)?, [ssh, telnet, web]))
}
