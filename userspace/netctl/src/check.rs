//! `netctl policy check`.

use std::{io::Write, net::IpAddr};

use clap::Args;
use contiv_model::{
    api::{EndpointInspect, EndpointOper, Network},
    key::ObjectType,
    policy::{self, Packet},
};

use crate::{
    Error, Outcome,
    cli::Verdict,
    client::Client,
    endpoint::{self, networks, read, typed},
    listing::{pretty, yaml},
    ruling::{Deciding, End, Rulebook, Ruling, Said},
    style,
};

/// A connection to ask about.
#[derive(Args, Debug)]
pub struct Check {
    /// Who opens the connection: an endpoint's id, its container's id or name, or an address, also one outside.
    #[arg(long, short, value_name = "EP")]
    from: String,
    /// Whom it is for, named in the same way; of a service, one of its providers.
    #[arg(long, value_name = "EP")]
    to: String,
    /// tcp, udp, icmp, sctp or a number.
    #[arg(long, short = 'l', value_parser = protocol)]
    protocol: u8,
    /// The port that it goes to; needed with tcp and udp.
    #[arg(long, short = 'P')]
    port: Option<u16>,
    /// Takes the endpoints' IPv6 addresses.
    #[arg(long, short = '6')]
    ipv6: bool,
    /// The tenant of the endpoints, where they cannot be told otherwise.
    #[arg(long, short)]
    tenant: Option<String>,
    /// The form.
    #[arg(long, short, value_enum, default_value = "text")]
    output: Verdict,
}

fn protocol(text: &str) -> Result<u8, &'static str> {
    match text {
        "tcp" => Ok(policy::TCP),
        "udp" => Ok(policy::UDP),
        "icmp" => Ok(policy::ICMP),
        "sctp" => Ok(132),
        number => number.parse().map_err(|_| "expected tcp, udp, icmp, sctp or a number from 0 to 255"),
    }
}

/// Says whether the connection is let through, and by which rules.
pub fn run(client: &Client, check: &Check, out: &mut dyn Write) -> Result<Outcome, Error> {
    let packet = packet(check)?;
    let networks = networks(client, check.tenant.as_deref())?;
    let finder = Finder { client, networks, tenant: check.tenant.as_deref() };
    let (from, to) = finder.ends(&check.from, &check.to, check.ipv6)?;
    let book = Rulebook::new(
        typed(client, ObjectType::EndpointGroup)?,
        typed(client, ObjectType::Rule)?,
        typed(client, ObjectType::Netprofile)?,
        typed(client, ObjectType::Network)?,
    );
    let ruling = book.decide(&from, &to, packet).map_err(|error| Error::Refused(error.to_string()))?;
    let said = ruling.json(&from, &to, packet);
    match check.output {
        Verdict::Json => pretty(out, &said)?,
        Verdict::Yaml => yaml(out, &said)?,
        Verdict::Text => explain(&ruling, &from, &to, packet, out)?,
    }
    Ok(if ruling.allowed { Outcome::Done } else { Outcome::Denied })
}

fn packet(check: &Check) -> Result<Packet, Error> {
    let has_ports = [policy::TCP, policy::UDP].contains(&check.protocol);
    match (has_ports, check.port) {
        (true, None) => Err(Error::Usage("--port is needed with tcp and udp".into())),
        (false, Some(_)) => Err(Error::Usage("--port goes with tcp and udp only".into())),
        (_, port) => Ok(Packet { protocol: check.protocol, port }),
    }
}

/// Finds endpoints by what people call them.
struct Finder<'a> {
    client: &'a Client,
    networks: Vec<Network>,
    tenant: Option<&'a str>,
}

