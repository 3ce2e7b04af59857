use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use contiv_model::{event::Event, key::Key, name::EndpointId};
use tokio::sync::watch;

use super::{Attachment, Object, Rejected, State, Touched};

/// What a source tells: an event of one prefix, with objects that were understood or not.
#[derive(Clone, Debug)]
pub struct Update {
    /// The prefix that the source follows: a snapshot replaces everything below it.
    pub source: &'static str,
    /// The store revision at which this is so.
    pub revision: i64,
    /// What happened.
    pub event: Event<Key, Result<Object, Rejected>>,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    /// The newest revision that changed something here.
    revision: i64,
    touched: Touched,
    rejected: BTreeMap<Key, Rejected>,
    /// Sources that have not told everything yet.
    awaited: BTreeSet<&'static str>,
    /// Told so far of a snapshot that is not complete.
    snapshots: BTreeMap<&'static str, BTreeMap<Key, Result<Object, Rejected>>>,
    /// The keys that each source told of, understood or not.
    live: BTreeMap<&'static str, BTreeSet<Key>>,
}

#[derive(Debug)]
struct Shared {
    inner: RwLock<Inner>,
    /// Counts changes, so that waiting readers look again.
    generation: watch::Sender<u64>,
}

/// The one who applies what the sources tell.
#[derive(Debug)]
pub struct Writer(Arc<Shared>);

/// Tells of interfaces on this node.
#[derive(Clone, Debug)]
pub struct Attacher(Arc<Shared>);

/// Looks.
#[derive(Clone, Debug)]
pub struct Reader(Arc<Shared>);

/// Hears what was touched; only one may, since hearing takes it.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
    generation: watch::Receiver<u64>,
}

