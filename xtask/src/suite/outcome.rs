use std::{fmt, process::ExitStatus};

use super::skips::Skip;

/// Results of one or more test programs.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    passed: usize,
    failed: usize,
    skipped: usize,
    failures: Vec<String>,
}

impl Outcome {
    /// Reads one line of libtest's output.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |word: &str| {
                counts
                    .split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
                    .unwrap_or_default()
            };
            self.passed += count("passed");
            self.failed += count("failed");
            // Marked #[ignore] in the code.
            self.skipped += count("ignored");
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }

    /// Counts tests that skipped themselves. They returned, so libtest counted them as passed.
    pub(crate) fn skip(&mut self, skipped: &[Skip]) {
        self.passed = self.passed.saturating_sub(skipped.len());
        self.skipped += skipped.len();
    }

    /// Ends a test program. One that crashed, was killed or did not build leaves no result line.
    pub(crate) fn end(&mut self, program: &str, status: ExitStatus) {
        if !status.success() && self.failed == 0 {
            self.failed = 1;
            self.failures = vec![format!("did not finish: {status}")];
        } else if !status.success() && self.failures.is_empty() {
            self.failures.push(format!("{program} failed, see above"));
        }
    }

    /// Adds the results of a program.
    pub(crate) fn add(&mut self, program: &str, other: Outcome) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures.iter().map(|failure| format!("{program}: {failure}")));
    }

    /// Counts a failed test as passed; `failure` is one of [`Outcome::failures`].
    pub(crate) fn passed_alone(&mut self, failure: &str) {
        if let Some(position) = self.failures.iter().position(|failed| failed == failure) {
            self.failures.remove(position);
            self.failed = self.failed.saturating_sub(1);
            self.passed += 1;
        }
    }

    /// Whether tests passed and none failed or skipped.
    pub(crate) fn passed_only(&self) -> bool {
        self.passed > 0 && self.failed + self.skipped == 0
    }

    /// Whether no test has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.skipped + self.failures.len() == 0
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed > 0
    }

    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_results_of_all_programs_are_summed() {
        let mut outcome = Outcome::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.01s",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.20s",
        ] {
            outcome.line(line);
        }
        outcome.skip(&[Skip { test: "a::b".into(), reason: "no VLAN offload".into() }]);
        outcome.end("unit", ExitStatus::from_raw(101 << 8));
        assert_eq!(outcome.to_string(), "13 passed, 1 failed, 2 skipped");
        assert_eq!(outcome.failures(), ["a::c"]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let mut outcome = Outcome::default();
        outcome.line(
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s",
        );
        outcome.end("unit", ExitStatus::from_raw(9));
        assert!(outcome.failed());
        assert_eq!(outcome.to_string(), "2 passed, 1 failed, 0 skipped");
    }
}
