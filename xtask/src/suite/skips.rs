//! Tests that skipped themselves, and those that may skip.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::workspace::Workspace;

/// Read by `testkit::skip!`.
pub(crate) const LOG_VARIABLE: &str = "CONTIV_SKIP_LOG";
pub(crate) const EXPECTED: &str = ".ci/expected-skips";
/// Tests that may skip on other kernels.
pub(crate) const EXPECTED_VM: &str = ".ci/expected-vm-skips";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

impl Skip {
    pub(crate) fn parse(line: &str) -> Option<Skip> {
        let (test, reason) = line.strip_prefix("SKIP ")?.split_once(": ")?;
        Some(Skip { test: test.to_owned(), reason: reason.to_owned() })
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.test, self.reason)
    }
}

/// The file that the tests of one run append to.
#[derive(Debug)]
pub(crate) struct Log(PathBuf);

impl Log {
    pub(crate) fn create(workspace: &Workspace) -> Result<Log> {
        let folder = workspace.metadata()?.target_directory.into_std_path_buf();
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("skips-{}", std::process::id()));
        fs::write(&path, "").with_context(|| format!("write {}", path.display()))?;
        Ok(Log(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn read(&self) -> Result<Vec<Skip>> {
        let text = fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        // A test that runs twice, say with two parameters, skips once.
        let skips: BTreeSet<_> = text.lines().filter_map(Skip::parse).collect();
        Ok(skips.into_iter().collect())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("warning: {}: {error}", self.0.display());
        }
    }
}

/// Lines `test name: why it may be skipped in CI`; `#` begins a comment.
#[derive(Debug)]
pub(crate) struct Expected(BTreeSet<String>);

impl Expected {
    pub(crate) fn read(workspace: &Workspace, file: &str) -> Result<Expected> {
        let text = fs::read_to_string(workspace.path(file)).with_context(|| format!("read {file}"))?;
        Expected::parse(file, &text)
    }

    fn parse(file: &str, text: &str) -> Result<Expected> {
        let mut tests = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((test, _why)) = line.split_once(": ") else {
                bail!("{file}:{number}: expected `test name: why it may be skipped`");
            };
            tests.insert(test.to_owned());
        }
        Ok(Expected(tests))
    }

    /// Names of the listed tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub(crate) fn missing(&self, skipped: &[Skip]) -> Vec<Skip> {
        skipped.iter().filter(|skip| !self.0.contains(&skip.test)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_must_be_listed_by_name_with_a_reason() {
        let expected = Expected::parse(EXPECTED, "# none\n\nkit::vm: needs KVM\n").unwrap();
        let skip = |line| Skip::parse(line).unwrap();
        let listed = skip("SKIP kit::vm: no /dev/kvm: is it a VM?");
        assert_eq!(listed.reason, "no /dev/kvm: is it a VM?");
        let other = skip("SKIP kit::ovs: no ovs");
        assert_eq!(expected.missing(&[listed, other.clone()]), [other]);
        assert!(Expected::parse(EXPECTED, "kit::vm\n").is_err());
    }
}
