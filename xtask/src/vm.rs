//! The tests of the datapaths on other kernels: Debian's, under qemu, with the host's root as theirs.

mod guest;
mod kernel;
mod programs;
mod qemu;
mod verifier;

use std::{
    fs,
    io::{Write as _, stdout},
    panic::resume_unwind,
    path::PathBuf,
    thread,
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
/// In minutes. Under emulation one test may take several.
const SILENCE: u64 = 15;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A kernel of Debian's, by the start of its version; may be given more than once
    #[arg(long = "kernel", value_name = "VERSION", default_values = KERNELS)]
    kernels: Vec<String>,
    /// A kernel that says nothing for so long counts as hung
    #[arg(long, value_name = "MINUTES", default_value_t = SILENCE)]
    silence: u64,
    /// Keep to one part of the tests; all if none
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// What CI runs, instead of everything
    #[arg(long, conflicts_with_all = ["kernels", "part", "filter"])]
    ci: bool,
    /// Only tests with one of these in their name
    filter: Vec<String>,
}

impl Options {
    /// As CI runs it.
    pub(crate) fn ci() -> Options {
        Options {
            kernels: KERNELS.map(str::to_owned).to_vec(),
            silence: SILENCE,
            ci: true,
            part: vec![],
            filter: vec![],
        }
    }
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

/// Of a part, the tests that have one of these in their names; all if none.
#[derive(Debug, Clone)]
struct Share {
    part: Part,
    filter: Vec<String>,
}

impl Share {
    fn of(part: Part, filter: &[&str]) -> Share {
        Share { part, filter: filter.iter().copied().map(str::to_owned).collect() }
    }
}

/// What is done on a kernel.
struct Plan {
    version: String,
    shares: Vec<Share>,
}

/// The verifier, single frames through each program, policies and services, and what differs by how a kernel holds programs on
/// interfaces.
const FRAMES: [&str; 8] = [
    "verifier",
    "from_pod::",
    "from_overlay::",
    "from_uplink::",
    "malformed::",
    "policy::",
    "services::",
    "outside::hook::another_layout",
];
/// What no frame of a packet test shows: a whole node with pods, its wire, and agents that come and go.
const SCENARIOS: [&str; 12] = [
    "connections_go_to_backends",
    "backends_come_and_go",
    "policies_see_the_backend",
    "rules_out_hold",
    "rules_in_hold",
    "answers_pass",
    "a_change_is_in_force",
    "pods_talk_by_vxlan",
    "restart_loses_no_ping",
    "changes_lose_no_ping",
    "restart_writes_nothing",
    "cleanup_leaves_nothing",
];
/// Pods of two nodes, and an agent that comes and goes, on the kernel's switch.
const SWITCHED: [&str; 2] = ["vxlan_networks", "a_restarted_agent_finds"];

/// What CI runs: the whole takes more than an hour under emulation.
fn ci_plans() -> Vec<Plan> {
    let [oldest, newest] = KERNELS.map(str::to_owned);
    let both = [Share::of(Part::Packets, &FRAMES), Share::of(Part::Conformance, &SCENARIOS)];
    let switched = Share::of(Part::Ovs, &SWITCHED);
    vec![
        Plan { version: oldest, shares: both.to_vec() },
        Plan { version: newest, shares: [&both[..], &[switched]].concat() },
    ]
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let silence = Duration::from_secs(60 * options.silence);
    if options.ci {
        return carry_out(workspace, &ci_plans(), silence);
    }
    let parts = if options.part.is_empty() { &PARTS[..] } else { &options.part };
    let shares: Vec<_> =
        parts.iter().map(|part| Share { part: *part, filter: options.filter.clone() }).collect();
    let plan = |version: &String| Plan { version: version.clone(), shares: shares.clone() };
    carry_out(workspace, &options.kernels.iter().map(plan).collect::<Vec<_>>(), silence)
}

/// All kernels at a time: while one of them waits, another works.
fn carry_out(workspace: &Workspace, plans: &[Plan], silence: Duration) -> Result<()> {
    setup::ensure(workspace)?;
    setup::ensure_vm(workspace)?;
    let kernels: Vec<_> =
        plans.iter().map(|plan| Kernel::fetch(workspace, &plan.version)).collect::<Result<_>>()?;
    let folder = folder(workspace)?;
    let programs = programs::build(workspace, &folder)?;
    let reports: Vec<_> = thread::scope(|scope| {
        let booted: Vec<_> = plans
            .iter()
            .zip(&kernels)
            .map(|(plan, kernel)| {
                let jobs = guest::jobs(&programs, &plan.shares);
                let label = if plans.len() > 1 { format!("{} | ", plan.version) } else { String::new() };
                scope.spawn(move || boot(workspace, kernel, &jobs, &label, silence))
            })
            .collect();
        booted.into_iter().map(|boot| boot.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut rows = vec![];
    let mut failed = false;
    // Each has been heard to its end.
    for report in reports {
        let report = report?;
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

/// Boots one kernel, does the jobs, and tells what came of it, each line with the label. The sums are the last line of
/// each kernel.
fn boot(
    workspace: &Workspace,
    kernel: &Kernel,
    jobs: &[Job],
    label: &str,
    silence: Duration,
) -> Result<Report> {
    let start = Instant::now();
    let folder = folder(workspace)?.join(kernel.release());
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    println!("{label}== Linux {}", kernel.release());
    let mut outcome = Outcome::default();
    let (mut skipped, mut rows) = (vec![], vec![]);
    let script = guest::script(kernel, jobs);
    let status = qemu::run(kernel, &folder, &script, silence, |line| {
        println!("{label}{line}");
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
        println!("{label}FAILED skipped, but not listed in {}: {skip}", skips::EXPECTED_VM);
    }
    for failure in outcome.failures() {
        println!("{label}FAILED {failure}");
    }
    if outcome.is_empty() {
        bail!("Linux {}: no test has run; the kernel's log is in {}", kernel.release(), folder.display());
    }
    println!("{label}Linux {}: {outcome} ({:.0} s)", kernel.release(), start.elapsed().as_secs_f64());
    Ok(Report { failed: outcome.failed() || !unexpected.is_empty(), rows })
}
