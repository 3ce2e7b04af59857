use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use contiv_model::{event::Event, key::Key, name::EndpointId};
use tokio::{sync::watch, time::Instant};

use super::{
    dirty::DirtySet,
    object::{Attachment, ClusterObject},
    rejected::Rejected,
    snapshot::State,
};

/// An event of one source, with a validated or rejected object.
#[derive(Clone, Debug)]
pub struct Update {
    /// Key prefix that the source watches. A snapshot replaces everything below it.
    pub source: &'static str,
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
    awaited: BTreeSet<&'static str>,
    /// Objects of incomplete snapshots.
    snapshots: BTreeMap<&'static str, BTreeMap<Key, Result<ClusterObject, Rejected>>>,
    /// Keys of each source, with valid or invalid values, and the store revision up to which the value is current.
    live: BTreeMap<&'static str, BTreeMap<Key, i64>>,
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

/// Records the interfaces on this node.
#[derive(Clone, Debug)]
pub struct Attacher(Arc<Shared>);

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
    let inner = Inner { awaited: sources.into_iter().collect(), ..Inner::default() };
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

    /// Prepares for the snapshots of another store, whose revisions are not comparable with the previous ones.
    pub fn restart(&mut self) {
        self.0.change(|inner| inner.revision = 0);
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
                let snapshot = self.snapshots.remove(source).unwrap_or_default();
                let live = self.live.get(source).into_iter().flat_map(BTreeMap::keys);
                let gone: Vec<_> = live.filter(|key| !snapshot.contains_key(key)).cloned().collect();
                for key in gone {
                    self.delete(source, &key);
                }
                for (key, object) in snapshot {
                    self.put(source, key, object, revision);
                }
                self.awaited.remove(source);
                self.revision = self.revision.max(revision);
            }
            Event::Apply(key, object) => {
                if self.put(source, key, object, revision) {
                    self.revision = self.revision.max(revision);
                }
            }
            Event::Delete(key) => {
                if self.delete(source, &key) {
                    self.revision = self.revision.max(revision);
                }
            }
        }
    }

    /// Returns whether the change affects the plan.
    fn put(
        &mut self,
        source: &'static str,
        key: Key,
        object: Result<ClusterObject, Rejected>,
        revision: i64,
    ) -> bool {
        let dirty = match object {
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
        self.live.entry(source).or_default().insert(key, revision);
        self.mark_received(dirty)
    }

    fn delete(&mut self, source: &'static str, key: &Key) -> bool {
        self.rejected.remove(key);
        if let Some(live) = self.live.get_mut(source) {
            live.remove(key);
        }
        let dirty = self.state.set(key, None);
        self.mark_received(dirty)
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

    fn set(&self, id: &EndpointId, attachment: Option<Attachment>) {
        self.0.change(|inner| {
            let dirty = inner.state.set_attachment(id, attachment);
            inner.mark(dirty);
        });
    }
}

impl Reader {
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
    pub fn known(&self, source: &str) -> usize {
        self.0.read().live.get(source).map_or(0, BTreeMap::len)
    }

    /// Keys of a source, with valid or invalid values.
    pub fn keys(&self, source: &str) -> BTreeSet<Key> {
        self.0.read().live.get(source).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Waits until the state has each of the keys at its revision or a later one, and no older policy whose id begins with
    /// a prefix and that is not among the keys.
    pub async fn caught_up(&self, keys: &[(Key, i64)], policies: Option<&(String, i64)>) {
        let is_old =
            |key: &Key, at: i64, listed: i64| at < listed && !keys.iter().any(|(known, _)| known == key);
        let is_current = |inner: &Inner| {
            let at = |key: &Key| inner.live.values().find_map(|keys| keys.get(key)).copied();
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
    pub fn awaited(&self) -> Vec<&'static str> {
        self.0.read().awaited.iter().copied().collect()
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
mod tests {
    use contiv_model::{endpoint::Endpoint, mac::Mac};

    use super::*;

    const EPS: &str = "eps";

    fn endpoint(name: &str) -> (Key, Result<ClusterObject, Rejected>) {
        let endpoint = Endpoint {
            id: name.into(),
            network: "n.t".into(),
            group: None,
            group_number: None,
            ip: [10, 0, 0, 1].into(),
            ip6: None,
            mac: Mac([2, 2, 10, 0, 0, 1]),
            host: "h".into(),
            vtep: None,
        };
        (Key::Endpoint(name.into()), Ok(ClusterObject::Endpoint(endpoint)))
    }

    fn ids(reader: &Reader) -> Vec<String> {
        reader.with(|state| state.endpoints().map(|e| e.id.to_string()).collect())
    }

    #[test]
    fn snapshot_replaces_the_state_atomically() {
        let (mut writer, _, reader, mut changes) = new([EPS]);
        let mut send = |revision, event| writer.apply(Update { source: EPS, revision, event });
        let apply = |name| {
            let (key, object) = endpoint(name);
            Event::InitApply(key, object)
        };
        for event in [Event::Init, apply("a"), apply("b"), Event::InitDone] {
            send(5, event);
        }
        assert_eq!((ids(&reader), reader.revision()), (vec!["a".to_owned(), "b".to_owned()], 5));
        assert!(reader.awaited().is_empty());
        changes.take();
        send(9, Event::Init);
        send(9, apply("b"));
        assert_eq!(ids(&reader).len(), 2);
        send(9, Event::InitDone);
        assert_eq!(ids(&reader), ["b"]);
        let (dirty, revision) = changes.take();
        assert_eq!((dirty.endpoints, revision), ([EndpointId::from("a")].into(), 9));
    }

    #[test]
    fn updates_of_a_transaction_are_one_step() {
        let (mut writer, _, reader, mut changes) = new([EPS]);
        let apply = |name| {
            let (key, object) = endpoint(name);
            Update { source: EPS, revision: 2, event: Event::Apply(key, object) }
        };
        let delete = |name: &str| Update { source: EPS, revision: 2, event: Event::Delete(endpoint(name).0) };
        writer.apply(apply("a"));
        changes.take();
        let generation = *changes.generation.borrow();
        // An update may be read from another thread only when all of them are applied.
        let between = reader.clone();
        let locked = move |update: Update| {
            assert!(between.0.inner.try_read().is_err(), "the state can be read within the transaction");
            update
        };
        writer.apply_all([delete("a"), apply("b"), apply("c")].into_iter().map(locked));
        assert_eq!(*changes.generation.borrow(), generation + 1);
        assert_eq!(ids(&reader), ["b", "c"]);
    }

    #[test]
    fn invalid_object_keeps_the_last_valid_version() {
        let (mut writer, _, reader, _) = new([EPS]);
        let (key, object) = endpoint("a");
        let mut send = |event| writer.apply(Update { source: EPS, revision: 1, event });
        send(Event::Apply(key.clone(), object));
        let rejected = Rejected { key: key.to_string(), why: "no JSON".into() };
        send(Event::Apply(key.clone(), Err(rejected.clone())));
        assert_eq!((ids(&reader), reader.rejected()), (vec!["a".to_owned()], vec![rejected]));
        send(Event::Delete(key));
        assert!(ids(&reader).is_empty() && reader.rejected().is_empty());
    }

    #[test]
    fn deleted_invalid_object_is_forgotten() {
        let (mut writer, _, reader, _) = new([EPS]);
        let ((a, object), (b, _)) = (endpoint("a"), endpoint("b"));
        let rejected = |key: &Key| Err(Rejected { key: key.to_string(), why: "no JSON".into() });
        let mut snapshot = |objects: &[(&Key, Result<ClusterObject, Rejected>)]| {
            let mut send = |event| writer.apply(Update { source: EPS, revision: 1, event });
            send(Event::Init);
            for (key, object) in objects {
                send(Event::InitApply((*key).clone(), object.clone()));
            }
            send(Event::InitDone);
        };
        snapshot(&[(&a, object), (&b, rejected(&b))]);
        snapshot(&[(&a, rejected(&a))]);
        assert_eq!((ids(&reader), reader.rejected_count()), (vec!["a".to_owned()], 1));
        snapshot(&[]);
        assert_eq!((ids(&reader).len(), reader.rejected_count()), (0, 0));
    }

    #[test]
    fn unchanged_object_is_not_dirty() {
        let (mut writer, attacher, _, mut changes) = new([EPS]);
        let (key, object) = endpoint("a");
        writer.apply(Update { source: EPS, revision: 1, event: Event::Apply(key.clone(), object.clone()) });
        assert!(!changes.take().0.is_empty());
        writer.apply(Update { source: EPS, revision: 2, event: Event::Apply(key, object) });
        assert!(changes.take().0.is_empty());
        attacher.attach(&"a".into(), Attachment::of_pod("vvport1"));
        attacher.attach(&"a".into(), Attachment::of_pod("vvport1"));
        assert_eq!(changes.take().0.endpoints.len(), 1);
    }
}
