//! Who leads, and who does no more.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::election::{Leadership, Timing, campaign};
use contiv_store::{Config, Outcome, Store, Txn};
use std::time::{Duration, Instant};

const KEY: &str = "/contiv.io/lock/netmaster/leader";
/// The lease lasts longer than any of these tests: only silence makes room for another.
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(1) };
const SOON: Duration = Duration::from_secs(30);

async fn holder(store: &Store) -> Result<String> {
    let kv = store.get(KEY).await?.context("nobody leads")?;
    Ok(String::from_utf8(kv.value.to_vec())?)
}

async fn write_as(leadership: &Leadership, store: &Store, value: &str) -> Result<Outcome> {
    Ok(store.commit(Txn::new().guard(leadership.guard()).put("/state", value.to_owned())).await?)
}

pub(crate) async fn one_at_a_time_and_a_resignation_is_quick(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let first = campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?;
    ensure!(holder(&store).await? == "10.0.0.1:9999");
    write_as(&first, &store, "1").await?.committed()?;
    let other = peer.store().await?;
    let second = tokio::spawn(async move { campaign(&other, KEY, "10.0.0.2:9999", TIMING).await });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    ensure!(first.read_index().confirm().await?);
    ensure!(!second.is_finished() && !first.is_lost());
    let old = first.guard();
    let start = Instant::now();
    first.resign().await?;
    let second = tokio::time::timeout(SOON, second).await???;
    ensure!(start.elapsed() < TIMING.ttl / 2, "waited for the TTL");
    ensure!(holder(&store).await? == "10.0.0.2:9999");
    ensure!(store.commit(Txn::new().guard(old).put("/state", "old")).await? == Outcome::Conflict);
    write_as(&second, &store, "2").await?.committed()?;
    second.resign().await?;
    ensure!(store.get(KEY).await?.is_none());
    Ok(())
}

/// The leader's threads are taken away without a word, as a crash does.
pub(crate) async fn a_dead_leader_is_replaced_before_its_lease_ends_and_fenced(
    peer: &mut Peer,
) -> Result<()> {
    let config = Config::new([peer.endpoint()]);
    let doomed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let leadership = runtime.block_on(async {
            let store = Store::connect(&config).await?;
            anyhow::Ok(campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?)
        })?;
        let guard = leadership.guard();
        // Nothing of it runs any more, and nothing is told to the store.
        std::mem::forget(leadership);
        runtime.shutdown_background();
        anyhow::Ok(guard)
    });
    let old = tokio::task::block_in_place(|| doomed.join()).map_err(|_| anyhow::anyhow!("panicked"))??;
    let store = peer.store().await?;
    ensure!(holder(&store).await? == "10.0.0.1:9999", "it still leads as far as the store knows");
    store.commit(Txn::new().guard(old.clone()).put("/state", "1")).await?.committed()?;

    let start = Instant::now();
    let second = tokio::time::timeout(SOON, campaign(&store, KEY, "10.0.0.2:9999", TIMING)).await??;
    println!("replaced {:?} after the crash, {TIMING:?}", start.elapsed());
    ensure!(start.elapsed() < TIMING.ttl / 2, "waited for the TTL");
    let late = store.commit(Txn::new().guard(old).put("/state", "late")).await?;
    ensure!(late == Outcome::Conflict, "the deposed leader wrote: {late:?}");
    write_as(&second, &store, "2").await?.committed()?;
    ensure!(store.get("/state").await?.is_some_and(|kv| &kv.value[..] == b"2"));
    second.resign().await?;
    Ok(())
}

pub(crate) async fn a_leader_without_a_store_stops_in_time(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let leadership =
        campaign(&store, KEY, "10.0.0.1:9999", Timing { ttl: Duration::from_secs(3), ..TIMING }).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(!leadership.is_lost(), "kept alive past the TTL");
    let start = Instant::now();
    peer.freeze()?;
    tokio::time::timeout(SOON, leadership.lost()).await?;
    let after = start.elapsed();
    peer.thaw()?;
    ensure!(after < Duration::from_secs(3), "stopped {after:?} after the last sign of the store, TTL 3 s");
    ensure!(leadership.is_lost());
    leadership.resign().await?;
    let next = tokio::time::timeout(SOON, campaign(&store, KEY, "10.0.0.2:9999", TIMING)).await??;
    next.resign().await?;
    Ok(())
}

pub(crate) async fn a_deleted_key_deposes(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let leadership = campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?;
    // Somebody's broom: not what the election does, but what an operator can do.
    store.commit(Txn::new().delete(KEY)).await?.committed()?;
    tokio::time::timeout(SOON, leadership.lost()).await?;
    ensure!(!leadership.read_index().confirm().await?);
    ensure!(write_as(&leadership, &store, "late").await? == Outcome::Conflict);
    Ok(())
}
