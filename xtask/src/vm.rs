//! The tests of the datapaths on Debian's kernels under qemu, and faults that need a clock of their own. The guests use the
//! host's root file system.

mod guest;
mod kernel;
mod programs;
mod qemu;
mod verifier;

use std::{
    collections::BTreeSet,
    fs,
    io::{Write as _, stdout},
    os::unix::process::ExitStatusExt as _,
    panic::resume_unwind,
    path::PathBuf,
    process::ExitStatus,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    setup,
    suite::{
        Failed, Outcome, flaky,
        programs::{self as suite_programs, Selection, TestProgram},
        skips,
    },
    vm::{guest::Job, kernel::Kernel, qemu::Accelerator, verifier::Row},
    workspace::Workspace,
};

/// The oldest supported kernel, and the newest of Debian 12: those of CI.
const KERNELS: [&str; 2] = ["6.1", "6.12"];
/// Those, and the newest of Debian's unstable suite.
const ALL_KERNELS: [&str; 3] = [KERNELS[0], KERNELS[1], "7"];
/// Minutes. Under emulation one test may take several.
const SILENCE: u64 = 15;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Debian kernel, by the start of its version; can be repeated
    #[arg(long = "kernel", value_name = "VERSION", default_values = ALL_KERNELS)]
    kernels: Vec<String>,
    /// Minutes without output after which a kernel counts as hung
    #[arg(long, value_name = "MINUTES", default_value_t = SILENCE)]
    silence: u64,
    /// Part of the tests to run; can be repeated. If none is given: packets, conformance, and ovs on Linux 6.1
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// CPUs that the guest claims it may get, for the memory of per-CPU maps (Linux 6.1); tests that read them are slow
    #[arg(long, value_name = "CPUS", value_parser = clap::value_parser!(u32).range(2..=512))]
    possible_cpus: Option<u32>,
    /// Run the part that CI runs
    #[arg(long, conflicts_with_all = ["kernels", "part", "filter"])]
    ci: bool,
    /// Run tests whose name contains one of these words; all if none is given
    filter: Vec<String>,
}

impl Options {
    /// As CI runs it.
    pub(crate) fn ci() -> Options {
        Options {
            kernels: KERNELS.map(str::to_owned).to_vec(),
            silence: SILENCE,
            possible_cpus: None,
            ci: true,
            part: vec![],
            filter: vec![],
        }
    }
}

/// Tests whose result depends on the kernel, or that need a machine of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// BPF programs, packet by packet
    Packets,
    /// Conformance scenarios on the eBPF datapath
    Conformance,
    /// OVS datapath with the kernel's openvswitch module
    Ovs,
    /// Conformance scenarios on that datapath
    OvsConformance,
    /// Attacks on that datapath
    OvsAttacks,
    /// Nodes that change between that datapath and eBPF
    Changes,
    /// Faults of netmasters and etcd members, among them jumps of the wall clock; they take some minutes
    Faults,
}

impl Part {
    /// What the names of its tests start with: program and module.
    fn names(self) -> &'static str {
        match self {
            Part::Packets => "packets::",
            Part::Conformance => "conformance::ebpf::",
            Part::Ovs => "ovs::",
            Part::OvsConformance => "conformance::ovs::",
            Part::OvsAttacks => "attacks::ovs",
            Part::Changes => "e2e::replace_datapath::",
            Part::Faults => "e2e::faults::",
        }
    }
}

/// The parts for each kernel, and those for the oldest one.
const PARTS: [Part; 2] = [Part::Packets, Part::Conformance];
const OLDEST_PARTS: [Part; 3] = [Part::Packets, Part::Conformance, Part::Ovs];

/// Tests of one part whose name contains one of the words; all if there are none.
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

/// The tests to run on one kernel.
struct Plan {
    version: String,
    shares: Vec<Share>,
}

/// What CI runs on one kernel, of the packet tests and of the eBPF conformance scenarios. The verifier judges all programs on
/// both kernels; every other test runs on one of them, and `cargo xtask nightly` runs all on both.
type CiShare = (&'static [&'static str], &'static [&'static str]);

/// Policies, services and an upgrade, where the oldest verifier and its helpers matter most.
const OLDEST: CiShare = (
    &[
        "verifier",
        "policy::ip_reuse",
        "policy::packets_are_marked",
        "policy::the_matching_rule",
        "services::connections",
        "upgrade::translated",
        "host_access::errors",
        "host_access::packets",
    ],
    &["a_change_is_in_force", "restart_loses_no_ping"],
);
/// Single frames through each program, and a service.
const NEWEST: CiShare =
    (&["verifier", "from_pod::", "from_overlay::", "from_uplink::"], &["policies_see_the_backend"]);
