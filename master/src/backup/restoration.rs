//! Writes a backup to a store.
//!
//! A restoration takes many transactions. The first one puts a mark, and the last one deletes it and
//! puts the identity. All of them require the mark, and that no netmaster leads. No netmaster leads a
//! store with a mark, so a part of a backup is never taken for the state of a cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use contiv_model::global::ClusterIdentity;
use contiv_model::key::{BGPS_OPER, Key, LEADER, ROOT};
use contiv_store::{Guard, KeyValue, MAX_TXN_OPS, Op, Outcome, Store, Txn};
use tokio::time::sleep;

use super::{Backup, Error, is_state};
use crate::problem::one_line;

/// Exists from the first to the last transaction of a restoration.
pub(super) const MARK: &str = "/contiv.io/master/restoration";
/// Agents write these at any time. What an agent has written is newer than the backup.
const OF_AGENTS: [&str; 3] = ["/contiv.io/oper/node/", "/contiv.io/oper/vtep/", BGPS_OPER];
/// Bytes of one transaction; etcd accepts 1.5 MB.
const TXN_BYTES: usize = 512 << 10;
/// Records of agents in one transaction, which has a guard for each.
const MAX_RECORDS: usize = 64;
/// Further attempts of a transaction, or of a batch of agents' records that change meanwhile.
const RETRIES: usize = 5;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Key and value.
type Item = (String, Bytes);

/// Whether a restoration into the store has begun and has not ended. The read is linearizable.
pub async fn is_unfinished(store: &Store) -> Result<bool, contiv_store::Error> {
    Ok(store.get(MARK).await?.is_some())
}

/// Writes the backup to `store`, which must hold no other state unless it is to be replaced. Returns
/// the new identity. No netmaster may run.
pub async fn restore(store: &Store, backup: Backup, replace: bool) -> Result<ClusterIdentity, Error> {
    let existing = store.list(ROOT).await?.items;
    if let Some(lock) = existing.iter().find(|kv| kv.key == LEADER) {
        return Err(Error::Leader(String::from_utf8_lossy(&lock.value).into_owned()));
    }
    let unfinished = existing.iter().find(|kv| kv.key == MARK).map_or(0, |mark| mark.mod_revision);
    let state = existing.iter().filter(|kv| is_replaced(kv)).count();
    match (unfinished, state) {
        (0, 0) => {}
        _ if replace => {}
        (0, _) => return Err(Error::NotEmpty(state)),
        (_, _) => return Err(Error::Unfinished),
    }
    let restoration = Restoration::begin(store, unfinished, replace).await?;
    // Listed again: until the mark, a netmaster may have changed the state.
    let existing = store.list(ROOT).await?.items;
    restoration.write(existing, backup.items).await?;
    restoration.finish().await
}

/// Whether the key is deleted or replaced by a restoration. Keys with a lease belong to running
/// processes.
fn is_replaced(kv: &KeyValue) -> bool {
    kv.lease == 0 && !is_of_agents(&kv.key)
}

fn is_of_agents(key: &str) -> bool {
    OF_AGENTS.iter().any(|prefix| key.starts_with(prefix))
}

/// A restoration that has begun.
struct Restoration<'s> {
    store: &'s Store,
    /// The store's revision of the mark.
    mark: i64,
}

