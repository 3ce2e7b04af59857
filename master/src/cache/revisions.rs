//! Revisions at which the keys of a committed change were written.

use std::collections::HashMap;

/// Store revisions at which the keys of a change were written.
#[derive(Clone, Debug, Default)]
pub struct Revisions {
    last: i64,
    /// Keys that an earlier step of a multi-step change wrote.
    before: HashMap<String, i64>,
}

impl From<i64> for Revisions {
    /// All keys were written in one transaction.
    fn from(revision: i64) -> Revisions {
        Revisions { last: revision, before: HashMap::new() }
    }
}

impl Revisions {
    /// Records that `keys` were written at `revision`. Keys that are never recorded count as
    /// written at the last one.
    pub fn record(&mut self, keys: impl IntoIterator<Item = String>, revision: i64) {
        self.before.extend(keys.into_iter().map(|key| (key, revision)));
        self.last = revision;
    }

    /// Revision at which `key` was written.
    pub fn of(&self, key: &str) -> i64 {
        self.before.get(key).copied().unwrap_or(self.last)
    }
}
