//! Staged transaction: changes on top of the cache that later plans of the same transaction can
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::{endpoint, group, network, service};
use contiv_store::{Guard, Op, Txn};

use super::ClusterCache;
use super::allocation_change::AllocationChange;
use super::allocation_edit::{Edit, Edits, cost, write_allocations};
use super::allocation_record::AllocationRecord;
use super::committed_change::Change;
use super::index::{AddressOwner, addresses};
use super::links::ContentVersion;
use super::record::{Entry, Overlays};
use super::record_body::RecordBody;
use super::staged_links::StagedLinks;
use super::unread::DerivedKeys;
use super::value_sizes::ValueSizes;

/// Changes that plans stage. [`StagedTxn::finish`] turns them into a store transaction and the
/// [`Change`] that is applied to the cache after the commit.
///
/// A plan that fails must not have staged anything: it validates first, and stages afterwards.
pub struct StagedTxn<'w> {
    cache: &'w ClusterCache,
    pub(super) overlays: Overlays,
    networks: Edits<network::State>,
    groups: Edits<group::State>,
    /// Revisions of keys that were read and must be unchanged at commit.
    read: BTreeMap<String, i64>,
    /// Revisions of records that cannot be decoded and are deleted or replaced, by key.
    replaced: BTreeMap<String, i64>,
    /// Endpoints whose records cannot be decoded and are written again, unchanged.
    renewed: BTreeSet<String>,
    notices: Vec<String>,
    pub(super) sizes: ValueSizes,
    pub(super) links: StagedLinks,
    /// See [`StagedTxn::unread`].
    pub(super) unread: BTreeSet<DerivedKeys>,
}

/// Version of an entry, as a plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// It does not exist.
    Absent,
    /// What the store has.
    At(ContentVersion),
    /// This transaction puts it.
    Staged,
}

/// Operations and guards that one plan may need. A transaction with fewer left accepts no further
/// plan.
const PLAN_OPS: usize = 24;
/// Size limit in bytes; etcd accepts requests of 1.5 MB.
const MAX_BYTES: usize = 1 << 20;
/// Bytes that one plan may need: the largest labels of an endpoint, and a chunk of addresses.
const PLAN_BYTES: usize = 128 << 10;

impl<'w> StagedTxn<'w> {
    pub fn new(cache: &'w ClusterCache) -> StagedTxn<'w> {
        StagedTxn {
            cache,
            overlays: Overlays::default(),
            networks: Edits::new(),
            groups: Edits::new(),
            read: BTreeMap::new(),
            replaced: BTreeMap::new(),
            renewed: BTreeSet::new(),
            notices: vec![],
            sizes: ValueSizes::default(),
            links: StagedLinks::default(),
            unread: BTreeSet::new(),
        }
    }

    pub fn cache(&self) -> &'w ClusterCache {
        self.cache
    }

    /// Whether the transaction has no capacity for another plan.
    pub fn is_full(&self) -> bool {
        let (network_ops, network_bytes) = cost(self.cache, &self.networks);
        let (group_ops, group_bytes) = cost(self.cache, &self.groups);
        let ops = self.overlays.len() + self.renewed.len() + network_ops + group_ops;
        // The leader's guard is added later.
        ops + self.read.len() + PLAN_OPS > contiv_store::MAX_TXN_OPS
            || network_bytes + group_bytes + self.sizes.sum() + PLAN_BYTES > MAX_BYTES
    }

    pub fn get<T: Entry>(&self, id: &str) -> Option<Arc<T>> {
        match T::overlay(&self.overlays).get(id) {
            Some(value) => value.clone(),
            None => self.cache.table::<T>().get(id).map(|known| known.value.clone()),
        }
    }

    /// Whether the entry exists, also if its record cannot be decoded.
    pub fn exists<T: Entry>(&self, id: &str) -> bool {
        match T::overlay(&self.overlays).get(id) {
            Some(value) => value.is_some(),
            None => self.cache.exists::<T>(id),
        }
    }

    pub fn version<T: Entry>(&self, id: &str) -> Version {
        match T::overlay(&self.overlays).get(id) {
            Some(Some(_)) => Version::Staged,
            Some(None) => Version::Absent,
            None => match self.cache.table::<T>().get(id) {
                Some(known) => Version::At(ContentVersion::new(known.revision, &self.links_of::<T>(id))),
                None => Version::Absent,
            },
        }
    }

    pub fn put<T: Entry>(&mut self, id: &str, mut value: T) {
        value.compact();
        self.sizes.set(T::path(id), Some(&value));
        self.relink(id, Some(&value));
        T::overlay_mut(&mut self.overlays).insert(id.to_owned(), Some(value.into()));
    }

