use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use contiv_model::{
    event::Event,
    group::GroupNumber,
    key::{ENDPOINTS, Key, POLICIES},
    name::{EndpointId, GroupKey, HostName, NetworkId},
};
use tokio::{sync::watch, time::Instant};

use super::{
    dirty::DirtySet,
    object::{Attachment, ClusterObject},
    rejected::Rejected,
    requests::Requests,
    snapshot::State,
    source::Source,
    surroundings::Surroundings,
};

/// An event of one source, with a validated or rejected object.
#[derive(Clone, Debug)]
pub struct Update {
    /// Source. Its snapshots replace all its objects.
    pub source: Source,
    /// Store revision of the event.
    pub revision: i64,
    /// Event.
    pub event: Event<Key, Result<ClusterObject, Rejected>>,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// Newest store revision that changed the state.
    revision: i64,
    dirty: DirtySet,
    /// Receipt of the oldest change of a source in `dirty`.
    received: Option<Instant>,
    rejected: BTreeMap<Key, Rejected>,
    /// Sources without a complete snapshot.
    awaited: BTreeSet<Source>,
    /// Objects of incomplete snapshots.
    snapshots: BTreeMap<Source, BTreeMap<Key, Result<ClusterObject, Rejected>>>,
    /// Keys of each source, with valid or invalid values, and the store revision up to which the value is current.
    /// Contains each source that has delivered a snapshot.
    live: BTreeMap<Source, BTreeMap<Key, i64>>,
    requests: Requests,
    /// Number of changes that may change the networks or groups that the node needs.
    interest: u64,
}

#[derive(Debug)]
struct Shared {
    inner: RwLock<Inner>,
    /// Number of changes; wakes waiting readers.
    generation: watch::Sender<u64>,
}

/// Applies updates from the sources.
#[derive(Debug)]
pub struct Writer(Arc<Shared>);

/// Records the interfaces on this node, and its surroundings.
#[derive(Clone, Debug)]
pub struct Attacher(Arc<Shared>);

/// Keeps the endpoints of a network, and of the networks that are routed to it, and the policies of a group in the state
/// until it is dropped.
#[derive(Debug)]
pub struct Request {
    shared: Arc<Shared>,
    network: NetworkId,
    group: Option<GroupKey>,
}

/// Reads the state.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Shared>);

/// Receives the dirty set. There is one receiver, because receiving clears the set.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
    generation: watch::Receiver<u64>,
    received: Option<Instant>,
}

/// Creates an empty state, which is complete when each of `sources` has delivered a snapshot.
pub fn new(sources: impl IntoIterator<Item = &'static str>) -> (Writer, Attacher, Reader, Changes) {
    let (generation, receiver) = watch::channel(0);
    let mut inner = Inner { awaited: sources.into_iter().map(Source::from).collect(), ..Inner::default() };
    for source in &inner.awaited {
        inner.state.unlearn(source);
    }
    let shared = Arc::new(Shared { inner: RwLock::new(inner), generation });
    (
        Writer(shared.clone()),
        Attacher(shared.clone()),
        Reader(shared.clone()),
        Changes { shared, generation: receiver, received: None },
    )
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // A change is one call that does not panic in between.
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.write());
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Writer {
    /// Applies one update.
    pub fn apply(&mut self, update: Update) {
        self.0.change(|inner| inner.apply(update));
    }

    /// Applies updates in one step: readers see the state before or after all of them.
    pub fn apply_all(&mut self, updates: impl IntoIterator<Item = Update>) {
        self.0.change(|inner| updates.into_iter().for_each(|update| inner.apply(update)));
    }

    /// Removes a source with all its objects.
    pub fn forget(&mut self, source: &Source) {
        self.0.change(|inner| {
            let keys = inner.live.get(source).into_iter().flat_map(BTreeMap::keys).cloned();
            for key in keys.collect::<Vec<_>>() {
                inner.delete(source, &key);
            }
            inner.live.remove(source);
            let dirty = inner.state.unlearn(source);
            inner.mark(dirty);
        });
    }

    /// Records that the state has everything that it needs from a source.
    pub fn complete(&mut self, source: &Source) {
        self.0.change(|inner| _ = inner.awaited.remove(source));
    }

    /// In forward mode `routing`, makes the nodes the gateways of VLAN networks, too. Must be called before the first
    /// update.
    pub fn route_vlans(&mut self) {
        self.0.change(|inner| inner.state.route_vlans());
    }

    /// Reserves addresses that endpoints must not use. Must be called before the first update.
    pub fn reserve(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.0.change(|inner| inner.state.reserve(addresses));
    }

    /// In forward mode `routing`, lets pods reach addresses outside of the cluster's networks through their node. Must be
    /// called before the first update.
    pub fn allow_host_access(&mut self) {
        self.0.change(|inner| inner.state.allow_host_access());
    }

    /// Prepares for the snapshots of another store, whose revisions are not comparable with the previous ones.
    pub fn restart(&mut self) {
        self.0.change(|inner| {
            inner.revision = 0;
            inner.live.values_mut().flat_map(BTreeMap::values_mut).for_each(|at| *at = 0);
        });
    }
}

