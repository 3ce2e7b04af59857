//! `bench equivalence`, `bench fuzz`, `bench fuzz-openflow` and `bench lost-writes`: tests of the agent, of openflow-rs and of the
//! store with more cases. They are tests because the lab does not link these.

mod grace;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::{Args, CommandFactory as _, Parser, ValueEnum};

use crate::{
    campaign::grace::Expedited,
    setup,
    workspace::{Workspace, execute},
};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
pub(crate) enum Campaign {
    /// Compare a datapath with the oracle: random policies, services and packets, to the eBPF programs or through a node
    Equivalence(Equivalence),
    /// Send randomly mutated packets: each gets a verdict, and only counted drops happen
    Fuzz(Size),
    /// Decode randomly mutated OpenFlow messages: nothing panics, and what decodes encodes to the same
    FuzzOpenflow(Size),
    /// Crash the embedded store on a disk that loses writes: no acknowledged write may be lost
    LostWrites(Crashes),
}

#[derive(Debug, Args)]
pub(crate) struct Equivalence {
    /// Datapath of a node whose links carry the packets; without it, each packet is given to the eBPF programs
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
    /// Number of random states of the node, each with some 90 packets
    #[arg(long, default_value_t = 100_000, requires = "datapath")]
    states: u64,
    /// Shorten the kernel's waits when programs are attached, by a setting of the whole machine, until the end
    #[arg(long, requires = "datapath")]
    expedite: bool,
    /// Number of packets for the eBPF programs
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "datapath")]
    cases: u64,
    /// Seed of the random numbers; the same seed gives the same states and packets [default: random]
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Datapath {
    Ovs,
    Ebpf,
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

#[derive(Debug, Args)]
pub(crate) struct Crashes {
    /// Number of power failures
    #[arg(long, default_value_t = 1000)]
    crashes: u64,
    /// Seed of the random numbers [default: random]
    #[arg(long)]
    seed: Option<u64>,
}

/// A test, and what it reads from the environment.
struct Test {
    name: &'static str,
    target: &'static [&'static str],
    variables: Vec<(&'static str, u64)>,
}

impl Campaign {
    /// Whether the word after `bench` is a campaign.
    pub(crate) fn exists(word: &str) -> bool {
        Campaign::command().find_subcommand(word).is_some()
    }

    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        if matches!(self, Campaign::Equivalence(_) | Campaign::Fuzz(_)) {
            setup::ensure(workspace)?;
        }
        let is_expedited = matches!(self, Campaign::Equivalence(Equivalence { expedite: true, .. }));
        let _expedited = is_expedited.then(Expedited::begin).transpose()?;
        let test = self.test();
        let mut cargo = workspace.cargo();
        cargo.args(["test", "--quiet", "--release", "--package"]).args(test.target);
        cargo.args(["--", test.name, "--nocapture"]);
        cargo.envs(test.variables.into_iter().map(|(name, value)| (name, value.to_string())));
        execute(&mut cargo)
    }

    fn test(&self) -> Test {
        const PACKETS: &[&str] = &["netplugin", "--test", "packets"];
        const NODES: &[&str] = &["netplugin", "--test", "equivalence"];
        let (name, target, cases, seed) = match self {
            Campaign::Equivalence(Equivalence { datapath: None, cases, seed, .. }) => (
                "equivalence::",
                PACKETS,
                ("CONTIV_EQUIVALENCE_CASES", *cases),
                seed.map(|seed| ("CONTIV_EQUIVALENCE_SEED", seed)),
            ),
            Campaign::Equivalence(Equivalence { datapath: Some(Datapath::Ovs), states, seed, .. }) => (
                "ovs",
                NODES,
                ("CONTIV_EQUIVALENCE_OVS_CASES", *states),
                Some(("CONTIV_EQUIVALENCE_OVS_SEED", seed.unwrap_or_else(drawn))),
            ),
            Campaign::Equivalence(Equivalence { datapath: Some(Datapath::Ebpf), states, seed, .. }) => (
                "ebpf",
                NODES,
                ("CONTIV_EQUIVALENCE_EBPF_CASES", *states),
                Some(("CONTIV_EQUIVALENCE_EBPF_SEED", seed.unwrap_or_else(drawn))),
            ),
            Campaign::Fuzz(size) => (
                "fuzz::",
                PACKETS,
                ("CONTIV_FUZZ_CASES", size.cases),
                size.seed.map(|seed| ("CONTIV_FUZZ_SEED", seed)),
            ),
            Campaign::FuzzOpenflow(size) => (
                "",
                &["openflow-rs", "--test", "fuzz"][..],
                ("CONTIV_FUZZ_OPENFLOW_CASES", size.cases),
                size.seed.map(|seed| ("CONTIV_FUZZ_OPENFLOW_SEED", seed)),
            ),
            Campaign::LostWrites(size) => (
                "lost_writes::",
                &["contiv-store", "--lib"][..],
                ("CONTIV_LOST_WRITES_CRASHES", size.crashes),
                size.seed.map(|seed| ("CONTIV_LOST_WRITES_SEED", seed)),
            ),
        };
        Test { name, target, variables: [cases].into_iter().chain(seed).collect() }
    }
}

/// A seed, for the tests that have a fixed one.
fn drawn() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64)
}
