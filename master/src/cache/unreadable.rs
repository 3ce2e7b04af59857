//! Records of endpoints that cannot be decoded: another program has written them, or a newer release
//! in another form. What can be read of them is kept, so that the endpoints can be deleted.

use bytes::Bytes;
use contiv_model::endpoint::State;
use contiv_store::KeyValue;
use serde_json::{Map, Value};

use super::ClusterCache;
use super::record::Entry as _;
use super::revisions::Revisions;

/// An endpoint whose record cannot be decoded.
pub(super) struct UnreadableEndpoint {
    /// Revision of the record.
    revision: i64,
    /// The record.
    value: Bytes,
    /// The fields of the record that can be decoded. The others are those of the last valid version,
    /// or empty.
    known: State,
}

impl UnreadableEndpoint {
    fn read(id: &str, kv: &KeyValue, last_valid: Option<&State>) -> UnreadableEndpoint {
        let last_valid = last_valid.and_then(|state| serde_json::to_value(state).ok());
        let mut fields = match last_valid {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        fields.extend(decodable_fields(&kv.value));
        let known: State = serde_json::from_value(Value::Object(fields)).unwrap_or_default();
        let known = State { id: id.to_owned(), ..known };
        UnreadableEndpoint { revision: kv.mod_revision, value: kv.value.clone(), known }
    }
}

/// The fields that can be decoded, each by itself. None if the record is not a JSON object.
fn decodable_fields(record: &[u8]) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(record) else { return Map::new() };
    fields.retain(|name, value| {
        let field = Map::from_iter([(name.clone(), value.clone())]);
        serde_json::from_value::<State>(Value::Object(field)).is_ok()
    });
    fields
}

impl ClusterCache {
    /// Endpoints whose records cannot be decoded, with what is known of them. The table of endpoints
    /// may have earlier versions of them.
    pub fn unreadable_endpoints(&self) -> impl Iterator<Item = &State> {
        self.unreadable_endpoints.values().map(|record| &record.known)
    }

    /// What is known of the endpoint, if its record cannot be decoded.
    pub fn unreadable_endpoint(&self, id: &str) -> Option<&State> {
        self.unreadable_endpoints.get(id).map(|record| &record.known)
    }

    /// Revision of the endpoint's record, if it cannot be decoded.
    pub(super) fn unreadable_revision(&self, id: &str) -> Option<i64> {
        self.unreadable_endpoints.get(id).map(|record| record.revision)
    }

    /// The endpoint's record and its revision, if it cannot be decoded.
    pub(super) fn unreadable_record(&self, id: &str) -> Option<(Bytes, i64)> {
        self.unreadable_endpoints.get(id).map(|record| (record.value.clone(), record.revision))
    }

    /// Revision of the endpoint's record, which need not be valid; 0 without a record.
    pub(super) fn endpoint_revision(&self, id: &str) -> i64 {
        let valid = || self.table::<State>().get(id).map_or(0, |known| known.revision);
        self.unreadable_revision(id).unwrap_or_else(valid)
    }

    /// Notes whether the endpoint's record can be decoded, after it was set or deleted in the table.
    pub(super) fn note_endpoint(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        if self.unreadable_revision(id).is_some_and(|known| revision <= known) {
            return;
        }
        let valid = self.table::<State>().get(id);
        match kv {
            // The table keeps the last valid version.
            Some(kv) if valid.is_none_or(|valid| valid.revision < revision) => {
                let record = UnreadableEndpoint::read(id, kv, valid.map(|valid| &*valid.value));
                self.unreadable_endpoints.insert(id.to_owned(), record);
            }
            _ => {
                self.unreadable_endpoints.remove(id);
            }
        }
    }

    /// Completes what is known of an endpoint whose record was read again and cannot be decoded.
    pub(super) fn complete_unreadable(&mut self, id: &str, kv: &KeyValue, last_valid: &State) {
        if let Some(record) = self.unreadable_endpoints.get_mut(id) {
            *record = UnreadableEndpoint::read(id, kv, Some(last_valid));
        }
    }

