//! Records that hold a bitmap: networks, and groups with a pool of their own.

use std::mem;

use contiv_model::{api::Netprofile, group, key::Key, network};
use contiv_store::Op;
use serde::{Serialize, de::DeserializeOwned};

use super::revisions::Revisions;
use super::{Ledgers, World};
use crate::ipam::{Hosts, HostsChange, Journal, Pool, PoolChange};

/// A record of the store whose maps are kept apart, decoded.
#[derive(Clone, Debug)]
pub struct Ledger<B> {
    /// Without its maps; the counters are current.
    pub body: B,
    pub pool: Pool,
    pub hosts: Hosts,
    pub(super) revision: i64,
    pub(super) journal: Option<Written>,
}

/// The changes that a journal key of the store holds.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) revision: i64,
    pool: PoolChange,
    hosts: HostsChange,
}

/// What a plan does to a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerChange {
    pub pool: PoolChange,
    pub hosts: HostsChange,
    /// To the count of addresses.
    pub addresses: i64,
    /// To the count of endpoints.
    pub endpoints: i64,
    /// Write the record whole, whatever its size.
    pub checkpoint: bool,
    /// Of a group.
    pub traffic: Option<Traffic>,
}

/// What a network profile says of a group's traffic; the default is no profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub dscp: i64,
    pub bandwidth: String,
    pub burst: i64,
}

impl Traffic {
    pub fn of(profile: &Netprofile) -> Traffic {
        Traffic { dscp: profile.dscp, bandwidth: profile.bandwidth.clone(), burst: profile.burst }
    }

    /// What the group's state says.
    pub fn in_force(group: &group::State) -> Traffic {
        Traffic { dscp: group.dscp, bandwidth: group.bandwidth.clone(), burst: group.burst }
    }
}

/// The record without its maps.
pub trait Body: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    fn key(id: &str) -> Key;
    fn journal_key(id: &str) -> Key;
    fn id(&self) -> &str;
    /// Takes the maps out.
    fn split(&mut self) -> (Pool, Hosts);
    /// The whole record again.
    fn join(&self, pool: &Pool, hosts: &Hosts, change: &LedgerChange) -> Self;
    /// Of addresses and of endpoints.
    fn counts(&self) -> (i64, i64);
    fn set_counts(&mut self, counts: (i64, i64));
    fn set_traffic(&mut self, _traffic: &Traffic) {}
    #[doc(hidden)]
    fn ledgers(world: &World) -> &Ledgers<Self>;
    #[doc(hidden)]
    fn ledgers_mut(world: &mut World) -> &mut Ledgers<Self>;
}

/// A bitmap of so many numbers is 16 KB in the store's form, a few etcd pages; larger ones are journaled.
const LARGE: usize = 96 * 1024;
/// The same of IPv6 hosts, which have 25 bytes and more each.
const LARGE_HOSTS: usize = 512;
/// A journal is replaced by a checkpoint when it is longer than this, or has more runs of neighbours.
const LONG_JOURNAL: usize = 8 * 1024;
const MANY_RUNS: usize = 512;

impl<B: Body> Ledger<B> {
    pub(super) fn read(value: &[u8], revision: i64) -> serde_json::Result<Ledger<B>> {
        Ok(Ledger::new(serde_json::from_slice(value)?, revision))
    }

    pub(super) fn new(mut body: B, revision: i64) -> Ledger<B> {
        let (pool, hosts) = body.split();
        Ledger { body, pool, hosts, revision, journal: None }
    }

    /// Has the store a journal beside the record?
    pub fn is_journaled(&self) -> bool {
        self.journal.is_some()
    }

    /// Makes the changes of a journal part of a record read from the store.
    pub(super) fn adopt(&mut self, journal: Written) {
        self.pool.apply(&journal.pool);
        self.hosts.apply(&journal.hosts);
        self.journal = Some(journal);
    }

    /// The whole record, as the store would have it with `change` made.
    pub fn whole(&self, change: &LedgerChange) -> B {
        self.body.join(&self.pool, &self.hosts, change)
    }

    fn counts_with(&self, change: &LedgerChange) -> (i64, i64) {
        let (addresses, endpoints) = self.body.counts();
        (addresses + change.addresses, endpoints + change.endpoints)
    }

    fn is_large(&self) -> bool {
        self.pool.bits().len() > LARGE || self.hosts.len() > LARGE_HOSTS
    }

    /// Bytes that a whole record has, about.
    pub(super) fn weight(&self) -> usize {
        if self.is_large() { LONG_JOURNAL } else { self.pool.bits().len() / 6 + self.hosts.len() * 30 }
    }