impl Inner {
    fn apply(&mut self, update: Update) {
        let Update { source, revision, event } = update;
        match event {
            Event::Init => {
                self.snapshots.insert(source, BTreeMap::new());
            }
            Event::InitApply(key, object) => {
                self.snapshots.entry(source).or_default().insert(key, object);
            }
            Event::InitDone => {
                let snapshot = self.snapshots.remove(&source).unwrap_or_default();
                let live = self.live.get(&source).into_iter().flat_map(BTreeMap::keys);
                let gone: Vec<_> = live.filter(|key| !snapshot.contains_key(key)).cloned().collect();
                for key in gone {
                    self.delete(&source, &key);
                }
                for (key, object) in snapshot {
                    self.put(&source, key, object, revision);
                }
                self.awaited.remove(&source);
                let dirty = self.state.learn(&source);
                self.mark(dirty);
                self.live.entry(source).or_default();
                self.revision = self.revision.max(revision);
            }
            Event::Apply(key, object) => {
                if self.put(&source, key, object, revision) {
                    self.revision = self.revision.max(revision);
                }
            }
            Event::Delete(key) => {
                if self.delete(&source, &key) {
                    self.revision = self.revision.max(revision);
                }
            }
        }
    }

    /// Returns whether the change affects the plan.
    fn put(
        &mut self,
        source: &Source,
        key: Key,
        object: Result<ClusterObject, Rejected>,
        revision: i64,
    ) -> bool {
        let is_obsolete = self.owned_elsewhere(source, &key).is_some_and(|at| at > revision);
        let dirty = match object {
            _ if is_obsolete => DirtySet::default(),
            Ok(object) => {
                self.rejected.remove(&key);
                self.state.set(&key, Some(object))
            }
            Err(rejected) => {
                tracing::warn!(key = rejected.key, "rejected: {}", rejected.why);
                self.rejected.insert(key.clone(), rejected);
                self.state.reject(&key)
            }
        };
        match self.live.get_mut(source) {
            Some(live) => live.insert(key, revision),
            None => self.live.entry(source.clone()).or_default().insert(key, revision),
        };
        self.mark_received(dirty)
    }

    fn delete(&mut self, source: &Source, key: &Key) -> bool {
        if let Some(live) = self.live.get_mut(source) {
            live.remove(key);
        }
        if self.owned_elsewhere(source, key).is_some() {
            return false;
        }
        self.rejected.remove(key);
        let dirty = self.state.set(key, None);
        self.mark_received(dirty)
    }

    /// Returns the revision of the key in another source that owns the object in the state. Endpoints of two networks may
    /// have the same id, one after the other, and the watches of the networks are not ordered. The watch of all keys
    /// replaces the watches of parts.
    fn owned_elsewhere(&self, source: &Source, key: &Key) -> Option<i64> {
        let id = match key {
            Key::Endpoint(id) => id,
            Key::Policy(id) => {
                let of_group = id.group().map(Source::Policies);
                return self.newest_in(key, source, of_group.into_iter().chain([Source::Prefix(POLICIES)]));
            }
            _ => return None,
        };
        if self.state.is_unreadable(key) {
            // Each watch whose prefix matches the key reports it.
            let is_other = |other: &Source| other != source && other.prefix() == ENDPOINTS;
            let others = self.live.iter().filter(|(other, _)| is_other(other));
            return others.filter_map(|(_, keys)| keys.get(key).copied()).max();
        }
        let owner = self.state.endpoint(id).map(|endpoint| Source::Endpoints(endpoint.network.clone()));
        self.newest_in(key, source, owner.into_iter().chain([Source::Prefix(ENDPOINTS)]))
    }

