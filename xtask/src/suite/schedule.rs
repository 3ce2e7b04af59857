//! Runs test programs side by side: those that mostly wait beside those that keep the processors busy.

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{
    Outcome,
    programs::{Kind, TestProgram},
};

/// One run of a test program.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) label: String,
    pub(super) command: Command,
    pub(super) load: Load,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// Uses all processors; such programs run one after the other while others wait to start.
    Busy,
    /// Waits for processes, timers and the kernel most of the time.
    Waiting,
}

/// Programs that wait, the longest first: package and target; an empty target stands for all integration tests.
const WAITING: &[(&str, &str)] = &[
    ("e2e", ""),
    ("netmaster", "daemon"),
    ("contiv-store", "conformance"),
    ("netplugin", "conformance"),
    ("netplugin", "ovs"),
    ("netplugin", "cni"),
    ("netplugin", "binary"),
    ("netplugin", "agent"),
    ("testkit", "kit"),
    ("netctl", ""),
];

/// The longest of the other programs, likewise.
const LONG: &[(&str, &str)] = &[
    ("netplugin", "attacks"),
    ("netplugin", "packets"),
    ("netplugin", "equivalence"),
    ("netmaster", "plans"),
];

fn position(program: &TestProgram, list: &[(&str, &str)]) -> Option<usize> {
    list.iter().position(|(package, target)| {
        program.kind == Kind::Integration
            && program.package == *package
            && (target.is_empty() || program.target == *target)
    })
}

pub(super) fn load(program: &TestProgram) -> Load {
    if position(program, WAITING).is_some() { Load::Waiting } else { Load::Busy }
}

/// The order to start programs in.
pub(super) fn sort(programs: &mut [TestProgram]) {
    let place = |program: &TestProgram, list| position(program, list).unwrap_or(usize::MAX);
    programs.sort_by_key(|program| (place(program, WAITING), place(program, LONG), program.label()));
}

/// How many programs run at a time.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slots {
    /// One after the other, with their output as it comes.
    One,
    /// One busy program beside this many waiting ones; two when no others wait to start. The output of each is printed when it
    /// ends.
    Waiting(usize),
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) label: String,
    pub(super) outcome: Outcome,
    pub(super) time: Duration,
}

/// Runs all jobs and calls `done` for each as it ends.
pub(super) fn run(jobs: Vec<Job>, slots: Slots) -> Result<Vec<Done>> {
    let Slots::Waiting(slots) = slots else {
        return jobs.into_iter().map(|job| run_job(job, true)).collect();
    };
    let (waiting, busy): (VecDeque<_>, VecDeque<_>) =
        jobs.into_iter().partition(|job| job.load == Load::Waiting);
    let (waiting, busy) = (Mutex::new(waiting), Mutex::new(busy));
    let next =
        |queue: &Mutex<VecDeque<Job>>| queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    // The worker for busy programs, and one of the others, help when they have none of their own left.
    let busy_worker = || next(&busy).or_else(|| next(&waiting));
    let helper = || next(&waiting).or_else(|| next(&busy));
    let results = Mutex::new(vec![]);
    let work = |take: &dyn Fn() -> Option<Job>| {
        while let Some(job) = take() {
            let result = run_job(job, false);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| work(&busy_worker));
        scope.spawn(|| work(&helper));
        for _ in 1..slots {
            scope.spawn(|| work(&|| next(&waiting)));
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

/// Runs one program with both outputs in one pipe, so that their lines keep their order.
pub(super) fn run_job(Job { label, mut command, .. }: Job, live: bool) -> Result<Done> {
    let start = Instant::now();
    eprintln!("  ... {label}");
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("run {label}"))?;
    // Holds the other ends of the pipe.
    drop(command);
    let mut outcome = Outcome::default();
    let mut text = String::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        outcome.line(&line);
        if live {
            println!("{line}");
        } else {
            text.push_str(&line);
            text.push('\n');
        }
    }
    let status = child.wait()?;
    outcome.end(&label, status);
    let time = start.elapsed();
    // One call, so that the output of another program does not come between.
    println!("{text}== {label}: {outcome} ({:.1} s)\n", time.as_secs_f64());
    Ok(Done { label, outcome, time })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(label: &str, script: &str, load: Load) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { label: label.to_owned(), command, load }
    }

    #[test]
    fn programs_run_side_by_side_and_every_result_counts() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().display();
        // Each of the two waits for the other, so that one after the other they would never end.
        let meet = |own: &str, other: &str| {
            format!(
                "touch {here}/{own}; while [ ! -e {here}/{other} ]; do sleep 0.01; done; \
                 echo 'test {own} ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'"
            )
        };
        let jobs = vec![
            shell("a", &meet("a", "b"), Load::Waiting),
            shell("b", &meet("b", "a"), Load::Busy),
            shell(
                "c",
                "echo 'test x ... FAILED'; echo 'test result: FAILED. 2 passed; 1 failed; 3 ignored'; exit 101",
                Load::Busy,
            ),
            shell("d", "kill -9 $$", Load::Waiting),
        ];
        let mut sum = Outcome::default();
        for done in run(jobs, Slots::Waiting(2)).unwrap() {
            sum.add(&done.label, done.outcome);
        }
        assert_eq!(sum.to_string(), "4 passed, 2 failed, 3 skipped");
        let mut failures = sum.failures().to_vec();
        failures.sort();
        assert_eq!(failures, ["c: x", "d: did not finish: signal: 9 (SIGKILL)"]);
    }

    #[test]
    fn the_longest_programs_start_first() {
        let program = |package: &str, target: &str, kind| TestProgram {
            package: package.to_owned(),
            target: target.to_owned(),
            kind,
            file: "".into(),
            folder: "".into(),
        };
        let mut programs = [
            program("netplugin", "packets", Kind::Integration),
            program("netmaster", "daemon", Kind::Integration),
            program("e2e", "e2e", Kind::Library),
            program("e2e", "demo", Kind::Integration),
        ];
        sort(&mut programs);
        let order = programs.each_ref().map(|program| (program.target.as_str(), load(program)));
        assert_eq!(
            order,
            [
                ("demo", Load::Waiting),
                ("daemon", Load::Waiting),
                ("packets", Load::Busy),
                ("e2e", Load::Busy)
            ]
        );
    }
}
