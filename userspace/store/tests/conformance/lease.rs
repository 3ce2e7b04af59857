//! Leases, and keys that are kept while their owner lives.

use crate::kv::Committed;
use crate::peer::{Kind, Peer};
use anyhow::{Context, Result, ensure};
use contiv_store::{Status, Store, Txn};
use etcd_client::{LeaseTimeToLiveOptions, PutOptions, WatchOptions};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);

async fn wait_for(store: &Store, key: &str, there: bool) -> Result<Duration> {
    let start = Instant::now();
    while store.get(key).await?.is_some() != there {
        ensure!(
            start.elapsed() < SOON,
            "{key} is {} after {SOON:?}",
            if there { "not there" } else { "still there" }
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(start.elapsed())
}

pub(crate) async fn a_lease_ends_with_its_keys_in_one_revision(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let lease = client.lease_grant(1, None).await?;
    // etcd raises it to one and a half election time-outs, the embedded store has none.
    let shortest = if peer.kind() == Kind::Etcd { 2 } else { 1 };
    ensure!(lease.ttl() == shortest, "a TTL of 1 became {}", lease.ttl());
    let under = PutOptions::new().with_lease(lease.id());
    for key in ["l/b", "l/a", "l/c"] {
        client.put(key, "v", Some(under.clone())).await?;
    }
    client.put("l/free", "v", Some(under)).await?;
    client.put("l/free", "v", None).await?; // 6: off the lease
    let mut stream =
        client.watch("l/", Some(WatchOptions::new().with_prefix().with_start_revision(7))).await?;
    let start = Instant::now();
    let deleted = loop {
        let response = tokio::time::timeout(SOON, stream.message()).await??.context("the watch ended")?;
        if !response.events().is_empty() {
            break response;
        }
    };
    ensure!(start.elapsed() > Duration::from_millis(500), "too early: {:?}", start.elapsed());
    let mut keys: Vec<_> = deleted
        .events()
        .iter()
        .filter_map(|e| e.kv())
        .map(|kv| (kv.key().to_vec(), kv.mod_revision()))
        .collect();
    keys.sort();
    ensure!(keys == [(b"l/a".to_vec(), 7), (b"l/b".to_vec(), 7), (b"l/c".to_vec(), 7)], "{keys:?}");
    ensure!(client.lease_time_to_live(lease.id(), None).await?.ttl() == -1);
    ensure!(client.get("l/free", None).await?.kvs().len() == 1);
    Ok(())
}

pub(crate) async fn keep_alive_keeps_alive(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let lease = client.lease_grant(2, None).await?;
    client.put("k", "v", Some(PutOptions::new().with_lease(lease.id()))).await?;
    let (mut keeper, mut answers) = client.lease_keep_alive(lease.id()).await?;
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        keeper.keep_alive().await?;
        let answer = answers.message().await?.context("the stream ended")?;
        ensure!(answer.ttl() == lease.ttl() && answer.id() == lease.id());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let k = client.get("k", None).await?;
    ensure!(k.kvs().iter().any(|kv| kv.lease() == lease.id()), "kept for longer than its TTL");
    client.lease_revoke(lease.id()).await?;
    keeper.keep_alive().await?;
    ensure!(answers.message().await?.context("the stream ended")?.ttl() == 0, "no such lease any more");
    Ok(())
}

pub(crate) async fn revoking_and_asking(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let (a, b) = (client.lease_grant(100, None).await?.id(), client.lease_grant(200, None).await?.id());
    ensure!(a != b && a > 0 && b > 0);
    for (key, lease) in [("x", a), ("y", a), ("y", b), ("z", b)] {
        client.put(key, "v", Some(PutOptions::new().with_lease(lease))).await?;
    }
    client.delete("z", None).await?;
    let keys = Some(LeaseTimeToLiveOptions::new().with_keys());
    let asked = client.lease_time_to_live(b, keys).await?;
    ensure!(asked.granted_ttl() == 200 && (198..=200).contains(&asked.ttl()), "{asked:?}");
    ensure!(asked.keys() == [b"y".to_vec()], "{asked:?}");
    let mut leases: Vec<i64> =
        client.leases().await?.leases().iter().map(etcd_client::LeaseStatus::id).collect();
    leases.sort_unstable();
    let mut expected = vec![a, b];
    expected.sort_unstable();
    ensure!(leases == expected);
    client.lease_revoke(a).await?;
    ensure!(client.get("x", None).await?.kvs().is_empty() && !client.get("y", None).await?.kvs().is_empty());
    ensure!(client.lease_time_to_live(a, None).await?.ttl() == -1);
    Ok(())
}

pub(crate) async fn a_registration_outlives_its_ttl_and_a_lost_lease(peer: &mut Peer) -> Result<()> {
    let (store, mut client) = (peer.store().await?, peer.client().await?);
    let ttl = Duration::from_secs(2);
    let kept = store.register("/service/a", "here", ttl).await?;
    let dropped = store.register("/service/b", "here", ttl).await?;
    tokio::time::sleep(ttl * 2).await;
    let a = store.get("/service/a").await?.context("kept")?;
    ensure!(a.version == 1 && a.lease != 0 && &a.value[..] == b"here", "{a:?}");

    client.lease_revoke(a.lease).await?;
    ensure!(store.get("/service/a").await?.is_none());
    wait_for(&store, "/service/a", true).await?;
    ensure!(store.get("/service/a").await?.context("put again")?.lease != a.lease);

    kept.revoke().await?;
    ensure!(store.get("/service/a").await?.is_none(), "revoked is gone at once");
    drop(dropped);
    wait_for(&store, "/service/b", false).await?;
    Ok(())
}

pub(crate) async fn a_registration_returns_after_another_process_held_the_key(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let ttl = Duration::from_secs(2);
    let kept = store.register("/service/a", "here", ttl).await?;
    store.commit(Txn::new().delete("/service/a")).await?.committed()?;
    wait_for(&store, "/service/a", true).await?;

    let other = store.register("/service/a", "there", ttl).await?;
    tokio::time::sleep(ttl * 2).await;
    let a = store.get("/service/a").await?.context("kept by the other")?;
    ensure!(a.version == 2 && &a.value[..] == b"there", "they do not put it in turns: {a:?}");
    other.revoke().await?;
    wait_for(&store, "/service/a", true).await?;
    ensure!(&store.get("/service/a").await?.context("put again")?.value[..] == b"here");
    kept.revoke().await.map_err(Into::into)
}

pub(crate) async fn a_registration_survives_a_restart(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let ttl = Duration::from_secs(3);
    let kept = store.register("/service/a", "here", ttl).await?;
    let mut status = kept.status();
    peer.kill()?;
    let away = |s: &Status| matches!(s, Status::Retrying { .. });
    tokio::time::timeout(SOON, status.wait_for(away)).await??;
    // Away for longer than the TTL; the store may or may not know the lease afterwards.
    tokio::time::sleep(ttl).await;
    tokio::task::block_in_place(|| peer.restart())?;
    tokio::time::timeout(SOON, status.wait_for(|s| *s == Status::Connected)).await??;
    wait_for(&store, "/service/a", true).await?;
    tokio::time::sleep(ttl * 2).await;
    ensure!(store.get("/service/a").await?.is_some());
    store.commit(Txn::new().put("/other", "v")).await?.committed()?;
    kept.revoke().await?;
    ensure!(store.get("/service/a").await?.is_none());
    Ok(())
}

pub(crate) async fn the_keys_of_a_registration_share_a_lease(peer: &mut Peer) -> Result<()> {
    let (store, mut client) = (peer.store().await?, peer.client().await?);
    let ttl = Duration::from_secs(2);
    let records = ["/service/a", "/service/b"].map(|key| (key.to_owned(), "here".into()));
    let kept = store.register_all(records, ttl).await?;
    let lease = async |key| anyhow::Ok(store.get(key).await?.context("registered")?.lease);
    let shared = lease("/service/a").await?;
    ensure!(shared != 0 && shared == lease("/service/b").await?);
    ensure!(client.leases().await?.leases().len() == 1);

    // One deleted key is put again, and the other is left alone.
    store.commit(Txn::new().delete("/service/b")).await?.committed()?;
    wait_for(&store, "/service/b", true).await?;
    ensure!(lease("/service/b").await? == shared);
    ensure!(store.get("/service/a").await?.context("kept")?.version == 1);

    client.lease_revoke(shared).await?;
    wait_for(&store, "/service/a", true).await?;
    wait_for(&store, "/service/b", true).await?;
    ensure!(lease("/service/a").await? == lease("/service/b").await?);
    kept.revoke().await?;
    ensure!(store.get("/service/a").await?.is_none() && store.get("/service/b").await?.is_none());
    Ok(())
}

/// The process was stopped, and so could not receive what renews a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_store_ends_no_lease() -> Result<()> {
    let mut peer = Peer::start(Kind::Embedded)?;
    let mut client = peer.client().await?;
    let lease = client.lease_grant(2, None).await?;
    client.put("k", "v", Some(PutOptions::new().with_lease(lease.id()))).await?;
    peer.freeze()?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    peer.thaw()?;
    let (mut keeper, mut answers) = client.lease_keep_alive(lease.id()).await?;
    keeper.keep_alive().await?;
    ensure!(answers.message().await?.context("the stream ended")?.ttl() == lease.ttl());
    ensure!(client.get("k", None).await?.kvs().len() == 1);
    // It still ends without an owner.
    wait_for(&peer.store().await?, "k", false).await?;
    Ok(())
}
