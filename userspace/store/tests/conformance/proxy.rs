//! Clients that reach etcd by `etcd grpc-proxy`, as the agents of a large cluster do.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use contiv_model::event::Event;
use contiv_store::{Batch, Config, Store, Txn, Update};
use futures::{Stream, StreamExt};
use testkit::etcd::{Etcd, Proxy};

use crate::kv::Committed as _;

const SOON: Duration = Duration::from_secs(30);
/// Keys of a transaction, the most that etcd permits.
const KEYS: usize = 128;

async fn next(batches: &mut (impl Stream<Item = Batch> + Unpin)) -> Result<Batch> {
    let next = async {
        loop {
            let batch = batches.next().await.context("the watch ended, which it never does")?;
            if !batch.resumed {
                return Ok(batch);
            }
        }
    };
    tokio::time::timeout(SOON, next).await.context("no batch")?
}

/// Keys of the batch that are put, with the round of their values.
fn puts<'b>(batch: &'b Batch) -> Vec<(&'b str, &'b [u8])> {
    let put = |update: &'b Update| match &update.event {
        Event::Apply(key, kv) => Some((key.as_str(), &kv.value[..8])),
        _ => None,
    };
    batch.updates.iter().filter_map(put).collect()
}

/// A transaction that etcd has to send in one large message.
fn round(number: usize) -> Txn {
    let value = format!("{number:08}").into_bytes();
    let value = [value, vec![b'x'; 10_000]].concat();
    (0..KEYS).fold(Txn::new(), |txn, key| txn.put(format!("/w/{key:03}"), value.clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_one_batch() -> Result<()> {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start()?;
    let proxy = Proxy::start(etcd.address())?;
    let writer = Store::connect(&Config::new([etcd.endpoint()])).await?;
    let store = Store::connect(&Config::new([proxy.endpoint()])).await?;
    let revision = store.position().await?.revision;
    let mut early = Box::pin(store.watch("/w/").batches());
    ensure!(next(&mut early).await?.relisted.is_some());
    for number in 0..20 {
        writer.commit(round(number)).await?.committed()?;
    }
    // One that joins the watch of the proxy, and one that reads the history.
    let mut late = Box::pin(store.watch_after("/w/", revision).batches());
    for batches in [&mut early, &mut late] {
        let mut seen = 0;
        while seen < 20 {
            let batch = next(batches).await?;
            let puts = puts(&batch);
            ensure!(puts.len().is_multiple_of(KEYS), "{} of the keys are in one batch", puts.len() % KEYS);
            for transaction in puts.chunks(KEYS) {
                let expected = format!("{seen:08}").into_bytes();
                ensure!(
                    transaction.iter().all(|(_, value)| *value == expected),
                    "transaction {seen} is torn"
                );
                seen += 1;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_two_proxies_misses_nothing_when_one_fails() -> Result<()> {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start()?;
    let mut proxies = [Proxy::start(etcd.address())?, Proxy::start(etcd.address())?];
    let writer = Store::connect(&Config::new([etcd.endpoint()])).await?;
    let store = Store::connect(&Config::new(proxies.iter().map(Proxy::endpoint))).await?;
    let registration = store.register("/r/agent", "here", Duration::from_secs(60)).await?;
    let mut batches = Box::pin(store.watch("/w/").batches());
    ensure!(next(&mut batches).await?.relisted.is_some());
    for number in 0..6 {
        writer.commit(Txn::new().put("/w/a", format!("{number:08}"))).await?.committed()?;
        let batch = next(&mut batches).await?;
        ensure!(batch.relisted.is_none(), "listed again: {batch:?}");
        ensure!(puts(&batch) == [("/w/a", format!("{number:08}").as_bytes())], "{batch:?}");
        tokio::task::block_in_place(|| match number % 2 {
            0 => proxies[number / 2 % 2].kill(),
            _ => proxies[number / 2 % 2].restart(),
        })?;
    }
    ensure!(store.get("/w/a").await?.is_some_and(|kv| kv.value == "00000005"));
    ensure!(writer.get("/r/agent").await?.is_some(), "the registration is gone");
    registration.revoke().await?;
    Ok(())
}