impl Finder<'_> {
    /// Endpoints by name are found first: they tell on which network an address is meant.
    fn ends(&self, from: &str, to: &str, ipv6: bool) -> Result<(End, End), Error> {
        let address = |text: &str| text.parse::<IpAddr>().ok();
        let v6 = ipv6 || [from, to].into_iter().filter_map(address).any(|address| address.is_ipv6());
        let named = |text: &str| match address(text) {
            Some(_) => Ok(None),
            None => self.called(text).and_then(|endpoint| end(endpoint, v6)).map(Some),
        };
        let (mut source, mut destination) = (named(from)?, named(to)?);
        let network = |end: &Option<End>| Some(end.as_ref()?.endpoint.as_ref()?.network.clone());
        if let Some(address) = address(from) {
            source = Some(self.at(address, network(&destination))?);
        }
        if let Some(address) = address(to) {
            destination = Some(self.at(address, network(&source))?);
        }
        match (source, destination) {
            (Some(source), Some(destination))
                if source.address.is_ipv6() == destination.address.is_ipv6() =>
            {
                Ok((source, destination))
            }
            _ => Err(Error::Usage(format!("--from {from} --to {to}: one is IPv4, the other IPv6"))),
        }
    }

    fn called(&self, name: &str) -> Result<EndpointOper, Error> {
        let is = |e: &EndpointOper| {
            [&e.endpoint_id, &e.container_id, &e.container_name].iter().any(|id| *id == name)
        };
        let found = match self.tenant {
            Some(_) => self.on_networks(|_| true)?.into_iter().find(is),
            None => match self.client.inspect("endpoint", name) {
                Ok(answer) => Some(read::<EndpointInspect>(answer, "endpoints")?.oper),
                Err(Error::Refused(message)) if message == "endpoint not found" => None,
                Err(error) => return Err(error),
            },
        };
        match found {
            Some(endpoint) if is(&endpoint) => Ok(endpoint),
            Some(like) => Err(Error::Refused(format!(
                "no endpoint is called {name}; did you mean {}?",
                like.endpoint_id
            ))),
            None => Err(Error::Refused(format!("no endpoint is called {name}"))),
        }
    }

    /// The endpoint that has the address on the network, or on any; the outside, if none has.
    fn at(&self, address: IpAddr, network: Option<String>) -> Result<End, Error> {
        let has = |e: &EndpointOper| e.ip_address.iter().any(|text| text.parse() == Ok(address));
        let mut found = self.on_networks(|it| match &network {
            Some(id) => *id == format!("{}.{}", it.network_name, it.tenant_name),
            None => true,
        })?;
        found.retain(has);
        if let [first, second, ..] = &found[..] {
            return Err(Error::Usage(format!(
                "{address} is {} on {} and {} on {}: name one of them, or --tenant",
                first.endpoint_id, first.network, second.endpoint_id, second.network
            )));
        }
        Ok(End { address, endpoint: found.pop() })
    }

    fn on_networks(&self, which: impl Fn(&Network) -> bool) -> Result<Vec<EndpointOper>, Error> {
        endpoint::on(self.client, self.networks.iter().filter(|network| which(network)))
    }
}

fn end(endpoint: EndpointOper, v6: bool) -> Result<End, Error> {
    let text = &endpoint.ip_address[usize::from(v6)];
    match text.parse() {
        Ok(address) => Ok(End { address, endpoint: Some(endpoint) }),
        Err(_) => Err(Error::Refused(format!(
            "endpoint {} has no {} address",
            endpoint.endpoint_id,
            if v6 { "IPv6" } else { "IPv4" }
        ))),
    }
}

fn explain(ruling: &Ruling, from: &End, to: &End, packet: Packet, out: &mut dyn Write) -> Result<(), Error> {
    let verdict = match ruling.allowed {
        true => style::paint(style::GOOD, "allow"),
        false => style::paint(style::BAD, "deny"),
    };
    let what = match (packet.protocol, packet.port) {
        (policy::TCP, Some(port)) => format!("tcp port {port}"),
        (policy::UDP, Some(port)) => format!("udp port {port}"),
        (policy::ICMP, _) => "icmp".into(),
        (number, _) => format!("protocol {number}"),
    };
    writeln!(out, "{verdict}: {} to {}, {what}", named(from), named(to))?;
    writeln!(out, "  out of the sender:    {}", reason(&ruling.out, from))?;
    writeln!(out, "  into the receiver:    {}", reason(&ruling.into, to))?;
    let network = |end: &End| end.endpoint.as_ref().map(|endpoint| endpoint.network.clone());
    if let (Some(one), Some(other)) = (network(from), network(to))
        && one != other
    {
        writeln!(out, "  note: {one} and {other} are different networks; policies do not connect them")?;
    }
    Ok(())
}

fn named(end: &End) -> String {
    match &end.endpoint {
        Some(endpoint) => format!("{} ({})", end.address, endpoint.endpoint_id),
        None => format!("{} (no endpoint)", end.address),
    }
}

fn reason(said: &Said, end: &End) -> String {
    match (&said.rule, &said.group) {
        (Some(Deciding { key, action, priority }), Some(group)) => {
            format!("{action} by rule {key} (priority {priority}) of group {group}")
        }
        (_, Some(group)) => format!("allow: no rule of group {group} matches"),
        (_, None) if end.endpoint.is_some() => "allow: it is in no group".into(),
        (_, None) => "allow: it is outside".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_names_or_numbers() {
        assert_eq!((protocol("tcp"), protocol("sctp"), protocol("58")), (Ok(6), Ok(132), Ok(58)));
        assert!(protocol("256").is_err() && protocol("gre").is_err());
    }
}
