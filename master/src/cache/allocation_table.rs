//! Allocation records as the store's keys describe them: the record, its journal and its chunks.

use std::collections::{BTreeMap, HashMap};

use contiv_model::{group, key::Key, network};
use contiv_store::KeyValue;

use super::allocation_record::{AllocationRecord, read_journal};
use super::chunk_table::ChunkTable;
use super::record_body::RecordBody;
use super::{AllocationTable, ClusterCache};
use crate::ipam::ChunkId;

impl ClusterCache {
    /// Keys and revisions of all journals in the store.
    pub fn journals(&self) -> HashMap<String, i64> {
        fn of<B: RecordBody>(records: &AllocationTable<B>) -> impl Iterator<Item = (String, i64)> {
            let journal = |record: &AllocationRecord<B>| {
                Some((record.body.id().to_owned(), record.journal.as_ref()?.revision))
            };
            records
                .live
                .values()
                .filter_map(journal)
                .map(|(id, revision)| (B::journal_key(&id).to_string(), revision))
        }
        of(&self.networks).chain(of(&self.groups)).collect()
    }

    /// Journals that cannot be decoded. Their records lack allocations.
    pub fn unreadable_journals(&self) -> Vec<Key> {
        let is_current = |key: &&Key| match key {
            Key::NetworkJournal(id) => self
                .allocation::<network::State>(id.as_str())
                .is_some_and(AllocationRecord::has_unreadable_journal),
            Key::GroupJournal(id) => self
                .allocation::<group::State>(id.as_str())
                .is_some_and(AllocationRecord::has_unreadable_journal),
            _ => false,
        };
        self.unreadable.iter().filter(is_current).cloned().collect()
    }

    pub(super) fn set_allocation<B: RecordBody>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let records = B::allocations_mut(self);
        let known = records.live.get(id);
        if known.is_some_and(|record| revision <= record.revision) {
            return;
        }
        let journaled = known.is_some_and(|record| record.journal.is_some());
        let Some(kv) = kv else {
            records.live.remove(id);
            self.note_allocation::<B>(id, true, revision);
            return;
        };
        let mut record = match AllocationRecord::<B>::read(&kv.value, revision) {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(key = kv.key, %error, "decode an allocation record from the store: invalid; keeping the last valid one");
                self.note_allocation::<B>(id, false, revision);
                return;
            }
        };
        if let Some(journal) = known.and_then(|record| record.journal.clone()) {
            let revision = journal.revision;
            if let Err(error) = record.apply_journal(journal, &records.chunks) {
                note_unreadable(&mut record, revision, &error);
            }
        } else if let Some(kv) = records.unmatched_journals.remove(id) {
            apply_journal(&mut record, &kv, &records.chunks);
        }
        self.insert::<B>(id, record);
        self.note_allocation::<B>(id, true, revision);
        if journaled {
            self.mark_stale::<B>(id);
        }
    }

    fn insert<B: RecordBody>(&mut self, id: &str, record: AllocationRecord<B>) {
        if record.has_unreadable_journal() {
            self.unreadable.insert(B::journal_key(id));
        }
        B::allocations_mut(self).live.insert(id.to_owned(), record);
    }

    fn mark_stale<B: RecordBody>(&mut self, id: &str) {
        self.stale.extend([B::key(id).to_string(), B::journal_key(id).to_string()]);
    }

    pub(super) fn set_journal<B: RecordBody>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let records = B::allocations_mut(self);
        match (records.live.get(id), kv) {
            (None, Some(kv)) => {
                records.unmatched_journals.insert(id.to_owned(), kv.clone());
            }
            (None, None) => {
                records.unmatched_journals.remove(id);
            }
            (Some(record), kv) => match (&record.journal, kv) {
                // An older one was merged into the record.
                (None, Some(kv)) if revision > record.revision => self.reload_journal::<B>(id, kv),
                (Some(journal), _) if revision > journal.revision => self.mark_stale::<B>(id),
                _ => {}
            },
        }
    }

    /// Applies a journal that the store has to its record, whichever is older.
    pub(super) fn reload_journal<B: RecordBody>(&mut self, id: &str, kv: &KeyValue) {
        let AllocationTable { live, unmatched_journals, chunks } = B::allocations_mut(self);
        let Some(mut record) = live.remove(id) else {
            unmatched_journals.insert(id.to_owned(), kv.clone());
            return;
        };
        let is_merged = record.journal.is_some();
        if !is_merged {
            apply_journal(&mut record, kv, chunks);
        }
        self.insert::<B>(id, record);
        if is_merged {
            self.mark_stale::<B>(id);
        }
    }

    pub(super) fn set_chunk<B: RecordBody>(
        &mut self,
        id: &str,
        chunk: &str,
        kv: Option<&KeyValue>,
        revision: i64,
    ) {
        // Chunks with other names belong to another release.
        let Ok(chunk) = chunk.parse::<ChunkId>() else { return };
        let records = B::allocations_mut(self);
        let is_newer = records.chunks.set(id, chunk, kv.map(|kv| kv.value.clone()), revision);
        if is_newer && records.live.get(id).is_some_and(|record| record.has_chunk(chunk)) {
            self.mark_stale::<B>(id);
        }
    }
}

impl<B> AllocationTable<B> {
    /// Forgets a record, so that the same revision can be set again.
    pub(super) fn forget(&mut self, id: &str) {
        self.live.remove(id);
    }

    /// Forgets a chunk, so that the same revision can be set again.
    pub(super) fn forget_chunk(&mut self, id: &str, chunk: &str) {
        if let Ok(chunk) = chunk.parse::<ChunkId>() {
            self.chunks.remove(id, chunk);
        }
    }
}

impl<B> Default for AllocationTable<B> {
    fn default() -> Self {
        let chunks = ChunkTable::default();
        AllocationTable { live: BTreeMap::new(), unmatched_journals: HashMap::new(), chunks }
    }
}

fn apply_journal<B: RecordBody>(record: &mut AllocationRecord<B>, kv: &KeyValue, chunks: &ChunkTable) {
    let applied = read_journal(&kv.value, kv.mod_revision).and_then(|(journal, counts)| {
        record.body.set_counts(counts);
        record.apply_journal(journal, chunks)
    });
    if let Err(error) = applied {
        note_unreadable(record, kv.mod_revision, &error);
    }
}

fn note_unreadable<B: RecordBody>(record: &mut AllocationRecord<B>, revision: i64, error: &str) {
    tracing::error!(
        key = %B::journal_key(record.body.id()),
        error,
        "decode an allocation journal: invalid; restoring the allocations from endpoints and services; addresses from allocAddress without an endpoint are lost"
    );
    record.set_unreadable_journal(revision);
}
