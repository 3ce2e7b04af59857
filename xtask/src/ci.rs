use std::{panic::resume_unwind, thread, time::Instant};

use anyhow::Result;

use crate::{
    lint, setup,
    steps::Steps,
    suite::{
        self, Failed,
        programs::{self, Selection},
    },
    vm,
    workspace::Workspace,
};

/// Runs what CI runs: setup, lint, all tests here, and a part of the tests on other kernels.
///
/// The kernels are emulated, which needs the processors, at a low priority; tests here wait most of the time. So both run at a
/// time. The result of the tests here is the last line.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    let prepared = steps.run("setup", || {
        setup::ensure(workspace)?;
        setup::ensure_vm(workspace)
    });
    if prepared.is_none() {
        println!("{steps}");
        return Err(Failed.into());
    }
    let workspace = &workspace.built_with_clippy()?;
    // The peers of the tests are mostly downloads.
    let (built, peers) = thread::scope(|scope| {
        let peers = scope.spawn(|| {
            let start = Instant::now();
            (setup::ensure_peers(workspace), start.elapsed())
        });
        steps.run("lint", || lint::run(workspace, &lint::Options::ci()));
        let built = steps.run("build", || programs::build(workspace, &Selection::All));
        (built, peers.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    steps.record("peers of the tests, at the same time", peers.1, &peers.0);
    let (Some(built), Ok(())) = (built, peers.0) else {
        println!("{steps}");
        return Err(Failed.into());
    };
    let (kernels, tests) = thread::scope(|scope| {
        let kernels = scope.spawn(|| {
            let start = Instant::now();
            (vm::run_programs(workspace, &vm::Options::ci(), &built), start.elapsed())
        });
        let start = Instant::now();
        let tests = suite::run_programs(workspace, &suite::Options::strict(), &Selection::All, built.clone());
        let tests = (tests, start.elapsed());
        (kernels.join().unwrap_or_else(|panic| resume_unwind(panic)), tests)
    });
    let (tests, time) = tests;
    let passed = tests
        .as_ref()
        .map_err(|error| anyhow::anyhow!("{error:#}"))
        .and_then(|summary| if summary.failed() { Err(Failed.into()) } else { Ok(()) });
    steps.record("tests here", time, &passed);
    steps.record("tests on other kernels, at the same time", kernels.1, &kernels.0);
    println!("\n{steps}\n");
    tests?.finish()?;
    if steps.failed() { Err(Failed.into()) } else { Ok(()) }
}
