//! How a source tells what exists and what changed.

/// A change of one keyed object, or the frame of a full snapshot.
///
/// A snapshot is `Init`, then one `InitApply` for each object that exists, then `InitDone`; it
/// replaces everything known before in one step, so half a snapshot removes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<K, V> {
    /// A snapshot begins.
    Init,
    /// One object of the snapshot.
    InitApply(K, V),
    /// The snapshot is complete: what it did not mention does not exist.
    InitDone,
    /// The object exists with this value now.
    Apply(K, V),
    /// The object is gone.
    Delete(K),
}

impl<K, V> Event<K, V> {
    /// The same event about another kind of key or value.
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
