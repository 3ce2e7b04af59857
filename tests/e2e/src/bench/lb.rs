//! Services on an eBPF node: what they cost, alone and beside what they replace.

mod packets;

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the programs take for a packet, by the number of services and of live flows; memory, loading
    Packets,
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
    Ok(())
}
