//! Backups of the cluster's state, and their restoration into a store.
//!
//! A backup holds all keys below `/contiv.io/` at one revision, without those that belong to running
//! processes (keys with a lease) and without the cluster's identity. A restored store is a store of
//! its own: it gets a new identity, and agents that know another store follow it when an operator
//! accepts it.

mod file;
mod restoration;

use std::path::PathBuf;

use contiv_model::global::ClusterIdentity;
use contiv_model::key::{Key, LEADER, ROOT};
use contiv_store::{KeyValue, Listing, Store};

pub use file::Backup;
pub use restoration::{is_unfinished, restore};

use restoration::MARK;

const ACCEPTED_STORES: &str = "/contiv.io/oper/accepted-store/";

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
    #[error("the store holds an unfinished restoration; repeat `netmaster restore` with --replace")]
    Unfinished,
    #[error("restore: netmaster {0} leads this store; stop every netmaster first")]
    Leader(String),
    #[error("restore: the store has {0} keys below {ROOT}; --replace deletes them")]
    NotEmpty(usize),
    #[error("restore: a netmaster or another restoration began at the same time; nothing was changed")]
    Busy,
    #[error(
        "restore: a netmaster began to lead or another restoration began, the store is incomplete; stop every netmaster and repeat with --replace"
    )]
    Interrupted,
}

/// Reads the state of the cluster in `store`.
pub async fn take(store: &Store) -> Result<Backup, Error> {
    let Listing { cluster, revision, items } = store.list(ROOT).await?;
    if items.iter().any(|kv| kv.key == MARK) {
        return Err(Error::Unfinished);
    }
    let identity = Key::ClusterIdentity.to_string();
    let identity_of = |kv: &KeyValue| serde_json::from_slice::<ClusterIdentity>(&kv.value).ok();
    let known = items.iter().find(|kv| kv.key == identity).and_then(identity_of).unwrap_or_default();
    let belongs = |kv: &KeyValue| kv.lease == 0 && is_state(&kv.key);
    let items = items.into_iter().filter(belongs).map(|kv| (kv.key, kv.value)).collect();
    Ok(Backup { cluster, identity: known.id, revision, items })
}

/// Whether the key belongs to the state of a cluster, whatever store it is in.
fn is_state(key: &str) -> bool {
    key != MARK
        && key != LEADER
        && key != Key::ClusterIdentity.to_string()
        && !key.starts_with(ACCEPTED_STORES)
}
