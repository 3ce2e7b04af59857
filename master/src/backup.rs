//! Backups of the cluster's state, and their restoration into a store.
//!
//! A backup holds all keys below `/contiv.io/` at one revision, without those that belong to running
//! processes (keys with a lease) and without the cluster's identity. A restored store is a store of
//! its own: it gets a new identity, and agents that know another store follow it when an operator
//! accepts it.

mod file;

use std::path::PathBuf;

use contiv_model::global::ClusterIdentity;
use contiv_model::key::{Key, LEADER, ROOT};
use contiv_store::{Guard, KeyValue, Listing, MAX_TXN_OPS, Op, Outcome, Store, Txn};

pub use file::Backup;

/// Bytes of one transaction; etcd accepts 1.5 MB.
const TXN_BYTES: usize = 512 << 10;
/// Agents write these at any time.
const NODE_STATUS: &str = "/contiv.io/oper/node/";
const ACCEPTED_STORE: &str = "/contiv.io/oper/accepted-store/";

/// Why a backup or a restoration failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] contiv_store::Error),
    #[error("encode a key")]
    Encode(#[from] serde_json::Error),
    #[error("{operation} {}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("read backup {}: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("restore: netmaster {0} leads this store; stop every netmaster first")]
    Leader(String),
    #[error("restore: the store has {0} keys below {ROOT}; --replace deletes them")]
    NotEmpty(usize),
    #[error(
        "restore: a netmaster began to lead, the store is incomplete; stop every netmaster and repeat with --replace"
    )]
    Interrupted,
}

/// Reads the state of the cluster in `store`.
pub async fn take(store: &Store) -> Result<Backup, Error> {
    let Listing { cluster, revision, items } = store.list(ROOT).await?;
    let identity = Key::ClusterIdentity.to_string();
    let identity_of = |kv: &KeyValue| serde_json::from_slice::<ClusterIdentity>(&kv.value).ok();
    let known = items.iter().find(|kv| kv.key == identity).and_then(identity_of).unwrap_or_default();
    let belongs = |kv: &KeyValue| kv.lease == 0 && kv.key != identity && !kv.key.starts_with(ACCEPTED_STORE);
    let items = items.into_iter().filter(belongs).map(|kv| (kv.key, kv.value)).collect();
    Ok(Backup { cluster, identity: known.id, revision, items })
}

/// Writes the backup to `store`, which must hold no other state unless it is to be replaced. Returns
/// the new identity. No netmaster may run.
pub async fn restore(store: &Store, backup: Backup, replace: bool) -> Result<ClusterIdentity, Error> {
    let existing = store.list(ROOT).await?.items;
    if let Some(lock) = existing.iter().find(|kv| kv.key == LEADER) {
        return Err(Error::Leader(String::from_utf8_lossy(&lock.value).into_owned()));
    }
    let state: Vec<KeyValue> =
        existing.into_iter().filter(|kv| kv.lease == 0 && !kv.key.starts_with(NODE_STATUS)).collect();
    if !state.is_empty() && !replace {
        return Err(Error::NotEmpty(state.len()));
    }
    write(store, state.into_iter().map(|kv| Op::Delete { key: kv.key }).collect()).await?;
    let put = |(key, value)| Op::Put { key, value, lease: None };
    write(store, backup.items.into_iter().map(put).collect()).await?;
    // The identity comes last: agents do not follow a store without one.
    let identity = ClusterIdentity::random();
    let value = serde_json::to_vec(&identity)?.into();
    write(store, vec![Op::Put { key: Key::ClusterIdentity.to_string(), value, lease: None }]).await?;
    Ok(identity)
}

/// Applies the operations in several transactions while no netmaster leads.
async fn write(store: &Store, ops: Vec<Op>) -> Result<(), Error> {
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let (mut txn, mut bytes) = (Txn::new().guard(Guard::absent(LEADER)), 0);
        while let Some(op) = ops
            .next_if(|op| txn.ops.is_empty() || txn.ops.len() < MAX_TXN_OPS && bytes + size(op) <= TXN_BYTES)
        {
            bytes += size(&op);
            txn.ops.push(op);
        }
        if store.commit(txn).await? == Outcome::Conflict {
            return Err(Error::Interrupted);
        }
    }
    Ok(())
}

fn size(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}
