//! Commands that have passed, by commit.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::workspace::{Workspace, output};

/// Lines of commit, seconds and command in a file of the target folder.
#[derive(Debug)]
pub(super) struct Passed {
    file: PathBuf,
    /// `None` with changes that are in no commit: what passes then says nothing of the commit.
    commit: Option<String>,
}

impl Passed {
    pub(super) fn on_this_commit(workspace: &Workspace) -> Result<Passed> {
        let changes = output(workspace.command("git").args(["status", "--porcelain"]))?;
        let commit = output(workspace.command("git").args(["rev-parse", "HEAD"]))?.trim().to_owned();
        let file = workspace.metadata()?.target_directory.into_std_path_buf().join("nightly-passed");
        Ok(Passed { file, commit: changes.trim().is_empty().then_some(commit) })
    }

    /// How long the command took when it passed; `None` if it has not.
    pub(super) fn time(&self, command: &str) -> Result<Option<Duration>> {
        let Some(commit) = &self.commit else { return Ok(None) };
        let text = match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("read {}", self.file.display()))?,
        };
        Ok(text.lines().rev().find_map(|line| match *line.splitn(3, ' ').collect::<Vec<_>>() {
            [of, seconds, passed] if of == commit && passed == command => {
                seconds.parse().ok().map(Duration::from_secs)
            }
            _ => None,
        }))
    }

    pub(super) fn add(&self, command: &str, time: Duration) -> Result<()> {
        let Some(commit) = &self.commit else { return Ok(()) };
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)
            .with_context(|| format!("write {}", self.file.display()))?;
        // In one write, beside those of other commands.
        let line = format!("{commit} {} {command}\n", time.as_secs());
        file.write_all(line.as_bytes()).with_context(|| format!("write {}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_count_for_their_commit_only() {
        let folder = tempfile::tempdir().unwrap();
        let passed = |commit: Option<&str>| Passed {
            file: folder.path().join("passed"),
            commit: commit.map(str::to_owned),
        };
        let (old, new) = (passed(Some("old")), passed(Some("new")));
        assert_eq!(new.time("lint").unwrap(), None);
        old.add("lint", Duration::from_secs(3)).unwrap();
        assert_eq!(new.time("lint").unwrap(), None);
        new.add("lint", Duration::from_secs(4)).unwrap();
        new.add("lint", Duration::from_secs(5)).unwrap();
        assert_eq!(new.time("lint").unwrap(), Some(Duration::from_secs(5)));
        assert_eq!(new.time("vm --kernel 7").unwrap(), None);
        assert_eq!(old.time("lint").unwrap(), Some(Duration::from_secs(3)));
        // With changes that are in no commit.
        passed(None).add("vm --kernel 7", Duration::from_secs(1)).unwrap();
        assert_eq!(passed(None).time("lint").unwrap(), None);
        assert_eq!(new.time("vm --kernel 7").unwrap(), None);
    }
}
