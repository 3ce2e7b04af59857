//! `bench equivalence`, `bench fuzz` and `bench fuzz-openflow`: tests with more cases. They are tests because the lab does not
//! link the agent.

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
    /// Decode randomly mutated OpenFlow messages: nothing panics, and what decodes encodes to the same
    FuzzOpenflow(Size),
}

#[derive(Debug, Args)]
pub(crate) struct Size {
    /// Number of packets or messages
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Seed of the random numbers; the same seed gives the same cases [default: random, 1 for fuzz-openflow]
    #[arg(long)]
    seed: Option<u64>,
}

impl Campaign {
    /// Whether the word after `bench` is a campaign.
    pub(crate) fn exists(word: &str) -> bool {
        Campaign::command().find_subcommand(word).is_some()
    }

    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        let (package, program, test, variable, size) = match self {
            Campaign::Equivalence(size) => {
                ("netplugin", "packets", "equivalence::", "CONTIV_EQUIVALENCE", size)
            }
            Campaign::Fuzz(size) => ("netplugin", "packets", "fuzz::", "CONTIV_FUZZ", size),
            Campaign::FuzzOpenflow(size) => ("openflow-rs", "fuzz", "", "CONTIV_FUZZ_OPENFLOW", size),
        };
        if package == "netplugin" {
            setup::ensure(workspace)?;
        }
        let mut cargo = workspace.cargo();
        cargo
            .args(["test", "--quiet", "--release", "--package", package, "--test", program, "--"])
            .args([test, "--nocapture"])
            .env(format!("{variable}_CASES"), size.cases.to_string());
        if let Some(seed) = size.seed {
            cargo.env(format!("{variable}_SEED"), seed.to_string());
        }
        execute(&mut cargo)
    }
}
