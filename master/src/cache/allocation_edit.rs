//! Staged changes of allocation records: how they are written, and applied after the commit.

use std::collections::{BTreeMap, HashMap};

use contiv_store::Op;

use super::allocation_change::AllocationChange;
use super::allocation_record::{AllocationRecord, WrittenJournal};
use super::record_body::RecordBody;
use super::revisions::Revisions;
use super::{AllocationTable, ClusterCache};

/// Staged changes by the ids of the records.
pub(super) type Edits<B> = BTreeMap<String, Edit<B>>;

pub enum Edit<B> {
    Create(Box<B>),
    Change(AllocationChange),
    Delete,
}

/// Changes that a transaction writes, with the journals.
pub(super) type StagedEdits<B> = Vec<(String, Edit<B>, Option<WrittenJournal>)>;

/// Approximate number of operations and bytes of the edits.
pub(super) fn cost<B: RecordBody>(cache: &ClusterCache, edits: &Edits<B>) -> (usize, usize) {
    let records = edits.keys().map(|id| cache.allocation::<B>(id));
    let costs = records.map(|record| record.map_or((2, 0), |record| (record.ops(), record.size())));
    costs.fold((0, 0), |(ops, bytes), (more_ops, more_bytes)| (ops + more_ops, bytes + more_bytes))
}

/// Passes the operations of the changes to `each`: key, revision guard and operation (none: guard only).
pub(super) fn write_allocations<B: RecordBody>(
    cache: &ClusterCache,
    edits: Edits<B>,
    mut each: impl FnMut(String, i64, Option<Op>),
) -> serde_json::Result<StagedEdits<B>> {
    let stored = &B::allocations(cache).chunks;
    let mut written = Vec::with_capacity(edits.len());
    for (id, edit) in edits {
        let journal = match (&edit, cache.allocation::<B>(&id)) {
            // Never replaces a record: plans check that there is none.
            (Edit::Create(body), _) => {
                let key = B::key(&id).to_string();
                let value = serde_json::to_vec(body)?.into();
                each(key.clone(), 0, Some(Op::Put { key, value, lease: None }));
                // A release without chunks has left those of an earlier record.
                stored.delete::<B>(&id, &mut each);
                None
            }
            (Edit::Change(change), Some(record)) => {
                if change.is_empty() {
                    continue;
                }
                record.write(change, stored, &mut each)?
            }
            (Edit::Delete, Some(record)) => {
                let key = B::key(&id).to_string();
                each(key.clone(), record.revision, Some(Op::Delete { key }));
                record.delete_journal(&mut each);
                stored.delete::<B>(&id, &mut each);
                None
            }
            (Edit::Change(_) | Edit::Delete, None) => continue,
        };
        written.push((id, edit, journal));
    }
    Ok(written)
}

/// Applies committed changes to the records.
pub(super) fn commit_allocations<B: RecordBody>(
    table: &mut AllocationTable<B>,
    deleted: &mut HashMap<String, i64>,
    edits: StagedEdits<B>,
    at: &Revisions,
) {
    let AllocationTable { live, chunks, .. } = table;
    for (id, edit, written) in edits {
        let key = B::key(&id).to_string();
        let revision = at.of(&key);
        if live.get(&id).is_some_and(|record| record.revision >= revision) {
            continue;
        }
        match &written {
            Some(written) => {
                for (chunk, value) in &written.chunks {
                    let revision = at.of(&B::chunk_key(&id, *chunk).to_string());
                    chunks.set(&id, *chunk, Some(value.clone()), revision);
                }
            }
            // All other edits delete the chunks.
            None => {
                for chunk in chunks.remove_all(&id) {
                    let key = B::chunk_key(&id, chunk).to_string();
                    deleted.insert(key.clone(), at.of(&key));
                }
            }
        }
        match edit {
            Edit::Create(body) => {
                live.insert(id, AllocationRecord::new(*body, revision));
            }
            Edit::Change(change) => {
                if let Some(record) = live.get_mut(&id) {
                    record.apply(&change, written, at);
                }
            }
            Edit::Delete => {
                live.remove(&id);
                let journal = B::journal_key(&id).to_string();
                deleted.insert(journal.clone(), at.of(&journal));
                deleted.insert(key, revision);
            }
        }
    }
}
