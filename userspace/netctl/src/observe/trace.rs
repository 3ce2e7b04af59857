//! `netctl trace`: the path of a packet, node by node.

use std::{io::Write, net::IpAddr};

use clap::{Args, ValueEnum};
use contiv_model::{
    api::Node,
    policy::{ICMP, ICMPV6, TCP, UDP},
    trace::{Egress, Ingress, Output, Query, TcpFlags, Trace},
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    error::{Error, Outcome},
    observe::{
        agent,
        endpoint::{networks, read},
        finder::Finder,
        policy_check::protocol,
    },
    output::{self, list, style},
};

/// Arguments of `netctl trace`: a packet.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Sender: endpoint id, container id, container name, or the IP address of an endpoint. With --agent, the endpoint's id in
    /// the store, such as net.default-c1.
    #[arg(long, short, value_name = "EP")]
    from: String,
    /// Destination, in the same notation, or the IP address of a service or of a host outside. With --agent, an IP address.
    #[arg(long, value_name = "EP")]
    to: String,
    /// IP protocol: tcp, udp, icmp, sctp or a number from 0 to 255.
    #[arg(long, short = 'l', value_parser = protocol, default_value = "icmp")]
    protocol: u8,
    /// Destination port; required for tcp and udp.
    #[arg(long, short = 'P')]
    port: Option<u16>,
    /// Source port; for icmp the identifier of the echo request.
    #[arg(long, value_name = "PORT", default_value = "40000")]
    source_port: u16,
    /// TCP flags, separated by commas: fin, syn, rst, psh, ack, urg, ece, cwr [default: syn].
    #[arg(long, value_name = "FLAGS")]
    tcp_flags: Option<TcpFlags>,
    /// DSCP that the sender sets, 0 to 63.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=63))]
    dscp: u8,
    /// Source address, if it is not the sender's: a forged packet.
    #[arg(long, value_name = "IP")]
    source_ip: Option<IpAddr>,
    /// Use the IPv6 addresses of the endpoints.
    #[arg(long, short = '6')]
    ipv6: bool,
    /// Tenant of the endpoints; required if an address or a name is ambiguous.
    #[arg(long, short)]
    tenant: Option<String>,
    /// REST URL of the agent of the sender's node, such as http://10.0.0.2:9090; netmaster is not used then, and other nodes
    /// are not asked.
    #[arg(long, value_name = "URL")]
    agent: Option<String>,
    /// Output format. JSON and YAML include the datapaths' own accounts of the stages.
    #[arg(long, short, value_enum, default_value = "table")]
    output: Format,
}

/// Output format of `trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Format {
    Table,
    Json,
    Yaml,
}

/// Nodes on the way of a packet: the sender's, that of a backend, and that of a client behind it.
const LONGEST: usize = 3;

/// Follows the packet and writes its path.
pub fn run(client: &Client, args: &Arguments, out: &mut dyn Write) -> Result<Outcome, Error> {
    let path = match &args.agent {
        Some(url) => alone(client, args, url)?,
        None => Path::follow(client, args)?,
    };
    match args.output {
        Format::Table => path.table(out)?,
        Format::Json => output::json(out, &path.json())?,
        Format::Yaml => output::yaml(out, &path.json())?,
    }
    match path.failure {
        Some(error) => Err(error),
        None if path.leaves => Ok(Outcome::Done),
        None => Ok(Outcome::Denied),
    }
}

/// The path of the packet: the nodes in the order that it passes them.
#[derive(Default)]
struct Path {
    nodes: Vec<Trace>,
    /// Whether a copy leaves the nodes that were asked, or one of them answers the packet.
    leaves: bool,
    /// Why a part of the path is unknown.
    failure: Option<Error>,
}

/// Asks the given agent only.
fn alone(client: &Client, args: &Arguments, url: &str) -> Result<Path, Error> {
    let to: IpAddr = args.to.parse().map_err(|_| {
        Error::Usage(format!(
            "--to {}: expected an IP address if --agent is set; names need netmaster",
            args.to
        ))
    })?;
    let query = query(args, Ingress::Endpoint(args.from.clone()), to)?;
    let trace = ask(client, url, &query)?;
    let leaves = trace.outputs.iter().any(|output| is_delivered(&trace, output));
    let mut path = Path { leaves, ..Path::default() };
    path.push(trace);
    Ok(path)
}

