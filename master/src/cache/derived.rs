//! Records that netmaster derives from objects, for agents and operators. It never plans on their
//! content, which it can derive again: the cache has a digest of each, by which a plan finds out
//! whether the record in the store is still right. A thousand groups with 400 rules each have 800,000
//! of these records; their values would take 2 GB, and reading them takes longer than all others. A
//! netmaster that starts reads the keys of the policies only, and of the rules nothing
//! ([`unread`](super::unread)).

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::LazyLock;

use contiv_model::{
    key::{POLICIES, POLICY_RULES},
    policy::{DirectionalRuleState, PolicyState},
};
use contiv_store::{KeyValue, Op};
use patricia_tree::PatriciaMap;
use serde::{Serialize, de::DeserializeOwned};

use super::ClusterCache;
use super::listed::ListedIds;
use super::revisions::Revisions;
use super::unknown_fields::UnknownFields;

/// A value that is derived from objects, with a key of its own in the store.
pub trait Derived: Hash + PartialEq + Serialize + DeserializeOwned + 'static {
    /// Prefix of the keys of these values in the store.
    const KEYS: &'static str;
    /// Whether the table has all keys. Of another table it has those that were [read](ListedIds).
    const HAS_ALL_KEYS: bool;
    /// Key of the value in the store.
    fn path(id: &str) -> String {
        format!("{}{id}", Self::KEYS)
    }
    #[doc(hidden)]
    fn table(tables: &DerivedTables) -> &DerivedTable;
    #[doc(hidden)]
    fn table_mut(tables: &mut DerivedTables) -> &mut DerivedTable;
    #[doc(hidden)]
    fn overlay(overlays: &DerivedOverlays) -> &DerivedOverlay<Self>
    where
        Self: Sized;
    #[doc(hidden)]
    fn overlay_mut(overlays: &mut DerivedOverlays) -> &mut DerivedOverlay<Self>
    where
        Self: Sized;
}

/// Digest of a derived value; the same in all caches of this process, and in no other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    pub(super) fn of(value: &impl Hash) -> Digest {
        // With a random key, so that a client cannot make two policies with the same digest.
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Digest(KEY.hash_one(value))
    }
}

/// What the cache knows of the value of a derived record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// It was not read yet.
    Unread,
    /// It cannot be decoded, so it is none that netmaster derives.
    Invalid,
    Known(Digest),
}

/// What the cache has of a derived record.
pub(super) struct DerivedRecord {
    pub(super) revision: i64,
    pub(super) content: Content,
    unknown: UnknownFields,
}

impl DerivedRecord {
    fn unread(revision: i64) -> DerivedRecord {
        DerivedRecord { revision, content: Content::Unread, unknown: UnknownFields::default() }
    }

    /// Decodes the value.
    pub(super) fn read<T: Derived>(id: &str, value: &[u8], revision: i64) -> DerivedRecord {
        match UnknownFields::read::<T>(value) {
            Ok((value, unknown)) => {
                DerivedRecord { revision, content: Content::Known(Digest::of(&value)), unknown }
            }
            Err(error) => {
                tracing::warn!(key = T::path(id), %error, "decode a value from the store: invalid; deriving it again with the next change, or the next leader");
                DerivedRecord { revision, content: Content::Invalid, unknown: UnknownFields::default() }
            }
        }
    }
}

/// Records by the last part of their key, the beginning of which many have in common.
#[derive(Default)]
pub struct DerivedTable {
    pub(super) records: PatriciaMap<DerivedRecord>,
    /// Of a table without [all keys](Derived::HAS_ALL_KEYS).
    pub(super) listed: ListedIds,
}

/// Staged changes of a table: a put (`Some`) or a deletion.
pub(super) type DerivedOverlay<T> = BTreeMap<String, Option<T>>;

#[derive(Default)]
pub struct DerivedTables {
    policies: DerivedTable,
    rules: DerivedTable,
}

#[derive(Default)]
pub struct DerivedOverlays {
    policies: DerivedOverlay<PolicyState>,
    rules: DerivedOverlay<DirectionalRuleState>,
}

macro_rules! derived {
    ($($field:ident: $type:ty, $keys:ident, $has_all_keys:literal;)*) => {
        $(impl Derived for $type {
            const KEYS: &'static str = $keys;
            const HAS_ALL_KEYS: bool = $has_all_keys;
            fn table(tables: &DerivedTables) -> &DerivedTable { &tables.$field }
            fn table_mut(tables: &mut DerivedTables) -> &mut DerivedTable { &mut tables.$field }
            fn overlay(overlays: &DerivedOverlays) -> &DerivedOverlay<Self> { &overlays.$field }
            fn overlay_mut(overlays: &mut DerivedOverlays) -> &mut DerivedOverlay<Self> { &mut overlays.$field }
        })*

        impl DerivedOverlays {
            pub(super) fn len(&self) -> usize {
                0 $(+ self.$field.len())*
            }

            /// Number of puts.
            pub(super) fn puts(&self) -> usize {
                0 $(+ self.$field.values().flatten().count())*
            }

            /// Passes each change to `each`: key, revision guard and operation.
            pub(super) fn ops(
                &self,
                tables: &DerivedTables,
                mut each: impl FnMut(String, i64, Option<Op>),
            ) -> serde_json::Result<()> {
                $(tables.$field.ops(&self.$field, &mut each)?;)*
                Ok(())
            }

            /// Applies the changes to the tables, except where the table has a newer revision.
            /// Passes each deleted key and its revision to `deleted`.
            pub(super) fn apply(
                self,
                tables: &mut DerivedTables,
                at: &Revisions,
                mut deleted: impl FnMut(String, i64),
            ) {
                $(tables.$field.apply(self.$field, at, &mut deleted);)*
            }
        }
    };
}

