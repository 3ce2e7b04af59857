//! Benchmarks. Each measures a lower bound on the same machine in the same run, too.

mod applied;
mod assembled;
mod cni;
mod faults;
mod ipam;
mod latency;
mod lb;
mod machine;
mod master;
mod memory;
mod ovs;
mod pinned;
mod policy;
mod rate;
mod raw;
mod report;
mod scale;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::{
    bench::report::{Report, ReportSink},
    binaries::Binary,
    interrupt,
};

#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    benchmark: Option<Benchmark>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    /// Accept binaries of a debug build; the figures are meaningless then
    #[arg(long, global = true)]
    unoptimised: bool,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Creation of endpoints by 1, 16 and 64 clients, compared with transactions sent to the store directly
    Ipam(ipam::Options),
    /// netmaster with a store of 100,000 endpoints: start, inspect, fail-over, memory
    Master(master::Options),
    /// Time to the next write after faults of etcd members and netmasters under load: kill, stop, freeze, partition
    Faults(crate::faults::Options),
    /// A large cluster: endpoints, services, groups with rules, and agents, compared with an empty cluster
    Scale(scale::Options),
    /// Duration of CNI ADD and DEL with 1 and with 200 pods on the node, for each datapath
    Cni(cni::Options),
    /// Services on an eBPF node: cost per packet by number of services and flows; memory and load times
    Lb(lb::Options),
    /// Objects on an OVS node, compared with an eBPF node: time to program them, one change on top, memory
    Ovs(ovs::Options),
    /// Policies on an eBPF node: cost per packet by number of rules; memory and load times; rate limits of groups
    Policy(PolicyOptions),
}

#[derive(Debug, Default, Args)]
struct PolicyOptions {
    #[command(flatten)]
    policy: policy::Options,
    #[command(flatten)]
    rate: rate::Options,
    /// Measure only the rate limits of groups
    #[arg(long)]
    only_rates: bool,
    /// Skip the rate limits of groups
    #[arg(long, conflicts_with = "only_rates")]
    without_rates: bool,
}

fn policy_and_rate(options: &PolicyOptions, report: &mut ReportSink<'_>) -> Result<()> {
    if !options.only_rates {
        policy::measure(&options.policy, report)?;
    }
    if !options.without_rates {
        report("rate", &rate::measure(&options.rate)?)?;
    }
    Ok(())
}

pub fn run(options: &Options) -> Result<()> {
    let binary: PathBuf = Binary::Netmaster.path()?;
    if !options.unoptimised && !binary.parent().is_some_and(|folder| folder.ends_with("release")) {
        bail!("{} is not a release build; run `cargo xtask bench`", binary.display());
    }
    interrupt::catch()?;
    let machine = machine::describe()?;
    let mut results = serde_json::Map::new();
    results.insert("machine".to_owned(), serde_json::to_value(&machine)?);
    if !options.json {
        println!("{machine}");
    }
    let mut report = |name: &str, results_of: &dyn Report| -> Result<()> {
        if !options.json {
            println!("{}\n{}", results_of.title(), results_of.table());
        }
        results.insert(name.to_owned(), results_of.value()?);
        Ok(())
    };
    // Why a benchmark ended early. What it has measured is reported first.
    let mut ended = Ok(());
    match &options.benchmark {
        Some(Benchmark::Ipam(options)) => report("ipam", &ipam::measure(options)?)?,
        Some(Benchmark::Master(options)) => report("master", &master::measure(options)?)?,
        Some(Benchmark::Faults(options)) => {
            let outcome = crate::faults::run(options)?;
            report("faults", &outcome)?;
            ended = outcome.verify();
        }
        Some(Benchmark::Scale(options)) => {
            let results;
            (results, ended) = scale::measure(options);
            report("scale", &results)?;
        }
        Some(Benchmark::Cni(options)) => report("cni", &cni::measure(options)?)?,
        Some(Benchmark::Lb(options)) => lb::measure(options, &mut report)?,
        Some(Benchmark::Ovs(options)) => report("ovs", &ovs::measure(options)?)?,
        Some(Benchmark::Policy(options)) => policy_and_rate(options, &mut report)?,
        None => {
            report("ipam", &ipam::measure(&ipam::Options::default())?)?;
            report("master", &master::measure(&master::Options::default())?)?;
            report("cni", &cni::measure(&cni::Options::default())?)?;
            report("ovs", &ovs::measure(&ovs::Options::default())?)?;
            lb::measure(&lb::Options::default(), &mut report)?;
            policy_and_rate(&PolicyOptions::default(), &mut report)?;
        }
    }
    if options.json {
        println!("{:#}", Value::Object(results));
    }
    ended
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::Options;

    #[test]
    fn the_command_line_is_consistent() {
        Options::augment_args(Command::new("bench")).debug_assert();
    }
}
