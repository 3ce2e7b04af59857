//! Cluster cache: the decoded content of the store, which the leader plans on and answers reads
//! from.
//!
//! Two inputs update the cache: the leader's own committed transactions and the watch of the store.
//! Each entry has the store revision of its value, and only a newer revision replaces it, in
//! whatever order the two inputs arrive. The cache holds nothing that is not in the store.

mod allocation_change;
mod allocation_edit;
mod allocation_record;
mod allocation_table;
mod chunk_table;
mod committed_change;
mod decoded;
mod derived;
mod entries;
mod index;
mod link_log;
mod linked_objects;
mod links;
mod listed;
mod record;
mod record_body;
mod registrations;
mod revisions;
mod shared;
mod staged_derived;
mod staged_links;
mod transaction;
mod unknown_fields;
mod unread;
mod unreadable;
mod unreadable_entries;
mod value_sizes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use contiv_model::{endpoint, event::Event, group, key::Key, name::NetworkId, network};
use contiv_store::{KeyValue, Update};
use tokio::sync::watch;

pub use allocation_change::{AllocationChange, Traffic};
pub use allocation_record::AllocationRecord;
use chunk_table::ChunkTable;
pub use committed_change::Change;
pub use decoded::DecodedUpdate;
use decoded::DecodedValue;
pub use derived::{Content, Derived, Digest};
use index::Index;
pub use index::{AddressOwner, Labels};
pub use link_log::{LinkChange, LinkChanges};
use links::LinkIndex;
pub use links::{ContentVersion, Linked, Links, Reference, clear_stored_links};
use record::Tables;
pub use record::{Entry, GroupIds, ONLY, Pending, Table};
pub use record_body::RecordBody;
pub use revisions::Revisions;
pub use shared::SharedCache;
pub use transaction::{Stageable, StagedTxn, Version};
pub use unread::{DERIVED_KEYS, DerivedKeys, DerivedValues};
use unreadable::UnreadableEndpoint;

#[derive(Default)]
pub struct ClusterCache {
    tables: Tables,
    networks: AllocationTable<network::State>,
    groups: AllocationTable<group::State>,
    index: Index,
    links: LinkIndex,
    /// Keys of allocation records that must be read again, because the watch delivered a change of
    /// their journal. A journal holds all changes since its record was written, and an older
    /// version of it may already be merged into the bitmaps. A new leader reads these keys again.
    stale: BTreeSet<String>,
    /// Journals that could not be decoded when they were read. See
    /// [`ClusterCache::unreadable_journals`].
    unreadable: BTreeSet<Key>,
    /// Endpoints whose records cannot be decoded, by id.
    unreadable_endpoints: BTreeMap<String, UnreadableEndpoint>,
    /// Revisions of the records of entries and allocations that cannot be decoded, by key.
    unreadable_entries: BTreeMap<String, i64>,
    /// See [`ClusterCache::last_registration`]; by node.
    registrations: HashMap<String, i64>,
    /// Revisions at which recently deleted keys were deleted. An older change from the watch must
    /// not restore them.
    deleted: HashMap<String, i64>,
    /// See [`ClusterCache::complete_revision`].
    complete: i64,
}

/// Allocation records of networks or of groups.
pub struct AllocationTable<B> {
    live: BTreeMap<String, AllocationRecord<B>>,
    /// Journals that arrived before their record.
    unmatched_journals: HashMap<String, KeyValue>,
    chunks: ChunkTable,
}

impl ClusterCache {
    pub fn get<T: Entry>(&self, id: &str) -> Option<&T> {
        self.table::<T>().get(id).map(|entry| &*entry.value)
    }

    pub fn table<T: Entry>(&self) -> &Table<T> {
        T::table(&self.tables)
    }

    /// The entry, independent of later changes of the cache.
    pub fn shared<T: Entry>(&self, id: &str) -> Option<Arc<T>> {
        self.table::<T>().get(id).map(|entry| entry.value.clone())
    }

    /// All entries, sorted by key, independent of later changes of the cache.
    pub fn all_shared<T: Entry>(&self) -> Vec<Arc<T>> {
        self.table::<T>().values().map(|entry| entry.value.clone()).collect()
    }

