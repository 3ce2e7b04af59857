//! Durations of requests, by operation and result.

use crate::kv::Committed as _;
use crate::peer::Peer;
use anyhow::{Context, Result, ensure};
use contiv_store::{Config, Guard, RequestMetrics, Store, Txn};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Number of requests with these labels.
fn count(metrics: &RequestMetrics, operation: &str, result: &str) -> Result<u64> {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut encoded = String::new();
    text::encode(&mut encoded, &registry)?;
    let series =
        format!("store_request_duration_seconds_count{{operation=\"{operation}\",result=\"{result}\"}} ");
    let value = encoded.lines().find_map(|line| line.strip_prefix(&series));
    value.map_or(Ok(0), |value| value.parse().context("count"))
}

pub(crate) async fn requests_are_counted_by_operation_and_result(peer: &mut Peer) -> Result<()> {
    let config = Config { request_timeout: Duration::from_secs(1), ..Config::new([peer.endpoint()]) };
    let store = Store::connect(&config).await?;
    let count = |operation, result| count(&config.metrics, operation, result);
    ensure!(count("connect", "ok")? == 1);
    store.commit(Txn::new().put("k", "1")).await?.committed()?;
    let absent = Guard::CreateRevision { key: "k".into(), revision: 0 };
    let _conflict = store.commit(Txn::new().guard(absent).put("k", "2")).await?;
    ensure!(count("commit", "ok")? == 2, "a conflict is an answer");
    for _ in 0..3 {
        store.get("k").await?;
    }
    store.list("").await?;
    ensure!((count("get", "ok")?, count("list", "ok")?) == (3, 1));

    store.get_at("k", 1_000_000).await.err().context("a revision of the future")?;
    ensure!(count("get", "refused")? == 1);

    peer.freeze()?;
    store.get("k").await.err().context("the store does not answer")?;
    ensure!(count("get", "timeout")? == 1);
    peer.kill()?;
    store.get("k").await.err().context("the store is away")?;
    ensure!(count("get", "unreachable")? + count("get", "timeout")? == 2);
    ensure!(count("get", "ok")? == 3);
    Ok(())
}
