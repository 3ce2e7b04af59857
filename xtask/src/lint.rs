//! What is checked without running anything: form, licences, who imports whom, and that the documents tell the truth.

mod commands;
mod crates;
mod imports;
mod locks;

use std::fs;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{
    progress::step,
    setup,
    workspace::{Workspace, execute, find_program, run_logged},
};

const DENY_VERSION: &str = "0.20.2";

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only check that each `cargo xtask ...` in the documents is a command that exists
    #[arg(long)]
    docs: bool,
}

/// One finding, as `file: what is wrong`.
type Findings = Vec<String>;

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.docs {
        return report("commands in the documents", || commands::check(workspace));
    }
    setup::ensure(workspace)?;
    // All of them, so that one run tells everything; the quick ones first.
    let results = [
        report("imports between crates", || imports::check(workspace)),
        report("imports inside the agent", || imports::check_agent(workspace)),
        report("lints inherited", || crates::check_lints(workspace)),
        report("lock files agree", || locks::check(workspace)),
        format(workspace),
        clippy(workspace),
        deny(workspace),
        report("commands in the documents", || commands::check(workspace)),
    ];
    let mut failed = 0;
    for error in results.into_iter().filter_map(Result::err) {
        eprintln!("{error:#}");
        failed += 1;
    }
    if failed > 0 {
        bail!("{failed} checks failed, see above");
    }
    println!("lint: nothing found");
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
        execute(workspace.cargo().args(["fmt", "--all", "--check"])).context("`cargo fmt --all` mends it")?;
        execute(workspace.cargo().args(["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"]))
            .context("`cargo fmt --manifest-path ebpf/Cargo.toml` mends it")
    })
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let deny_warnings = ["--", "--deny", "warnings"];
    step("clippy", || {
        execute(workspace.cargo().args(["clippy", "--workspace", "--all-targets"]).args(deny_warnings))
    })?;
    if !setup::bpf_compiler_available(workspace) {
        bail!("clippy of ebpf/ needs the BPF compiler: `cargo xtask setup`");
    }
    // Clippy comes with the host's compiler, and the programs are ordinary no_std code to it.
    step("clippy of ebpf/", || {
        let mut cargo = workspace.cargo();
        execute(cargo.args(["clippy", "--manifest-path", "ebpf/Cargo.toml"]).args(deny_warnings))
    })
}

/// Licences, duplicate and banned crates, sources. Advisories need a clone from GitHub, which CI may not have.
fn deny(workspace: &Workspace) -> Result<()> {
    let own = workspace.tools().join("bin/cargo-deny");
    let deny = match find_program("cargo-deny") {
        _ if own.is_file() => own,
        Some(found) => found,
        None => {
            step("cargo-deny: build", || {
                fs::create_dir_all(workspace.tools())?;
                let mut install = workspace.cargo();
                // Unoptimised, it builds in a minute and still checks in a second.
                install
                    .args([
                        "install",
                        "cargo-deny",
                        "--locked",
                        "--debug",
                        "--version",
                        DENY_VERSION,
                        "--root",
                    ])
                    .arg(workspace.tools())
                    .env("CARGO_PROFILE_DEV_DEBUG", "0")
                    .env("CARGO_TARGET_DIR", workspace.tools().join("build"));
                run_logged(&mut install, &workspace.tools().join("cargo-deny.log"))?;
                Ok(fs::remove_dir_all(workspace.tools().join("build"))?)
            })?;
            own
        }
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