    /// Mutable staged copy of the entry; none if it does not exist. What it refers to must not change.
    pub fn edit<T: Entry + Clone>(&mut self, id: &str) -> Option<&mut T> {
        let overlay = T::overlay_mut(&mut self.overlays);
        if !overlay.contains_key(id) {
            let known = self.cache.table::<T>().get(id)?.value.clone();
            self.sizes.set(T::path(id), Some(&*known));
            overlay.insert(id.to_owned(), Some(known));
        }
        overlay.get_mut(id)?.as_mut().map(Arc::make_mut)
    }

    pub fn delete<T: Entry>(&mut self, id: &str) {
        self.sizes.set(T::path(id), None::<&T>);
        self.relink::<T>(id, None);
        T::overlay_mut(&mut self.overlays).insert(id.to_owned(), None);
    }

    /// Lets the change of the entry that this transaction stages replace a record that cannot be decoded, instead of
    /// conflicting with it. For types whose replacement [`ClusterCache::commit`] notes.
    pub fn replace_unreadable<T: Entry>(&mut self, id: &str) {
        if let Some(revision) = self.cache.unreadable_entry_revision::<T>(id) {
            self.replaced.insert(T::path(id), revision);
        }
    }

    /// Deletes the record of an endpoint, also one that cannot be decoded.
    pub fn delete_endpoint(&mut self, id: &str) {
        if let Some(revision) = self.cache.unreadable_revision(id) {
            self.replaced.insert(endpoint::State::path(id), revision);
        }
        self.delete::<endpoint::State>(id);
    }

    /// Writes the record of the endpoint again, unchanged, so that it gets another revision. It need not be valid.
    pub fn renew_endpoint(&mut self, id: &str) {
        if self.unreadable_endpoint(id).is_some() {
            self.renewed.insert(id.to_owned());
        } else if let Some(endpoint) = self.get::<endpoint::State>(id) {
            self.put(id, Arc::unwrap_or_clone(endpoint));
        }
    }