fn ask(client: &Client, base: &str, query: &Query) -> Result<Trace, Error> {
    let answer = client.ask(&format!("{}/trace", base.trim_end_matches('/')), &json!(query))?;
    read(answer, "trace")
}

/// The packet as the sender sends it.
fn query(args: &Arguments, ingress: Ingress, destination: IpAddr) -> Result<Query, Error> {
    let protocol = match args.protocol {
        ICMP if destination.is_ipv6() => ICMPV6,
        protocol => protocol,
    };
    let has_ports = [TCP, UDP].contains(&protocol);
    match (has_ports, args.port) {
        (true, None) => return Err(Error::Usage("--port is required for tcp and udp".into())),
        (false, Some(_)) => return Err(Error::Usage("--port is valid for tcp and udp only".into())),
        _ => {}
    }
    if args.tcp_flags.is_some() && protocol != TCP {
        return Err(Error::Usage("--tcp-flags is valid for tcp only".into()));
    }
    let has_source_port = has_ports || [ICMP, ICMPV6].contains(&protocol);
    let flags = args.tcp_flags.unwrap_or(TcpFlags::SYN);
    Ok(Query {
        ingress,
        source: args.source_ip,
        destination,
        protocol,
        source_port: if has_source_port { args.source_port } else { 0 },
        destination_port: args.port.unwrap_or_default(),
        tcp_flags: if protocol == TCP { flags } else { TcpFlags::default() },
        dscp: args.dscp,
        source_mac: None,
        destination_mac: None,
    })
}

/// A node to ask.
struct Hop {
    host: String,
    query: Query,
}

/// What follows an output of a node.
enum Next {
    /// Another node receives the copy.
    Node(Hop),
    /// The copy is for an endpoint of the node, or leaves the cluster, or the node answers it.
    Delivered,
    /// The node refuses the packet.
    Refused,
    /// The node's kernel routes the copy to an endpoint of another node.
    Kernel,
}

/// The kernel chooses the next hop, which may be a leaf switch: netctl does not know by which interface the receiver's node gets
/// the packet.
const KERNEL_ROUTES: &str = "the packet continues in the node's kernel, which traces do not follow, to an endpoint of \
                             another node; use netctl policy check for the rules of that endpoint";

impl Path {
    /// Asks the sender's node, then the nodes to which the packet goes from there.
    fn follow(client: &Client, args: &Arguments) -> Result<Path, Error> {
        let finder = Finder::new(client, networks(client, args.tenant.as_deref())?, args.tenant.as_deref());
        let (from, to) = finder.peers(&args.from, &args.to, args.ipv6)?;
        let sender = from.endpoint.ok_or_else(|| {
            Error::Usage(format!(
                "--from {}: no endpoint has this address; a trace starts at an endpoint of the cluster",
                args.from
            ))
        })?;
        let first = Ingress::Endpoint(format!("{}-{}", sender.network, sender.endpoint_id));
        let first = Hop { host: sender.homing_host.clone(), query: query(args, first, to.address)? };
        let nodes = agent::nodes(client)?;
        let mut path = Path::default();
        let mut hops = vec![first];
        for _ in 0..LONGEST {
            let mut next = vec![];
            for hop in hops {
                let asked = agent::url(&nodes, &hop.host).and_then(|url| ask(client, &url, &hop.query));
                match asked {
                    Ok(trace) => {
                        for output in &trace.outputs {
                            match next_hop(&finder, &nodes, &trace, output)? {
                                Next::Node(hop) => next.push(hop),
                                Next::Delivered => path.leaves = true,
                                Next::Refused => {}
                                Next::Kernel => path.misses(&trace.host, KERNEL_ROUTES),
                            }
                        }
                        path.push(trace);
                    }
                    // The first node is the whole path.
                    Err(error) if path.nodes.is_empty() => return Err(error),
                    Err(error) => path.failure = Some(error.with_object(format!("node {}", hop.host), 0)),
                }
            }
            hops = next;
        }
        Ok(path)
    }

    /// Adds the trace of a node.
    fn push(&mut self, trace: Trace) {
        if trace.omitted_copies > 0 {
            let why = format!("{} more copies of the packet are not in the trace", trace.omitted_copies);
            self.misses(&trace.host, &why);
        }
        self.nodes.push(trace);
    }

