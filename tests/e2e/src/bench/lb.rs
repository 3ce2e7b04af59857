//! Services on an eBPF node: what they cost, alone and beside what they replace.

mod clients;
mod connections;
mod exchange;
mod lab;
mod loading;
mod outside;
mod packets;
mod routed;
mod rules;
mod wire;
mod xdp;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::Tell;

pub(super) use packets::{put, runtime};

#[derive(Debug, Default, Args)]
pub(super) struct Options {
    /// Only these parts
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
    /// What the programs take for a packet, by the number of services and of live flows; memory, loading
    Packets,
    /// TCP from pod to service beside direct routing, nftables and iptables
    Connections,
    /// What the programs take for each packet of a short connection
    Exchange,
    /// Live frames from outside through the XDP program beside a bare XDP_TX
    Xdp,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

pub(super) fn measure(options: &Options, tell: &mut Tell<'_>) -> Result<()> {
    if options.wants(Part::Packets) {
        tell("lb", &packets::measure(&options.packets)?)?;
    }
    let rounds = options.packets.rounds;
    if options.wants(Part::Connections) {
        tell("lb_connections", &connections::measure(&options.connections, rounds)?)?;
    }
    if options.wants(Part::Exchange) {
        tell("lb_exchange", &exchange::measure(&options.exchange, options.connections.among)?)?;
    }
    if options.wants(Part::Xdp) {
        tell("lb_xdp", &xdp::measure(&options.xdp, rounds)?)?;
    }
    Ok(())
}
