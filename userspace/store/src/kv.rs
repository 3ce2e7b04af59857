//! What a read returns.

use bytes::Bytes;

/// A key as the store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: Bytes,
    /// Revision of the put that made the key exist; changes when it is deleted and made again.
    pub create_revision: i64,
    /// Revision of the last put.
    pub mod_revision: i64,
    /// Puts since the key exists, from 1.
    pub version: i64,
    /// Lease that the key dies with; 0 for none.
    pub lease: i64,
}

/// All keys below a prefix, as they were at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub revision: i64,
    /// In key order.
    pub items: Vec<KeyValue>,
}

impl KeyValue {
    /// None for a key that is not text: none of ours is, and one such key must not hide the others.
    pub(crate) fn from_wire(kv: etcd_client::proto::PbKeyValue) -> Option<KeyValue> {
        let key = match String::from_utf8(kv.key) {
            Ok(key) => key,
            Err(e) => {
                tracing::warn!(key = %String::from_utf8_lossy(e.as_bytes()), "key is not UTF-8, left out");
                return None;
            }
        };
        Some(KeyValue {
            key,
            value: kv.value.into(),
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        })
    }
}
