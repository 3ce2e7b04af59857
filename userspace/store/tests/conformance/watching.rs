//! The watch of the client: a snapshot, then every difference.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, bail, ensure};
use contiv_model::event::Event;
use contiv_store::{Batch, Progress, Status, Store, Txn, Update, Watch, Without};
use futures::StreamExt;
use std::collections::BTreeMap;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

async fn next(watch: &mut Watch) -> Result<Update> {
    let update = tokio::time::timeout(SOON, watch.next()).await.context("no update")?;
    update.context("the watch ended, which it never does")
}

fn described(update: &Update) -> String {
    match &update.event {
        Event::Init => "init".into(),
        Event::InitApply(key, kv) => format!("have {key}={}", String::from_utf8_lossy(&kv.value)),
        Event::InitDone => "done".into(),
        Event::Apply(key, kv) => format!("{key}={}", String::from_utf8_lossy(&kv.value)),
        Event::Delete(key) => format!("-{key}"),
    }
}

async fn updates(watch: &mut Watch, count: usize) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(described(&next(watch).await?));
    }
    Ok(all)
}

async fn put(store: &Store, key: &str, value: &str) -> Result<i64> {
    store.commit(Txn::new().put(key, value.to_owned())).await?.committed()
}

pub(crate) async fn a_snapshot_and_then_changes(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put(&store, "/w/a", "1").await?;
    put(&store, "/w/b", "1").await?;
    put(&store, "/x", "1").await?;
    let mut watch = store.watch("/w/");
    ensure!(*watch.status().borrow() == Status::Connecting);
    ensure!(updates(&mut watch, 4).await? == ["init", "have /w/a=1", "have /w/b=1", "done"]);
    // Written after the snapshot, before the watch is open.
    put(&store, "/w/c", "1").await?;
    put(&store, "/x", "2").await?;
    store.commit(Txn::new().put("/w/a", "2").delete("/w/b")).await?.committed()?;
    ensure!(updates(&mut watch, 3).await? == ["/w/c=1", "/w/a=2", "-/w/b"]);
    ensure!(*watch.status().borrow() == Status::Connected);
    let revision = put(&store, "/w/c", "2").await?;
    let update = next(&mut watch).await?;
    ensure!(update.revision == revision, "{update:?}");

    let mut empty = store.watch("/nothing/");
    ensure!(updates(&mut empty, 2).await? == ["init", "done"]);
    let mut all = store.watch("");
    ensure!(updates(&mut all, 5).await?[1..4] == ["have /w/a=2", "have /w/c=2", "have /x=2"]);
    Ok(())
}

/// More keys than the first pages have.
const KEYS: usize = 300;

async fn put_many(store: &Store) -> Result<Vec<String>> {
    let keys: Vec<_> = (0..KEYS).map(|number| format!("/w/{number:03}")).collect();
    for part in keys.chunks(100) {
        let txn = part.iter().fold(Txn::new(), |txn, key| txn.put(key.as_str(), "1"));
        store.commit(txn).await?.committed()?;
    }
    Ok(keys)
}

pub(crate) async fn a_snapshot_in_pages(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let keys = put_many(&store).await?;
    let mut batches = store.watch_in_pages("/w/", &[], &Progress::default()).batches().boxed();
    let first = next_batch(&mut batches).await?;
    ensure!(first.relisted.is_none() && first.updates.len() < KEYS, "{} updates", first.updates.len());
    // Not part of the snapshot, although its pages are not read yet.
    let written = store.commit(Txn::new().put("/w/299", "2").delete("/w/298")).await?.committed()?;
    let mut said: Vec<_> = first.updates.iter().map(described).collect();
    let position = loop {
        let batch = next_batch(&mut batches).await?;
        said.extend(batch.updates.iter().map(described));
        if let Some(relisted) = batch.relisted {
            break relisted.position;
        }
    };
    ensure!(position.revision == written - 1, "{position:?}, written at {written}");
    let have = keys.iter().map(|key| format!("have {key}=1"));
    let expected: Vec<_> = ["init".to_owned()].into_iter().chain(have).chain(["done".to_owned()]).collect();
    ensure!(said == expected, "{said:?}");
    let later = next_batch(&mut batches).await?;
    ensure!(later.updates.iter().map(described).eq(["/w/299=2", "-/w/298"]), "{later:?}");

    let mut empty = store.watch_in_pages("/nothing/", &[], &Progress::default());
    ensure!(updates(&mut empty, 2).await? == ["init", "done"]);
    Ok(())
}

