//! Allocation records: networks, and groups with an address pool of their own.

use std::mem;

use contiv_model::{api::Netprofile, group, key::Key, network};
use contiv_store::Op;
use serde::{Serialize, de::DeserializeOwned};

use super::revisions::Revisions;
use super::unknown_fields::UnknownFields;
use super::{AllocationTable, ClusterCache};
use crate::ipam::{Hosts, HostsChange, Journal, Pool, PoolChange};

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
    pool: PoolChange,
    hosts: HostsChange,
    /// The content could not be decoded: the record lacks the allocations since it was written. The
    /// next write replaces record and journal by a whole record.
    unreadable: bool,
}

/// Staged change of an allocation record.
#[derive(Clone, Debug, Default)]
pub struct AllocationChange {
    pub pool: PoolChange,
    pub hosts: HostsChange,
    /// Change of the number of allocated addresses.
    pub addresses: i64,
    /// Change of the number of endpoints.
    pub endpoints: i64,
    /// Write the whole record, whatever its size.
    pub checkpoint: bool,
    /// New traffic settings; groups only.
    pub traffic: Option<Traffic>,
}

/// Traffic settings that a network profile gives to a group. The default means no profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub dscp: i64,
    pub bandwidth: String,
    pub burst: i64,
}

impl Traffic {
    pub fn of(profile: &Netprofile) -> Traffic {
        Traffic { dscp: profile.dscp, bandwidth: profile.bandwidth.clone(), burst: profile.burst }
    }

    /// Settings stored in the group's state.
    pub fn of_group(group: &group::State) -> Traffic {
        Traffic { dscp: group.dscp, bandwidth: group.bandwidth.clone(), burst: group.burst }
    }
}

/// A record without its bitmaps.
pub trait RecordBody: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    fn key(id: &str) -> Key;
    fn journal_key(id: &str) -> Key;
    fn id(&self) -> &str;
    /// Moves the bitmaps out of the record.
    fn split(&mut self) -> (Pool, Hosts);
    /// Builds the whole record, with `change` applied.
    fn join(&self, pool: &Pool, hosts: &Hosts, change: &AllocationChange) -> Self;
    /// Number of allocated addresses and number of endpoints.
    fn counts(&self) -> (i64, i64);
    fn set_counts(&mut self, counts: (i64, i64));
    fn set_traffic(&mut self, _traffic: &Traffic) {}
    #[doc(hidden)]
    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self>;
    #[doc(hidden)]
    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self>;
}

/// Bitmaps with more bits are journaled. A bitmap of this size takes 16 KB in the store.
const LARGE_BITMAP: usize = 96 * 1024;
/// Same limit for IPv6 hosts, which take 25 bytes or more each.
const LARGE_HOSTS: usize = 512;
/// A journal with more bytes or more ranges is replaced by a checkpoint.
const MAX_JOURNAL_BYTES: usize = 8 * 1024;
const MAX_JOURNAL_RANGES: usize = 512;

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

    /// Notes a journal that cannot be decoded, so that the next write can replace it.
    pub(super) fn set_unreadable_journal(&mut self, revision: i64) {
        self.journal = Some(JournalState { revision, unreadable: true, ..JournalState::nothing() });
    }

    /// Applies a journal to a record read from the store.
    pub(super) fn apply_journal(&mut self, journal: JournalState) {
        self.pool.apply(&journal.pool);
        self.hosts.apply(&journal.hosts);
        self.journal = Some(journal);
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
        self.pool.bits().len() > LARGE_BITMAP || self.hosts.len() > LARGE_HOSTS
    }

    /// Approximate size of the whole record in bytes.
    pub(super) fn size(&self) -> usize {
        if self.is_large() { MAX_JOURNAL_BYTES } else { self.pool.bits().len() / 6 + self.hosts.len() * 30 }
    }

    /// Passes each operation that `change` needs to `each`: key, revision guard and operation
    /// (none: guard only). Returns the new journal, if one is written.
    pub(super) fn write(
        &self,
        change: &AllocationChange,
        mut each: impl FnMut(String, i64, Option<Op>),
    ) -> serde_json::Result<Option<JournalState>> {
        let id = self.body.id();
        let (key, journal_key) = (B::key(id).to_string(), B::journal_key(id).to_string());
        let journal_revision = self.journal.as_ref().map_or(0, |journal| journal.revision);
        // A journal has no field for traffic settings.
        let journaled = self.is_large() && !change.checkpoint && !self.has_unreadable_journal();
        if journaled && change.traffic.is_none() {
            let mut written = self.journal.clone().unwrap_or_else(JournalState::nothing);
            written.pool.merge(&change.pool);
            written.hosts.merge(&change.hosts);
            let body = Journal::new(id, self.counts_with(change), &written.pool, &written.hosts);
            let value = serde_json::to_vec(&body)?;
            if value.len() <= MAX_JOURNAL_BYTES && written.ranges() <= MAX_JOURNAL_RANGES {
                // The journal is relative to the record, so the record is guarded too.
                let put = Op::Put { key: journal_key.clone(), value: value.into(), lease: None };
                each(journal_key, journal_revision, Some(put));
                each(key, self.revision, None);
                return Ok(Some(written));
            }
        }
        let value = self.unknown.encode(&self.full_record(change))?;
        each(key.clone(), self.revision, Some(Op::Put { key, value: value.into(), lease: None }));
        if self.journal.is_some() {
            each(journal_key.clone(), journal_revision, Some(Op::Delete { key: journal_key }));
        }
        Ok(None)
    }

    /// Applies a committed `change` to the record.
    pub(super) fn apply(&mut self, change: &AllocationChange, written: Option<JournalState>, at: &Revisions) {
        self.body.set_counts(self.counts_with(change));
        if let Some(traffic) = &change.traffic {
            self.body.set_traffic(traffic);
        }
        self.pool.apply(&change.pool);
        self.hosts.apply(&change.hosts);
        let id = self.body.id();
        match written {
            Some(journal) => {
                let revision = at.of(&B::journal_key(id).to_string());
                self.journal = Some(JournalState { revision, ..journal });
            }
            None => {
                self.revision = at.of(&B::key(id).to_string());
                self.journal = None;
            }
        }
    }
}

