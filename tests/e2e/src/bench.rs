//! Measurements, each beside what the same machine does at least for it in the same run.

mod assembled;
mod cni;
mod faults;
mod ipam;
mod latency;
mod lb;
mod machine;
mod master;
mod pinned;
mod policy;
mod rate;
mod raw;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use comfy_table::Table;
use serde_json::Value;

use crate::{binaries::Binary, cluster::Network, interrupt};

#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON instead of tables
    #[arg(long, global = true)]
    json: bool,
    /// Accept programs that were built without optimisation (only to see whether it runs)
    #[arg(long, global = true)]
    unoptimised: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Endpoints created by 1, 16 and 64 clients, beside bare store transactions of the same size
    Ipam(ipam::Options),
    /// A netmaster on a store of 100,000 endpoints: start, inspect, change of leaders, memory
    Master(master::Options),
    /// Members of etcd and masters killed, stopped, frozen and cut off under load: what it takes to write again
    Faults(crate::faults::Options),
    /// CNI ADD and DEL with 1 and with 200 pods on the node, on each datapath
    Cni(cni::Options),
    /// Packets to services on an eBPF node, by the number of services and of live flows; memory, loading
    Lb(lb::Options),
    /// First and later packets of connections on an eBPF node, by the number of rules; memory, loading; rates of groups
    Policy(PolicyOptions),
}

#[derive(Debug, Default, Args)]
struct PolicyOptions {
    #[command(flatten)]
    policy: policy::Options,
    #[command(flatten)]
    rate: rate::Options,
    /// Measure nothing but the rates of groups
    #[arg(long)]
    only_rates: bool,
    /// Measure all but the rates of groups
    #[arg(long, conflicts_with = "only_rates")]
    without_rates: bool,
}

fn policy_and_rate(options: &PolicyOptions, tell: &mut Tell<'_>) -> Result<()> {
    if !options.only_rates {
        policy::measure(&options.policy, tell)?;
    }
    if !options.without_rates {
        tell("rate", &rate::measure(&options.rate)?)?;
    }
    Ok(())
}

/// Takes a report under the name that it has in JSON.
type Tell<'a> = dyn FnMut(&str, &dyn Report) -> Result<()> + 'a;

/// A table for people, a value for programs.
trait Report {
    fn title(&self) -> String;
    fn table(&self) -> Table;
    fn value(&self) -> Result<Value>;
}

pub fn run(options: &Options) -> Result<()> {
    let binary: PathBuf = Binary::Netmaster.path()?;
    if !options.unoptimised && !binary.parent().is_some_and(|folder| folder.ends_with("release")) {
        bail!("{} is not a release build: `cargo xtask bench` makes one", binary.display());
    }
    interrupt::catch()?;
    let machine = machine::describe()?;
    let mut results = serde_json::Map::new();
    results.insert("machine".to_owned(), serde_json::to_value(&machine)?);
    if !options.json {
        println!("{machine}");
    }
    let mut tell = |name: &str, report: &dyn Report| -> Result<()> {
        if !options.json {
            println!("{}\n{}", report.title(), report.table());
        }
        results.insert(name.to_owned(), report.value()?);
        Ok(())
    };
    match &options.what {
        Some(What::Ipam(what)) => tell("ipam", &ipam::measure(what)?)?,
        Some(What::Master(what)) => tell("master", &master::measure(what)?)?,
        Some(What::Faults(what)) => {
            let report = crate::faults::run(what)?;
            tell("faults", &report)?;
            report.verify()?;
        }
        Some(What::Cni(what)) => tell("cni", &cni::measure(what)?)?,
        Some(What::Lb(what)) => lb::measure(what, &mut tell)?,
        Some(What::Policy(what)) => policy_and_rate(what, &mut tell)?,
        None => {
            tell("ipam", &ipam::measure(&ipam::Options::default())?)?;
            tell("master", &master::measure(&master::Options::default())?)?;
            tell("cni", &cni::measure(&cni::Options::default())?)?;
            lb::measure(&lb::Options::default(), &mut tell)?;
            policy_and_rate(&PolicyOptions::default(), &mut tell)?;
        }
    }
    if options.json {
        println!("{:#}", Value::Object(results));
    }
    Ok(())
}

/// The network of the pods that are measured.
fn network() -> Network {
    Network { tenant: "bench".to_owned(), ..Network::pods() }
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
