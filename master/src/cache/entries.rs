//! Changes of entries, as the watch or a read reports them.

use contiv_model::key::Key;
use contiv_model::{endpoint, service};
use contiv_store::KeyValue;

use super::ClusterCache;
use super::decoded::DecodedValue;
use super::derived::Derived;
use super::record::{ByType, Entry, Versioned, by_type};

/// Sets or deletes the value as of `revision`.
struct Set<'a> {
    cache: &'a mut ClusterCache,
    kv: Option<&'a KeyValue>,
    decoded: DecodedValue,
    revision: i64,
}

impl ByType for Set<'_> {
    type Output = ();

    fn entry<T: Entry>(self, id: &str) {
        self.cache.set_value::<T>(id, self.kv, self.decoded, self.revision);
    }

    fn derived<T: Derived>(self, id: &str) {
        self.cache.set_derived::<T>(id, self.kv, self.revision);
    }
}

impl ClusterCache {
    pub(super) fn set_entry(
        &mut self,
        key: &Key,
        kv: Option<&KeyValue>,
        decoded: DecodedValue,
        revision: i64,
    ) {
        match key {
            Key::ServiceLb(id) => self.set_service(id.as_str(), kv, decoded, revision),
            Key::Endpoint(id) => self.set_endpoint(id.as_str(), kv, decoded, revision),
            Key::Service { name, address } => {
                self.set_registration(&format!("{name}/{address}"), kv, decoded, revision);
            }
            key => by_type(key, Set { cache: self, kv, decoded, revision }).unwrap_or_default(),
        }
    }

    /// Removes the entry, so that the same revision can be set again.
    pub(super) fn remove_entry(&mut self, key: &Key) {
        self.set_entry(key, None, DecodedValue::default(), i64::MAX);
    }

    pub(super) fn set_value<T: Entry>(
        &mut self,
        id: &str,
        kv: Option<&KeyValue>,
        decoded: DecodedValue,
        revision: i64,
    ) {
        let table = T::table_mut(&mut self.tables);
        let known = table.get(id);
        if known.is_some_and(|known| revision <= known.revision) {
            return;
        }
        let known = known.map(|known| &*known.value);
        // An entry that is reloaded is removed first, at the revision `i64::MAX`.
        let changed = if revision == i64::MAX { self.complete } else { revision };
        let is_valid = match kv.map(|kv| decoded.take::<T>(kv)) {
            None => {
                self.links.replace(id, known, None, changed);
                table.remove(id);
                true
            }
            Some(Ok((value, unknown))) => {
                self.links.replace(id, known, Some(&value), changed);
                table.insert(id.to_owned(), Versioned { value, revision, unknown });
                true
            }
            Some(Err(error)) => {
                tracing::warn!(key = T::path(id), %error, "decode a value from the store: invalid; keeping the last valid one");
                false
            }
        };
        self.note_entry::<T>(id, is_valid, revision);
    }

    fn set_endpoint(&mut self, id: &str, kv: Option<&KeyValue>, decoded: DecodedValue, revision: i64) {
        let old = self.shared::<endpoint::State>(id);
        self.set_value::<endpoint::State>(id, kv, decoded, revision);
        let new = self.shared::<endpoint::State>(id);
        self.index.endpoint(old.as_deref(), new.as_deref());
        self.note_endpoint(id, kv, revision);
    }

    fn set_service(&mut self, id: &str, kv: Option<&KeyValue>, decoded: DecodedValue, revision: i64) {
        let old = self.shared::<service::State>(id);
        self.set_value::<service::State>(id, kv, decoded, revision);
        let new = self.shared::<service::State>(id);
        self.index.service(old.as_deref(), new.as_deref());
    }
}
