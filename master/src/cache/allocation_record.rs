//! Allocation records: the record of a network or group, with its journal and chunks.

use bytes::Bytes;
use contiv_store::Op;

use super::allocation_change::AllocationChange;
use super::chunk_table::ChunkTable;
use super::record_body::RecordBody;
use super::revisions::Revisions;
use super::unknown_fields::UnknownFields;
use crate::ipam::{Changes, Chunk, ChunkId, Hosts, Journal, Pool};

/// Decoded record of a network or group. The bitmaps are kept apart from the other fields.
#[derive(Clone, Debug)]
pub struct AllocationRecord<B> {
    /// The record without its bitmaps. The counters are current.
    pub body: B,
    pub pool: Pool,
    pub hosts: Hosts,
    unknown: UnknownFields,
    pub(super) revision: i64,
    pub(super) journal: Option<JournalState>,
}

/// Content of a journal key.
#[derive(Clone, Debug)]
pub(super) struct JournalState {
    pub(super) revision: i64,
    changes: Changes,
    /// The content could not be decoded: the record lacks the allocations since it was written. The
    /// next write replaces record and journal by a whole record.
    unreadable: bool,
}

/// Keys that a change of a record has written beside the record.
pub(super) struct WrittenJournal {
    changes: Changes,
    /// Values of the chunks that were folded.
    pub(super) chunks: Vec<(ChunkId, Bytes)>,
}

/// Records whose bitmap has more bits are journaled. A bitmap of this size takes 16 KB in the store.
const LARGE_BITMAP: usize = 96 * 1024;
/// Same limit for IPv6 hosts, which take 25 bytes or more each.
const LARGE_HOSTS: usize = 512;
/// In a journal with more bytes or more ranges, chunks are folded.
const MAX_JOURNAL_BYTES: usize = 8 * 1024;
const MAX_JOURNAL_RANGES: usize = 512;
/// Operations that a transaction keeps free for chunks when a journal is at least half full.
const RESERVED_FOLDS: usize = 16;

impl<B: RecordBody> AllocationRecord<B> {
    pub(super) fn read(value: &[u8], revision: i64) -> serde_json::Result<AllocationRecord<B>> {
        let (body, unknown) = UnknownFields::read(value)?;
        Ok(AllocationRecord { unknown, ..AllocationRecord::new(body, revision) })
    }

    pub(super) fn new(mut body: B, revision: i64) -> AllocationRecord<B> {
        let (pool, hosts) = body.split();
        AllocationRecord { body, pool, hosts, unknown: UnknownFields::default(), revision, journal: None }
    }

