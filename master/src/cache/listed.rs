//! Which records of a table the cache has, if it does not read all of their keys when it is loaded.

use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};

/// Prefixes of ids: the table has all records whose ids begin with one of them, and does not follow the others.
#[derive(Default)]
pub(super) struct ListedIds {
    /// None begins with another one.
    prefixes: BTreeSet<String>,
    /// Revision of the last change that the table has not followed.
    ignored: i64,
}

impl ListedIds {
    /// Whether the table has all records whose ids begin with `id`.
    pub(super) fn contains(&self, id: &str) -> bool {
        // What begins with the prefix of an id is sorted between both.
        let before = self.prefixes.range::<str, _>((Unbounded, Included(id))).next_back();
        before.is_some_and(|prefix| id.starts_with(prefix))
    }

    /// Notes that the table ignores a change.
    pub(super) fn ignore(&mut self, revision: i64) {
        self.ignored = self.ignored.max(revision);
    }

    /// Notes that the table has the records whose ids begin with `prefix` as of a revision. Returns false if changes after it were
    /// ignored, which may be of these records.
    pub(super) fn insert(&mut self, prefix: &str, revision: i64) -> bool {
        if revision < self.ignored {
            return false;
        }
        if !self.contains(prefix) {
            self.prefixes.retain(|known| !known.starts_with(prefix));
            self.prefixes.insert(prefix.to_owned());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_by_their_prefix() {
        let mut listed = ListedIds::default();
        assert!(!listed.contains("") && !listed.contains("a:"));
        for prefix in ["b:", "a:", "a:b:", "ab:"] {
            assert!(listed.insert(prefix, 1));
        }
        for id in ["a:", "a:b:", "a:zz", "ab:1", "b:\u{ff}"] {
            assert!(listed.contains(id), "{id}");
        }
        for id in ["", "a", "aa:", "b", "c:"] {
            assert!(!listed.contains(id), "{id}");
        }
        assert!(listed.insert("", 1) && listed.contains("") && listed.contains("c:"));
    }

    #[test]
    fn a_listing_before_an_ignored_change_does_not_count() {
        let mut listed = ListedIds::default();
        listed.ignore(7);
        listed.ignore(5);
        assert!(!listed.insert("a:", 6) && !listed.contains("a:"));
        assert!(listed.insert("a:", 7) && listed.contains("a:"));
    }
}
