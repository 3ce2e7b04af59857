//! Demo, benchmarks and replay run daemons, so they live in the `lab` program of `tests/e2e`; here they are built and
//! started.

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

    /// Figures of an unoptimised build mean nothing.
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
    /// Handed on as they are
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Arguments {
    fn is_about(&self, what: &str) -> bool {
        self.words.first().is_some_and(|word| word == what)
    }

    /// The words of a campaign, after the program's name.
    fn of_campaign(&self, program: Program) -> Option<impl Iterator<Item = OsString>> {
        let about = self.words.first()?.to_str()?;
        (program == Program::Bench && Campaign::is_meant(about))
            .then(|| [OsString::from("bench")].into_iter().chain(self.words.iter().cloned()))
    }
}

/// Never returns when it goes well: the lab takes over this process, so that signals reach it.
pub(crate) fn run(workspace: &Workspace, program: Program, arguments: &Arguments) -> Result<()> {
    if let Some(words) = arguments.of_campaign(program) {
        return Campaign::parse_from(words).run(workspace);
    }
    let asks_only = arguments.words.iter().any(|word| word == "--help" || word == "-h");
    if !asks_only {
        setup::ensure(workspace)?;
        if program == Program::Bench && (arguments.words.is_empty() || arguments.is_about("lb")) {
            setup::offer_peers(workspace);
        }
    }
    let lab = build(workspace, program.profile(), if asks_only { &["e2e"] } else { DAEMONS })?;
    let error = workspace.command(&lab).arg(program.name()).args(&arguments.words).exec();
    Err(error).with_context(|| format!("start {}", lab.display()))
}

/// Whether the lab understands these words; nothing is run.
pub(crate) fn parses(workspace: &Workspace, program: Program, arguments: &Arguments) -> Result<(), String> {
    if let Some(words) = arguments.of_campaign(program) {
        return Campaign::try_parse_from(words).map(drop).map_err(|error| error.to_string());
    }
    let lab = build(workspace, Profile::Dev, &["e2e"]).map_err(|error| format!("{error:#}"))?;
    let mut check = workspace.command(lab);
    check.arg("--parse-only").arg(program.name()).args(&arguments.words);
    output(&mut check)
        .map(drop)
        .map_err(|error| format!("{error:#}").lines().next().unwrap_or_default().to_owned())
}

const DAEMONS: &[&str] = &["e2e", "netmaster", "netplugin", "netctl", "contivk8s"];

fn build(workspace: &Workspace, profile: Profile, packages: &[&str]) -> Result<PathBuf> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--bins", "--quiet"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    execute(&mut cargo)?;
    let folder = match profile {
        Profile::Dev => "debug",
        Profile::Release => "release",
    };
    Ok(workspace.metadata()?.target_directory.as_std_path().join(folder).join("lab"))
}
