//! Revisions at which the keys of a committed change were written.

use std::collections::HashMap;

/// When the keys of a change were written.
#[derive(Clone, Debug, Default)]
pub struct Revisions {
    last: i64,
    /// Of those that were written before the last.
    before: HashMap<String, i64>,
}

impl From<i64> for Revisions {
    /// All at once.
    fn from(revision: i64) -> Revisions {
        Revisions { last: revision, before: HashMap::new() }
    }
}

impl Revisions {
    /// The `keys` were written at `revision`; all that is not named, with the last that are.
    pub fn note(&mut self, keys: impl IntoIterator<Item = String>, revision: i64) {
        self.before.extend(keys.into_iter().map(|key| (key, revision)));
        self.last = revision;
    }

    /// The revision of a key of the change.
    pub fn of(&self, key: &str) -> i64 {
        self.before.get(key).copied().unwrap_or(self.last)
    }
}
