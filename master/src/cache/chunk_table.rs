//! Chunks of allocation records.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use contiv_store::Op;

use super::record_body::RecordBody;
use crate::ipam::ChunkId;

/// The keys of chunks as the store has them, whether a journal names them or not.
#[derive(Debug, Default)]
pub(super) struct ChunkTable(HashMap<String, BTreeMap<ChunkId, StoredChunk>>);

#[derive(Debug)]
struct StoredChunk {
    revision: i64,
    value: Bytes,
}

impl ChunkTable {
    /// Value of the key of a chunk of record `id`.
    pub(super) fn value(&self, id: &str, chunk: ChunkId) -> Option<&Bytes> {
        self.0.get(id)?.get(&chunk).map(|stored| &stored.value)
    }

    /// Revision of the key, 0 if it does not exist.
    pub(super) fn revision(&self, id: &str, chunk: ChunkId) -> i64 {
        self.0.get(id).and_then(|chunks| chunks.get(&chunk)).map_or(0, |stored| stored.revision)
    }

    /// Passes the operations that delete the chunks of record `id` to `each`: key, revision guard and
    /// operation.
    pub(super) fn delete<B: RecordBody>(&self, id: &str, mut each: impl FnMut(String, i64, Option<Op>)) {
        for (chunk, stored) in self.0.get(id).into_iter().flatten() {
            let key = B::chunk_key(id, *chunk).to_string();
            each(key.clone(), stored.revision, Some(Op::Delete { key }));
        }
    }

    /// Sets or deletes a key. Returns false if `revision` is not newer than the known one.
    pub(super) fn set(&mut self, id: &str, chunk: ChunkId, value: Option<Bytes>, revision: i64) -> bool {
        if revision <= self.revision(id, chunk) {
            return false;
        }
        match value {
            Some(value) => {
                self.0.entry(id.to_owned()).or_default().insert(chunk, StoredChunk { revision, value });
            }
            None => self.remove(id, chunk),
        }
        true
    }

    /// Forgets a key, so that the same revision can be set again.
    pub(super) fn remove(&mut self, id: &str, chunk: ChunkId) {
        if let Some(chunks) = self.0.get_mut(id) {
            chunks.remove(&chunk);
            if chunks.is_empty() {
                self.0.remove(id);
            }
        }
    }

    /// Forgets the keys of record `id` and returns their chunks.
    pub(super) fn remove_all(&mut self, id: &str) -> Vec<ChunkId> {
        self.0.remove(id).into_iter().flatten().map(|(chunk, _)| chunk).collect()
    }
}
