//! `netctl policy check`.

use std::io::Write;

use clap::{Args, ValueEnum};
use contiv_model::{
    key::ObjectType,
    policy::{self, Packet},
};

use crate::{
    client::Client,
    error::{Error, Outcome},
    observe::{
        endpoint::{networks, typed},
        finder::Finder,
        policy_trace::{DecidingRule, Peer, PolicySet, PolicyTrace, SideTrace},
    },
    output::{self, printable, style},
};

/// Arguments of `netctl policy check`: a connection.
#[derive(Args, Debug)]
pub struct Check {
    /// Source: endpoint id, container id, container name, or an IP address inside or outside of the cluster.
    #[arg(long, short, value_name = "EP")]
    from: String,
    /// Destination, in the same notation; for a service, one of its backends.
    #[arg(long, value_name = "EP")]
    to: String,
    /// IP protocol: tcp, udp, icmp, sctp or a number from 0 to 255.
    #[arg(long, short = 'l', value_parser = protocol)]
    protocol: u8,
    /// Destination port; required for tcp and udp.
    #[arg(long, short = 'P')]
    port: Option<u16>,
    /// Use the IPv6 addresses of the endpoints.
    #[arg(long, short = '6')]
    ipv6: bool,
    /// Tenant of the endpoints; required if an address or a name is ambiguous.
    #[arg(long, short)]
    tenant: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value = "text")]
    output: CheckFormat,
}

/// Output format of `policy check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum CheckFormat {
    Text,
    Json,
    Yaml,
}

/// Parses the name or number of an IP protocol.
pub fn protocol(text: &str) -> Result<u8, &'static str> {
    match text {
        "tcp" => Ok(policy::TCP),
        "udp" => Ok(policy::UDP),
        "icmp" => Ok(policy::ICMP),
        "sctp" => Ok(132),
        number => number.parse().map_err(|_| "expected tcp, udp, icmp, sctp or a number from 0 to 255"),
    }
}

/// Evaluates the policies for the connection and writes the result.
pub fn run(client: &Client, check: &Check, out: &mut dyn Write) -> Result<Outcome, Error> {
    let packet = packet(check)?;
    let networks = networks(client, check.tenant.as_deref())?;
    let finder = Finder::new(client, networks, check.tenant.as_deref());
    let (from, to) = finder.peers(&check.from, &check.to, check.ipv6)?;
    let policies = PolicySet::new(
        typed(client, ObjectType::EndpointGroup)?,
        typed(client, ObjectType::Rule)?,
        typed(client, ObjectType::Netprofile)?,
        typed(client, ObjectType::Network)?,
    );
    let trace = policies.evaluate(&from, &to, packet).map_err(|error| Error::Refused(error.to_string()))?;
    let value = trace.json(&from, &to, packet);
    match check.output {
        CheckFormat::Json => output::json(out, &value)?,
        CheckFormat::Yaml => output::yaml(out, &value)?,
        CheckFormat::Text => explain(&trace, &from, &to, packet, out)?,
    }
    Ok(if trace.allowed { Outcome::Done } else { Outcome::Denied })
}

fn packet(check: &Check) -> Result<Packet, Error> {
    let has_ports = [policy::TCP, policy::UDP].contains(&check.protocol);
    match (has_ports, check.port) {
        (true, None) => Err(Error::Usage("--port is required for tcp and udp".into())),
        (false, Some(_)) => Err(Error::Usage("--port is valid for tcp and udp only".into())),
        (_, port) => Ok(Packet { protocol: check.protocol, port }),
    }
}

fn explain(
    trace: &PolicyTrace,
    from: &Peer,
    to: &Peer,
    packet: Packet,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let verdict = match trace.allowed {
        true => style::paint(style::GOOD, "allow"),
        false => style::paint(style::BAD, "deny"),
    };
    let what = match (packet.protocol, packet.port) {
        (policy::TCP, Some(port)) => format!("tcp port {port}"),
        (policy::UDP, Some(port)) => format!("udp port {port}"),
        (policy::ICMP, _) => "icmp".into(),
        (number, _) => format!("protocol {number}"),
    };
    writeln!(out, "{verdict}: {} to {}, {what}", printable(&named(from)), printable(&named(to)))?;
    writeln!(out, "  source (out rules):     {}", printable(&reason(&trace.out, from)))?;
    writeln!(out, "  destination (in rules): {}", printable(&reason(&trace.into, to)))?;
    let network = |peer: &Peer| peer.endpoint.as_ref().map(|endpoint| endpoint.network.clone());
    if let (Some(one), Some(other)) = (network(from), network(to))
        && one != other
    {
        let (one, other) = (printable(&one), printable(&other));
        writeln!(
            out,
            "  note: {one} and {other} are different networks; policies do not route between them"
        )?;
    }
    Ok(())
}

fn named(peer: &Peer) -> String {
    match &peer.endpoint {
        Some(endpoint) => format!("{} ({})", peer.address, endpoint.endpoint_id),
        None => format!("{} (no endpoint)", peer.address),
    }
}

fn reason(side: &SideTrace, peer: &Peer) -> String {
    if side.is_source_unknown {
        return "deny (unknown-source): no endpoint has the address of the source, which is inside the network, and rules of the group \
                name groups"
            .into();
    }
    match (&side.rule, &side.group) {
        (Some(DecidingRule { key, action, priority }), Some(group)) => {
            let priority = priority.map(|priority| format!(" (priority {priority})")).unwrap_or_default();
            format!("{action} by rule {key}{priority} of group {group}")
        }
        (_, Some(group)) => format!("allow: no rule of group {group} matches"),
        (_, None) if peer.endpoint.is_some() => "allow: the endpoint is in no group".into(),
        (_, None) => "allow: the address is external".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_a_name_or_a_number() {
        assert_eq!((protocol("tcp"), protocol("sctp"), protocol("58")), (Ok(6), Ok(132), Ok(58)));
        assert!(protocol("256").is_err() && protocol("gre").is_err());
    }
}
