//! Static checks: formatting, clippy, licences, imports, wording and the documents.

mod commands;
mod crates;
mod documents;
mod imports;
mod links;
mod locks;
mod modules;
mod words;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::{
    docs,
    progress::step,
    setup,
    suite::programs::{self, Selection},
    workspace::{Workspace, execute, find_program, install_tool},
};

const DENY_VERSION: &str = "0.20.2";

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Checks to run; all if none is given
    #[arg(value_enum)]
    checks: Vec<Check>,
    /// Print the import graph of the modules in Graphviz's language instead of checking; cycles are red
    #[arg(long, conflicts_with = "checks")]
    graph: bool,
    /// With --graph: only this crate
    #[arg(long = "crate", value_name = "NAME", requires = "graph")]
    package: Option<String>,
}

impl Options {
    /// As CI runs it. Building cargo-deny takes longer than most checks; `cargo xtask nightly` checks licences.
    pub(crate) fn ci() -> Options {
        let checks = Check::value_variants().iter().copied().filter(|check| *check != Check::Licences);
        Options { checks: checks.collect(), ..Options::default() }
    }
}

/// The quick checks come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Imports between crates
    Crates,
    /// Imports between the modules of each crate: layers, forbidden imports and cycles
    Modules,
    /// Lints that every crate inherits
    Inherited,
    /// Lock files that agree
    Locks,
    /// Words that have a standard term
    Words,
    /// Links, contents and length of the documents
    Links,
    /// Formatting
    Format,
    /// Clippy of the workspace and of `ebpf/`
    Clippy,
    /// Licences, banned crates and sources of crates
    Licences,
    /// Commands in the documents
    Commands,
    /// Reference pages that agree with the code
    Reference,
}

impl Check {
    fn run(self, workspace: &Workspace) -> Result<()> {
        match self {
            Check::Crates => report("imports between crates", || imports::check(workspace)),
            Check::Modules => report("imports between modules", || modules::check(workspace)),
            Check::Inherited => report("lints inherited", || crates::check_lints(workspace)),
            Check::Locks => report("lock files agree", || locks::check(workspace)),
            Check::Format => format(workspace),
            Check::Clippy => clippy(workspace),
            Check::Licences => licences(workspace),
            Check::Words => report("words", || words::check(workspace)),
            Check::Links => report("links in the documents", || links::check(workspace)),
            Check::Commands => report("commands in the documents", || commands::check(workspace)),
            Check::Reference => report("reference pages", || docs::stale_reference(workspace)),
        }
    }

    fn needs_compilers(self) -> bool {
        matches!(self, Check::Clippy | Check::Commands | Check::Reference)
    }
}

/// Findings of one check, each as `file: problem`.
type Findings = Vec<String>;

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.graph {
        print!("{}", modules::graph(workspace, options.package.as_deref())?);
        return Ok(());
    }
    let checks = if options.checks.is_empty() { Check::value_variants() } else { &options.checks };
    if checks.iter().any(|check| check.needs_compilers()) {
        setup::ensure(workspace)?;
    }
    // A failed check does not stop the others: one run shows all findings.
    let errors: Vec<_> = checks.iter().filter_map(|check| check.run(workspace).err()).collect();
    for error in &errors {
        eprintln!("{error:#}");
    }
    if !errors.is_empty() {
        bail!("lint: {} checks failed, see above", errors.len());
    }
    println!("lint: no findings");
    Ok(())
}

fn report(what: &str, check: impl FnOnce() -> Result<Findings>) -> Result<()> {
    step(what, || {
        let findings = check()?;
        if !findings.is_empty() {
            bail!("{what}:\n  {}", findings.join("\n  "));
        }
        Ok(())
    })
}

fn format(workspace: &Workspace) -> Result<()> {
    step("formatting", || {
        execute(workspace.cargo().args(["fmt", "--all", "--check"])).context("run `cargo fmt --all`")?;
        execute(workspace.cargo().args(["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"]))
            .context("run `cargo fmt --manifest-path ebpf/Cargo.toml`")
    })
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let deny_warnings = ["--", "--deny", "warnings"];
    if workspace.is_built_with_clippy() {
        programs::build(workspace, &Selection::All).context("clippy")?;
    } else {
        step("clippy", || {
            let mut cargo = workspace.cargo();
            execute(cargo.args(["clippy", "--workspace", "--all-targets"]).args(deny_warnings))
        })?;
    }
    if !setup::bpf_compiler_available(workspace) {
        bail!("clippy of ebpf/: no BPF compiler; run `cargo xtask setup`");
    }
    // Clippy belongs to the host's compiler, which takes the programs for ordinary no_std code.
    step("clippy of ebpf/", || {
        let mut cargo = workspace.cargo();
        execute(cargo.args(["clippy", "--manifest-path", "ebpf/Cargo.toml"]).args(deny_warnings))
    })
}

/// Advisories are left out: they need a clone from GitHub, which CI may not reach.
fn licences(workspace: &Workspace) -> Result<()> {
    let deny = match find_program("cargo-deny") {
        Some(found) => found,
        None => install_tool(workspace, "cargo-deny", DENY_VERSION)?,
    };
    step("licences, bans and sources", || {
        for manifest in ["Cargo.toml", "ebpf/Cargo.toml"] {
            let mut check = workspace.command(&deny);
            check.args(["--log-level", "error", "--config", "deny.toml", "--manifest-path", manifest]);
            execute(check.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))?;
        }
        Ok(())
    })
}