    /// Returns the newest revision of the key in these sources, except `source`.
    fn newest_in(&self, key: &Key, source: &Source, others: impl Iterator<Item = Source>) -> Option<i64> {
        let others = others.filter(|other| other != source);
        others.filter_map(|other| self.live.get(&other)?.get(key).copied()).max()
    }

    fn mark_received(&mut self, dirty: DirtySet) -> bool {
        let any = self.mark(dirty);
        if any {
            self.received.get_or_insert_with(Instant::now);
        }
        any
    }

    fn mark(&mut self, dirty: DirtySet) -> bool {
        let any = !dirty.is_empty();
        // A change of the settings that affects routing affects all networks.
        let is_any = !dirty.networks.is_empty() || !dirty.first_or_last.is_empty() || dirty.unreadable;
        self.interest += u64::from(is_any || !dirty.groups.is_empty());
        self.dirty.merge(dirty);
        any
    }
}

impl Attacher {
    /// Records an interface.
    pub fn attach(&self, id: &EndpointId, attachment: Attachment) {
        self.set(id, Some(attachment));
    }

    /// Removes the record of an interface.
    pub fn detach(&self, id: &EndpointId) {
        self.set(id, None);
    }

    /// Requests the objects that an endpoint needs while it is being attached to this node: the endpoints of its network,
    /// and the policies of its group.
    pub fn request(&self, network: &NetworkId, group: Option<&GroupKey>) -> Request {
        self.0.change(|inner| {
            inner.requests.add(network, group);
            inner.interest += 1;
        });
        Request { shared: self.0.clone(), network: network.clone(), group: group.cloned() }
    }

    /// Records the node's surroundings outside of the cluster's networks.
    pub fn surround(&self, surroundings: Surroundings) {
        if self.0.read().state.surroundings != surroundings {
            self.0.change(|inner| inner.state.surround(surroundings));
        }
    }

    fn set(&self, id: &EndpointId, attachment: Option<Attachment>) {
        self.0.change(|inner| {
            let dirty = inner.state.set_attachment(id, attachment);
            inner.mark(dirty);
            inner.interest += 1;
        });
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.shared.change(|inner| {
            inner.requests.remove(&self.network, self.group.as_ref());
            inner.interest += 1;
        });
    }
}

/// Parts that a node needs of the sources with one part for each network or group.
#[derive(Debug)]
pub struct Needs {
    /// Networks whose endpoints the node needs.
    pub networks: BTreeSet<NetworkId>,
    /// Groups whose policies the node needs; `None` if it needs all policies.
    pub groups: Option<BTreeSet<GroupKey>>,
    /// Value of [`Reader::interest`] for which this was computed.
    pub interest: u64,
}

impl Inner {
    fn has_endpoints_of(&self, network: &NetworkId) -> bool {
        let sources = [Source::Endpoints(network.clone()), Source::Prefix(ENDPOINTS)];
        sources.iter().any(|source| self.live.contains_key(source))
    }
}

impl Reader {
    /// Returns the parts that the node needs for its endpoints and interfaces, and for `more` networks.
    pub fn needs(&self, host: &HostName, more: &BTreeSet<NetworkId>) -> Needs {
        let inner = self.0.read();
        Needs {
            networks: inner.state.needed(host, inner.requests.networks().chain(more)),
            groups: inner.state.needed_groups(host, inner.requests.groups()),
            interest: inner.interest,
        }
    }

    /// Number of changes that may change the result of [`needs`](Self::needs).
    pub fn interest(&self) -> u64 {
        self.0.read().interest
    }

    /// Waits until [`interest`](Self::interest) is not `before`.
    pub async fn interest_changed(&self, before: u64) {
        self.wait_inner(|inner| (inner.interest != before).then_some(())).await;
    }

    /// Sources with a prefix that have delivered a snapshot and are still in the state.
    pub fn sources(&self, prefix: &str) -> BTreeSet<Source> {
        let inner = self.0.read();
        inner.live.keys().filter(|source| source.prefix() == prefix).cloned().collect()
    }

    /// Waits until the state has the policies of the group with this number and key.
    pub async fn has_policies_of(&self, number: GroupNumber, key: Option<&GroupKey>) {
        self.wait(|state| (!state.lacks_policies(number, key)).then_some(())).await;
    }

    /// Waits until the state has the endpoints of the network, and of the networks that are routed to it.
    pub async fn has_endpoints_of(&self, network: &NetworkId) {
        let is_complete = |inner: &Inner| {
            inner.state.reached_from([network]).iter().all(|reached| inner.has_endpoints_of(reached))
        };
        self.wait_inner(|inner| is_complete(inner).then_some(())).await;
    }