    /// Notes that a committed change has written the endpoint's record, which cannot be decoded, again.
    pub(super) fn note_renewed(&mut self, id: &str, at: &Revisions) {
        let key = State::path(id);
        let written = at.of(&key);
        if let Some(record) = self.unreadable_endpoints.get_mut(id)
            && record.revision < written
        {
            record.revision = written;
            self.unreadable_entries.insert(key, written);
        }
    }

    /// Forgets records that a committed change has deleted or replaced.
    pub(super) fn forget_unreadable<'c>(&mut self, ids: impl Iterator<Item = &'c String>, at: &Revisions) {
        for id in ids {
            let key = State::path(id);
            let written = at.of(&key);
            if self.unreadable_revision(id).is_some_and(|known| known <= written) {
                self.unreadable_endpoints.remove(id);
                self.unreadable_entries.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use serde_json::json;

    use super::*;

    const ID: &str = "n.t-c1";
    const KEY: &str = "/contiv.io/state/eps/n.t-c1";

    fn set(cache: &mut ClusterCache, revision: i64, value: &Value) {
        cache.set(KEY, Some(&record(revision, value)), revision);
    }

    fn record(revision: i64, value: &Value) -> KeyValue {
        KeyValue {
            key: KEY.to_owned(),
            value: value.to_string().into(),
            create_revision: 1,
            mod_revision: revision,
            version: 1,
            lease: 0,
        }
    }

    fn known(cache: &ClusterCache) -> Option<(&str, &str, i64)> {
        let state = cache.unreadable_endpoint(ID)?;
        assert_eq!(state.id, ID);
        Some((state.net_id.as_str(), state.ip_address.as_str(), cache.unreadable_revision(ID)?))
    }

    #[test]
    fn valid_fields_of_an_invalid_record_are_known() {
        let mut cache = ClusterCache::default();
        set(&mut cache, 5, &json!({"id": "x", "netID": "n.t", "ipAddress": "10.0.0.1", "labels": ["new"]}));
        assert_eq!(known(&cache), Some(("n.t", "10.0.0.1", 5)));
        assert!(cache.get::<State>(ID).is_none());
        for (revision, value) in
            [(6, json!("{")), (7, json!(null)), (8, json!({"netID": 1, "ipAddress": []}))]
        {
            set(&mut cache, revision, &value);
            assert_eq!(known(&cache), Some(("", "", revision)), "{value}");
        }
        // What arrives late changes nothing.
        set(&mut cache, 4, &json!({"netID": "old.t"}));
        assert_eq!(known(&cache), Some(("", "", 8)));
        set(&mut cache, 9, &json!({"netID": "n.t"}));
        assert_eq!((known(&cache), cache.get::<State>(ID).is_some()), (None, true));
        set(&mut cache, 8, &json!("{"));
        assert_eq!(known(&cache), None);
    }

    #[test]
    fn the_last_valid_version_completes_an_invalid_one() {
        let mut cache = ClusterCache::default();
        set(&mut cache, 5, &json!({"netID": "n.t", "ipAddress": "10.0.0.1"}));
        assert_eq!(known(&cache), None);
        let invalid = json!({"ipAddress": "10.0.0.2", "labels": 1});
        set(&mut cache, 6, &invalid);
        assert_eq!(known(&cache), Some(("n.t", "10.0.0.2", 6)));
        assert_eq!(cache.get::<State>(ID).unwrap().ip_address, "10.0.0.1");
        // Also if the commit of another change finds the invalid one before the watch reports it.
        let mut cache = ClusterCache::default();
        set(&mut cache, 5, &json!({"netID": "n.t", "ipAddress": "10.0.0.1"}));
        cache.reload(KEY, Some(&record(6, &json!("{"))), 6);
        assert_eq!((known(&cache), cache.get::<State>(ID)), (Some(("n.t", "10.0.0.1", 6)), None));
        let owner: IpAddr = [10, 0, 0, 1].into();
        assert!(cache.address_owners("n.t", owner).is_empty());
        cache.set(KEY, None, 7);
        assert_eq!(known(&cache), None);
    }
}
