//! Paths of the checkout, and how programs are run.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::progress::step;

const TAIL_LINES: usize = 25;

#[derive(Debug)]
pub(crate) struct Workspace {
    root: PathBuf,
    /// Clippy's compiler, if it is the one to build with.
    clippy: Option<PathBuf>,
}

impl Workspace {
    /// The checkout that this xtask was built from.
    pub(crate) fn find() -> Result<Workspace> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent folder")?;
        if !root.join("Cargo.toml").exists() {
            bail!("{} is no checkout any more; run `cargo xtask` inside a checkout", root.display());
        }
        Ok(Workspace { root: root.to_owned(), clippy: None })
    }

    /// The same, built with clippy's compiler, whose findings are errors. `cargo clippy` checks the dependencies once more, without
    /// code, which takes minutes; this compiler does both at a time.
    pub(crate) fn built_with_clippy(&self) -> Result<Workspace> {
        let sysroot = output(self.command("rustc").args(["--print", "sysroot"]))?;
        let clippy = Path::new(sysroot.trim()).join("bin/clippy-driver");
        if !clippy.is_file() {
            bail!("no {}; install it: rustup component add clippy", clippy.display());
        }
        Ok(Workspace { root: self.root.clone(), clippy: Some(clippy) })
    }

    /// Whether a build has clippy's findings.
    pub(crate) fn is_built_with_clippy(&self) -> bool {
        self.clippy.is_some()
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Folder of programs that only this checkout uses, such as cargo-deny.
    pub(crate) fn tools(&self) -> PathBuf {
        self.path(".tools")
    }

    /// A command that runs in the root folder.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    pub(crate) fn cargo(&self) -> Command {
        // Set by cargo for the xtask it runs.
        let mut cargo = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Set by `cargo run --package xtask`. Build scripts that depend on them would run again.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(name);
            }
        }
        cargo
    }

    /// Cargo that builds or tests the crates of the workspace.
    pub(crate) fn build_cargo(&self) -> Command {
        let mut cargo = self.cargo();
        if let Some(clippy) = &self.clippy {
            // No variable: it would reach the build of the eBPF programs, which has another compiler.
            cargo.args([
                "--config",
                &format!("build.rustc-workspace-wrapper={:?}", clippy.display().to_string()),
            ]);
            // As `cargo clippy` separates arguments.
            cargo.env("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
        }
        cargo
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        let mut command = MetadataCommand::new();
        command.current_dir(&self.root).no_deps();
        command.exec().context("cargo metadata")
    }
}

/// Runs a command with our output; fails unless it succeeds.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {}", describe(command)))?;
    if !status.success() {
        bail!("{}: {status}", describe(command));
    }
    Ok(())
}

/// Runs a command with its output in `log`; an error has the last lines of it.
pub(crate) fn run_logged(command: &mut Command, log: &Path) -> Result<()> {
    let output = File::create(log).with_context(|| format!("write {}", log.display()))?;
    let status = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("run {}", describe(command)))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        bail!("{}: {status}; last lines of its output:\n{tail}", describe(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output.
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

/// Builds a program from the crate registry into `.tools` unless it is there in this version, and returns its path.
pub(crate) fn install_tool(workspace: &Workspace, name: &str, version: &str) -> Result<PathBuf> {
    let tools = workspace.tools();
    let program = tools.join("bin").join(name);
    let mark = tools.join(format!("{name}.version"));
    if program.is_file() && fs::read_to_string(&mark).is_ok_and(|installed| installed == version) {
        return Ok(program);
    }
    step(&format!("{name} {version}: build"), || {
        fs::create_dir_all(&tools).with_context(|| format!("create {}", tools.display()))?;
        let build = tools.join(format!("build-{name}"));
        let mut install = workspace.cargo();
        // Unoptimised, it builds in half the time and is fast enough.
        install
            .args(["install", name, "--locked", "--debug", "--force", "--version", version, "--root"])
            .arg(&tools)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TARGET_DIR", &build);
        run_logged(&mut install, &tools.join(format!("{name}.log")))?;
        fs::write(&mark, version).with_context(|| format!("write {}", mark.display()))?;
        fs::remove_dir_all(&build).with_context(|| format!("remove {}", build.display()))
    })?;
    Ok(program)
}

/// Finds a program in PATH and in the folders of a root login.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}
