//! Puts, reads and deletes.

use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::{Config, Outcome, Store, Txn};
use etcd_client::{DeleteOptions, GetOptions, PutOptions, SortOrder, SortTarget};
use std::time::Duration;

pub(crate) async fn every_write_is_one_revision(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    ensure!(store.get("a").await?.is_none());
    let start = store.list("").await?.revision;
    ensure!(start == 1, "an empty store is at revision {start}");
    let first = store.commit(Txn::new().put("a", "1").put("b", "1")).await?;
    ensure!(first == Outcome::Committed { revision: 2 }, "{first:?}");
    let second = store.commit(Txn::new().put("a", "2").delete("b")).await?;
    ensure!(second == Outcome::Committed { revision: 3 }, "{second:?}");
    let nothing = store.commit(Txn::new().delete("b")).await?;
    ensure!(nothing == Outcome::Committed { revision: 3 }, "a delete of nothing is no write: {nothing:?}");
    store.commit(Txn::new().put("b", "3")).await?.committed()?;

    let a = store.get("a").await?.context("a")?;
    ensure!((a.create_revision, a.mod_revision, a.version, a.lease) == (2, 3, 2, 0), "{a:?}");
    ensure!(&a.value[..] == b"2");
    let b = store.get("b").await?.context("b")?;
    ensure!((b.create_revision, b.mod_revision, b.version) == (4, 4, 1), "made anew: {b:?}");
    Ok(())
}

pub(crate) async fn ranges_are_cut_and_sorted(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    for (key, value) in [("k/b", "1"), ("k/a", "3"), ("k/c", "2"), ("l", "0"), ("k/b", "4")] {
        client.put(key, value, None).await?;
    }
    let prefix = GetOptions::new().with_prefix();
    let cases = [
        ("plain", prefix.clone(), "k/a k/b k/c"),
        ("limit", prefix.clone().with_limit(2), "k/a k/b +"),
        ("by value", prefix.clone().with_sort(SortTarget::Value, SortOrder::Descend), "k/b k/a k/c"),
        ("by mod", prefix.clone().with_sort(SortTarget::Mod, SortOrder::Ascend), "k/a k/c k/b"),
        ("by create", prefix.clone().with_sort(SortTarget::Create, SortOrder::None), "k/b k/a k/c"),
        (
            "by version",
            prefix.clone().with_sort(SortTarget::Version, SortOrder::Descend).with_limit(1),
            "k/b +",
        ),
        ("backwards", prefix.clone().with_sort(SortTarget::Key, SortOrder::Descend), "k/c k/b k/a"),
        ("from", GetOptions::new().with_from_key(), "k/a k/b k/c l"),
        ("range", GetOptions::new().with_range("k/b"), "k/a"),
        ("modified", prefix.clone().with_min_mod_revision(4), "k/b k/c"),
        ("created", prefix.clone().with_max_create_revision(3), "k/a k/b"),
        ("count", prefix.clone().with_count_only(), ""),
        ("backward range", GetOptions::new().with_range("a"), ""),
    ];
    for (what, options, expected) in cases {
        let key = if what == "from" || what.ends_with("range") { "k/a" } else { "k/" };
        let response = client.get(key, Some(options)).await?;
        let mut found: Vec<_> = response.kvs().iter().filter_map(|kv| kv.key_str().ok()).collect();
        if response.more() {
            found.push("+");
        }
        ensure!(found.join(" ") == expected, "{what}: {found:?}, not {expected}");
        let count = match what {
            "from" => 4,
            "range" => 1,
            "backward range" => 0,
            _ => 3,
        };
        ensure!(response.count() == count, "{what}: count {}", response.count());
    }
    let keys_only = client.get("k/a", Some(GetOptions::new().with_keys_only())).await?;
    ensure!(keys_only.kvs().iter().all(|kv| kv.value().is_empty() && kv.mod_revision() == 3));
    Ok(())
}

pub(crate) async fn old_revisions_can_be_read(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    for value in ["1", "2", "3"] {
        client.put("k", value, None).await?;
    }
    client.delete("k", None).await?;
    client.put("k", "5", None).await?;
    for (revision, value) in [(2, Some("1")), (3, Some("2")), (4, Some("3")), (5, None), (6, Some("5"))] {
        let response = client.get("k", Some(GetOptions::new().with_revision(revision))).await?;
        let found = response.kvs().first().and_then(|kv| kv.value_str().ok());
        ensure!(found == value, "at {revision}: {found:?}");
        ensure!(response.header().map(|h| h.revision()) == Some(6), "the header has the current revision");
    }
    client.compact(4, None).await?;
    ensure!(client.get("k", Some(GetOptions::new().with_revision(3))).await.is_err());
    let kept = client.get("k", Some(GetOptions::new().with_revision(4))).await?;
    ensure!(kept.kvs().len() == 1, "what was true at the compacted revision is kept");
    Ok(())
}

