//! A transaction in the making: changes on top of the world, seen by what is planned after them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::{endpoint, group, network, service};
use contiv_store::{Guard, Op, Txn};

use super::World;
use super::allocation_record::{Body, Ledger, LedgerChange, Written};
use super::index::{Holder, Index};
use super::record::{Overlays, Record};
use super::revisions::Revisions;

/// Plans change a draft; [`Draft::finish`] makes it a transaction and the [`Change`] to the world that the
/// transaction, once committed, amounts to.
///
/// A plan that fails must not have changed anything: it decides first, and writes then.
pub struct Draft<'w> {
    world: &'w World,
    overlays: Overlays,
    networks: Edits<network::State>,
    groups: Edits<group::State>,
    /// Keys that were read and must not have changed.
    read: BTreeMap<String, i64>,
}

type Edits<B> = BTreeMap<String, Edit<B>>;

pub enum Edit<B> {
    Create(Box<B>),
    Change(LedgerChange),
    Delete,
}

/// What a committed transaction changed.
#[derive(Default)]
pub struct Change {
    overlays: Overlays,
    networks: Vec<(String, Edit<network::State>, Option<Written>)>,
    groups: Vec<(String, Edit<group::State>, Option<Written>)>,
}

/// Room that one plan may need: a draft with fewer operations and guards left takes no further plan.
const ROOM: usize = 24;
/// etcd takes requests of 1.5 MB.
const HEAVY: usize = 1 << 20;

impl<'w> Draft<'w> {
    pub fn new(world: &'w World) -> Draft<'w> {
        Draft {
            world,
            overlays: Overlays::default(),
            networks: Edits::new(),
            groups: Edits::new(),
            read: BTreeMap::new(),
        }
    }

    pub fn world(&self) -> &'w World {
        self.world
    }

    /// No room for another plan in the same transaction.
    pub fn is_full(&self) -> bool {
        let ledgers = self.networks.len() + self.groups.len();
        let weight: usize = self
            .networks
            .keys()
            .filter_map(|id| self.world.ledger::<network::State>(id))
            .map(Ledger::weight)
            .sum();
        // A ledger may need two operations, each with its guard; the leader's guard comes on top.
        self.overlays.len() + 2 * ledgers + self.read.len() + ROOM > contiv_store::MAX_TXN_OPS
            || weight > HEAVY
    }

    pub fn get<T: Record>(&self, id: &str) -> Option<Arc<T>> {
        match T::overlay(&self.overlays).get(id) {
            Some(value) => value.clone(),
            None => self.world.table::<T>().get(id).map(|known| known.value.clone()),
        }
    }

    pub fn put<T: Record>(&mut self, id: &str, value: T) {
        T::overlay_mut(&mut self.overlays).insert(id.to_owned(), Some(value.into()));
    }

    /// To be changed in place; none if it is not there.
    pub fn edit<T: Record + Clone>(&mut self, id: &str) -> Option<&mut T> {
        let overlay = T::overlay_mut(&mut self.overlays);
        if !overlay.contains_key(id) {
            let known = self.world.table::<T>().get(id)?.value.clone();
            overlay.insert(id.to_owned(), Some(known));
        }
        overlay.get_mut(id)?.as_mut().map(Arc::make_mut)
    }

    pub fn delete<T: Record>(&mut self, id: &str) {
        T::overlay_mut(&mut self.overlays).insert(id.to_owned(), None);
    }

    /// The transaction holds only if the entry is still what the world says.
    pub fn rely_on<T: Record>(&mut self, id: &str) {
        let revision = self.world.table::<T>().get(id).map_or(0, |known| known.revision);
        self.read.insert(T::path(id), revision);
    }

    /// The ledger, and what this draft does to it; none if it does not exist, or is made or deleted by this draft.
    pub fn ledger<B: Edited>(&mut self, id: &str) -> Option<(&'w Ledger<B>, &mut LedgerChange)> {
        let ledger = self.world.ledger::<B>(id)?;
        let edit =
            B::edits(self).entry(id.to_owned()).or_insert_with(|| Edit::Change(LedgerChange::default()));
        match edit {
            Edit::Change(change) => Some((ledger, change)),
            Edit::Create(_) | Edit::Delete => None,
        }
    }

