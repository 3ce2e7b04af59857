//! `bench equivalence` and `bench fuzz`: tests of the agent with more cases. They are tests because the lab does not link
//! the agent.

use anyhow::Result;
use clap::{Args, CommandFactory as _, Parser};

use crate::{
    setup,
    workspace::{Workspace, execute},
};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
pub(crate) enum Campaign {
    /// Compare the eBPF programs with the model's oracle: random policies, services and packets
    Equivalence(Size),
    /// Send randomly mutated packets: each gets a verdict, and only counted drops happen
    Fuzz(Size),
}

#[derive(Debug, Args)]
pub(crate) struct Size {
    /// Number of packets
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Seed of the random numbers; the same seed gives the same packets [default: random]
    #[arg(long)]
    seed: Option<u64>,
}

impl Campaign {
    /// Whether the word after `bench` is a campaign.
    pub(crate) fn exists(word: &str) -> bool {
        Campaign::command().find_subcommand(word).is_some()
    }

    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        let (test, variable, size) = match self {
            Campaign::Equivalence(size) => ("equivalence::", "CONTIV_EQUIVALENCE", size),
            Campaign::Fuzz(size) => ("fuzz::", "CONTIV_FUZZ", size),
        };
        setup::ensure(workspace)?;
        let mut cargo = workspace.cargo();
        cargo
            .args(["test", "--quiet", "--release", "--package", "netplugin", "--test", "packets", "--"])
            .args([test, "--nocapture"])
            .env(format!("{variable}_CASES"), size.cases.to_string());
        if let Some(seed) = size.seed {
            cargo.env(format!("{variable}_SEED"), seed.to_string());
        }
        execute(&mut cargo)
    }
}
