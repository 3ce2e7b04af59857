//! kill -9 in the middle of writes.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::{Guard, Store, Txn};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const WRITERS: usize = 16;
const KILLS: usize = 3;

/// Writes numbers to its own two keys, always both, until stopped. Returns the last acknowledged number and the
/// last tried.
async fn writer(
    store: Store,
    id: usize,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Result<(u64, u64)> {
    let (mut done, mut tried) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        tried += 1;
        let txn =
            Txn::new().put(format!("/a/{id}"), tried.to_string()).put(format!("/b/{id}"), tried.to_string());
        match store.commit(txn).await {
            Ok(outcome) => {
                outcome.committed()?;
                done = tried;
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) if e.is_transient() || e.outcome_unknown() => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok((done, tried))
}

pub(crate) async fn nothing_acknowledged_is_lost(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|id| tokio::spawn(writer(store.clone(), id, stop.clone(), acknowledged.clone())))
        .collect();
    let mut revision = 0;
    for _ in 0..KILLS {
        let goal = acknowledged.load(Ordering::Relaxed) + 200;
        while acknowledged.load(Ordering::Relaxed) < goal {
            ensure!(!writers.iter().any(tokio::task::JoinHandle::is_finished), "a writer gave up");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::task::block_in_place(|| peer.restart())?;
        let now = store.list("/").await?.revision;
        ensure!(now > revision, "the revision went back from {revision} to {now}");
        revision = now;
    }
    stop.store(true, Ordering::Relaxed);
    let mut bounds = Vec::new();
    for writer in writers {
        bounds.push(writer.await??);
    }
    // Once more, so that everything is read from the disk.
    tokio::task::block_in_place(|| peer.restart())?;
    let listing = store.list("/").await?;
    let found: BTreeMap<_, _> = listing.items.iter().map(|kv| (kv.key.as_str(), kv)).collect();
    for (id, (done, tried)) in bounds.into_iter().enumerate() {
        let a = found.get(format!("/a/{id}").as_str()).context("a is gone")?;
        let b = found.get(format!("/b/{id}").as_str()).context("b is gone")?;
        ensure!(a.value == b.value && a.mod_revision == b.mod_revision, "half a transaction: {a:?} {b:?}");
        let value: u64 = std::str::from_utf8(&a.value)?.parse()?;
        ensure!((done..=tried).contains(&value), "writer {id}: {done} was acknowledged, {value} is there");
    }
    // And it goes on from there.
    let guard = Guard::ModRevision { key: "/a/0".into(), revision: found["/a/0"].mod_revision };
    let next = store.commit(Txn::new().guard(guard).put("/a/0", "end")).await?.committed()?;
    ensure!(next == listing.revision + 1);
    Ok(())
}