    /// Only to look at, as it was before this draft.
    pub fn ledger_before<B: Body>(&self, id: &str) -> Option<&'w Ledger<B>> {
        self.world.ledger::<B>(id)
    }

    /// The number of the group with the state `key`, also of one that this draft makes.
    pub fn group_number(&self, key: &str) -> Option<i64> {
        match self.groups.get(key) {
            Some(Edit::Create(body)) => Some(body.endpoint_group_id),
            Some(Edit::Delete) => None,
            Some(Edit::Change(_)) | None => {
                self.world.ledger::<group::State>(key).map(|ledger| ledger.body.endpoint_group_id)
            }
        }
    }

    pub fn create_ledger<B: Edited>(&mut self, body: B) {
        B::edits(self).insert(body.id().to_owned(), Edit::Create(Box::new(body)));
    }

    pub fn delete_ledger<B: Edited>(&mut self, id: &str) {
        if self.world.ledger::<B>(id).is_some() {
            B::edits(self).insert(id.to_owned(), Edit::Delete);
        }
    }

    /// Who has `ip` on `network`.
    pub fn holder(&self, network: &str, ip: IpAddr) -> Option<Holder> {
        let overlay = <endpoint::State as Record>::overlay(&self.overlays);
        let text = ip.to_string();
        let planned = overlay.values().flatten().find(|endpoint| {
            endpoint.net_id == network && (endpoint.ip_address == text || endpoint.ipv6_address == text)
        });
        let known = || self.world.holders(network, ip).iter().find(|id| !overlay.contains_key(*id)).cloned();
        // Services are planned alone: only the one that is being changed is not as the world knows it.
        let service = || {
            let id = self.world.vip(network, ip)?;
            self.get::<service::State>(id).map(|_| Holder::Service(id.to_owned()))
        };
        let endpoint = planned.map(|endpoint| endpoint.id.clone()).or_else(known);
        endpoint.map(Holder::Endpoint).or_else(service)
    }

    /// The endpoints of a container.
    pub fn of_container(&self, container: &str) -> BTreeSet<String> {
        let overlay = <endpoint::State as Record>::overlay(&self.overlays).values().flatten();
        let planned = overlay.filter(|endpoint| endpoint.container_id == container);
        let planned = planned.map(|endpoint| endpoint.id.as_str());
        let known = self.world.index.of_container(container);
        let has = |id: &&str| self.get::<endpoint::State>(id).is_some_and(|e| e.container_id == container);
        planned.chain(known.filter(has)).map(str::to_owned).collect()
    }

    /// So many entries are put, and so many deleted.
    pub fn counts(&self) -> (usize, usize) {
        self.overlays.counts()
    }

    /// The transaction, without the leader's guard, and what it changes.
    pub fn finish(self) -> serde_json::Result<(Txn, Change)> {
        let Draft { world, overlays, networks, groups, mut read } = self;
        let mut txn = Txn::new();
        let mut each = |key: String, revision, op: Option<Op>| {
            read.remove(&key);
            txn.guards.push(Guard::ModRevision { key, revision });
            txn.ops.extend(op);
        };
        overlays.ops(&world.tables, &mut each)?;
        let networks = write_ledgers(world, networks, &mut each)?;
        let groups = write_ledgers(world, groups, &mut each)?;
        let read = read.into_iter().map(|(key, revision)| Guard::ModRevision { key, revision });
        txn.guards.extend(read);
        Ok((txn, Change { overlays, networks, groups }))
    }
}

type WrittenEdits<B> = Vec<(String, Edit<B>, Option<Written>)>;

