//! The tests of the datapaths on other kernels: Debian's, under qemu, with the host's root as theirs.

mod guest;
mod kernel;
mod programs;
mod qemu;
mod verifier;

use std::{
    fs,
    io::{Write as _, stdout},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    setup,
    suite::{Failed, Outcome, skips},
    vm::{guest::Job, kernel::Kernel, verifier::Row},
    workspace::Workspace,
};

/// What `.ci/run` boots: the oldest kernel that is supported, and the newest that Debian 12 has.
const KERNELS: [&str; 2] = ["6.1", "6.12"];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A kernel of Debian's, by the start of its version; may be given more than once
    #[arg(long = "kernel", value_name = "VERSION", default_values = KERNELS)]
    kernels: Vec<String>,
    /// For each kernel, after which it counts as hung
    #[arg(long, value_name = "MINUTES", default_value_t = 25)]
    limit: u64,
    /// Keep to one part of the tests; all if none
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Only tests with one of these in their name
    filter: Vec<String>,
}

/// What of the tests means something on another kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The BPF programs, packet by packet
    Packets,
    /// The scenarios that every datapath passes, on the eBPF datapath
    Conformance,
    /// The OVS datapath, with the kernel's switch
    Ovs,
}

const PARTS: [Part; 3] = [Part::Packets, Part::Conformance, Part::Ovs];

/// Packet tests that do not wait for anything: frames in, frames out, and the verifier. Connections of real pods take
/// many times as long under emulation and wait for people.
const FRAMES: [&str; 7] =
    ["verifier", "from_pod::", "from_overlay::", "from_uplink::", "malformed::", "policy::", "services::"];

impl Options {
    /// As CI runs it.
    pub(crate) fn ci() -> Options {
        Options {
            kernels: KERNELS.map(str::to_owned).to_vec(),
            limit: 20,
            part: vec![Part::Packets],
            filter: FRAMES.map(str::to_owned).to_vec(),
        }
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::ensure(workspace)?;
    setup::ensure_vm(workspace)?;
    let parts = if options.part.is_empty() { &PARTS[..] } else { &options.part };
    let kernels: Vec<_> =
        options.kernels.iter().map(|version| Kernel::fetch(workspace, version)).collect::<Result<_>>()?;
    let folder = folder(workspace)?;
    let programs = programs::build(workspace, &folder)?;
    let jobs = guest::jobs(&programs, parts, &options.filter);
    let mut rows = vec![];
    let mut failed = false;
    for kernel in &kernels {
        let report = boot(workspace, kernel, &jobs, options)?;
        failed |= report.failed;
        rows.extend(report.rows);
    }
    rows.sort();
    if !rows.is_empty() {
        println!("\n{}", verifier::table(&rows));
    }
    let beyond = verifier::beyond_budget(&rows);
    for row in &beyond {
        println!("FAILED {row}");
    }
    stdout().flush()?;
    if failed || !beyond.is_empty() {
        return Err(Failed.into());
    }
    Ok(())
}

fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.metadata()?.target_directory.into_std_path_buf().join("vm");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

struct Report {
    failed: bool,
    rows: Vec<Row>,
}

/// Boots one kernel, does the jobs, and tells what came of it. The sums are the last line of each kernel.
fn boot(workspace: &Workspace, kernel: &Kernel, jobs: &[Job], options: &Options) -> Result<Report> {
    let start = Instant::now();
    let folder = folder(workspace)?.join(kernel.release());
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    println!("== Linux {}", kernel.release());
    let mut outcome = Outcome::default();
    let (mut skipped, mut rows) = (vec![], vec![]);
    let script = guest::script(kernel, jobs);
    let status = qemu::run(kernel, &folder, &script, Duration::from_secs(60 * options.limit), |line| {
        println!("{line}");
        outcome.line(line);
        skipped.extend(skips::Skip::parse(line));
        rows.extend(Row::parse(kernel.release(), line));
    })?;
    skipped.sort();
    skipped.dedup();
    outcome.skip(&skipped);
    outcome.end(status == 0);
    let expected = skips::Expected::read(workspace, skips::EXPECTED_VM)?;
    let unexpected = expected.missing(&skipped);
    for skip in &unexpected {
        println!("FAILED skipped, but not listed in {}: {skip}", skips::EXPECTED_VM);
    }
    for failure in outcome.failures() {
        println!("FAILED {failure}");
    }
    if outcome.is_empty() {
        bail!("Linux {}: no test has run; the kernel's log is in {}", kernel.release(), folder.display());
    }
    println!("Linux {}: {outcome} ({:.0} s)", kernel.release(), start.elapsed().as_secs_f64());
    Ok(Report { failed: outcome.failed() || !unexpected.is_empty(), rows })
}
