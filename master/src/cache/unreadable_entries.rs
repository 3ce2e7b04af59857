//! Entries and allocations whose records cannot be decoded: another program has written them, or a newer release in
//! another form. Their tables have the last valid versions, if there were any.

use super::ClusterCache;
use super::record::Entry;
use super::record_body::RecordBody;

impl ClusterCache {
    /// Whether the entry exists, also if its record cannot be decoded.
    pub fn exists<T: Entry>(&self, id: &str) -> bool {
        self.table::<T>().contains_key(id) || self.is_unreadable::<T>(id)
    }

    /// Whether the entry's record cannot be decoded.
    pub fn is_unreadable<T: Entry>(&self, id: &str) -> bool {
        self.has_unreadable() && self.is_unreadable_key(&T::path(id))
    }

    /// Whether the allocation record cannot be decoded.
    pub fn is_unreadable_allocation<B: RecordBody>(&self, id: &str) -> bool {
        self.has_unreadable() && self.is_unreadable_key(&B::key(id).to_string())
    }

    /// Revision of the entry's record, if it cannot be decoded.
    pub(super) fn unreadable_entry_revision<T: Entry>(&self, id: &str) -> Option<i64> {
        self.unreadable_entries.get(&T::path(id)).copied()
    }

    pub(super) fn is_unreadable_key(&self, key: &str) -> bool {
        self.unreadable_entries.contains_key(key)
    }

    /// Whether there is any record that cannot be decoded.
    pub fn has_unreadable(&self) -> bool {
        !self.unreadable_entries.is_empty()
    }

    /// Key in the store of the first entry of one type whose id begins with `prefix` and whose record cannot be decoded.
    pub fn first_unreadable<T: Entry>(&self, prefix: &str) -> Option<&str> {
        let from = T::path(prefix);
        let (key, _) = self.unreadable_entries.range(from.clone()..).next()?;
        key.starts_with(&from).then_some(key.as_str())
    }

    /// Keys of all records that cannot be decoded, sorted.
    pub fn unreadable_keys(&self) -> impl ExactSizeIterator<Item = &String> {
        self.unreadable_entries.keys()
    }

    /// Ids of the entries of one type whose records cannot be decoded, sorted.
    pub fn unreadable_ids<T: Entry>(&self) -> impl Iterator<Item = &str> {
        self.unreadable_below(T::path(""))
    }

    /// As [`ClusterCache::unreadable_ids`], of allocation records.
    pub fn unreadable_allocations<B: RecordBody>(&self) -> impl Iterator<Item = &str> {
        self.unreadable_below(B::key("").to_string())
    }

    /// What follows `prefix` in the keys of records that cannot be decoded.
    fn unreadable_below(&self, prefix: String) -> impl Iterator<Item = &str> {
        let from = self.unreadable_entries.range(prefix.clone()..);
        from.map_while(move |(key, _)| key.strip_prefix(prefix.as_str()))
    }

    /// Notes whether the record of the entry can be decoded, after it was set or deleted in its table.
    pub(super) fn note_entry<T: Entry>(&mut self, id: &str, is_valid: bool, revision: i64) {
        self.note_record(|| T::path(id), is_valid, revision);
    }

    /// As [`ClusterCache::note_entry`], for an allocation record.
    pub(super) fn note_allocation<B: RecordBody>(&mut self, id: &str, is_valid: bool, revision: i64) {
        self.note_record(|| B::key(id).to_string(), is_valid, revision);
    }

    fn note_record(&mut self, key: impl FnOnce() -> String, is_valid: bool, revision: i64) {
        // Most records are valid, and a large cluster has hundreds of thousands.
        if is_valid && !self.has_unreadable() {
            return;
        }
        let key = key();
        let known = self.unreadable_entries.get(&key).copied().unwrap_or_default();
        if !is_valid {
            self.unreadable_entries.insert(key, known.max(revision));
        } else if known < revision {
            self.unreadable_entries.remove(&key);
        }
    }
}
