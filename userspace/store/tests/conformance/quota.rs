//! A database that has reached its quota, and compaction.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::election::{Timing, campaign};
use contiv_store::{Alarm, Config, Guard, Progress, Store, Txn};
use futures::StreamExt as _;
use std::time::Duration;
use testkit::etcd::Etcd;
use tokio::net::TcpListener;

const QUOTA: &str = "--quota-backend-bytes=4194304";
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(8) };

pub(crate) async fn a_compaction_removes_old_versions_only(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let put = |value: &'static str| store.commit(Txn::new().put("k", value));
    put("1").await?.committed()?;
    let first = store.position().await?.revision;
    put("2").await?.committed()?;
    let second = store.position().await?.revision;
    store.compact(second).await?;
    ensure!(store.get_at("k", first).await.is_err_and(|error| error.is_compacted()));
    ensure!(store.get_at("k", second).await?.context("k")?.value == "2");
    store.compact(second).await?;
    store.compact(first).await?;
    ensure!(store.compact(second + 1000).await.is_err(), "a revision of the future");
    let database = store.database().await?;
    ensure!(database.size >= database.in_use && database.in_use > 0, "{database:?}");
    ensure!(store.alarms().await?.is_empty());
    Ok(())
}

/// Only etcd has a quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_is_reported_and_its_member_kept() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::options().argument(QUOTA).start()?;
    let other = TcpListener::bind("127.0.0.1:0").await?;
    let endpoints = [etcd.endpoint(), format!("http://{}", other.local_addr()?)];
    let store = Store::connect(&Config::new(endpoints)).await?;
    let leadership = campaign(&store, "/lock", "me", TIMING).await?;

    let value = "v".repeat(1 << 20);
    let mut refused = None;
    for n in 0..20 {
        if let Err(error) = leadership.commit(Txn::new().put("k", value.clone())).await {
            refused = Some(error);
            break;
        }
        ensure!(n < 19, "the quota is not enforced");
    }
    let error = refused.context("an error")?;
    ensure!(error.is_out_of_space() && !error.is_transient() && !error.outcome_unknown(), "{error:?}");
    ensure!(error.to_string().contains("NOSPACE"), "{error}");
    ensure!(store.alarms().await? == [Alarm::NoSpace]);
    // Reads and deletions go on, at the same member.
    ensure!(store.get("k").await?.is_some());
    leadership.commit(Txn::new().guard(Guard::absent("none")).delete("k")).await?.committed()?;
    let moved = tokio::time::timeout(Duration::from_millis(300), other.accept()).await;
    ensure!(moved.is_err(), "the client has changed to the other member");

    store.compact(store.position().await?.revision).await?;
    etcd.ctl(&["defrag"])?;
    etcd.ctl(&["alarm", "disarm"])?;
    leadership.commit(Txn::new().put("k", "1")).await?.committed()?;
    ensure!(store.alarms().await?.is_empty());
    Ok(())
}

/// etcd tells a watch whose keys do not change how far the history is. It continues there after a compaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_watch_is_not_listed_again() -> Result<()> {
    testkit::needs!(binary("etcd"));
    let mut etcd = Etcd::options().argument("--experimental-watch-progress-notify-interval=100ms").start()?;
    let store = Store::connect(&Config::new([etcd.endpoint()])).await?;
    store.commit(Txn::new().put("/w/a", "1")).await?.committed()?;
    let progress = Progress::default();
    let mut batches = store.watch_in_pages("/w/", &[], &progress).batches().boxed();
    ensure!(batches.next().await.context("the listing")?.relisted.is_some());
    for _ in 0..10 {
        store.commit(Txn::new().put("/other", "1")).await?.committed()?;
    }
    let end = store.position().await?.revision;
    // The first notification may have been on its way before.
    let told = progress.value() + 2;
    let told = async {
        while progress.value() < told {
            // Without changes, none comes.
            let poll = tokio::time::timeout(Duration::from_millis(50), batches.next()).await;
            ensure!(poll.is_err(), "{poll:?}");
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.context("no progress notifications")??;
    store.compact(end).await?;
    etcd.restart()?;
    store.commit(Txn::new().put("/w/a", "2")).await?.committed()?;
    let mut is_resumed = false;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(60), batches.next()).await?;
        let batch = next.context("the watch ended, which it never does")?;
        ensure!(batch.relisted.is_none(), "listed again");
        is_resumed |= batch.resumed;
        if !batch.updates.is_empty() {
            ensure!(is_resumed && batch.updates.len() == 1, "{batch:?}");
            return Ok(());
        }
    }
}
