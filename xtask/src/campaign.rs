//! Tests of the agent, which the lab may not link, with more cases: `bench equivalence` and `bench fuzz`.

use anyhow::Result;
use clap::{Args, CommandFactory as _, Parser};

use crate::{
    setup,
    workspace::{Workspace, execute},
};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
pub(crate) enum Campaign {
    /// Random policies, services and packets: the eBPF programs beside the model's oracle
    Equivalence(Size),
    /// Random mutations of packets: each has a verdict, and nothing but a counted drop happens
    Fuzz(Size),
}

#[derive(Debug, Args)]
pub(crate) struct Size {
    /// Packets
    #[arg(long, default_value_t = 1_000_000)]
    cases: u64,
    /// Where it begins: the same seed gives the same packets (as it comes, without)
    #[arg(long)]
    seed: Option<u64>,
}

impl Campaign {
    /// Whether the words after `bench` are about one.
    pub(crate) fn is_meant(word: &str) -> bool {
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
