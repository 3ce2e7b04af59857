//! What the store holds, decoded: the leader plans over it and answers from it.
//!
//! Fed by the leader's own committed transactions and by its watch of the store. Each entry knows the revision it
//! is of, and only what is newer replaces it, in whatever order the two arrive. Nothing is in here that is not in
//! the store.

mod draft;
mod ledger;
mod record;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use contiv_model::{endpoint, event::Event, group, key::Key, key::ObjectType, name::NetworkId, network};
use contiv_store::{KeyValue, Update};

pub use draft::{Change, Draft, Edited, Revisions};
pub use ledger::{Body, Ledger, LedgerChange, Traffic};
use record::Tables;
pub use record::{GroupIds, Record, Table};

#[derive(Default)]
pub struct World {
    tables: Tables,
    networks: Ledgers<network::State>,
    groups: Ledgers<group::State>,
    /// Endpoints by network and address: several only where the original gave an address twice.
    holders: HashMap<(NetworkId, IpAddr), Vec<String>>,
    /// Objects of the types that are not built yet: that they are there.
    unbuilt: BTreeMap<(ObjectType, String), i64>,
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
        self.holders.get(&(network.into(), ip)).map_or(&[], Vec::as_slice)
    }

    /// Whether there is an object of a type that is not built yet.
    pub fn has_unbuilt(&self, kind: ObjectType, key: &str) -> bool {
        self.unbuilt.contains_key(&(kind, key.to_owned()))
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

    /// As [`World::set`], of what was read anew: replaces what is known, also what is as old.
    pub fn reread(&mut self, path: &str, kv: Option<&KeyValue>) {
        self.deleted.remove(path);
        let revision = kv.map_or(0, |kv| kv.mod_revision);
        match path.parse() {
            Ok(Key::Network(id)) => self.networks.forget(id.as_str()),
            Ok(Key::Group(id)) => self.groups.forget(id.as_str()),
            Ok(Key::NetworkJournal(_) | Key::GroupJournal(_)) => {}
            Ok(key) => self.forget_record(&key),
            Err(_) => {}
        }
        self.set(path, kv, revision);
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
        if let Some(old) = self.table::<endpoint::State>().get(id) {
            if revision <= old.revision {
                return;
            }
            let old = old.value.clone();
            self.unhold(&old);
        }
        self.set_value::<endpoint::State>(id, kv, revision);
        if let Some(new) = self.table::<endpoint::State>().get(id) {
            let new = new.value.clone();
            self.hold(&new);
        }
    }

    fn hold(&mut self, endpoint: &endpoint::State) {
        for ip in addresses(endpoint) {
            let holders = self.holders.entry((endpoint.net_id.as_str().into(), ip)).or_default();
            if !holders.contains(&endpoint.id) {
                holders.push(endpoint.id.clone());
            }
        }
    }

    fn unhold(&mut self, endpoint: &endpoint::State) {
        for ip in addresses(endpoint) {
            let place = (endpoint.net_id.as_str().into(), ip);
            if let Some(holders) = self.holders.get_mut(&place) {
                holders.retain(|id| *id != endpoint.id);
                if holders.is_empty() {
                    self.holders.remove(&place);
                }
            }
        }
    }

    fn set_ledger<B: Body>(&mut self, id: &str, kv: Option<&KeyValue>, revision: i64) {
        let ledgers = B::ledgers_mut(self);
        let known = ledgers.live.get(id);
        if known.is_some_and(|ledger| revision <= ledger.revision) {
            return;
        }
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
                (Some(journal), _) if revision > journal.revision => {
                    // Only the leader writes journals. The next transaction conflicts, and then both are read anew.
                    tracing::warn!(id, "the journal was changed by somebody else");
                }
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
    match ledger::read_journal(&kv.value, kv.mod_revision) {
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

fn addresses(endpoint: &endpoint::State) -> impl Iterator<Item = IpAddr> {
    [&endpoint.ip_address, &endpoint.ipv6_address].into_iter().filter_map(|ip| ip.parse().ok())
}
