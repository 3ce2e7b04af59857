//! Demo, benchmarks and replay run daemons: they are commands of the program `lab` of `tests/e2e`, which is built and
//! started here.

use std::{ffi::OsString, os::unix::process::CommandExt as _, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Parser as _};

use crate::{
    campaign::Campaign,
    setup,
    workspace::{Workspace, execute, output},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Demo,
    Bench,
    Replay,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Demo => "demo",
            Program::Bench => "bench",
            Program::Replay => "replay",
        }
    }

    /// Benchmarks measure optimised builds.
    fn profile(self) -> Profile {
        match self {
            Program::Bench => Profile::Release,
            Program::Demo | Program::Replay => Profile::Dev,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    Dev,
    Release,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Arguments of the lab
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Arguments {
    fn starts_with(&self, what: &str) -> bool {
        self.words.first().is_some_and(|word| word == what)
    }

    /// The command line of a campaign, if the arguments are one.
    fn campaign(&self, program: Program) -> Option<impl Iterator<Item = OsString>> {
        let about = self.words.first()?.to_str()?;
        (program == Program::Bench && Campaign::exists(about))
            .then(|| [OsString::from("bench")].into_iter().chain(self.words.iter().cloned()))
    }
}

/// Replaces this process by the lab, so that signals reach it. Returns only on failure.
pub(crate) fn run(workspace: &Workspace, program: Program, arguments: &Arguments) -> Result<()> {
    if let Some(words) = arguments.campaign(program) {
        return Campaign::parse_from(words).run(workspace);
    }
    let help_only = arguments.words.iter().any(|word| word == "--help" || word == "-h");
    if !help_only {
        setup::ensure(workspace)?;
        if program == Program::Bench && (arguments.words.is_empty() || arguments.starts_with("lb")) {
            setup::offer_peers(workspace);
        }
    }
    let lab = match program.profile() {
        profile if help_only => build(workspace, profile, &["e2e"])?,
        Profile::Dev => build(workspace, Profile::Dev, &[&PROGRAMS[..], &["e2e"]].concat())?,
        Profile::Release => {
            build_programs(workspace)?;
            build(workspace, Profile::Release, &["e2e"])?
        }
    };
    let error = workspace.command(&lab).arg(program.name()).args(&arguments.words).exec();
    Err(error).with_context(|| format!("start {}", lab.display()))
}

/// The lab program, unoptimised, without the daemons.
pub(crate) fn build_check(workspace: &Workspace) -> Result<PathBuf> {
    build(workspace, Profile::Dev, &["e2e"])
}

/// Whether the lab accepts this command line; runs nothing.
pub(crate) fn parses(workspace: &Workspace, program: Program, arguments: &Arguments) -> Result<(), String> {
    if let Some(words) = arguments.campaign(program) {
        return Campaign::try_parse_from(words).map(drop).map_err(|error| error.to_string());
    }
    let lab = build(workspace, Profile::Dev, &["e2e"]).map_err(|error| format!("{error:#}"))?;
    let mut check = workspace.command(lab);
    check.arg("--parse-only").arg(program.name()).args(&arguments.words);
    output(&mut check)
        .map(drop)
        .map_err(|error| format!("{error:#}").lines().next().unwrap_or_default().to_owned())
}

/// Programs of the packages and of the tarball.
pub(crate) const PROGRAMS: [&str; 4] = ["netmaster", "netplugin", "netctl", "contivk8s"];

/// Builds the release binaries as packages have them: without the features that the lab's dependencies add.
pub(crate) fn build_programs(workspace: &Workspace) -> Result<()> {
    compile(workspace, Profile::Release, &PROGRAMS)
}

fn compile(workspace: &Workspace, profile: Profile, packages: &[&str]) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--bins", "--quiet"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    execute(&mut cargo)
}

fn build(workspace: &Workspace, profile: Profile, packages: &[&str]) -> Result<PathBuf> {
    compile(workspace, profile, packages)?;
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    Ok(workspace.metadata()?.target_directory.as_std_path().join(folder).join("lab"))
}