fn write_ledgers<B: Edited>(
    world: &World,
    edits: Edits<B>,
    mut each: impl FnMut(String, i64, Option<Op>),
) -> serde_json::Result<WrittenEdits<B>> {
    let mut written = Vec::with_capacity(edits.len());
    for (id, edit) in edits {
        let known = world.ledger::<B>(&id);
        let journal = match (&edit, known) {
            (Edit::Create(body), known) => {
                let key = B::key(&id).to_string();
                let value = serde_json::to_vec(body)?.into();
                let revision = known.map_or(0, |ledger| ledger.revision);
                each(key.clone(), revision, Some(Op::Put { key, value, lease: None }));
                None
            }
            (Edit::Change(change), Some(ledger)) => {
                if change.is_nothing() {
                    continue;
                }
                ledger.write(change, &mut each)?
            }
            (Edit::Delete, Some(ledger)) => {
                let key = B::key(&id).to_string();
                each(key.clone(), ledger.revision, Some(Op::Delete { key }));
                if let Some(journal) = &ledger.journal {
                    let key = B::journal_key(&id).to_string();
                    each(key.clone(), journal.revision, Some(Op::Delete { key }));
                }
                None
            }
            (Edit::Change(_) | Edit::Delete, None) => continue,
        };
        written.push((id, edit, journal));
    }
    Ok(written)
}

impl LedgerChange {
    fn is_nothing(&self) -> bool {
        self.pool.is_empty()
            && self.hosts.is_empty()
            && self.addresses == 0
            && self.endpoints == 0
            && !self.checkpoint
            && self.traffic.is_none()
    }
}

/// A ledger that drafts edit.
pub trait Edited: Body {
    fn edits<'d>(draft: &'d mut Draft<'_>) -> &'d mut BTreeMap<String, Edit<Self>>;
}

impl Edited for network::State {
    fn edits<'d>(draft: &'d mut Draft<'_>) -> &'d mut Edits<Self> {
        &mut draft.networks
    }
}

impl Edited for group::State {
    fn edits<'d>(draft: &'d mut Draft<'_>) -> &'d mut Edits<Self> {
        &mut draft.groups
    }
}

impl World {
    /// A change of ours was committed.
    pub fn commit(&mut self, change: Change, at: impl Into<Revisions>) {
        let at = at.into();
        self.newer::<endpoint::State>(&change, &at, Index::endpoint);
        self.newer::<service::State>(&change, &at, Index::service);
        let deleted = &mut self.deleted;
        change.overlays.apply(&mut self.tables, &at, |key, revision| {
            deleted.insert(key, revision);
        });
        commit_ledgers(&mut self.networks.live, deleted, change.networks, &at);
        commit_ledgers(&mut self.groups.live, deleted, change.groups, &at);
    }
}

impl World {
    /// Tells the index what of `T` the change makes anew.
    fn newer<T: Record>(
        &mut self,
        change: &Change,
        at: &Revisions,
        note: impl Fn(&mut Index, Option<&T>, Option<&T>),
    ) {
        for (id, new) in T::overlay(&change.overlays) {
            let known = self.table::<T>().get(id);
            if known.is_none_or(|known| known.revision <= at.of(&T::path(id))) {
                let old = known.map(|known| known.value.clone());
                note(&mut self.index, old.as_deref(), new.as_deref());
            }
        }
    }
}

fn commit_ledgers<B: Body>(
    live: &mut BTreeMap<String, Ledger<B>>,
    deleted: &mut HashMap<String, i64>,
    edits: WrittenEdits<B>,
    at: &Revisions,
) {
    for (id, edit, written) in edits {
        let key = B::key(&id).to_string();
        let revision = at.of(&key);
        let newer = live.get(&id).is_some_and(|ledger| ledger.revision >= revision);
        match edit {
            _ if newer => {}
            Edit::Create(body) => {
                live.insert(id, Ledger::new(*body, revision));
            }
            Edit::Change(change) => {
                if let Some(ledger) = live.get_mut(&id) {
                    ledger.apply(&change, written, at);
                }
            }
            Edit::Delete => {
                live.remove(&id);
                let journal = B::journal_key(&id).to_string();
                deleted.insert(journal.clone(), at.of(&journal));
                deleted.insert(key, revision);
            }
        }
    }
}
