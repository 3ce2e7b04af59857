//! Results of reads.

use bytes::Bytes;

/// A key with its value and revisions, as etcd's `mvccpb.KeyValue`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key, as text.
    pub key: String,
    /// The value, as bytes.
    pub value: Bytes,
    /// Revision of the put that created the key. Changes when the key is deleted and created again.
    pub create_revision: i64,
    /// Revision of the last put.
    pub mod_revision: i64,
    /// Number of puts since the key was created, from 1.
    pub version: i64,
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
}

/// A point in the history of one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Cluster id of etcd: another data directory of the embedded store has another id. An etcd
    /// cluster that is created again with the same members and token has the same id.
    pub cluster: u64,
    /// Revision; never decreases while the store keeps its data.
    pub revision: i64,
}

/// All keys with a prefix, at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Cluster id of the store; see [`Position`].
    pub cluster: u64,
    /// The store's revision of the listing.
    pub revision: i64,
    /// The keys, in key order.
    pub items: Vec<KeyValue>,
}

impl KeyValue {
    /// Returns `None` for a key that is not UTF-8. Contiv writes no such key, and it must not hide
    /// the others.
    pub(crate) fn from_wire(kv: etcd_client::proto::PbKeyValue) -> Option<KeyValue> {
        let key = match String::from_utf8(kv.key) {
            Ok(key) => key,
            Err(e) => {
                tracing::warn!(key = %String::from_utf8_lossy(e.as_bytes()), "key is not UTF-8; skipped");
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
