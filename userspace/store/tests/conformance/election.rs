//! Election of a leader, and fencing of a deposed one.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::election::{ElectionThread, Leadership, Timing, campaign};
use contiv_store::{Config, Outcome, Store, Txn};
use std::time::Duration;

const KEY: &str = "/contiv.io/lock/netmaster/leader";
/// The lease lasts longer than these tests: only a resignation or a stale lease lets another
/// process be elected.
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(1) };
/// Guards against hanging; shorter than the TTL.
const SOON: Duration = Duration::from_secs(30);

async fn holder(store: &Store) -> Result<String> {
    let kv = store.get(KEY).await?.context("no leader")?;
    Ok(String::from_utf8(kv.value.to_vec())?)
}

async fn write_as(leadership: &Leadership, store: &Store, value: &str) -> Result<Outcome> {
    Ok(store.commit(Txn::new().guard(leadership.guard()).put("/state", value.to_owned())).await?)
}

pub(crate) async fn one_leads_at_a_time_and_resigning_hands_over(peer: &mut Peer) -> Result<()> {
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
    first.resign().await?;
    let second = tokio::time::timeout(SOON, second).await???;
    ensure!(holder(&store).await? == "10.0.0.2:9999");
    ensure!(store.commit(Txn::new().guard(old).put("/state", "old")).await? == Outcome::Conflict);
    write_as(&second, &store, "2").await?.committed()?;
    second.resign().await?;
    ensure!(store.get(KEY).await?.is_none());
    Ok(())
}

/// The leader's threads stop without resigning, as in a crash.
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
        // No task of it runs any more, and the lease is not revoked.
        std::mem::forget(leadership);
        runtime.shutdown_background();
        anyhow::Ok(guard)
    });
    let old = tokio::task::block_in_place(|| doomed.join()).map_err(|_| anyhow::anyhow!("panicked"))??;
    let store = peer.store().await?;
    ensure!(holder(&store).await? == "10.0.0.1:9999", "it still leads as far as the store knows");
    store.commit(Txn::new().guard(old.clone()).put("/state", "1")).await?.committed()?;

    let lease = store.get(KEY).await?.context("no leader")?.lease;
    let second = tokio::time::timeout(SOON, campaign(&store, KEY, "10.0.0.2:9999", TIMING)).await??;
    let client = etcd_client::Client::connect([peer.endpoint()], None).await?;
    ensure!(
        client.lease_client().time_to_live(lease, None).await?.ttl() > 0,
        "waited for the end of the lease"
    );
    let late = store.commit(Txn::new().guard(old).put("/state", "late")).await?;
    ensure!(late == Outcome::Conflict, "the deposed leader wrote: {late:?}");
    write_as(&second, &store, "2").await?.committed()?;
    ensure!(store.get("/state").await?.is_some_and(|kv| &kv.value[..] == b"2"));
    second.resign().await?;
    Ok(())
}

pub(crate) async fn a_leader_without_a_store_stops_in_time(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let short = Timing { ttl: Duration::from_secs(3), ..TIMING };
    let leadership = campaign(&store, KEY, "10.0.0.1:9999", short).await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(!leadership.is_lost(), "kept alive past the TTL");
    leadership.resign().await?;

    // The leader stops half an interval of its keep-alives, which is a second, before the lease ends.
    let slow = Timing { ttl: Duration::from_secs(10), staleness: Duration::from_secs(8) };
    let leadership = campaign(&store, KEY, "10.0.0.1:9999", slow).await?;
    peer.freeze()?;
    tokio::time::timeout(SOON, leadership.lost()).await?;
    peer.thaw()?;
    let lock = store.get(KEY).await?.context("the leader stopped after its lease had ended")?;
    ensure!(lock.create_revision == leadership.create_revision());
    ensure!(leadership.is_lost());
    leadership.resign().await?;
    let next = tokio::time::timeout(SOON, campaign(&store, KEY, "10.0.0.2:9999", TIMING)).await??;
    next.resign().await?;
    Ok(())
}

pub(crate) async fn a_deleted_key_deposes(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let leadership = campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?;
    // Not done by the election, but an operator can do it.
    store.commit(Txn::new().delete(KEY)).await?.committed()?;
    tokio::time::timeout(SOON, leadership.lost()).await?;
    ensure!(!leadership.read_index().confirm().await?);
    ensure!(write_as(&leadership, &store, "late").await? == Outcome::Conflict);
    Ok(())
}

/// The store answers nothing for longer than the staleness, and then all waiting requests at once,
/// in any order.
pub(crate) async fn a_stalled_store_deposes_no_leader(peer: &mut Peer) -> Result<()> {
    let config = Config::new([peer.endpoint()]);
    let store = peer.store().await?;
    let (first, second) = (ElectionThread::start(&config).await?, ElectionThread::start(&config).await?);
    let leadership = first.campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?;
    let mut other = Box::pin(second.campaign(&store, KEY, "10.0.0.2:9999", TIMING));
    for round in 0..8 {
        peer.freeze()?;
        let stalled = tokio::time::timeout(Duration::from_millis(1500 + 50 * round), &mut other).await;
        peer.thaw()?;
        ensure!(stalled.is_err());
        let next = tokio::time::timeout(Duration::from_millis(700), &mut other).await;
        ensure!(next.is_err() && !leadership.is_lost(), "another leader after stall {round}");
    }
    leadership.resign().await?;
    tokio::time::timeout(SOON, other).await??.resign().await?;
    Ok(())
}

/// The tasks of the leader's process occupy all threads of its runtime.
pub(crate) async fn a_busy_process_stays_leader(peer: &mut Peer) -> Result<()> {
    let config = Config::new([peer.endpoint()]);
    let (other, own) = (peer.store().await?, config.clone());
    let busy = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (store, election) = (Store::connect(&own).await?, ElectionThread::start(&own).await?);
            let leadership = election.campaign(&store, KEY, "10.0.0.1:9999", TIMING).await?;
            // Nothing else runs in this runtime meanwhile.
            std::thread::sleep(Duration::from_secs(4));
            ensure!(leadership.read_index().confirm().await?, "another process leads");
            ensure!(!leadership.is_lost());
            leadership.resign().await?;
            Ok(())
        })
    });
    while other.get(KEY).await?.is_none() && !busy.is_finished() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let second = tokio::time::timeout(SOON, campaign(&other, KEY, "10.0.0.2:9999", TIMING)).await??;
    tokio::task::block_in_place(|| busy.join()).map_err(|_| anyhow::anyhow!("panicked"))??;
    second.resign().await?;
    Ok(())
}