/// The part that CI runs. `cargo xtask nightly` runs all tests, also those of the kernel's switch: in a guest that shares its
/// processors with other tests, ovs-vswitchd misses the time limits of the agent.
fn ci_plans() -> Vec<Plan> {
    let [oldest, newest] = KERNELS.map(str::to_owned);
    let shares = |(frames, scenarios): CiShare| {
        vec![Share::of(Part::Packets, frames), Share::of(Part::Conformance, scenarios)]
    };
    vec![Plan { version: oldest, shares: shares(OLDEST) }, Plan { version: newest, shares: shares(NEWEST) }]
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::ensure(workspace)?;
    setup::ensure_vm(workspace)?;
    // Guests emulate each instruction, and half of their time is in the code of tests and agent. Optimising takes minutes, which
    // whole parts on several kernels win back.
    let selection = if options.filter.is_empty() {
        Selection::OptimizedAgent { tests: test_programs(&options.part) }
    } else {
        Selection::All
    };
    run_programs(workspace, options, &suite_programs::build(workspace, &selection)?)
}

/// The test programs of these parts.
fn test_programs(parts: &[Part]) -> &'static [&'static str] {
    let of_clusters = [Part::Changes, Part::Faults].iter().any(|part| parts.contains(part));
    if of_clusters { &programs::ALL_NAMES } else { &programs::NAMES }
}

/// Runs test programs that are built already.
pub(crate) fn run_programs(workspace: &Workspace, options: &Options, built: &[TestProgram]) -> Result<()> {
    let silence = Duration::from_secs(60 * options.silence);
    let parameters = options.possible_cpus.map_or(String::new(), |cpus| format!("possible_cpus={cpus}"));
    if options.ci {
        return carry_out(workspace, &ci_plans(), built, silence, &parameters);
    }
    let plan = |version: &String| {
        let shares = parts(options, version).into_iter();
        let shares = shares.map(|part| Share { part, filter: options.filter.clone() }).collect();
        Plan { version: version.clone(), shares }
    };
    let plans: Vec<_> = options.kernels.iter().map(plan).collect();
    carry_out(workspace, &plans, built, silence, &parameters)
}

/// The parts to run on a kernel. Little of the kernel's switch changes from version to version, and it is much to emulate.
fn parts(options: &Options, version: &str) -> Vec<Part> {
    let is_oldest = version.starts_with(KERNELS[0]) && !version.starts_with(KERNELS[1]);
    match &options.part[..] {
        [] if is_oldest => OLDEST_PARTS.into(),
        [] => PARTS.into(),
        named => named.into(),
    }
}

