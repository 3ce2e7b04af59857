//! Services on an eBPF node: cost of packets and connections, compared with routing, nftables and iptables.

mod clients;
mod connections;
mod exchange;
mod lab;
mod loading;
mod outside;
mod packets;
mod routed;
mod rules;
mod services;
mod wire;
mod xdp;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::report::ReportSink;

pub(super) use services::{BACKENDS, bodies, delete, put, runtime, target_port};

#[derive(Debug, Default, Args)]
pub(super) struct Options {
    /// Parts to measure, comma-separated [default: all]
    #[arg(long = "part", value_enum, value_delimiter = ',')]
    parts: Vec<Part>,
    #[command(flatten)]
    packets: packets::Options,
    #[command(flatten)]
    connections: connections::Options,
    #[command(flatten)]
    exchange: exchange::Options,
    #[command(flatten)]
    xdp: xdp::Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Duration of the programs per packet, by number of services and flows; memory and load times
    Packets,
    /// TCP from pod to service, compared with direct routing, nftables and iptables
    Connections,
    /// Duration of the programs for each packet of a short connection
    Exchange,
    /// Rate of frames from outside through the XDP program, compared with a bare XDP_TX
    Xdp,
}

impl Options {
    fn includes(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

pub(super) fn measure(options: &Options, report: &mut ReportSink<'_>) -> Result<()> {
    if options.includes(Part::Packets) {
        report("lb", &packets::measure(&options.packets)?)?;
    }
    let rounds = options.packets.rounds;
    if options.includes(Part::Connections) {
        report("lb_connections", &connections::measure(&options.connections, rounds)?)?;
    }
    if options.includes(Part::Exchange) {
        report("lb_exchange", &exchange::measure(&options.exchange, options.connections.among)?)?;
    }
    if options.includes(Part::Xdp) {
        report("lb_xdp", &xdp::measure(&options.xdp, rounds)?)?;
    }
    Ok(())
}
