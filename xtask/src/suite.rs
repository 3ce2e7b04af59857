//! All tests with one verdict: `N passed, N failed, N skipped` is the last line, and what was skipped says why.

mod outcome;
pub(crate) mod skips;

use std::{
    env, error, fmt,
    io::{BufRead as _, BufReader, Write as _, stdout},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use cargo_metadata::Package;
use clap::Args;

pub(crate) use outcome::Outcome;

use crate::{
    setup,
    suite::skips::Expected,
    workspace::{Workspace, execute},
};

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Crates by name or folder: `store`, `agent`, `contiv-model`; all if none
    crates: Vec<String>,
    /// Fail on a skip that .ci/expected-skips does not list; also with CI=true
    #[arg(long)]
    strict: bool,
    /// For the test programs: a filter, or flags such as `--nocapture`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    /// Everything, as CI runs it.
    pub(crate) fn strict() -> Options {
        Options { strict: true, ..Options::default() }
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let selection = select(&workspace.metadata()?.packages, workspace.root(), &options.crates)?;
    setup::ensure_tests(workspace)?;
    build(workspace, &selection)?;
    let log = skips::Log::create(workspace)?;
    let mut tests = workspace.cargo();
    tests.args(["test", "--no-fail-fast"]).args(&selection).arg("--").args(&options.arguments);
    tests.env(skips::LOG_VARIABLE, log.path());
    let mut outcome = watch(&mut tests)?;
    let skipped = log.read()?;
    outcome.skip(&skipped);

    for skip in &skipped {
        println!("SKIP {skip}");
    }
    let strict = options.strict || env::var("CI").is_ok_and(|value| value == "true");
    let unexpected =
        if strict { Expected::read(workspace, skips::EXPECTED)?.missing(&skipped) } else { vec![] };
    for skip in &unexpected {
        println!("FAILED skipped, but not listed in {}: {skip}", skips::EXPECTED);
    }
    for failure in outcome.failures() {
        println!("FAILED {failure}");
    }
    println!("{outcome}");
    stdout().flush()?;
    if outcome.failed() || !unexpected.is_empty() {
        return Err(Failed.into());
    }
    Ok(())
}

/// All that is to be said stands above the sums already, and these are the last line.
#[derive(Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tests failed, or were skipped that must run")
    }
}

impl error::Error for Failed {}

/// cargo's arguments for the crates asked for.
fn select(packages: &[Package], root: &Path, names: &[String]) -> Result<Vec<String>> {
    if names.is_empty() {
        return Ok(vec!["--workspace".to_owned()]);
    }
    let mut selection = vec![];
    for name in names {
        let package = packages.iter().find(|package| {
            let folder = package.manifest_path.parent().and_then(|path| path.strip_prefix(root).ok());
            package.name.as_str() == name
                || folder.is_some_and(|folder| folder == name || folder.file_name() == Some(name))
        });
        let package = package.with_context(|| {
            let known: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
            format!("no crate {name}; there are {} (or their folders)", known.join(", "))
        })?;
        selection.extend(["--package".to_owned(), package.name.to_string()]);
    }
    Ok(selection)
}

/// Tests of `e2e` run the programs, so these are built first; with the tests, so that nothing is built twice.
fn build(workspace: &Workspace, selection: &[String]) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--bins", "--tests"]).args(selection);
    if selection.iter().any(|word| word == "e2e") {
        for daemon in ["netmaster", "netplugin", "netctl", "contivk8s"] {
            cargo.args(["--package", daemon]);
        }
    }
    execute(&mut cargo)
}

/// Lets the output through and reads the results out of it.
fn watch(tests: &mut Command) -> Result<Outcome> {
    let mut child = tests.stdout(Stdio::piped()).spawn().context("run cargo test")?;
    let mut outcome = Outcome::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            outcome.line(&line);
        }
    }
    let status = child.wait()?;
    outcome.end(status.success());
    Ok(outcome)
}