pub(crate) async fn a_snapshot_without_some_values_and_keys(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let keys = put_many(&store).await?;
    let omissions = [("/w/1", Without::Values), ("/w/25", Without::Keys)];
    let mut watch = store.watch_in_pages("/w/", &omissions, &Progress::default()).batches().boxed();
    // What was put last is a key that is read without its value. The watch goes on from its revision: another
    // listing would say that the stores differ.
    put(&store, "/w/250", "2").await?;
    put(&store, "/w/100", "2").await?;
    let mut said = vec![];
    while said.last().is_none_or(|last| last != "done") {
        said.extend(next_batch(&mut watch).await?.updates.iter().map(described));
    }
    let listed = keys.iter().filter(|key| !key.starts_with("/w/25"));
    let have = listed.map(|key| format!("have {key}={}", if key.starts_with("/w/1") { "" } else { "1" }));
    let expected: Vec<_> = ["init".to_owned()].into_iter().chain(have).chain(["done".to_owned()]).collect();
    ensure!(said == expected, "{said:?}");
    store.commit(Txn::new().put("/w/100", "3").put("/w/250", "3").delete("/w/251")).await?.committed()?;
    let later = next_batch(&mut watch).await?;
    let changes = ["/w/100=3", "/w/250=3", "-/w/251"];
    ensure!(later.relisted.is_none() && later.updates.iter().map(described).eq(changes), "{later:?}");
    Ok(())
}

pub(crate) async fn a_snapshot_in_pages_begins_again_after_a_compaction(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put_many(&store).await?;
    let mut batches = store.watch_in_pages("/w/", &[], &Progress::default()).batches().boxed();
    let first = next_batch(&mut batches).await?;
    ensure!(described(&first.updates[0]) == "init" && first.relisted.is_none());
    let written = store.commit(Txn::new().delete("/w/000")).await?.committed()?;
    store.compact(written).await?;
    let mut said = vec![];
    while said.last().is_none_or(|last| last != "done") {
        said.extend(next_batch(&mut batches).await?.updates.iter().map(described));
    }
    ensure!(said.len() == KEYS + 1 && said[..2] == ["init", "have /w/001=1"], "{said:?}");
    Ok(())
}

pub(crate) async fn compaction_is_reported_as_a_difference(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    for key in ["/w/changed", "/w/gone", "/w/same"] {
        put(&store, key, "1").await?;
    }
    let mut watch = store.watch("/w/");
    ensure!(updates(&mut watch, 5).await?[4] == "done");
    // The watch is not open yet; where it wants to begin is compacted before it is.
    put(&store, "/w/changed", "2").await?;
    store.commit(Txn::new().delete("/w/gone")).await?.committed()?;
    put(&store, "/w/new", "1").await?;
    let end = put(&store, "/w/changed", "3").await?;
    peer.client().await?.compact(end, None).await?;
    ensure!(updates(&mut watch, 3).await? == ["-/w/gone", "/w/new=1", "/w/changed=3"]);
    put(&store, "/w/same", "2").await?;
    ensure!(updates(&mut watch, 1).await? == ["/w/same=2"]);
    Ok(())
}

/// Follows a prefix and checks that nothing is reported twice, out of order or needlessly.
#[derive(Default)]
struct Mirror {
    live: BTreeMap<String, (i64, Vec<u8>)>,
    synced: bool,
}

impl Mirror {
    fn apply(&mut self, update: Update) -> Result<()> {
        match update.event {
            Event::Init => ensure!(!self.synced, "a second snapshot"),
            Event::InitDone => self.synced = true,
            Event::InitApply(key, kv) | Event::Apply(key, kv) => {
                if let Some((revision, _)) = self.live.insert(key, (kv.mod_revision, kv.value.to_vec())) {
                    ensure!(
                        revision < kv.mod_revision,
                        "reported twice: {} after {revision}: {}",
                        kv.mod_revision,
                        kv.key
                    );
                }
            }
            Event::Delete(key) => ensure!(self.live.remove(&key).is_some(), "deleted twice: {key}"),
        }
        Ok(())
    }
}