    /// Whether the store has a journal for this record.
    pub fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Whether the store has a journal for this record that cannot be decoded.
    pub fn has_unreadable_journal(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.unreadable)
    }

    /// Whether the allocations of the chunk are in its key.
    pub(super) fn has_chunk(&self, chunk: ChunkId) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.changes.chunks.contains(chunk))
    }

    /// Notes a journal that cannot be decoded, so that the next write can replace it.
    pub(super) fn set_unreadable_journal(&mut self, revision: i64) {
        self.journal = Some(JournalState { revision, changes: Changes::default(), unreadable: true });
    }

    /// Applies a journal and the chunks that it names to a record read from the store.
    ///
    /// # Errors
    ///
    /// Why a chunk cannot be applied. The record then lacks allocations.
    pub(super) fn apply_journal(&mut self, journal: JournalState, chunks: &ChunkTable) -> Result<(), String> {
        for id in journal.changes.chunks.iter() {
            let value = chunks.value(self.body.id(), id).ok_or_else(|| format!("there is no chunk {id}"))?;
            let is_set = match (id, Chunk::decode(value).map_err(|why| format!("chunk {id}: {why}"))?) {
                (ChunkId::V4(n), Chunk::V4(bits)) => self.pool.set_chunk(n, &bits),
                (ChunkId::V6(n), Chunk::V6(hosts)) => self.hosts.set_chunk(n, &hosts),
                _ => false,
            };
            if !is_set {
                return Err(format!("chunk {id} is not one of this pool"));
            }
        }
        self.pool.apply(&journal.changes.pool);
        self.hosts.apply(&journal.changes.hosts);
        self.journal = Some(journal);
        Ok(())
    }

    /// The whole record as the store holds it after `change`.
    pub fn full_record(&self, change: &AllocationChange) -> B {
        self.body.join(&self.pool, &self.hosts, change)
    }

    fn counts_with(&self, change: &AllocationChange) -> (i64, i64) {
        let (addresses, endpoints) = self.body.counts();
        (addresses + change.addresses, endpoints + change.endpoints)
    }

    fn is_large(&self) -> bool {
        B::stored_bits(&self.pool) > LARGE_BITMAP || self.hosts.len() > LARGE_HOSTS
    }

    /// Approximate size of what a change writes, in bytes.
    pub(super) fn size(&self) -> usize {
        match self.is_large() {
            true => MAX_JOURNAL_BYTES,
            false => B::stored_bits(&self.pool) / 6 + self.hosts.len() * 30,
        }
    }

    /// Approximate number of operations of a change.
    pub(super) fn ops(&self) -> usize {
        let ranges = self.journal.as_ref().map_or(0, |journal| journal.changes.ranges());
        2 + if ranges > MAX_JOURNAL_RANGES / 2 { RESERVED_FOLDS } else { 0 }
    }

    /// Passes each operation that `change` needs to `each`: key, revision guard and operation
    /// (none: guard only). Returns the new journal, if one is written.
    pub(super) fn write(
        &self,
        change: &AllocationChange,
        stored: &ChunkTable,
        mut each: impl FnMut(String, i64, Option<Op>),
    ) -> serde_json::Result<Option<WrittenJournal>> {
        let id = self.body.id();
        let (key, journal_key) = (B::key(id).to_string(), B::journal_key(id).to_string());
        let journal_revision = self.journal.as_ref().map_or(0, |journal| journal.revision);
        if let Some((written, value)) = self.journal_with(change)? {
            for (chunk, value) in &written.chunks {
                let key = B::chunk_key(id, *chunk).to_string();
                let put = Op::Put { key: key.clone(), value: value.clone(), lease: None };
                each(key, stored.revision(id, *chunk), Some(put));
            }
            // The journal is relative to the record, so the record is guarded too.
            let put = Op::Put { key: journal_key.clone(), value, lease: None };
            each(journal_key, journal_revision, Some(put));
            each(key, self.revision, None);
            return Ok(Some(written));
        }
        let value = self.unknown.encode(&self.full_record(change))?;
        each(key.clone(), self.revision, Some(Op::Put { key, value: value.into(), lease: None }));
        self.delete_journal(&mut each);
        stored.delete::<B>(id, &mut each);
        Ok(None)
    }

    /// Passes the operation that deletes the journal to `each`, if there is one.
    pub(super) fn delete_journal(&self, mut each: impl FnMut(String, i64, Option<Op>)) {
        if let Some(journal) = &self.journal {
            let key = B::journal_key(self.body.id()).to_string();
            each(key.clone(), journal.revision, Some(Op::Delete { key }));
        }
    }

    /// The journal after `change`, with its value. None if the record is to be written as a whole.
    fn journal_with(&self, change: &AllocationChange) -> serde_json::Result<Option<(WrittenJournal, Bytes)>> {
        // A journal has no field for traffic settings.
        let is_whole = change.checkpoint || change.traffic.is_some() || self.has_unreadable_journal();
        if is_whole || !self.is_large() {
            return Ok(None);
        }
        let mut changes = self.journal.as_ref().map(|journal| journal.changes.clone()).unwrap_or_default();
        changes.pool.merge(&change.pool);
        changes.hosts.merge(&change.hosts);
        let (id, counts) = (self.body.id(), self.counts_with(change));
        let (mut chunks, mut foldable) = (vec![], None);
        loop {
            if changes.ranges() <= MAX_JOURNAL_RANGES {
                let value = serde_json::to_vec(&Journal::new(id, counts, &changes))?;
                if value.len() <= MAX_JOURNAL_BYTES {
                    return Ok(Some((WrittenJournal { changes, chunks }, value.into())));
                }
            }
            let Some(chunk) = foldable.get_or_insert_with(|| changes.foldable().into_iter()).next() else {
                return Ok(None);
            };
            changes.fold(chunk);
            chunks.push((chunk, self.chunk_with(change, chunk).encode(id)?.into()));
        }
    }

    /// The allocations of a chunk after `change`.
    fn chunk_with(&self, change: &AllocationChange, chunk: ChunkId) -> Chunk {
        match chunk {
            ChunkId::V4(n) => Chunk::V4(self.pool.chunk_with(&change.pool, n)),
            ChunkId::V6(n) => Chunk::V6(self.hosts.chunk_with(&change.hosts, n)),
        }
    }

    /// Applies a committed `change` to the record.
    pub(super) fn apply(
        &mut self,
        change: &AllocationChange,
        written: Option<WrittenJournal>,
        at: &Revisions,
    ) {
        self.body.set_counts(self.counts_with(change));
        if let Some(traffic) = &change.traffic {
            self.body.set_traffic(traffic);
        }
        self.pool.apply(&change.pool);
        self.hosts.apply(&change.hosts);
        let id = self.body.id();
        match written {
            Some(WrittenJournal { changes, .. }) => {
                let revision = at.of(&B::journal_key(id).to_string());
                self.journal = Some(JournalState { revision, changes, unreadable: false });
            }
            None => {
                self.revision = at.of(&B::key(id).to_string());
                self.journal = None;
            }
        }
    }
}

/// Decodes a journal. Returns its changes and its counters.
pub(super) fn read_journal(value: &[u8], revision: i64) -> Result<(JournalState, (i64, i64)), String> {
    let journal: Journal = serde_json::from_slice(value).map_err(|e| e.to_string())?;
    let changes = journal.changes()?;
    Ok((JournalState { revision, changes, unreadable: false }, (journal.ep_addr_count, journal.ep_count)))
}