    /// What is known of the endpoint, if its record cannot be decoded and this transaction does not
    /// change it.
    pub fn unreadable_endpoint(&self, id: &str) -> Option<&'w endpoint::State> {
        let is_staged = <endpoint::State as Entry>::overlay(&self.overlays).contains_key(id);
        self.cache.unreadable_endpoint(id).filter(|_| !is_staged)
    }

    /// Drops the staged changes of entries whose records cannot be decoded: they would conflict with the records, which
    /// a newer release may have written.
    pub fn keep_unreadable(&mut self) {
        let cache = self.cache;
        self.overlays.retain_entries(|key| !cache.is_unreadable_key(key));
    }

    /// Logs the line as a warning when the transaction is committed.
    pub fn note(&mut self, line: String) {
        self.notices.push(line);
    }

    /// Adds a guard: the commit fails if the entry differs from the cached one.
    pub fn guard_unchanged<T: Entry>(&mut self, id: &str) {
        let revision = self.cache.table::<T>().get(id).map_or(0, |known| known.revision);
        self.read.insert(T::path(id), revision);
    }

    /// Adds a guard: the commit fails if the endpoint's record, which need not be valid, differs from the one that
    /// the cache knows.
    pub fn guard_endpoint(&mut self, id: &str) {
        self.read.insert(endpoint::State::path(id), self.cache.endpoint_revision(id));
    }

    /// Revision of the endpoint's record in the store, which need not be valid: 0 without a record, none if
    /// this transaction changes it.
    pub fn endpoint_revision(&self, id: &str) -> Option<i64> {
        let is_staged = <endpoint::State as Entry>::overlay(&self.overlays).contains_key(id);
        (!is_staged && !self.renewed.contains(id)).then(|| self.cache.endpoint_revision(id))
    }

    /// The record and its staged change; none if it does not exist, or if this transaction creates
    /// or deletes it.
    pub fn allocation<B: Stageable>(
        &mut self,
        id: &str,
    ) -> Option<(&'w AllocationRecord<B>, &mut AllocationChange)> {
        let record = self.cache.allocation::<B>(id)?;
        let edit =
            B::edits(self).entry(id.to_owned()).or_insert_with(|| Edit::Change(AllocationChange::default()));
        match edit {
            Edit::Change(change) => Some((record, change)),
            Edit::Create(_) | Edit::Delete => None,
        }
    }

    /// The record without the changes of this transaction.
    pub fn committed<B: RecordBody>(&self, id: &str) -> Option<&'w AllocationRecord<B>> {
        self.cache.allocation::<B>(id)
    }

    /// Id of the group with state key `key`. Includes groups that this transaction creates.
    pub fn group_number(&self, key: &str) -> Option<i64> {
        match self.groups.get(key) {
            Some(Edit::Create(body)) => Some(body.endpoint_group_id),
            Some(Edit::Delete) => None,
            Some(Edit::Change(_)) | None => {
                self.cache.allocation::<group::State>(key).map(|record| record.body.endpoint_group_id)
            }
        }
    }

    pub fn create_allocation<B: Stageable>(&mut self, body: B) {
        B::edits(self).insert(body.id().to_owned(), Edit::Create(Box::new(body)));
    }

    pub fn delete_allocation<B: Stageable>(&mut self, id: &str) {
        if self.cache.allocation::<B>(id).is_some() {
            B::edits(self).insert(id.to_owned(), Edit::Delete);
        }
    }

    /// Object that has `ip` on `network`, with staged changes applied.
    pub fn address_owner(&self, network: &str, ip: IpAddr) -> Option<AddressOwner> {
        let overlay = <endpoint::State as Entry>::overlay(&self.overlays);
        let text = ip.to_string();
        let planned = overlay.values().flatten().find(|endpoint| {
            endpoint.net_id == network && (endpoint.ip_address == text || endpoint.ipv6_address == text)
        });
        let known =
            || self.cache.address_owners(network, ip).iter().find(|id| !overlay.contains_key(*id)).cloned();
        // Plans for services are exclusive, so only the service being changed can differ from the
        // cache.
        let service = || {
            let id = self.cache.service_with_vip(network, ip)?;
            self.get::<service::State>(id).map(|_| AddressOwner::Service(id.to_owned()))
        };
        let unreadable = || {
            let of_network = self.cache.unreadable_endpoints().filter(|endpoint| endpoint.net_id == network);
            let mut owners = of_network.filter(|endpoint| addresses(endpoint).any(|known| known == ip));
            owners.find(|endpoint| !overlay.contains_key(&endpoint.id)).map(|endpoint| endpoint.id.clone())
        };
        let endpoint = planned.map(|endpoint| endpoint.id.clone()).or_else(known).or_else(unreadable);
        endpoint.map(AddressOwner::Endpoint).or_else(service)
    }

    /// Ids of the endpoints of a container, with staged changes applied.
    pub fn endpoints_of_container(&self, container: &str) -> BTreeSet<String> {
        let overlay = <endpoint::State as Entry>::overlay(&self.overlays).values().flatten();
        let planned = overlay.filter(|endpoint| endpoint.container_id == container);
        let planned = planned.map(|endpoint| endpoint.id.as_str());
        let known = self.cache.index.endpoints_of_container(container);
        let has = |id: &&str| self.get::<endpoint::State>(id).is_some_and(|e| e.container_id == container);
        planned.chain(known.filter(has)).map(str::to_owned).collect()
    }

    /// Ids of the entries that this transaction puts or deletes.
    pub fn changed<T: Entry>(&self) -> impl Iterator<Item = &str> {
        T::overlay(&self.overlays).keys().map(String::as_str)
    }

    /// Number of staged puts and of staged deletions.
    pub fn counts(&self) -> (usize, usize) {
        self.overlays.counts()
    }

    /// Notes what the object refers to that is put, or none if it is deleted.
    fn relink<T: Entry>(&mut self, id: &str, new: Option<&T>) {
        if T::TYPE.is_some() {
            let old = self.get::<T>(id);
            self.links.replace(id, old.as_deref(), new);
        }
    }

    /// Builds the store transaction without the leader's guard, and the change to apply after the
    /// commit.
    pub fn finish(self) -> serde_json::Result<(Txn, Change)> {
        let StagedTxn { cache, overlays, networks, groups, mut read, replaced, mut renewed, notices, .. } =
            self;
        // A later plan may have deleted the endpoint.
        renewed.retain(|id| !<endpoint::State as Entry>::overlay(&overlays).contains_key(id));
        let mut txn = Txn::new();
        let mut each = |key: String, revision, op: Option<Op>| {
            read.remove(&key);
            let revision = replaced.get(&key).copied().unwrap_or(revision);
            txn.guards.push(Guard::ModRevision { key, revision });
            txn.ops.extend(op);
        };
        overlays.ops(&cache.tables, &mut each)?;
        for id in &renewed {
            let Some((value, revision)) = cache.unreadable_record(id) else { continue };
            let key = endpoint::State::path(id);
            each(key.clone(), revision, Some(Op::Put { key, value, lease: None }));
        }
        let networks = write_allocations(cache, networks, &mut each)?;
        let groups = write_allocations(cache, groups, &mut each)?;
        let read = read.into_iter().map(|(key, revision)| Guard::ModRevision { key, revision });
        txn.guards.extend(read);
        Ok((txn, Change { overlays, networks, groups, renewed, notices }))
    }
}

/// A record that transactions can stage changes for.
pub trait Stageable: RecordBody {
    fn edits<'d>(staged: &'d mut StagedTxn<'_>) -> &'d mut Edits<Self>;
}

impl Stageable for network::State {
    fn edits<'d>(staged: &'d mut StagedTxn<'_>) -> &'d mut Edits<Self> {
        &mut staged.networks
    }
}

impl Stageable for group::State {
    fn edits<'d>(staged: &'d mut StagedTxn<'_>) -> &'d mut Edits<Self> {
        &mut staged.groups
    }
}