impl JournalState {
    fn nothing() -> JournalState {
        let (pool, hosts) = (PoolChange::default(), HostsChange::default());
        JournalState { revision: 0, pool, hosts, unreadable: false }
    }

    fn ranges(&self) -> usize {
        let (pool, hosts) = (&self.pool, &self.hosts);
        pool.taken.ranges_len()
            + pool.freed.ranges_len()
            + hosts.taken.ranges_len()
            + hosts.freed.ranges_len()
    }
}

/// Decodes a journal. Returns its changes and its counters.
pub(super) fn read_journal(value: &[u8], revision: i64) -> Result<(JournalState, (i64, i64)), String> {
    let journal: Journal = serde_json::from_slice(value).map_err(|e| e.to_string())?;
    let (pool, hosts) = journal.changes()?;
    Ok((JournalState { revision, pool, hosts, unreadable: false }, (journal.ep_addr_count, journal.ep_count)))
}

impl RecordBody for network::State {
    fn key(id: &str) -> Key {
        Key::Network(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::NetworkJournal(id.into())
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        let hosts = Hosts::of_state(self);
        // An empty map is kept: it marks a network with IPv6.
        if let Some(map) = &mut self.ipv6_alloc_map {
            map.clear();
        }
        (Pool::new(mem::take(&mut self.ip_alloc_map)), hosts)
    }

    fn join(&self, pool: &Pool, hosts: &Hosts, change: &AllocationChange) -> Self {
        network::State {
            ip_alloc_map: pool.with(&change.pool),
            ipv6_alloc_map: self.ipv6_alloc_map.as_ref().map(|_| hosts.map_with(&change.hosts)),
            ipv6_last_host: hosts.last_with(&change.hosts),
            ep_addr_count: self.ep_addr_count + change.addresses,
            ep_count: self.ep_count + change.endpoints,
            ..self.clone()
        }
    }

    fn counts(&self) -> (i64, i64) {
        (self.ep_addr_count, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        (self.ep_addr_count, self.ep_count) = counts;
    }

    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self> {
        &cache.networks
    }

    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self> {
        &mut cache.networks
    }
}

impl RecordBody for group::State {
    fn key(id: &str) -> Key {
        Key::Group(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::GroupJournal(id.into())
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        (Pool::new(mem::take(&mut self.epg_ip_alloc_map)), Hosts::default())
    }

    fn join(&self, pool: &Pool, _hosts: &Hosts, change: &AllocationChange) -> Self {
        let mut whole = group::State {
            epg_ip_alloc_map: pool.with(&change.pool),
            ep_count: self.ep_count + change.endpoints,
            ..self.clone()
        };
        if let Some(traffic) = &change.traffic {
            whole.set_traffic(traffic);
        }
        whole
    }

    fn set_traffic(&mut self, traffic: &Traffic) {
        self.dscp = traffic.dscp;
        self.bandwidth.clone_from(&traffic.bandwidth);
        self.burst = traffic.burst;
    }

    fn counts(&self) -> (i64, i64) {
        (0, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        self.ep_count = counts.1;
    }

    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self> {
        &cache.groups
    }

    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self> {
        &mut cache.groups
    }
}
