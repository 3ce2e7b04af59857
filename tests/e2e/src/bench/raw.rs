//! Benchmarks of the store alone: transactions like those of netmaster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::{Client, Compare, CompareOp, EventType, GetOptions, Txn, TxnOp, WatchOptions};
use tokio::{runtime::Runtime, task::JoinSet, time::timeout};

use super::latency::Latency;

const WATCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes of one request: number of puts, bytes of keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Writes(Vec<Put>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Put {
    key: usize,
    value: usize,
}

impl Writes {
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|put| put.key + put.value).sum()
    }

    pub(super) fn puts(&self) -> usize {
        self.0.len()
    }
}

pub(super) struct Store {
    runtime: Runtime,
    client: Client,
}

impl Store {
    /// Reads all keys below `prefix` in pages; returns their number, and the bytes of keys and values.
    pub(super) fn read_all(&self, prefix: &str) -> Result<(usize, usize)> {
        // etcd counts the keys of the range anew for each page.
        const PAGE: i64 = 50_000;
        // A page of large policies exceeds gRPC's default of 4 MiB.
        const MAX_PAGE_BYTES: usize = 1 << 30;
        let mut client = self.client.kv_client().max_decoding_message_size(MAX_PAGE_BYTES);
        self.runtime.block_on(async {
            let (mut from, mut keys, mut bytes) = (prefix.as_bytes().to_vec(), 0, 0);
            // Keys are ASCII; this is greater than all of them.
            let end = [prefix.as_bytes(), &[0xff]].concat();
            loop {
                let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE);
                let answer = client.get(from.clone(), Some(options)).await?;
                keys += answer.kvs().len();
                bytes += answer.kvs().iter().map(|kv| kv.key().len() + kv.value().len()).sum::<usize>();
                match answer.kvs().last() {
                    Some(last) if answer.more() => from = [last.key(), &[0]].concat(),
                    _ => return Ok((keys, bytes)),
                }
            }
        })
    }

    pub(super) fn connect(endpoint: &str) -> Result<Store> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(Client::connect([endpoint], None)).context("connect to the store")?;
        Ok(Store { runtime, client })
    }

    /// Returns the writes of `work` under `prefix` in the transaction that also writes a key under `marker`.
    pub(super) fn observe(
        &self,
        prefix: &str,
        marker: &str,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<Writes> {
        let mut client = self.client.clone();
        let mut stream = self
            .runtime
            .block_on(client.watch(prefix, Some(WatchOptions::new().with_prefix())))
            .context("watch the store")?;
        work()?;
        let puts = self.runtime.block_on(async {
            loop {
                let response =
                    timeout(WATCH_TIMEOUT, stream.message()).await.context("no write was observed")??;
                let response = response.context("the watch ended")?;
                let puts = response.events().iter().filter(|event| event.event_type() == EventType::Put);
                let pairs: Vec<_> = puts.filter_map(|event| event.kv()).collect();
                // There are other writes, such as the lease of the leader lock.
                if pairs.iter().any(|pair| pair.key().starts_with(marker.as_bytes())) {
                    let put = |pair: &&etcd_client::KeyValue| Put {
                        key: pair.key().len(),
                        value: pair.value().len(),
                    };
                    return anyhow::Ok(pairs.iter().map(put).collect());
                }
            }
        })?;
        Ok(Writes(puts))
    }

    /// Measures transactions of such writes with two compares, by concurrent clients.
    pub(super) fn transactions(
        &self,
        writes: &Writes,
        clients: usize,
        duration: Duration,
    ) -> Result<Latency> {
        self.runtime.block_on(async {
            let mut tasks = JoinSet::new();
            let start = Instant::now();
            for client in 0..clients {
                tasks.spawn(series(self.client.clone(), writes.clone(), client, start, duration));
            }
            let mut calls = vec![];
            while let Some(done) = tasks.join_next().await {
                calls.extend(done??);
            }
            Latency::of(calls, start.elapsed()).context("no transaction was measured")
        })
    }
}

async fn series(
    mut client: Client,
    writes: Writes,
    number: usize,
    start: Instant,
    duration: Duration,
) -> Result<Vec<Duration>> {
    let mut calls = vec![];
    while start.elapsed() < duration {
        let round = calls.len();
        let puts: Vec<_> = (0..)
            .zip(&writes.0)
            .map(|(at, put): (usize, _)| {
                // New keys, with the length of netmaster's keys.
                let name = format!("/bench/{number}/{at}/{round}");
                let key = format!("{name:/<length$}", length = put.key);
                TxnOp::put(key, vec![b'x'; put.value], None)
            })
            .collect();
        // As in netmaster: compares the leader lock and a revision that was read.
        let guards = vec![
            Compare::create_revision("/bench-leader", CompareOp::Equal, 0),
            Compare::mod_revision(format!("/bench-guard/{number}"), CompareOp::Equal, 0),
        ];
        let call = Instant::now();
        let response = client.txn(Txn::new().when(guards).and_then(puts)).await?;
        anyhow::ensure!(response.succeeded(), "a transaction without contention failed");
        calls.push(call.elapsed());
    }
    Ok(calls)
}
