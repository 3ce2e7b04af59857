//! `cargo xtask nightly`: every check and test in one command.

mod passed;

use std::{
    env,
    panic::resume_unwind,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, CommandFactory as _};

use crate::{
    Cli,
    nightly::passed::Passed,
    steps::Steps,
    suite::Failed,
    workspace::{Workspace, execute},
};

/// The steps in their order: name, and command lines of xtask that run side by side.
const STEPS: &[(&str, &[&str])] = &[
    ("setup", &["setup"]),
    ("lint", &["lint"]),
    ("docs", &["docs"]),
    // Not beside the guests: those leave a switch of the tests without a processor for seconds, so that pings are lost.
    ("tests", &["test --strict --repeat-failed"]),
    // Guests are emulated, each by one processor.
    ("kernels", &["vm --kernel 6.1", "vm --kernel 6.12", "vm --kernel 7"]),
    // Only this kernel can be told a number of CPUs that the machine does not have.
    ("memory", &["vm --kernel 6.1 --possible-cpus 128 --part packets memory::"]),
    // Each uses one processor.
    ("random", &["bench equivalence --cases 1000000", "bench fuzz --cases 1000000"]),
    // Nodes with a switch or with programs: random clusters, of which CI runs fewer.
    (
        "nodes",
        &[
            "bench equivalence --datapath ovs --states 2000",
            "bench equivalence --datapath ebpf --states 16000 --expedite",
        ],
    ),
    ("openflow", &["bench fuzz-openflow --cases 1000000"]),
    ("durability", &["bench lost-writes --crashes 1000"]),
    ("package", &["package --check"]),
    ("faults", &["bench faults --seconds 120"]),
    // With jumps of the clock, which only a machine of their own may have.
    ("clock", &["vm --kernel 6.12 --part faults"]),
    ("replay-a", &["replay tests/e2e/recordings/a"]),
    ("replay-b", &["replay tests/e2e/recordings/b"]),
];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Step to leave out; can be repeated
    #[arg(long, value_name = "STEP", value_parser = names(), conflicts_with = "only")]
    skip: Vec<String>,
    /// Step to run, instead of all; can be repeated
    #[arg(long, value_name = "STEP", value_parser = names())]
    only: Vec<String>,
    /// Leave out the commands that have passed on this commit before
    #[arg(long)]
    resume: bool,
}

fn names() -> Vec<&'static str> {
    STEPS.iter().map(|(name, _)| *name).collect()
}

/// Runs the steps one after the other, each as a process of its own. A failed step does not stop the next ones, and can be
/// repeated alone: which commands have passed on a commit without other changes is kept.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = env::current_exe().context("find this program")?;
    let mut steps = Steps::default();
    let passed = Passed::on_this_commit(workspace)?;
    for (name, commands) in STEPS {
        let selected = options.only.is_empty() || options.only.iter().any(|only| only == name);
        if !selected || options.skip.iter().any(|skip| skip == name) {
            steps.leave_out(name, "not selected");
            continue;
        }
        let (mut left, mut longest) = (vec![], Duration::ZERO);
        for words in *commands {
            match passed.time(words)?.filter(|_| options.resume) {
                Some(time) => longest = longest.max(time),
                None => left.push(*words),
            }
        }
        if left.is_empty() {
            steps.record(&format!("{name}, before"), longest, &Ok(()));
            continue;
        }
        steps.run(name, || {
            thread::scope(|scope| {
                let run = |words: &'static str| {
                    let start = Instant::now();
                    xtask(workspace, &program, words)?;
                    passed.add(words, start.elapsed())
                };
                let running: Vec<_> =
                    left.iter().copied().map(|words| scope.spawn(move || run(words))).collect();
                let results =
                    running.into_iter().map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic)));
                // All of them have ended, also if one has failed.
                results.collect::<Vec<_>>().into_iter().collect::<Result<()>>()
            })
        });
    }
    println!("\n{steps}");
    if steps.failed() { Err(Failed.into()) } else { Ok(()) }
}

fn xtask(workspace: &Workspace, program: &Path, words: &str) -> Result<()> {
    let words: Vec<_> = words.split(' ').collect();
    if Cli::command().find_subcommand(words[0]).is_none() {
        bail!("xtask has no command {}", words[0]);
    }
    execute(workspace.command(program).args(&words))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn every_step_has_command_lines_of_xtask() {
        for (name, commands) in STEPS {
            assert!(!commands.is_empty(), "{name}");
            for words in *commands {
                let parsed = Cli::try_parse_from(["xtask"].into_iter().chain(words.split(' ')));
                assert!(parsed.is_ok(), "{name}: {words}: {:?}", parsed.err());
            }
        }
    }
}