pub(crate) async fn puts_and_deletes_return_previous_values(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let prev = PutOptions::new().with_prev_key();
    ensure!(client.put("a", "1", Some(prev.clone())).await?.prev_key().is_none());
    let put = client.put("a", "2", Some(prev)).await?;
    ensure!(put.prev_key().map(etcd_client::KeyValue::value) == Some(&b"1"[..]));

    let lease = client.lease_grant(60, None).await?.id();
    client.put("a", "3", Some(PutOptions::new().with_lease(lease))).await?;
    client.put("a", "", Some(PutOptions::new().with_ignore_value())).await?;
    let a = client.get("a", None).await?;
    ensure!(
        a.kvs().iter().all(|kv| kv.value() == b"3" && kv.lease() == 0),
        "value kept, lease taken off: {a:?}"
    );
    client.put("a", "4", Some(PutOptions::new().with_lease(lease))).await?;
    client.put("a", "5", Some(PutOptions::new().with_ignore_lease())).await?;
    let a = client.get("a", None).await?;
    ensure!(a.kvs().iter().all(|kv| kv.value() == b"5" && kv.lease() == lease), "lease kept: {a:?}");

    client.put("b", "1", None).await?;
    let deleted = client.delete("", Some(DeleteOptions::new().with_all_keys().with_prev_key())).await?;
    ensure!(deleted.deleted() == 2);
    let found: Vec<_> =
        deleted.prev_kvs().iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec())).collect();
    ensure!(found == [(b"a".to_vec(), b"5".to_vec()), (b"b".to_vec(), b"1".to_vec())], "{found:?}");
    Ok(())
}

pub(crate) async fn a_listing_has_many_pages_and_one_revision(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let keys: Vec<String> = (0..2500).map(|i| format!("/many/{i:05}")).collect();
    for chunk in keys.chunks(100) {
        let txn = chunk.iter().fold(Txn::new(), |txn, key| txn.put(key, "v"));
        store.commit(txn).await?.committed()?;
    }
    store.commit(Txn::new().put("/manz", "v").put("/many", "v")).await?.committed()?;
    // Writes continue during the listing; all pages still have one revision.
    let (writer, stop) = (store.clone(), tokio_util::sync::CancellationToken::new());
    let stopped = stop.clone();
    let writing = tokio::spawn(async move {
        let mut last = 0;
        while !stopped.is_cancelled() {
            let txn = Txn::new().put("/many/00000", format!("{last}")).put("/many/02499", format!("{last}"));
            writer.commit(txn).await?.committed()?;
            last += 1;
        }
        anyhow::Ok(())
    });
    for _ in 0..5 {
        let listing = store.list("/many/").await?;
        ensure!(listing.items.iter().map(|kv| &kv.key).eq(&keys), "{} keys", listing.items.len());
        ensure!(
            listing.items[0].value == listing.items[2499].value,
            "first and last page of different moments"
        );
        ensure!(listing.items.iter().all(|kv| kv.mod_revision <= listing.revision));
    }
    stop.cancel();
    writing.await??;
    ensure!(store.list("").await?.items.len() == 2502);
    Ok(())
}

pub(crate) trait Committed {
    fn committed(self) -> Result<i64>;
}

impl Committed for Outcome {
    fn committed(self) -> Result<i64> {
        match self {
            Outcome::Committed { revision } => Ok(revision),
            Outcome::Conflict => anyhow::bail!("conflict"),
        }
    }
}

/// Together they exceed what one answer may have.
pub(crate) async fn large_values_are_listed(peer: &mut Peer) -> Result<()> {
    const VALUES: usize = 190;
    // A busy machine needs long for hundreds of megabytes.
    let config = Config { request_timeout: Duration::from_secs(60), ..Config::new([peer.endpoint()]) };
    let store = Store::connect(&config).await?;
    let value = "x".repeat((3 << 19) - 4096);
    for n in 0..VALUES {
        store.commit(Txn::new().put(format!("/large/{n:03}"), value.clone())).await?.committed()?;
    }
    for n in 0..1000 {
        store.commit(Txn::new().put(format!("/kind/{n:03}"), "small")).await?.committed()?;
    }
    ensure!(store.list("/large/").await?.items.len() == VALUES);
    let all = store.list("/").await?;
    ensure!(all.items.len() == VALUES + 1000 && all.items.iter().all(|kv| kv.mod_revision <= all.revision));
    Ok(())
}
