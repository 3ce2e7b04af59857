//! All tests with one result: the last line is `N passed, N failed, N skipped`.

pub(crate) mod flaky;
mod outcome;
pub(crate) mod programs;
mod schedule;
pub(crate) mod skips;

use std::{
    env, error, fmt,
    io::{Write as _, stdout},
    path::Path,
};

use anyhow::{Context as _, Result};
use cargo_metadata::Package;
use clap::Args;

pub(crate) use outcome::Outcome;

use crate::{
    setup,
    suite::{
        programs::{Selection, TestProgram},
        schedule::{Done, Job, Load, Slots},
        skips::Expected,
    },
    workspace::Workspace,
};

/// Programs that wait beside the one that is busy.
const SLOTS: usize = 3;

/// Read by libtest; by default as many threads as processors.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";
/// Its tests run daemons and wait for them.
const END_TO_END: &str = "e2e";
const END_TO_END_THREADS: usize = 3;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Crates by name or folder, such as `store`, `agent`, `contiv-model`; all if none is given
    crates: Vec<String>,
    /// Fail on a skip that .ci/expected-skips does not list; default with CI=true
    #[arg(long)]
    strict: bool,
    /// Test programs that mostly wait to run beside one that uses the processors; 0 runs one program at a time
    #[arg(long, value_name = "N", default_value_t = SLOTS)]
    slots: usize,
    /// Repeat up to 3 failed tests, each alone; those that pass then are listed as FLAKY and do not fail the run
    #[arg(long)]
    repeat_failed: bool,
    /// Arguments of the test programs: a filter, or flags such as `--nocapture`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    /// Everything, as CI runs it.
    pub(crate) fn strict() -> Options {
        Options { crates: vec![], strict: true, slots: SLOTS, repeat_failed: true, arguments: vec![] }
    }
}

/// The end of a run: what was skipped, what failed, and the sums.
#[derive(Debug)]
pub(crate) struct Summary {
    outcome: Outcome,
    skipped: Vec<skips::Skip>,
    unexpected: Vec<skips::Skip>,
    flaky: Vec<String>,
    times: Vec<(String, f64)>,
}

impl Summary {
    pub(crate) fn failed(&self) -> bool {
        self.outcome.failed() || !self.unexpected.is_empty()
    }

    /// Prints the summary; fails if tests failed.
    pub(crate) fn finish(&self) -> Result<()> {
        println!("slowest test programs:");
        for (label, seconds) in self.times.iter().take(8) {
            println!("  {seconds:7.1} s  {label}");
        }
        for skip in &self.skipped {
            println!("SKIP {skip}");
        }
        for skip in &self.unexpected {
            println!("FAILED skipped, but not listed in {}: {skip}", skips::EXPECTED);
        }
        for test in &self.flaky {
            println!("FLAKY failed beside other tests, passed alone: {test}");
        }
        for failure in self.outcome.failures() {
            println!("FAILED {failure}");
        }
        println!("{}", self.outcome);
        stdout().flush()?;
        if self.failed() { Err(Failed.into()) } else { Ok(()) }
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<Summary> {
    setup::ensure_tests(workspace)?;
    let selection = select(&workspace.metadata()?.packages, workspace.root(), &options.crates)?;
    let programs = programs::build(workspace, &selection)?;
    run_programs(workspace, options, &selection, programs)
}

/// Runs programs that are built already, and the documentation's tests.
pub(crate) fn run_programs(
    workspace: &Workspace,
    options: &Options,
    selection: &Selection,
    mut programs: Vec<TestProgram>,
) -> Result<Summary> {
    let log = skips::Log::create(workspace)?;
    schedule::sort(&mut programs);
    let mut jobs: Vec<_> =
        programs.iter().map(|program| job(workspace, program, &log, &options.arguments)).collect();
    if let Some(crates) = selection.doc_arguments() {
        let mut command = workspace.build_cargo();
        command.args(["test", "--doc", "--no-fail-fast"]).args(crates).arg("--").args(&options.arguments);
        jobs.push(Job { label: "documentation tests".to_owned(), command, load: Load::Busy });
    }
    let follow = options.arguments.iter().any(|argument| argument == "--nocapture");
    let slots = if follow || options.slots == 0 { Slots::One } else { Slots::Waiting(options.slots) };
    let mut outcome = Outcome::default();
    let mut times = vec![];
    let mut done = schedule::run(jobs, slots)?;
    let flaky = if options.repeat_failed {
        flaky::repeat(&mut done, |label, test| {
            let program = programs.iter().find(|program| program.label() == label)?;
            let arguments = ["--exact", test].map(str::to_owned).to_vec();
            Some(job(workspace, program, &log, &arguments))
        })?
    } else {
        vec![]
    };
    for Done { label, outcome: results, time } in done {
        outcome.add(&label, results);
        times.push((label, time.as_secs_f64()));
    }
    times.sort_by(|a, b| b.1.total_cmp(&a.1));
    let skipped = log.read()?;
    outcome.skip(&skipped);
    let strict = options.strict || env::var("CI").is_ok_and(|value| value == "true");
    let unexpected =
        if strict { Expected::read(workspace, skips::EXPECTED)?.missing(&skipped) } else { vec![] };
    Ok(Summary { outcome, skipped, unexpected, flaky, times })
}

fn job(workspace: &Workspace, program: &TestProgram, log: &skips::Log, arguments: &[String]) -> Job {
    let mut command = workspace.command(&program.file);
    command
        .args(arguments)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env("CARGO_PKG_NAME", &program.package)
        .env(skips::LOG_VARIABLE, log.path());
    if program.package == END_TO_END && env::var_os(THREADS_VARIABLE).is_none() {
        command.env(THREADS_VARIABLE, END_TO_END_THREADS.to_string());
    }
    Job { label: program.label(), command, load: schedule::load(program) }
}

/// Everything to report is printed already.
#[derive(Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tests failed, or were skipped that must run")
    }
}

impl error::Error for Failed {}

/// Finds the crates with these names or folders.
fn select(packages: &[Package], root: &Path, names: &[String]) -> Result<Selection> {
    if names.is_empty() {
        return Ok(Selection::All);
    }
    let mut selected = vec![];
    for name in names {
        let package = packages.iter().find(|package| {
            let folder = package.manifest_path.parent().and_then(|path| path.strip_prefix(root).ok());
            package.name.as_str() == name
                || folder.is_some_and(|folder| folder == name || folder.file_name() == Some(name))
        });
        selected.push(package.with_context(|| {
            let known: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
            format!("no crate {name}; use one of {} or its folder", known.join(", "))
        })?);
    }
    Ok(Selection::of(&selected))
}
