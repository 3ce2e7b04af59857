//! Failed tests that pass when they are repeated alone.

use anyhow::Result;

use super::schedule::{self, Done, Job};

/// More failures of a run than these are not repeated: no accident explains them.
pub(crate) const LIMIT: usize = 3;

/// A program that could not finish has no names of tests in its failures, but a sentence.
pub(crate) fn is_test(failure: &str) -> bool {
    !failure.contains(char::is_whitespace)
}

/// Repeats each failed test once, one after the other, by the job that `alone` makes of the program's label and the test.
/// Those that pass then are removed from the failures and returned as `program: test`.
pub(super) fn repeat(done: &mut [Done], alone: impl Fn(&str, &str) -> Option<Job>) -> Result<Vec<String>> {
    let all = done.iter().flat_map(|done| done.outcome.failures());
    if all.clone().count() > LIMIT || !all.clone().all(|failure| is_test(failure)) {
        return Ok(vec![]);
    }
    let mut flaky = vec![];
    for Done { label, outcome, .. } in done {
        for test in outcome.failures().to_vec() {
            let Some(job) = alone(label, &test) else { continue };
            let again = schedule::run_job(job, false)?;
            if again.outcome.passed_only() {
                outcome.passed_alone(&test);
                flaky.push(format!("{label}: {test}"));
            }
        }
    }
    Ok(flaky)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, process::Command};

    use super::*;
    use crate::suite::schedule::Load;

    fn shell(label: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job { label: label.to_owned(), command, load: Load::Busy }
    }

    const PASSED: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
    const FAILED: &str = "echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; exit 101";

    fn failed(label: &str, tests: &[&str]) -> Done {
        let lines: String = tests.iter().map(|test| format!("echo 'test {test} ... FAILED'; ")).collect();
        let sums =
            format!("echo 'test result: FAILED. 5 passed; {} failed; 0 ignored'; exit 101", tests.len());
        schedule::run_job(shell(label, &format!("{lines}{sums}")), false).unwrap()
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_one_that_fails_again_is_not() {
        let mut done = [failed("a", &["now_and_then", "always"]), failed("b", &["now_and_then"])];
        let alone =
            |label: &str, test: &str| Some(shell(label, if test == "always" { FAILED } else { PASSED }));
        assert_eq!(repeat(&mut done, alone).unwrap(), ["a: now_and_then", "b: now_and_then"]);
        assert_eq!(done[0].outcome.to_string(), "6 passed, 1 failed, 0 skipped");
        assert_eq!(done[0].outcome.failures(), ["always"]);
        assert_eq!(done[1].outcome.to_string(), "6 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn a_repetition_that_runs_no_test_proves_nothing() {
        let mut done = [failed("a", &["renamed"])];
        let none = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'";
        assert_eq!(repeat(&mut done, |label, _| Some(shell(label, none))).unwrap(), [""; 0]);
        assert!(done[0].outcome.failed());
    }

    #[test]
    fn many_failures_and_crashes_are_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("ran");
        let ran = |label: &str, _: &str| Some(shell(label, &format!("touch {}; {PASSED}", mark.display())));
        let mut many = [failed("a", &["one", "two"]), failed("b", &["three", "four"])];
        assert_eq!(repeat(&mut many, ran).unwrap(), [""; 0]);
        let killed = schedule::run_job(shell("a", "kill -9 $$"), false).unwrap();
        assert_eq!(repeat(&mut [killed, failed("b", &["one"])], ran).unwrap(), [""; 0]);
        assert!(!Path::new(&mark).exists());
    }
}