    /// Keys and entries from `start` on, sorted by key.
    pub fn shared_from<T: Entry>(&self, start: Bound<&str>) -> impl Iterator<Item = (&str, Arc<T>)> {
        let entries = self.table::<T>().range::<str, _>((start, Bound::Unbounded));
        entries.map(|(key, entry)| (key.as_str(), entry.value.clone()))
    }

    /// Keys after `after`, sorted, with the revisions of their records; at most `limit`.
    pub fn keys_after<T: Entry>(&self, after: Option<&str>, limit: usize) -> Vec<(String, i64)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.table::<T>().range::<str, _>((start, Bound::Unbounded));
        entries.take(limit).map(|(key, entry)| (key.clone(), entry.revision)).collect()
    }

    /// The cache contains all changes up to this revision of the store, and possibly later ones.
    pub fn complete_revision(&self) -> i64 {
        self.complete
    }

    /// All entries, sorted by key.
    pub fn all<T: Entry>(&self) -> impl Iterator<Item = &T> {
        self.table::<T>().values().map(|entry| &*entry.value)
    }

    pub fn allocation<B: RecordBody>(&self, id: &str) -> Option<&AllocationRecord<B>> {
        B::allocations(self).live.get(id)
    }

    /// All allocation records, sorted by id.
    pub fn allocations<B: RecordBody>(&self) -> impl Iterator<Item = &AllocationRecord<B>> {
        B::allocations(self).live.values()
    }

    /// Ids of the endpoints on `network` that have address `ip`.
    pub fn address_owners(&self, network: &str, ip: IpAddr) -> &[String] {
        self.index.address_owners(network, ip)
    }

    /// Id of the service whose address on `network` is `ip`.
    pub fn service_with_vip(&self, network: &str, ip: IpAddr) -> Option<&str> {
        self.index.service_with_vip(network, ip)
    }

    /// Endpoints on the network with id `network`, sorted by id.
    pub fn endpoints_of_network(&self, network: &str) -> impl Iterator<Item = Arc<endpoint::State>> {
        self.index.endpoints_of_network(network).filter_map(|id| self.shared(id))
    }

    /// Endpoints of the group with state key `group`, sorted by id.
    pub fn endpoints_of_group(&self, group: &str) -> impl Iterator<Item = Arc<endpoint::State>> {
        self.index.endpoints_of_group(group).filter_map(|id| self.shared(id))
    }

    /// Endpoints that have the label, in all tenants: the ids of their networks and their own, sorted.
    pub fn endpoints_with_label(&self, label: (&str, &str)) -> Option<&BTreeSet<(NetworkId, String)>> {
        self.index.endpoints_with_label(label)
    }

    /// Ids of the services of `tenant` whose first selector is among `labels`. Callers check the
    /// other selectors.
    pub fn services_selecting<'i>(
        &'i self,
        tenant: &str,
        labels: &'i Labels,
    ) -> impl Iterator<Item = &'i str> {
        self.index.services_selecting(tenant, labels)
    }

    /// Keys of the objects of type `R` that refer to the object `key` of type `T`, sorted.
    pub fn linked<T: Entry, R: Entry>(&self, key: &str) -> impl Iterator<Item = &str> {
        let keys = T::TYPE.zip(R::TYPE).and_then(|(target, referrer)| self.links.get(target, referrer, key));
        keys.into_iter().flat_map(|keys| keys.iter()).map(String::as_str)
    }

    /// Derived links of the object `key` of type `T`.
    pub fn links_of<T: Entry>(&self, key: &str) -> Links {
        let Some(target) = T::TYPE else { return Links::default() };
        let sets = T::REFERRERS.iter();
        Links::new(
            sets.filter_map(|referrer| Some((*referrer, self.links.get(target, *referrer, key)?.clone()))),
        )
    }

    /// Receives the number of the next change of derived links.
    pub fn link_changes(&self) -> watch::Receiver<u64> {
        self.links.log.subscribe()
    }

    /// Changes of derived links with this number and later ones.
    pub fn link_changes_since(&self, number: u64) -> LinkChanges {
        self.links.log.since(number)
    }

    /// Changes of derived links after a revision of the store.
    pub fn link_changes_after(&self, revision: i64) -> LinkChanges {
        self.links.log.after(revision)
    }

    /// Removes and returns the keys of records and journals that must be read again before
    /// planning.
    pub fn take_stale(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stale).into_iter().collect()
    }

    /// Decodes and applies an update of the watch. Returns true when the first snapshot is complete.
    pub fn apply_update(&mut self, update: &Update) -> bool {
        self.apply_decoded(&mut DecodedUpdate::decode(update.clone()))
    }

    /// Applies an update of the watch, and takes its value. Returns true when the first snapshot is complete.
    pub fn apply_decoded(&mut self, DecodedUpdate { update, value }: &mut DecodedUpdate) -> bool {
        // Other changes of the same revision may follow.
        self.complete = self.complete.max(update.revision - 1);
        match &update.event {
            Event::Init => {}
            Event::InitDone => {
                self.complete = self.complete.max(update.revision);
                self.links.log.restart(self.complete);
                return true;
            }
            Event::InitApply(path, kv) | Event::Apply(path, kv) => {
                self.set_decoded(path, Some(kv), std::mem::take(value), kv.mod_revision);
            }
            Event::Delete(path) => self.set(path, None, update.revision),
        }
        if self.deleted.len() > 1024 {
            self.deleted.retain(|_, revision| *revision > update.revision);
        }
        false
    }

    /// Sets or deletes the key as of `revision`. Ignores revisions that are not newer than the
    /// known one.
    fn set(&mut self, path: &str, kv: Option<&KeyValue>, revision: i64) {
        self.set_decoded(path, kv, DecodedValue::default(), revision);
    }

    fn set_decoded(&mut self, path: &str, kv: Option<&KeyValue>, decoded: DecodedValue, revision: i64) {
        if self.deleted.get(path).is_some_and(|deleted| revision <= *deleted) {
            return;
        }
        let Ok(key) = path.parse::<Key>() else { return };
        match key {
            Key::Network(id) => self.set_allocation::<network::State>(id.as_str(), kv, revision),
            Key::Group(id) => self.set_allocation::<group::State>(id.as_str(), kv, revision),
            Key::NetworkJournal(id) => self.set_journal::<network::State>(id.as_str(), kv, revision),
            Key::GroupJournal(id) => self.set_journal::<group::State>(id.as_str(), kv, revision),
            Key::NetworkChunk { network, chunk } => {
                self.set_chunk::<network::State>(network.as_str(), &chunk, kv, revision);
            }
            Key::GroupChunk { group, chunk } => {
                self.set_chunk::<group::State>(group.as_str(), &chunk, kv, revision);
            }
            key => self.set_entry(&key, kv, decoded, revision),
        }
    }

    /// Like `set`, for a key that was read again when the store was at revision
    /// `at`. Replaces the known value even if it is as new. Later updates of a lagging watch that
    /// are older than `at` are ignored.
    pub fn reload(&mut self, path: &str, kv: Option<&KeyValue>, at: i64) {
        self.deleted.remove(path);
        let mut last_valid = None;
        match path.parse() {
            Ok(Key::Network(id)) => self.networks.forget(id.as_str()),
            Ok(Key::Group(id)) => self.groups.forget(id.as_str()),
            Ok(Key::NetworkChunk { network, chunk }) => {
                self.networks.forget_chunk(network.as_str(), &chunk);
            }
            Ok(Key::GroupChunk { group, chunk }) => self.groups.forget_chunk(group.as_str(), &chunk),
            // Records are read before their journals, which may be older after a restoration.
            Ok(Key::NetworkJournal(id)) => {
                if let Some(kv) = kv {
                    return self.reload_journal::<network::State>(id.as_str(), kv);
                }
            }
            Ok(Key::GroupJournal(id)) => {
                if let Some(kv) = kv {
                    return self.reload_journal::<group::State>(id.as_str(), kv);
                }
            }
            Ok(Key::Endpoint(id)) => {
                last_valid = self.shared::<endpoint::State>(id.as_str()).map(|state| (id.clone(), state));
                self.remove_entry(&Key::Endpoint(id));
            }
            Ok(key) => self.remove_entry(&key),
            Err(_) => {}
        }
        match kv {
            Some(kv) => {
                self.set(path, Some(kv), kv.mod_revision);
                if let Some((id, state)) = last_valid {
                    self.complete_unreadable(id.as_str(), kv, &state);
                }
            }
            None => {
                self.set(path, None, at);
                self.deleted.insert(path.to_owned(), at);
            }
        }
    }
}
