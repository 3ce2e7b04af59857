//! Derived records that the cache has not read yet. A netmaster that starts reads the keys of policies on groups, and nothing of
//! their rules; it needs them when it derives the records again.

use contiv_model::key::{Key, POLICIES, POLICY_RULES};
use contiv_model::policy::{DirectionalRuleState, PolicyState};
use contiv_store::{Listing, Without};

use super::ClusterCache;
use super::derived::{Content, Derived, DerivedRecord, DerivedTable, attached};

/// What the cache can do without at first.
pub const DERIVED_KEYS: [(&str, Without); 2] = [(POLICIES, Without::Values), (POLICY_RULES, Without::Keys)];

/// Keys of derived records that are read together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DerivedKeys {
    /// One key.
    One(String),
    /// All keys that begin with this.
    Below(String),
}

impl DerivedKeys {
    /// The record, and all that are derived from the same policy on the same group.
    pub(super) fn around<T: Derived>(id: &str) -> DerivedKeys {
        match attached(id) {
            Some(attached) => DerivedKeys::Below(T::path(attached)),
            None => DerivedKeys::One(T::path(id)),
        }
    }
}

/// Derived records, as the store had them.
pub struct DerivedValues {
    keys: DerivedKeys,
    revision: i64,
    policies: Vec<(String, DerivedRecord)>,
    rules: Vec<(String, DerivedRecord)>,
}

impl DerivedValues {
    /// Decodes a listing of `keys`.
    pub fn decode(keys: DerivedKeys, listing: &Listing) -> DerivedValues {
        let (mut policies, mut rules) = (vec![], vec![]);
        for kv in &listing.items {
            match kv.key.parse() {
                Ok(Key::Policy(id)) => {
                    let record = DerivedRecord::read::<PolicyState>(id.as_str(), &kv.value, kv.mod_revision);
                    policies.push((id.as_str().to_owned(), record));
                }
                Ok(Key::PolicyRule(id)) => {
                    let record =
                        DerivedRecord::read::<DirectionalRuleState>(id.as_str(), &kv.value, kv.mod_revision);
                    rules.push((id.as_str().to_owned(), record));
                }
                Ok(_) | Err(_) => {}
            }
        }
        DerivedValues { keys, revision: listing.revision, policies, rules }
    }
}

impl ClusterCache {
    /// Whether these derived records, or values of them, were not read yet.
    pub fn has_unread(&self, keys: &DerivedKeys) -> bool {
        self.lacks::<PolicyState>(keys) || self.lacks::<DirectionalRuleState>(keys)
    }

    fn lacks<T: Derived>(&self, keys: &DerivedKeys) -> bool {
        let (DerivedKeys::One(key) | DerivedKeys::Below(key)) = keys;
        let knows = |id| T::table(&self.tables.derived).knows::<T>(id);
        key.strip_prefix(T::KEYS).is_some_and(|id| !knows(id)) || !self.unread_ids::<T>(keys).is_empty()
    }

    /// Completes the records that were not read yet.
    pub fn complete_derived(&mut self, values: DerivedValues) {
        let DerivedValues { keys, revision, policies, rules } = values;
        self.complete_table::<PolicyState>(&keys, revision, policies);
        self.list_table::<DirectionalRuleState>(&keys, revision, rules);
    }

    /// Forgets the records whose changes the watch may have lost: a listing of this revision has replaced them.
    pub fn forget_unlisted(&mut self, revision: i64) {
        let table = DirectionalRuleState::table_mut(&mut self.tables.derived);
        // They are read at a later revision, also by who has begun before.
        let listed = table.listed.forgotten(revision);
        *table = DerivedTable { listed, ..DerivedTable::default() };
    }

    /// Completes a table without all keys.
    fn list_table<T: Derived>(&mut self, keys: &DerivedKeys, at: i64, read: Vec<(String, DerivedRecord)>) {
        let DerivedKeys::Below(prefix) = keys else { return };
        let Some(prefix) = prefix.strip_prefix(T::KEYS) else { return };
        let table = T::table_mut(&mut self.tables.derived);
        if table.listed.contains(prefix) || !table.listed.accepts(at) {
            return;
        }
        // Of a part that was listed before, the table may know more.
        for (id, record) in read.into_iter().filter(|(id, _)| !table.listed.contains(id)) {
            table.records.insert(id, record);
        }
        table.listed.insert(prefix);
    }

    fn complete_table<T: Derived>(
        &mut self,
        keys: &DerivedKeys,
        at: i64,
        read: Vec<(String, DerivedRecord)>,
    ) {
        let unread = self.unread_ids::<T>(keys);
        let table = T::table_mut(&mut self.tables.derived);
        for (id, record) in read {
            // One that the cache does not have was deleted since, or the watch has yet to report it.
            let Some(known) = table.get(&id) else { continue };
            let is_news = match known.content {
                Content::Unread => known.revision <= record.revision,
                Content::Invalid | Content::Known(_) => known.revision < record.revision,
            };
            if is_news {
                table.insert(&id, record);
            }
        }
        // What is still unread and not newer than the listing was deleted.
        let is_gone = |id: &String| {
            let known = table.get(id);
            known.is_some_and(|known| known.content == Content::Unread && known.revision <= at)
        };
        let gone: Vec<_> = unread.into_iter().filter(is_gone).collect();
        gone.iter().for_each(|id| table.remove(id));
    }

    fn unread_ids<T: Derived>(&self, keys: &DerivedKeys) -> Vec<String> {
        let table = T::table(&self.tables.derived);
        match keys {
            DerivedKeys::One(key) => {
                let id = key.strip_prefix(T::KEYS);
                let record = id.and_then(|id| Some((id, table.get(id)?)));
                let unread = record.filter(|(_, record)| record.content == Content::Unread);
                unread.map(|(id, _)| id.to_owned()).into_iter().collect()
            }
            DerivedKeys::Below(prefix) => {
                let Some(prefix) = prefix.strip_prefix(T::KEYS) else { return vec![] };
                let unread = table.below(prefix).filter(|(_, record)| record.content == Content::Unread);
                unread.map(|(id, _)| id).collect()
            }
        }
    }
}
