//! What the store holds, decoded: the leader plans over it and answers from it.
//!
//! Fed by the leader's own committed transactions and by its watch of the store. Each entry knows the revision it
//! is of, and only what is newer replaces it, in whatever order the two arrive. Nothing is in here that is not in
//! the store.

mod allocation_record;
mod index;
mod record;
mod revisions;
mod shared;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::{endpoint, event::Event, group, key::Key, network, service};
use contiv_store::{KeyValue, Update};

pub use allocation_record::{Body, Ledger, LedgerChange, Traffic};
use index::Index;
pub use index::{Holder, Labels};
use record::Tables;
pub use record::{GroupIds, ONLY, Pending, Record, Table};
pub use revisions::Revisions;
pub use shared::Shared;
pub use transaction::{Change, Draft, Edited};

#[derive(Default)]
pub struct World {
    tables: Tables,
    networks: Ledgers<network::State>,
    groups: Ledgers<group::State>,
    index: Index,
    /// Records whose journals came by the watch: a journal tells all that changed since its record was written, and what
    /// an older one of it told is part of the maps already. A leader reads them anew when it begins.
    stale: BTreeSet<String>,
    /// Keys deleted lately and when, so that the watch does not bring them back from an older change.
    deleted: HashMap<String, i64>,
}

/// Networks or groups, and journals that came before their record.
pub struct Ledgers<B> {
    live: BTreeMap<String, Ledger<B>>,
    early: HashMap<String, KeyValue>,
}

impl<B> Default for Ledgers<B> {
    fn default() -> Self {
        Ledgers { live: BTreeMap::new(), early: HashMap::new() }
    }
}

impl World {
    pub fn get<T: Record>(&self, id: &str) -> Option<&T> {
        self.table::<T>().get(id).map(|entry| &*entry.value)
    }

    pub fn table<T: Record>(&self) -> &Table<T> {
        T::table(&self.tables)
    }

    /// In the order of their keys.
    pub fn all<T: Record>(&self) -> impl Iterator<Item = &T> {
        self.table::<T>().values().map(|entry| &*entry.value)
    }

    pub fn ledger<B: Body>(&self, id: &str) -> Option<&Ledger<B>> {
        B::ledgers(self).live.get(id)
    }

    /// In the order of their ids.
    pub fn ledgers<B: Body>(&self) -> impl Iterator<Item = &Ledger<B>> {
        B::ledgers(self).live.values()
    }

    /// The journals that the store has, by key, and their revisions.
    pub fn journals(&self) -> HashMap<String, i64> {
        fn of<B: Body>(ledgers: &Ledgers<B>) -> impl Iterator<Item = (String, i64)> {
            let journal =
                |ledger: &Ledger<B>| Some((ledger.body.id().to_owned(), ledger.journal.as_ref()?.revision));
            ledgers
                .live
                .values()
                .filter_map(journal)
                .map(|(id, revision)| (B::journal_key(&id).to_string(), revision))
        }
        of(&self.networks).chain(of(&self.groups)).collect()
    }

    /// The endpoints of `network` that have `ip`.
    pub fn holders(&self, network: &str, ip: IpAddr) -> &[String] {
        self.index.holders(network, ip)
    }

    /// The service whose address on `network` is `ip`.
    pub fn vip(&self, network: &str, ip: IpAddr) -> Option<&str> {
        self.index.vip(network, ip)
    }

    /// The endpoints of `network` that have the label.
    pub fn labelled(&self, network: &str, label: (&str, &str)) -> impl Iterator<Item = &str> {
        self.index.labelled(network, label)
    }

    /// Services of `tenant` that may select by the labels: the first of their selectors is among them.
    pub fn selecting<'i>(&'i self, tenant: &str, labels: &'i Labels) -> impl Iterator<Item = &'i str> {
        self.index.selecting(tenant, labels)
    }

    /// The services that the endpoint is behind.
    pub fn provided(&self, endpoint: &str) -> impl Iterator<Item = &str> {
        self.index.provided(endpoint)
    }

    /// The keys, records and journals, that have to be read anew before anything is planned on them.
    pub fn take_stale(&mut self) -> Vec<String> {
        std::mem::take(&mut self.stale).into_iter().collect()
    }

    /// Takes in what the watch tells. True when the first snapshot is complete.
    pub fn observe(&mut self, update: &Update) -> bool {
        match &update.event {
            Event::Init => {}
            Event::InitDone => return true,
            Event::InitApply(path, kv) | Event::Apply(path, kv) => {
                self.set(path, Some(kv), kv.mod_revision);
            }
            Event::Delete(path) => self.set(path, None, update.revision),
        }
        if self.deleted.len() > 1024 {
            self.deleted.retain(|_, revision| *revision > update.revision);
        }
        false
    }