pub(crate) async fn a_restart_misses_and_repeats_nothing(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put(&store, "/w/end", "no").await?;
    let mut watch = store.watch("/w/");
    let mirror = tokio::spawn(async move {
        let mut mirror = Mirror::default();
        loop {
            let update = next(&mut watch).await?;
            mirror.apply(update)?;
            if mirror.live.get("/w/end").is_some_and(|(_, value)| value == b"yes") {
                return anyhow::Ok(mirror);
            }
        }
    });
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for i in 0..300 {
            let key = format!("/w/{}", i % 40);
            // A lost answer leaves it open whether it was written; the mirror does not care.
            let txn = if i % 7 == 3 { Txn::new().delete(&key) } else { Txn::new().put(&key, format!("{i}")) };
            match writer.commit(txn).await {
                Ok(outcome) => drop(outcome.committed()?),
                Err(e) if e.outcome_unknown() || e.is_transient() => {}
                Err(e) => bail!(e),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    });
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        tokio::task::block_in_place(|| peer.restart())?;
    }
    writing.await??;
    put(&store, "/w/end", "yes").await?;
    let mirror = mirror.await??;
    let truth = store.list("/w/").await?.items;
    let truth: BTreeMap<_, _> =
        truth.into_iter().map(|kv| (kv.key, (kv.mod_revision, kv.value.to_vec()))).collect();
    ensure!(mirror.live == truth, "reported {:?}\nis {truth:?}", mirror.live);
    Ok(())
}

pub(crate) async fn the_status_reports_an_unavailable_store(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put(&store, "/w/a", "1").await?;
    let mut watch = store.watch("/w/");
    updates(&mut watch, 3).await?;
    let mut status = watch.status();
    let follow = tokio::spawn(async move { anyhow::Ok(described(&next(&mut watch).await?)) });
    tokio::time::timeout(SOON, status.wait_for(|s| *s == Status::Connected)).await??;
    peer.kill()?;
    // The last connections to a store that ends may be reset instead.
    let away = |s: &Status| match s {
        Status::Retrying { failures, error, .. } => *failures >= 2 && error.to_string().contains("refused"),
        _ => false,
    };
    let error = match &*tokio::time::timeout(SOON, status.wait_for(away)).await?? {
        Status::Retrying { error, .. } => error.to_string(),
        other => bail!("{other:?}"),
    };
    ensure!(error.contains("/w/") && error.contains(&peer.endpoint()), "{error}");
    ensure!(error.contains("is etcd running"), "{error}");
    tokio::task::block_in_place(|| peer.restart())?;
    tokio::time::timeout(SOON, status.wait_for(|s| *s == Status::Connected)).await??;
    put(&store, "/w/b", "1").await?;
    ensure!(follow.await?? == "/w/b=1", "an unchanged key was reported");
    Ok(())
}

/// The next batch that is a listing or has updates.
async fn next_batch(batches: &mut (impl futures::Stream<Item = Batch> + Unpin)) -> Result<Batch> {
    let batch = tokio::time::timeout(SOON, batches.next()).await.context("no batch")?;
    batch.context("the watch ended, which it never does")
}

/// The next batch with changes, and whether the watch told before that it continues.
async fn next_change(batches: &mut (impl futures::Stream<Item = Batch> + Unpin)) -> Result<(Batch, bool)> {
    let mut resumed = false;
    loop {
        let batch = next_batch(batches).await?;
        if !batch.resumed {
            return Ok((batch, resumed));
        }
        ensure!(batch.relisted.is_none() && batch.updates.is_empty(), "{batch:?}");
        resumed = true;
    }
}

/// Nothing is listed again, however often the store restarts.
pub(crate) async fn a_watch_continues_after_a_restart(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put(&store, "/w/a", "1").await?;
    let mut batches = Box::pin(store.watch("/w/").batches());
    ensure!(next_batch(&mut batches).await?.relisted.is_some());
    for round in 0..3 {
        put(&store, "/w/b", &format!("{round}")).await?;
        let (batch, _) = next_change(&mut batches).await?;
        ensure!(batch.relisted.is_none() && batch.updates.len() == 1, "{batch:?}");
        peer.restart()?;
        put(&store, "/w/a", &format!("{round}")).await?;
        let (batch, resumed) = next_change(&mut batches).await?;
        ensure!(resumed && batch.relisted.is_none() && batch.updates.len() == 1, "{batch:?}");
    }
    Ok(())
}