/// Boots all kernels at a time: while one of them waits, another works.
fn carry_out(
    workspace: &Workspace,
    plans: &[Plan],
    built: &[TestProgram],
    silence: Duration,
    parameters: &str,
) -> Result<()> {
    let kernels: Vec<_> =
        plans.iter().map(|plan| Kernel::fetch(workspace, &plan.version)).collect::<Result<_>>()?;
    check_names(workspace, plans, built)?;
    let folder = folder(workspace)?;
    // Of its own for each set of kernels: others may run at a time.
    let versions: Vec<_> = plans.iter().map(|plan| plan.version.as_str()).collect();
    let parts: Vec<Part> = plans.iter().flat_map(|plan| &plan.shares).map(|share| share.part).collect();
    let copies = folder.join(format!("programs-{}", versions.join("-")));
    let programs = programs::strip(workspace, built, test_programs(&parts), &copies)?;
    let Some(first) = kernels.first() else { return Ok(()) };
    let accelerator = Accelerator::choose(first, &folder)?;
    let reports: Vec<_> = thread::scope(|scope| {
        let booted: Vec<_> = plans
            .iter()
            .zip(&kernels)
            .map(|(plan, kernel)| {
                let jobs = guest::jobs(&programs, &plan.shares);
                let label = format!("{} | ", plan.version);
                scope.spawn(move || {
                    boot(workspace, (accelerator, kernel), &jobs, (&label, parameters), silence)
                })
            })
            .collect();
        booted.into_iter().map(|boot| boot.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let mut rows = vec![];
    let mut failed = false;
    // All of them have ended.
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

/// Fails if a filter of the plans, or a name in the list of expected skips, matches no test: tests are renamed.
fn check_names(workspace: &Workspace, plans: &[Plan], built: &[TestProgram]) -> Result<()> {
    let mut names = vec![];
    for program in built.iter().filter(|program| programs::is_guest_program(program)) {
        names.extend(program.tests()?);
    }
    let shares = plans.iter().flat_map(|plan| &plan.shares);
    for (part, filter) in shares.flat_map(|share| share.filter.iter().map(|filter| (share.part, filter))) {
        let start = part.names();
        if !names
            .iter()
            .any(|name| name.strip_prefix(start).is_some_and(|name| name.contains(filter.as_str())))
        {
            bail!("no test of {start} has {filter} in its name");
        }
    }
    let expected = skips::Expected::read(workspace, skips::EXPECTED_VM)?;
    // Programs of parts that are not run are not built.
    let built: BTreeSet<_> = names.iter().map(|name| program_of(name)).collect();
    let mut listed = expected.tests().filter(|test| built.contains(program_of(test)));
    if let Some(test) = listed.find(|test| !names.iter().any(|name| name == test)) {
        bail!("{}: {test}: no such test", skips::EXPECTED_VM);
    }
    Ok(())
}

fn program_of(test: &str) -> &str {
    test.split("::").next().unwrap_or_default()
}

fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.metadata()?.target_directory.into_std_path_buf().join("vm");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    Ok(folder)
}

struct Report {
    failed: bool,
    rows: Vec<Row>,
}

/// Boots one kernel and runs the jobs. Each printed line starts with the label; the sums are the last line.
fn boot(
    workspace: &Workspace,
    (accelerator, kernel): (Accelerator, &Kernel),
    jobs: &[Job],
    (label, parameters): (&str, &str),
    silence: Duration,
) -> Result<Report> {
    let start = Instant::now();
    println!("{label}== Linux {} ({accelerator})", kernel.release());
    let guest =
        |jobs: &[Job]| run_guest(workspace, (accelerator, kernel), jobs, (label, parameters), silence);
    let Run { mut outcome, mut skipped, rows } = guest(jobs)?;
    let flaky = repeat(&mut outcome, |tests| Ok(guest(&guest::exactly(jobs, tests))?.outcome))?;
    skipped.sort();
    skipped.dedup();
    outcome.skip(&skipped);
    let expected = skips::Expected::read(workspace, skips::EXPECTED_VM)?;
    let unexpected = expected.missing(&skipped);
    for skip in &unexpected {
        println!("{label}FAILED skipped, but not listed in {}: {skip}", skips::EXPECTED_VM);
    }
    for test in &flaky {
        println!("{label}FLAKY failed beside other tests, passed alone: {test}");
    }
    for failure in outcome.failures() {
        println!("{label}FAILED {failure}");
    }
    if outcome.is_empty() {
        let folder = folder(workspace)?.join(kernel.release());
        bail!("Linux {}: no test ran; see the kernel's log in {}", kernel.release(), folder.display());
    }
    println!("{label}Linux {}: {outcome} ({:.0} s)", kernel.release(), start.elapsed().as_secs_f64());
    Ok(Report { failed: outcome.failed() || !unexpected.is_empty(), rows })
}

/// What one run of a guest printed.
struct Run {
    outcome: Outcome,
    skipped: Vec<skips::Skip>,
    rows: Vec<Row>,
}

fn run_guest(
    workspace: &Workspace,
    (accelerator, kernel): (Accelerator, &Kernel),
    jobs: &[Job],
    (label, parameters): (&str, &str),
    silence: Duration,
) -> Result<Run> {
    let folder = folder(workspace)?.join(kernel.release());
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut run = Run { outcome: Outcome::default(), skipped: vec![], rows: vec![] };
    let script = guest::script(kernel, jobs);
    let kept = guest::kept(workspace)?;
    let status = qemu::run(
        accelerator,
        kernel,
        &folder,
        &guest::Files { script, kept, parameters: parameters.to_owned() },
        silence,
        |line| {
            println!("{label}{line}");
            run.outcome.line(line);
            run.skipped.extend(skips::Skip::parse(line));
            run.rows.extend(Row::parse(kernel.release(), line));
        },
    )?;
    run.outcome.end(kernel.release(), ExitStatus::from_raw(status << 8));
    Ok(run)
}

/// Repeats failed tests in a new guest. If all of them pass there, they are removed from the failures and returned.
fn repeat(outcome: &mut Outcome, guest: impl FnOnce(&[String]) -> Result<Outcome>) -> Result<Vec<String>> {
    let failed = outcome.failures().to_vec();
    if failed.is_empty() || failed.len() > flaky::LIMIT || !failed.iter().all(|test| flaky::is_test(test)) {
        return Ok(vec![]);
    }
    if !guest(&failed)?.passed_only() {
        return Ok(vec![]);
    }
    for test in &failed {
        outcome.passed_alone(test);
    }
    Ok(failed)
}