/// An empty state that is complete when every one of `sources` has told everything.
pub fn new(sources: impl IntoIterator<Item = &'static str>) -> (Writer, Attacher, Reader, Changes) {
    let (generation, receiver) = watch::channel(0);
    let inner = Inner { awaited: sources.into_iter().collect(), ..Inner::default() };
    let shared = Arc::new(Shared { inner: RwLock::new(inner), generation });
    (
        Writer(shared.clone()),
        Attacher(shared.clone()),
        Reader(shared.clone()),
        Changes { shared, generation: receiver },
    )
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        // Each change is made in one call that does not panic half-way.
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
    /// Takes one update in.
    pub fn apply(&mut self, update: Update) {
        self.0.change(|inner| inner.apply(update));
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
                let told = self.snapshots.remove(source).unwrap_or_default();
                let live = self.live.get(source).into_iter().flatten();
                let gone: Vec<_> = live.filter(|key| !told.contains_key(key)).cloned().collect();
                for key in gone {
                    self.delete(source, &key);
                }
                for (key, object) in told {
                    self.put(source, key, object);
                }
                self.awaited.remove(source);
                self.revision = self.revision.max(revision);
            }
            Event::Apply(key, object) => {
                if self.put(source, key, object) {
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

    /// Whether it is of interest to the plan.
    fn put(&mut self, source: &'static str, key: Key, object: Result<Object, Rejected>) -> bool {
        let touched = match object {
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
        self.live.entry(source).or_default().insert(key);
        self.touch(touched)
    }

    fn delete(&mut self, source: &'static str, key: &Key) -> bool {
        self.rejected.remove(key);
        if let Some(live) = self.live.get_mut(source) {
            live.remove(key);
        }
        let touched = self.state.set(key, None);
        self.touch(touched)
    }

    fn touch(&mut self, touched: Touched) -> bool {
        let any = !touched.is_empty();
        self.touched.merge(touched);
        any
    }
}

impl Attacher {
    /// The interface is there.
    pub fn attach(&self, id: &EndpointId, attachment: Attachment) {
        self.set(id, Some(attachment));
    }

    /// The interface goes.
    pub fn detach(&self, id: &EndpointId) {
        self.set(id, None);
    }

    fn set(&self, id: &EndpointId, attachment: Option<Attachment>) {
        self.0.change(|inner| {
            let touched = inner.state.set_attachment(id, attachment);
            inner.touch(touched);
        });
    }
}

impl Reader {
    /// Looks at the state as it is now; changes wait meanwhile.
    pub fn with<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.read().state)
    }

    /// The newest revision that changed something here.
    pub fn revision(&self) -> i64 {
        self.0.read().revision
    }

    /// What was not understood.
    pub fn rejected(&self) -> Vec<Rejected> {
        self.0.read().rejected.values().cloned().collect()
    }

    /// How many objects were not understood.
    pub fn rejected_count(&self) -> usize {
        self.0.read().rejected.len()
    }

    /// What was not understood, as soon as it is other than `before`.
    pub async fn rejected_other_than(&self, before: &[Rejected]) -> Vec<Rejected> {
        let other = |inner: &Inner| {
            let same = inner.rejected.values().eq(before);
            (!same).then(|| inner.rejected.values().cloned().collect())
        };
        self.wait_inner(other).await
    }

    /// The sources that have not told everything yet.
    pub fn awaited(&self) -> Vec<&'static str> {
        self.0.read().awaited.iter().copied().collect()
    }

    /// Looks after each change until there is something to see.
    pub async fn wait<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        self.wait_inner(|inner| look(&inner.state)).await
    }

    /// Resolves when every source has told everything.
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
                // The sender is beside the state that we hold.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Changes {
    /// Waits until something is touched, and takes it, with the revision that it brings the state to.
    pub async fn next(&mut self) -> (Touched, i64) {
        loop {
            self.generation.mark_unchanged();
            let (touched, revision) = self.take();
            if !touched.is_empty() {
                return (touched, revision);
            }
            if self.generation.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// What was touched and not heard yet, and the revision of the state.
    pub fn take(&mut self) -> (Touched, i64) {
        {
            let inner = self.shared.read();
            if inner.touched.is_empty() {
                return (Touched::default(), inner.revision);
            }
        }
        let mut inner = self.shared.write();
        (std::mem::take(&mut inner.touched), inner.revision)
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{endpoint::Endpoint, mac::Mac};

    use super::*;

    const EPS: &str = "eps";

    fn endpoint(name: &str) -> (Key, Result<Object, Rejected>) {
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
        (Key::Endpoint(name.into()), Ok(Object::Endpoint(endpoint)))
    }

    fn ids(reader: &Reader) -> Vec<String> {
        reader.with(|state| state.endpoints().map(|e| e.id.to_string()).collect())
    }

    #[test]
    fn a_snapshot_replaces_what_was_known_in_one_step() {
        let (mut writer, _, reader, mut changes) = new([EPS]);
        let mut tell = |revision, event| writer.apply(Update { source: EPS, revision, event });
        let apply = |name| {
            let (key, object) = endpoint(name);
            Event::InitApply(key, object)
        };
        for event in [Event::Init, apply("a"), apply("b"), Event::InitDone] {
            tell(5, event);
        }
        assert_eq!((ids(&reader), reader.revision()), (vec!["a".to_owned(), "b".to_owned()], 5));
        assert!(reader.awaited().is_empty());
        changes.take();
        tell(9, Event::Init);
        tell(9, apply("b"));
        assert_eq!(ids(&reader).len(), 2);
        tell(9, Event::InitDone);
        assert_eq!(ids(&reader), ["b"]);
        let (touched, revision) = changes.take();
        assert_eq!((touched.endpoints, revision), ([EndpointId::from("a")].into(), 9));
    }

    #[test]
    fn what_is_not_understood_leaves_the_last_good_version() {
        let (mut writer, _, reader, _) = new([EPS]);
        let (key, object) = endpoint("a");
        let mut tell = |event| writer.apply(Update { source: EPS, revision: 1, event });
        tell(Event::Apply(key.clone(), object));
        let rejected = Rejected { key: key.to_string(), why: "no JSON".into() };
        tell(Event::Apply(key.clone(), Err(rejected.clone())));
        assert_eq!((ids(&reader), reader.rejected()), (vec!["a".to_owned()], vec![rejected]));
        tell(Event::Delete(key));
        assert!(ids(&reader).is_empty() && reader.rejected().is_empty());
    }

    #[test]
    fn what_was_not_understood_and_is_gone_is_forgotten() {
        let (mut writer, _, reader, _) = new([EPS]);
        let ((a, object), (b, _)) = (endpoint("a"), endpoint("b"));
        let rejected = |key: &Key| Err(Rejected { key: key.to_string(), why: "no JSON".into() });
        let mut snapshot = |told: &[(&Key, Result<Object, Rejected>)]| {
            let mut tell = |event| writer.apply(Update { source: EPS, revision: 1, event });
            tell(Event::Init);
            for (key, object) in told {
                tell(Event::InitApply((*key).clone(), object.clone()));
            }
            tell(Event::InitDone);
        };
        snapshot(&[(&a, object), (&b, rejected(&b))]);
        snapshot(&[(&a, rejected(&a))]);
        assert_eq!((ids(&reader), reader.rejected_count()), (vec!["a".to_owned()], 1));
        snapshot(&[]);
        assert_eq!((ids(&reader).len(), reader.rejected_count()), (0, 0));
    }

    #[test]
    fn the_same_again_touches_nothing() {
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
