//! Events of a source of keyed objects.

/// A change of one keyed object, or the frame of a full snapshot.
///
/// A snapshot is `Init`, then one `InitApply` for each existing object, then `InitDone`. It
/// replaces the previous state in one step, so an incomplete snapshot removes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<K, V> {
    /// Begin of a snapshot.
    Init,
    /// One object of the snapshot.
    InitApply(K, V),
    /// End of the snapshot: objects that it does not contain do not exist.
    InitDone,
    /// The object was created or changed, and has this value.
    Apply(K, V),
    /// The object was deleted.
    Delete(K),
}

impl<K, V> Event<K, V> {
    /// Converts key and value.
    pub fn map<K2, V2>(self, key: impl FnOnce(K) -> K2, value: impl FnOnce(V) -> V2) -> Event<K2, V2> {
        match self {
            Event::Init => Event::Init,
            Event::InitApply(k, v) => Event::InitApply(key(k), value(v)),
            Event::InitDone => Event::InitDone,
            Event::Apply(k, v) => Event::Apply(key(k), value(v)),
            Event::Delete(k) => Event::Delete(key(k)),
        }
    }
}
