//! Where things are, and how programs are run.

use std::{
    env,
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

const TAIL_LINES: usize = 25;

#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The checkout that this xtask was built from.
    pub(crate) fn find() -> Result<Workspace> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent folder")?;
        if !root.join("Cargo.toml").exists() {
            bail!("{} has moved since xtask was built: run `cargo xtask` inside a checkout", root.display());
        }
        Ok(Workspace { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Programs that only this checkout uses, such as cargo-deny.
    pub(crate) fn tools(&self) -> PathBuf {
        self.path(".tools")
    }

    /// A program to be run in the root folder.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    pub(crate) fn cargo(&self) -> Command {
        // Set by cargo for the xtask it runs.
        let mut cargo = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Left over from `cargo run --package xtask`; in there they would cause rebuilds.
        for variable in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME"] {
            cargo.env_remove(variable);
        }
        cargo
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        let mut command = MetadataCommand::new();
        command.current_dir(&self.root).no_deps();
        command.exec().context("cargo metadata")
    }
}

/// Runs to the end with our own output; an error unless it succeeds.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {}", describe(command)))?;
    if !status.success() {
        bail!("{}: {status}", describe(command));
    }
    Ok(())
}

/// Runs to the end with its output in `log`; on failure the last lines are part of the error.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let output = File::create(log).with_context(|| format!("write {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("run {}", describe(command)))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        bail!("{}: {status}; it said:\n{tail}", describe(command));
    }
    Ok(())
}

/// Runs to the end and takes its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("run {}", describe(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", describe(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let arguments = command.get_args().map(OsStr::to_string_lossy);
    [program].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Where a program is, if anywhere; also where a root login would look.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}