derived! {
    policies: PolicyState, POLICIES, true;
    rules: DirectionalRuleState, POLICY_RULES, false;
}

impl DerivedTable {
    pub(super) fn get(&self, id: &str) -> Option<&DerivedRecord> {
        self.records.get(id)
    }

    /// Records whose ids begin with `prefix`, sorted.
    pub(super) fn below(&self, prefix: &str) -> impl Iterator<Item = (String, &DerivedRecord)> {
        let below = self.records.iter_prefix(prefix.as_bytes());
        // An id was text when it was inserted.
        below.filter_map(|(id, record)| Some((String::from_utf8(id).ok()?, record)))
    }

    pub(super) fn insert(&mut self, id: &str, record: DerivedRecord) {
        self.records.insert(id, record);
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.records.remove(id);
    }

    /// Whether the table knows which records exist whose ids begin with `id`. One that is not of a policy on a group is none that
    /// netmaster derives.
    pub(super) fn knows<T: Derived>(&self, id: &str) -> bool {
        T::HAS_ALL_KEYS || attached(id).is_none() || self.listed.contains(id)
    }

    fn ops<T: Derived>(
        &self,
        overlay: &DerivedOverlay<T>,
        each: &mut impl FnMut(String, i64, Option<Op>),
    ) -> serde_json::Result<()> {
        for (id, value) in overlay {
            let key = T::path(id);
            let known = self.get(id);
            let op = match (value, known) {
                (Some(value), Some(known)) => put(&key, known.unknown.encode(value)?),
                (Some(value), None) => put(&key, serde_json::to_vec(value)?),
                (None, _) => Op::Delete { key: key.clone() },
            };
            each(key, known.map_or(0, |known| known.revision), Some(op));
        }
        Ok(())
    }

    fn apply<T: Derived>(
        &mut self,
        overlay: DerivedOverlay<T>,
        at: &Revisions,
        deleted: &mut impl FnMut(String, i64),
    ) {
        for (id, value) in overlay {
            let key = T::path(&id);
            let revision = at.of(&key);
            if self.get(&id).is_some_and(|known| known.revision > revision) {
                continue;
            }
            if !self.knows::<T>(&id) {
                self.listed.ignore(revision);
                continue;
            }
            self.listed.follow(revision);
            let known = self.records.remove(&id);
            match value {
                Some(value) => {
                    let unknown = known.map(|known| known.unknown).unwrap_or_default();
                    let content = Content::Known(Digest::of(&value));
                    let record = DerivedRecord { revision, content, unknown };
                    self.records.insert(id, record);
                }
                None => {
                    deleted(key, revision);
                    self.forget_if_empty(&id, revision);
                }
            }
        }
    }

    /// Groups and policies come and go: of those without records the table has no prefixes.
    fn forget_if_empty(&mut self, id: &str, revision: i64) {
        if let Some(attached) = attached(id)
            && self.below(attached).next().is_none()
        {
            self.listed.remove(attached, revision);
        }
    }
}

/// The beginning of the id of a rule that is that of its policy on a group: four names, each with a colon.
pub(super) fn attached(id: &str) -> Option<&str> {
    id.match_indices(':').nth(3).map(|(colon, _)| &id[..=colon])
}

fn put(key: &str, value: Vec<u8>) -> Op {
    Op::Put { key: key.to_owned(), value: value.into(), lease: None }
}

impl ClusterCache {
    /// Ids of the records, sorted, with what is known of their values.
    pub fn derived<T: Derived>(&self) -> impl Iterator<Item = (String, Content)> {
        T::table(&self.tables.derived).below("").map(|(id, record)| (id, record.content))
    }

    /// Sets or deletes the record as of `revision`. One without a value was not read yet.
    pub(super) fn set_derived<T: Derived>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let table = T::table_mut(&mut self.tables.derived);
        if !table.knows::<T>(id) {
            // An entry that is reloaded is removed first, at the revision `i64::MAX`.
            if revision != i64::MAX {
                table.listed.ignore(revision);
            }
            return;
        }
        if table.get(id).is_some_and(|known| revision <= known.revision) {
            return;
        }
        if revision != i64::MAX {
            table.listed.follow(revision);
        }
        match kv {
            None => table.remove(id),
            // Only listings of tables with all keys leave values out.
            Some(kv) if T::HAS_ALL_KEYS && kv.value.is_empty() => {
                table.insert(id, DerivedRecord::unread(revision));
            }
            Some(kv) => table.insert(id, DerivedRecord::read::<T>(id, &kv.value, revision)),
        }
    }
}