/// A history that is too large for one message comes in several batches, each of whole revisions.
pub(crate) async fn a_large_history_comes_in_whole_revisions(peer: &mut Peer) -> Result<()> {
    const KEYS: usize = 128;
    /// Larger than a message and a revision.
    const MAX_BATCH: usize = 4 << 20;
    let store = peer.store().await?;
    let before = store.position().await?.revision;
    let mut last = before;
    for bytes in [8_000, 11_000].repeat(4) {
        let value = vec![b'x'; bytes];
        let txn = (0..KEYS).fold(Txn::new(), |txn, key| txn.put(format!("/w/{key:03}"), value.clone()));
        last = store.commit(txn).await?.committed()?;
    }
    let mut batches = Box::pin(store.watch_after("/w/", before).batches());
    let (mut seen, mut parts) = (before, 0);
    while seen < last {
        let (batch, _) = next_change(&mut batches).await?;
        ensure!(batch.relisted.is_none(), "the history was not available");
        for revision in batch.updates.chunks(KEYS) {
            seen += 1;
            let is_whole = revision.len() == KEYS && revision.iter().all(|update| update.revision == seen);
            ensure!(is_whole, "revision {seen} is torn");
        }
        let size = |update: &Update| match &update.event {
            Event::Apply(_, kv) => kv.value.len(),
            _ => 0,
        };
        let bytes: usize = batch.updates.iter().map(size).sum();
        ensure!(bytes <= MAX_BATCH, "a batch of {bytes} bytes");
        parts += 1;
    }
    ensure!(parts > 1 && seen == last, "{parts} batches up to revision {seen} of {last}");
    // The last revision did not wait for this one.
    put(&store, "/w/end", "1").await?;
    ensure!(next_change(&mut batches).await?.0.updates.len() == 1);
    Ok(())
}

/// A watch that keeps a part of the keys reports these only, and continues after restarts of the store without a listing.
pub(crate) async fn a_watch_keeps_a_part_of_the_keys(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    for (key, value) in [("/w/a", "ours"), ("/w/b", "theirs"), ("/w/c", "theirs")] {
        put(&store, key, value).await?;
    }
    let is_ours = |kv: &contiv_store::KeyValue| kv.value == "ours";
    let listing = store.list_where("/w/", is_ours).await?;
    ensure!(listing.items.iter().map(|kv| kv.key.as_str()).eq(["/w/a"]), "{listing:?}");
    let mut batches = Box::pin(store.watch_where("/w/", is_ours).batches());
    let first: Vec<_> = next_batch(&mut batches).await?.updates.iter().map(described).collect();
    ensure!(first == ["init", "have /w/a=ours", "done"], "{first:?}");
    for round in 0..2 {
        // A key of the others that is created, one that is deleted, and one that becomes ours and theirs again.
        let new = format!("/w/new{round}");
        store.commit(Txn::new().put(&new, "theirs").put("/w/c", "theirs")).await?.committed()?;
        store.commit(Txn::new().put("/w/b", "ours").delete("/w/c")).await?.committed()?;
        let (batch, resumed) = next_change(&mut batches).await?;
        let changes: Vec<_> = batch.updates.iter().map(described).collect();
        ensure!(changes == ["/w/b=ours"] && batch.relisted.is_none() && !resumed, "{batch:?}");
        peer.restart()?;
        put(&store, "/w/b", "theirs").await?;
        let (batch, resumed) = next_change(&mut batches).await?;
        let changes: Vec<_> = batch.updates.iter().map(described).collect();
        ensure!(changes == ["-/w/b"] && batch.relisted.is_none() && resumed, "{batch:?}");
    }
    Ok(())
}

/// The store is replaced by an older copy of itself, and its revision passes that of the watch
/// before the watch is open again.
pub(crate) async fn a_restored_store_is_listed_again(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    put(&store, "/w/a", "1").await?;
    peer.kill()?;
    let copy = peer.copy_data()?;
    peer.restart()?;
    for n in 0..3 {
        put(&store, "/w/lost", &format!("{n}")).await?;
    }
    let mut batches = Box::pin(store.watch("/w/").batches());
    ensure!(next_batch(&mut batches).await?.relisted.is_some());
    put(&store, "/w/lost", "last").await?;
    ensure!(next_batch(&mut batches).await?.updates.len() == 1, "the watch is open");
    peer.kill()?;
    peer.replace_data(&copy)?;
    peer.restart()?;
    for n in 0..20 {
        put(&store, "/w/new", &format!("{n}")).await?;
    }
    let batch = next_batch(&mut batches).await?;
    ensure!(batch.relisted.is_some_and(|relisted| relisted.divergence.is_some()));
    let found: Vec<_> = batch.updates.iter().map(described).collect();
    ensure!(found == ["-/w/lost", "/w/new=19"], "{found:?}");
    Ok(())
}