    /// Calls `read` with the current state, under a lock that blocks changes.
    pub fn with<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.0.read().state)
    }

    /// Newest store revision that changed the state.
    pub fn revision(&self) -> i64 {
        self.0.read().revision
    }

    /// Invalid objects.
    pub fn rejected(&self) -> Vec<Rejected> {
        self.0.read().rejected.values().cloned().collect()
    }

    /// Number of invalid objects.
    pub fn rejected_count(&self) -> usize {
        self.0.read().rejected.len()
    }

    /// Waits until the invalid objects differ from `before`, and returns them.
    pub async fn rejected_changed(&self, before: &[Rejected]) -> Vec<Rejected> {
        let other = |inner: &Inner| {
            let same = inner.rejected.values().eq(before);
            (!same).then(|| inner.rejected.values().cloned().collect())
        };
        self.wait_inner(other).await
    }

    /// Number of keys of a source, with valid or invalid values.
    pub fn known(&self, source: &Source) -> usize {
        self.0.read().live.get(source).map_or(0, BTreeMap::len)
    }

    /// Keys of a source, with valid or invalid values.
    pub fn keys(&self, source: &Source) -> BTreeSet<Key> {
        self.0.read().live.get(source).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Waits until the state has each of the keys at its revision or a later one, and no older policy whose id begins with
    /// a prefix and that is not among the keys.
    pub async fn caught_up(&self, keys: &[(Key, i64)], policies: Option<&(String, i64)>) {
        let is_old =
            |key: &Key, at: i64, listed: i64| at < listed && !keys.iter().any(|(known, _)| known == key);
        let is_current = |inner: &Inner| {
            let at = |key: &Key| inner.live.values().filter_map(|keys| keys.get(key)).max().copied();
            let arrived = keys.iter().all(|(key, revision)| at(key).is_some_and(|at| at >= *revision));
            let any_old = policies.is_some_and(|(prefix, listed)| {
                let first = Key::Policy(prefix.as_str().into());
                let is_below =
                    |key: &Key| matches!(key, Key::Policy(id) if id.as_str().starts_with(prefix.as_str()));
                let below = |keys: &BTreeMap<Key, i64>| {
                    let mut below = keys.range(first.clone()..).take_while(|(key, _)| is_below(key));
                    below.any(|(key, at)| is_old(key, *at, *listed))
                };
                inner.live.values().any(below)
            });
            (arrived && !any_old).then_some(())
        };
        self.wait_inner(is_current).await;
    }

    /// Sources without a complete snapshot.
    pub fn awaited(&self) -> Vec<Source> {
        self.0.read().awaited.iter().cloned().collect()
    }

    /// Calls `look` now and after each change, until it returns a value.
    pub async fn wait<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        self.wait_inner(|inner| look(&inner.state)).await
    }

    /// Waits until every source has delivered a snapshot.
    pub async fn synced(&self) {
        self.wait_inner(|inner| inner.awaited.is_empty().then_some(())).await;
    }

    async fn wait_inner<T>(&self, mut look: impl FnMut(&Inner) -> Option<T>) -> T {
        let mut generation = self.0.generation.subscribe();
        loop {
            generation.mark_unchanged();
            if let Some(seen) = look(&self.0.read()) {
                return seen;
            }
            if generation.changed().await.is_err() {
                // Unreachable: `self` owns the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Changes {
    /// Waits until the dirty set is not empty, and takes it together with the state's revision.
    pub async fn next(&mut self) -> (DirtySet, i64) {
        loop {
            self.generation.mark_unchanged();
            let (dirty, revision) = self.take();
            if !dirty.is_empty() {
                return (dirty, revision);
            }
            if self.generation.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes the dirty set, which may be empty, and the state's revision.
    pub fn take(&mut self) -> (DirtySet, i64) {
        {
            let inner = self.shared.read();
            if inner.dirty.is_empty() {
                self.received = None;
                return (DirtySet::default(), inner.revision);
            }
        }
        let mut inner = self.shared.write();
        self.received = inner.received.take();
        (std::mem::take(&mut inner.dirty), inner.revision)
    }

    /// Receipt of the oldest change of a source in the set that was taken last; `None` if it has only changes of this
    /// node's interfaces.
    pub fn received(&self) -> Option<Instant> {
        self.received
    }
}

#[cfg(test)]
mod tests;