    /// Notes that a part of the path behind a node is unknown.
    fn misses(&mut self, host: &str, why: &str) {
        if self.failure.is_none() {
            self.failure = Some(Error::Incomplete(format!("node {host}: {why}")));
        }
    }

    fn json(&self) -> Value {
        json!({
            "delivered": self.leaves,
            "nodes": self.nodes,
            "error": self.failure.as_ref().map(crate::error::one_line),
        })
    }

    fn table(&self, out: &mut dyn Write) -> Result<(), Error> {
        let mut rows = vec![];
        for trace in &self.nodes {
            for step in &trace.steps {
                rows.push([
                    trace.host.clone(),
                    step.stage.to_string(),
                    step.verdict.to_string(),
                    step.facts(),
                ]);
            }
            for output in &trace.outputs {
                let to = match output.packet.as_ref().filter(|packet| **packet != trace.packet) {
                    Some(packet) => format!("{}: {packet}", output.to),
                    None if is_hairpin(trace, output) => "the sender, which is the backend".to_owned(),
                    None => output.to.to_string(),
                };
                rows.push([trace.host.clone(), "output".to_owned(), String::new(), to]);
            }
            if trace.omitted_copies > 0 {
                let copies = format!("{} more copies", trace.omitted_copies);
                rows.push([trace.host.clone(), "output".to_owned(), String::new(), copies]);
            }
        }
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        list::titled(out, &["Node", "Stage", "Result", "Details"], &rows)?;
        let Some(first) = self.nodes.first() else { return Ok(()) };
        let result = match self.leaves {
            true if self.failure.is_some() => style::paint(style::WARNING, "delivered, incomplete"),
            true => style::paint(style::GOOD, "delivered"),
            false if self.failure.is_some() => style::paint(style::WARNING, "unknown"),
            false => style::paint(style::BAD, "not delivered"),
        };
        let summary = format!("{} on {}", first.packet, first.network);
        Ok(writeln!(out, "{result}: {}", output::printable(&summary))?)
    }
}

/// Whether a copy that no further node receives is delivered. A refusal is an answer, too, but drops the packet.
fn is_delivered(trace: &Trace, output: &Output) -> bool {
    output.to != Egress::Answer || trace.dropped().is_none()
}

/// Whether the sender of a packet to a service gets it back, as the service's backend.
fn is_hairpin(trace: &Trace, output: &Output) -> bool {
    let mut backends = trace.steps.iter().filter_map(|step| step.backend);
    output.to == Egress::Answer && backends.any(|(ip, _)| ip == trace.packet.source)
}

/// Finds the node that receives a copy.
fn next_hop(finder: &Finder<'_>, nodes: &[Node], trace: &Trace, output: &Output) -> Result<Next, Error> {
    let end = || if is_delivered(trace, output) { Next::Delivered } else { Next::Refused };
    let Some(packet) = &output.packet else { return Ok(end()) };
    let vtep_of = |node: &Node| node.status.vtep_ip.parse::<IpAddr>().ok();
    let own = nodes.iter().find(|node| node.status.host == trace.host).and_then(vtep_of);
    let (host, ingress) = match (&output.to, own) {
        (Egress::Tunnel { vtep, vni }, Some(own)) => {
            let node = nodes.iter().find(|node| vtep_of(node) == Some(*vtep));
            (node.map(|node| node.status.host.clone()), Ingress::Tunnel { vtep: own, vni: *vni })
        }
        (Egress::Uplink { vlan }, _) => {
            let found = finder.by_address(packet.destination, Some(trace.network.clone()))?;
            let host = found.endpoint.map(|endpoint| endpoint.homing_host);
            (host.filter(|host| *host != trace.host), Ingress::Uplink { vlan: *vlan })
        }
        (Egress::Interface(_), _) if finder.is_elsewhere(packet.destination, &trace.host)? => {
            return Ok(Next::Kernel);
        }
        _ => return Ok(end()),
    };
    let query = Query {
        ingress,
        source: Some(packet.source),
        destination: packet.destination,
        protocol: packet.protocol,
        source_port: packet.source_port,
        destination_port: packet.destination_port,
        tcp_flags: packet.tcp_flags,
        dscp: packet.dscp,
        source_mac: Some(packet.source_mac),
        destination_mac: Some(packet.destination_mac),
    };
    Ok(host.map_or_else(end, |host| Next::Node(Hop { host, query })))
}