    /// The key is so, as of `revision`; older news is ignored.
    fn set(&mut self, path: &str, kv: Option<&KeyValue>, revision: i64) {
        if self.deleted.get(path).is_some_and(|deleted| revision <= *deleted) {
            return;
        }
        let Ok(key) = path.parse::<Key>() else { return };
        match key {
            Key::Network(id) => self.set_ledger::<network::State>(id.as_str(), kv, revision),
            Key::Group(id) => self.set_ledger::<group::State>(id.as_str(), kv, revision),
            Key::NetworkJournal(id) => self.set_journal::<network::State>(id.as_str(), kv, revision),
            Key::GroupJournal(id) => self.set_journal::<group::State>(id.as_str(), kv, revision),
            key => self.set_record(&key, kv, revision),
        }
    }

    /// As [`World::set`], of what was read anew when the store was `at` a revision: replaces what is known, also what is
    /// as old. The watch may be far behind, and what it then tells of the time before must not bring back what is gone.
    pub fn reread(&mut self, path: &str, kv: Option<&KeyValue>, at: i64) {
        self.deleted.remove(path);
        match path.parse() {
            Ok(Key::Network(id)) => self.networks.forget(id.as_str()),
            Ok(Key::Group(id)) => self.groups.forget(id.as_str()),
            Ok(Key::NetworkJournal(_) | Key::GroupJournal(_)) => {}
            Ok(key) => self.forget_record(&key),
            Err(_) => {}
        }
        match kv {
            Some(kv) => self.set(path, Some(kv), kv.mod_revision),
            None => {
                self.set(path, None, at);
                self.deleted.insert(path.to_owned(), at);
            }
        }
    }

    fn set_value<T: Record>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let table = T::table_mut(&mut self.tables);
        if table.get(id).is_some_and(|known| revision <= known.revision) {
            return;
        }
        match kv.map(|kv| serde_json::from_slice::<T>(&kv.value)) {
            None => {
                table.remove(id);
            }
            Some(Ok(value)) => {
                table.insert(id.to_owned(), record::Versioned { value: value.into(), revision });
            }
            Some(Err(error)) => {
                tracing::warn!(key = T::path(id), %error, "unreadable value in the store; the last good one stays");
            }
        }
    }

    fn set_endpoint(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let old = self.known::<endpoint::State>(id);
        self.set_value::<endpoint::State>(id, kv, revision);
        let new = self.known::<endpoint::State>(id);
        self.index.endpoint(old.as_deref(), new.as_deref());
    }

    fn set_service(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let old = self.known::<service::State>(id);
        self.set_value::<service::State>(id, kv, revision);
        let new = self.known::<service::State>(id);
        self.index.service(old.as_deref(), new.as_deref());
    }

    fn known<T: Record>(&self, id: &str) -> Option<Arc<T>> {
        self.table::<T>().get(id).map(|entry| entry.value.clone())
    }

    fn set_ledger<B: Body>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let ledgers = B::ledgers_mut(self);
        let known = ledgers.live.get(id);
        if known.is_some_and(|ledger| revision <= ledger.revision) {
            return;
        }
        let journaled = known.is_some_and(|ledger| ledger.journal.is_some());
        let Some(kv) = kv else {
            ledgers.live.remove(id);
            return;
        };
        let mut ledger = match Ledger::<B>::read(&kv.value, revision) {
            Ok(ledger) => ledger,
            Err(error) => {
                tracing::warn!(key = kv.key, %error, "unreadable record in the store; the last good one stays");
                return;
            }
        };
        if let Some(journal) = known.and_then(|ledger| ledger.journal.clone()) {
            ledger.adopt(journal);
        } else if let Some(kv) = ledgers.early.remove(id) {
            adopt(&mut ledger, &kv);
        }
        ledgers.live.insert(id.to_owned(), ledger);
        if journaled {
            self.mark_stale::<B>(id);
        }
    }

    fn mark_stale<B: Body>(&mut self, id: &str) {
        self.stale.extend([B::key(id).to_string(), B::journal_key(id).to_string()]);
    }

    fn set_journal<B: Body>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let ledgers = B::ledgers_mut(self);
        match (ledgers.live.get_mut(id), kv) {
            (None, Some(kv)) => {
                ledgers.early.insert(id.to_owned(), kv.clone());
            }
            (None, None) => {
                ledgers.early.remove(id);
            }
            (Some(ledger), kv) => match (&ledger.journal, kv) {
                (None, Some(kv)) if revision > ledger.revision => adopt(ledger, kv),
                (Some(journal), _) if revision > journal.revision => self.mark_stale::<B>(id),
                _ => {}
            },
        }
    }
}

impl<B> Ledgers<B> {
    fn forget(&mut self, id: &str) {
        self.live.remove(id);
    }
}

fn adopt<B: Body>(ledger: &mut Ledger<B>, kv: &KeyValue) {
    match allocation_record::read_journal(&kv.value, kv.mod_revision) {
        Ok((journal, counts)) => {
            ledger.body.set_counts(counts);
            ledger.adopt(journal);
        }
        Err(error) => tracing::error!(
            key = kv.key,
            error,
            "unreadable journal: addresses allocated since the record was written may be given twice; \
             compare the record with the endpoints"
        ),
    }
}
