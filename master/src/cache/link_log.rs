//! Recent changes of derived links, for watches of the objects that have the links.

use std::collections::{HashSet, VecDeque};

use contiv_model::key::ObjectType;
use tokio::sync::watch;

/// Changes that are kept. A watch that is further behind gets all objects again.
const KEPT: usize = 4096;

/// An object whose derived links changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkChange {
    pub object_type: ObjectType,
    pub key: String,
    /// Revision of the store with the change.
    pub revision: i64,
}

/// The last changes, in the order in which the cache applied them.
#[derive(Default)]
pub(super) struct LinkLog {
    changes: VecDeque<LinkChange>,
    /// Objects with a change at the revision of the last one.
    at_last: HashSet<(ObjectType, String)>,
    /// Number of the next change.
    next: watch::Sender<u64>,
    /// All changes after this revision are kept.
    complete_after: i64,
}

/// Changes of derived links, or the knowledge that some are not known any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChanges {
    Known(Vec<LinkChange>),
    Lost,
}

impl LinkLog {
    /// An object has at most one change per revision.
    pub(super) fn push(&mut self, object_type: ObjectType, key: &str, revision: i64) {
        if self.changes.back().is_none_or(|last| last.revision != revision) {
            self.at_last.clear();
        }
        if !self.at_last.insert((object_type, key.to_owned())) {
            return;
        }
        self.changes.push_back(LinkChange { object_type, key: key.to_owned(), revision });
        if self.changes.len() > KEPT
            && let Some(dropped) = self.changes.pop_front()
        {
            self.complete_after = self.complete_after.max(dropped.revision);
        }
        self.next.send_modify(|next| *next += 1);
    }

    /// Forgets all changes: the cache was filled from a listing at `revision`.
    pub(super) fn restart(&mut self, revision: i64) {
        self.changes.clear();
        self.at_last.clear();
        self.complete_after = revision;
        // Watches notice that changes are lost.
        self.next.send_modify(|next| *next += 1);
    }

    /// Receives the number of the next change.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.next.subscribe()
    }

    /// Changes with this number and later ones.
    pub(super) fn since(&self, number: u64) -> LinkChanges {
        let count = self.next.borrow().saturating_sub(number);
        match usize::try_from(count).ok().and_then(|count| self.changes.len().checked_sub(count)) {
            Some(first) => LinkChanges::Known(self.changes.range(first..).cloned().collect()),
            None => LinkChanges::Lost,
        }
    }

    /// Changes after a revision of the store.
    pub(super) fn after(&self, revision: i64) -> LinkChanges {
        if revision < self.complete_after {
            return LinkChanges::Lost;
        }
        let later = self.changes.iter().filter(|change| change.revision > revision);
        LinkChanges::Known(later.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(changes: LinkChanges) -> Option<Vec<String>> {
        match changes {
            LinkChanges::Known(known) => Some(known.into_iter().map(|change| change.key).collect()),
            LinkChanges::Lost => None,
        }
    }

    fn owned(keys: &[&str]) -> Option<Vec<String>> {
        Some(keys.iter().map(|key| (*key).to_owned()).collect())
    }

    #[test]
    fn changes_are_found_by_number_and_by_revision() {
        let mut log = LinkLog::default();
        log.restart(5);
        let start = *log.subscribe().borrow();
        for (key, revision) in [("a", 6), ("b", 6), ("a", 6), ("a", 8)] {
            log.push(ObjectType::Tenant, key, revision);
        }
        assert_eq!(keys(log.since(start)), owned(&["a", "b", "a"]));
        assert_eq!(keys(log.since(start + 2)), owned(&["a"]));
        assert_eq!(keys(log.since(start + 3)), owned(&[]));
        assert_eq!(keys(log.after(5)), owned(&["a", "b", "a"]));
        assert_eq!(keys(log.after(6)), owned(&["a"]));
        assert_eq!(keys(log.after(i64::MAX)), owned(&[]));
        assert_eq!(keys(log.after(4)), None);
        log.restart(9);
        assert_eq!((keys(log.since(start + 3)), keys(log.after(8))), (None, None));
    }

    #[test]
    fn old_changes_are_dropped() {
        let mut log = LinkLog::default();
        for revision in 1..=KEPT as i64 + 2 {
            log.push(ObjectType::Tenant, "a", revision);
        }
        assert_eq!((keys(log.since(1)), keys(log.after(1))), (None, None));
        assert_eq!(keys(log.since(2)).unwrap().len(), KEPT);
        assert_eq!(keys(log.after(2)).unwrap().len(), KEPT);
    }
}
