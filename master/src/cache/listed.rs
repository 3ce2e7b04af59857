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
    /// Revision of the last change that the table has followed.
    followed: i64,
}

impl ListedIds {
    /// Nothing is listed after a listing of this revision has replaced changes: what the table had may be newer.
    pub(super) fn forgotten(&self, revision: i64) -> ListedIds {
        let ignored = revision.max(self.ignored).max(self.followed);
        ListedIds { ignored, ..ListedIds::default() }
    }

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

    /// Notes that the table follows a change.
    pub(super) fn follow(&mut self, revision: i64) {
        self.followed = self.followed.max(revision);
    }

    /// Whether a listing of a revision has all changes that were ignored.
    pub(super) fn accepts(&self, revision: i64) -> bool {
        revision >= self.ignored
    }

    /// Notes that the table has the records whose ids begin with `prefix`.
    pub(super) fn insert(&mut self, prefix: &str) {
        if !self.contains(prefix) {
            self.prefixes.retain(|known| !known.starts_with(prefix));
            self.prefixes.insert(prefix.to_owned());
        }
    }

    /// Forgets a prefix without records, which changed last at this revision.
    pub(super) fn remove(&mut self, prefix: &str, revision: i64) {
        if self.prefixes.remove(prefix) {
            self.ignore(revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_by_their_prefix() {
        let mut listed = ListedIds::default();
        assert!(!listed.contains("") && !listed.contains("a:"));
        for prefix in ["b:", "a:b:", "a:", "a:b:", "ab:"] {
            listed.insert(prefix);
        }
        for id in ["a:", "a:b:", "a:zz", "ab:1", "b:\u{ff}"] {
            assert!(listed.contains(id), "{id}");
        }
        for id in ["", "a", "aa:", "b", "c:"] {
            assert!(!listed.contains(id), "{id}");
        }
        listed.remove("a:b:", 1);
        listed.remove("b:", 2);
        assert!(listed.contains("a:b:") && !listed.contains("b:") && !listed.accepts(1));
        listed.insert("");
        assert!(listed.contains("") && listed.contains("c:"));
    }

    #[test]
    fn a_listing_before_an_ignored_change_does_not_count() {
        let mut listed = ListedIds::default();
        listed.ignore(7);
        listed.ignore(5);
        assert!(!listed.accepts(6) && listed.accepts(7));
        listed.follow(9);
        assert!(listed.accepts(7));
        // What was known of revision 9 is not any more.
        let listed = listed.forgotten(8);
        assert!(!listed.accepts(8) && listed.accepts(9) && listed.forgotten(3).accepts(9));
    }
}