    /// What writes `change`, as (key, revision that it builds on, operation or none), and the journal after.
    pub(super) fn write(
        &self,
        change: &LedgerChange,
        mut each: impl FnMut(String, i64, Option<Op>),
    ) -> serde_json::Result<Option<Written>> {
        let id = self.body.id();
        let (key, journal_key) = (B::key(id).to_string(), B::journal_key(id).to_string());
        let journal_revision = self.journal.as_ref().map_or(0, |journal| journal.revision);
        // A journal has no place for the traffic.
        if self.is_large() && !change.checkpoint && change.traffic.is_none() {
            let mut written = self.journal.clone().unwrap_or_else(Written::nothing);
            written.pool.then(&change.pool);
            written.hosts.then(&change.hosts);
            let body = Journal::new(id, self.counts_with(change), &written.pool, &written.hosts);
            let value = serde_json::to_vec(&body)?;
            if value.len() <= LONG_JOURNAL && written.runs() <= MANY_RUNS {
                // The record itself must not have changed either: the journal is relative to it.
                let put = Op::Put { key: journal_key.clone(), value: value.into(), lease: None };
                each(journal_key, journal_revision, Some(put));
                each(key, self.revision, None);
                return Ok(Some(written));
            }
        }
        let value = serde_json::to_vec(&self.whole(change))?;
        each(key.clone(), self.revision, Some(Op::Put { key, value: value.into(), lease: None }));
        if self.journal.is_some() {
            each(journal_key.clone(), journal_revision, Some(Op::Delete { key: journal_key }));
        }
        Ok(None)
    }

    /// Makes a committed `change` part of the ledger.
    pub(super) fn apply(&mut self, change: &LedgerChange, written: Option<Written>, at: &Revisions) {
        self.body.set_counts(self.counts_with(change));
        if let Some(traffic) = &change.traffic {
            self.body.set_traffic(traffic);
        }
        self.pool.apply(&change.pool);
        self.hosts.apply(&change.hosts);
        let id = self.body.id();
        match written {
            Some(journal) => {
                let revision = at.of(&B::journal_key(id).to_string());
                self.journal = Some(Written { revision, ..journal });
            }
            None => {
                self.revision = at.of(&B::key(id).to_string());
                self.journal = None;
            }
        }
    }
}

impl Written {
    fn nothing() -> Written {
        Written { revision: 0, pool: PoolChange::default(), hosts: HostsChange::default() }
    }

    fn runs(&self) -> usize {
        let (pool, hosts) = (&self.pool, &self.hosts);
        pool.taken.runs_len() + pool.freed.runs_len() + hosts.taken.runs_len() + hosts.freed.runs_len()
    }
}

/// A journal as the store has it, and the counters in it.
pub(super) fn read_journal(value: &[u8], revision: i64) -> Result<(Written, (i64, i64)), String> {
    let journal: Journal = serde_json::from_slice(value).map_err(|e| e.to_string())?;
    let (pool, hosts) = journal.changes()?;
    Ok((Written { revision, pool, hosts }, (journal.ep_addr_count, journal.ep_count)))
}

impl Body for network::State {
    fn key(id: &str) -> Key {
        Key::Network(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::NetworkJournal(id.into())
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        let hosts = Hosts::of_state(self);
        // That there was a map at all is kept.
        if let Some(map) = &mut self.ipv6_alloc_map {
            map.clear();
        }
        (Pool::new(mem::take(&mut self.ip_alloc_map)), hosts)
    }

    fn join(&self, pool: &Pool, hosts: &Hosts, change: &LedgerChange) -> Self {
        network::State {
            ip_alloc_map: pool.with(&change.pool),
            ipv6_alloc_map: self.ipv6_alloc_map.as_ref().map(|_| hosts.map_with(&change.hosts)),
            ipv6_last_host: hosts.last_with(&change.hosts),
            ep_addr_count: self.ep_addr_count + change.addresses,
            ep_count: self.ep_count + change.endpoints,
            ..self.clone()
        }
    }

    fn counts(&self) -> (i64, i64) {
        (self.ep_addr_count, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        (self.ep_addr_count, self.ep_count) = counts;
    }

    fn ledgers(world: &World) -> &Ledgers<Self> {
        &world.networks
    }

    fn ledgers_mut(world: &mut World) -> &mut Ledgers<Self> {
        &mut world.networks
    }
}

impl Body for group::State {
    fn key(id: &str) -> Key {
        Key::Group(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::GroupJournal(id.into())
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        (Pool::new(mem::take(&mut self.epg_ip_alloc_map)), Hosts::default())
    }

    fn join(&self, pool: &Pool, _hosts: &Hosts, change: &LedgerChange) -> Self {
        let mut whole = group::State {
            epg_ip_alloc_map: pool.with(&change.pool),
            ep_count: self.ep_count + change.endpoints,
            ..self.clone()
        };
        if let Some(traffic) = &change.traffic {
            whole.set_traffic(traffic);
        }
        whole
    }

    fn set_traffic(&mut self, traffic: &Traffic) {
        self.dscp = traffic.dscp;
        self.bandwidth.clone_from(&traffic.bandwidth);
        self.burst = traffic.burst;
    }

    fn counts(&self) -> (i64, i64) {
        (0, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        self.ep_count = counts.1;
    }

    fn ledgers(world: &World) -> &Ledgers<Self> {
        &world.groups
    }

    fn ledgers_mut(world: &mut World) -> &mut Ledgers<Self> {
        &mut world.groups
    }
}