impl Restoration<'_> {
    /// Puts the mark, in place of the one that had revision `earlier` (0: there is none). With
    /// `replace` deletes the identity, because agents do not follow a store without it; without, there
    /// must be none: every netmaster writes one before anything else.
    async fn begin(store: &Store, earlier: i64, replace: bool) -> Result<Restoration<'_>, Error> {
        let token = ClusterIdentity::random().id;
        let identity = Key::ClusterIdentity.to_string();
        let txn = Txn::new()
            .guard(Guard::absent(LEADER))
            .guard(Guard::ModRevision { key: MARK.to_owned(), revision: earlier })
            .put(MARK, token.clone());
        let txn = if replace { txn.delete(identity) } else { txn.guard(Guard::absent(identity)) };
        if let Outcome::Committed { revision } = commit(store, txn).await? {
            return Ok(Restoration { store, mark: revision });
        }
        // An attempt whose answer was lost may have put it.
        match store.get(MARK).await?.filter(|kv| kv.value == token.as_bytes()) {
            Some(mark) => Ok(Restoration { store, mark: mark.mod_revision }),
            None => Err(Error::Busy),
        }
    }

    /// Deletes what the backup does not have, and puts what it has.
    async fn write(&self, existing: Vec<KeyValue>, items: Vec<Item>) -> Result<(), Error> {
        let items: Vec<Item> = items.into_iter().filter(|(key, _)| is_state(key)).collect();
        let kept: BTreeSet<&str> = items.iter().map(|(key, _)| key.as_str()).collect();
        let present: BTreeSet<String> =
            existing.iter().map(|kv| kv.key.clone()).filter(|key| is_of_agents(key)).collect();
        // Keys are either deleted or put, so an attempt that is late does no harm.
        let is_extra = |kv: &KeyValue| kv.key != MARK && is_replaced(kv) && !kept.contains(kv.key.as_str());
        let extra = existing.into_iter().filter(is_extra).map(|kv| Op::Delete { key: kv.key });
        self.apply(extra.collect()).await?;
        let (of_agents, items): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|(key, _)| is_of_agents(key));
        self.apply(items.into_iter().map(put).collect()).await?;
        let missing: Vec<&Item> = of_agents.iter().filter(|(key, _)| !present.contains(key)).collect();
        for records in missing.chunks(MAX_RECORDS) {
            self.put_missing(records).await?;
        }
        Ok(())
    }

    /// Applies the operations in several transactions.
    async fn apply(&self, ops: Vec<Op>) -> Result<(), Error> {
        let mut ops = ops.into_iter().peekable();
        while ops.peek().is_some() {
            let (mut txn, mut bytes) = (Txn::new(), 0);
            let fits = |txn: &Txn, bytes: usize, op: &Op| {
                txn.ops.is_empty() || txn.ops.len() < MAX_TXN_OPS && bytes + size(op) <= TXN_BYTES
            };
            while let Some(op) = ops.next_if(|op| fits(&txn, bytes, op)) {
                bytes += size(&op);
                txn.ops.push(op);
            }
            self.commit(txn).await?;
        }
        Ok(())
    }

    /// Puts those of the records that the store does not have.
    async fn put_missing(&self, records: &[&Item]) -> Result<(), Error> {
        let mut missing = records.to_vec();
        for _ in 0..=RETRIES {
            let absent =
                |txn: Txn, (key, value): &&Item| txn.guard(Guard::absent(key)).put(key, value.clone());
            if missing.is_empty() || self.try_commit(missing.iter().fold(Txn::new(), absent)).await? {
                return Ok(());
            }
            // An agent has written one of them meanwhile, or an attempt whose answer was lost has.
            self.require_mark().await?;
            for record in std::mem::take(&mut missing) {
                if self.store.get(&record.0).await?.is_none() {
                    missing.push(record);
                }
            }
        }
        Err(Error::Interrupted)
    }

    /// Puts a new identity and deletes the mark.
    async fn finish(self) -> Result<ClusterIdentity, Error> {
        let identity = ClusterIdentity::random();
        let key = Key::ClusterIdentity.to_string();
        let value = serde_json::to_vec(&identity)?;
        if self.try_commit(Txn::new().delete(MARK).put(&*key, value.clone())).await? {
            return Ok(identity);
        }
        // An attempt whose answer was lost may have put it.
        match self.store.get(&key).await?.filter(|kv| kv.value == value) {
            Some(_) => Ok(identity),
            None => Err(Error::Interrupted),
        }
    }

    async fn require_mark(&self) -> Result<(), Error> {
        let leader = self.store.get(LEADER).await?;
        let mark = self.store.get(MARK).await?.filter(|kv| kv.mod_revision == self.mark);
        if leader.is_none() && mark.is_some() { Ok(()) } else { Err(Error::Interrupted) }
    }

    async fn commit(&self, txn: Txn) -> Result<(), Error> {
        if self.try_commit(txn).await? { Ok(()) } else { Err(Error::Interrupted) }
    }

    /// Returns false if the mark or another guard does not hold.
    async fn try_commit(&self, txn: Txn) -> Result<bool, Error> {
        let mark = Guard::ModRevision { key: MARK.to_owned(), revision: self.mark };
        let txn = txn.guard(Guard::absent(LEADER)).guard(mark);
        Ok(commit(self.store, txn).await? != Outcome::Conflict)
    }
}

/// Commits the transaction. Repeats it while the store does not answer, so a conflict may be with an
/// earlier attempt.
async fn commit(store: &Store, txn: Txn) -> Result<Outcome, Error> {
    let mut left = RETRIES;
    loop {
        match store.commit(txn.clone()).await {
            Err(error) if error.is_transient() && left > 0 => {
                tracing::warn!(error = one_line(&error), "restore: the store does not answer; retrying");
                left -= 1;
                sleep(RETRY_INTERVAL).await;
            }
            result => return Ok(result?),
        }
    }
}

fn put((key, value): Item) -> Op {
    Op::Put { key, value, lease: None }
}

fn size(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}
