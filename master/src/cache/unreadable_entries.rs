//! Entries whose records cannot be decoded: another program has written them, or a newer release in another form.
//! Their tables have the last valid versions, if there were any.

use super::ClusterCache;
use super::record::Entry;

impl ClusterCache {
    /// Whether the entry's record cannot be decoded.
    pub fn is_unreadable<T: Entry>(&self, id: &str) -> bool {
        self.is_unreadable_key(&T::path(id))
    }

    pub(super) fn is_unreadable_key(&self, key: &str) -> bool {
        self.unreadable_entries.contains_key(key)
    }

    /// Keys of the entries of all types whose records cannot be decoded, sorted.
    pub fn unreadable_keys(&self) -> impl ExactSizeIterator<Item = &String> {
        self.unreadable_entries.keys()
    }

    /// Ids of the entries of one type whose records cannot be decoded, sorted.
    pub fn unreadable_ids<T: Entry>(&self) -> impl Iterator<Item = &str> {
        let prefix = T::path("");
        let from = self.unreadable_entries.range(prefix.clone()..);
        from.map_while(move |(key, _)| key.strip_prefix(prefix.as_str()))
    }

    /// Notes whether the record of the entry can be decoded, after it was set or deleted in its table.
    pub(super) fn note_entry<T: Entry>(&mut self, id: &str, is_valid: bool, revision: i64) {
        // Most records are valid, and a large cluster has hundreds of thousands.
        if is_valid && self.unreadable_entries.is_empty() {
            return;
        }
        let key = T::path(id);
        let known = self.unreadable_entries.get(&key).copied().unwrap_or_default();
        if !is_valid {
            self.unreadable_entries.insert(key, known.max(revision));
        } else if known < revision {
            self.unreadable_entries.remove(&key);
        }
    }
}
