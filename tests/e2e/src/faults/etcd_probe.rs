//! Availability of etcd itself: puts a small key through each member in a loop. While all puts fail, no netmaster can write.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use etcd_client::{Client, ConnectOptions};
use testkit::patience;
use tokio::time::{sleep, timeout};

/// Timeout of a put. `CONTIV_TEST_PATIENCE` multiplies it and the interval.
const PUT_TIMEOUT: Duration = Duration::from_millis(250);
const INTERVAL: Duration = Duration::from_millis(20);

/// Begin and end of the successful puts through the member, until `stop`.
pub(super) fn run(endpoint: &str, stop: &AtomicBool) -> Result<Vec<(Instant, Instant)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let key = format!("/probe/{endpoint}");
    let (limit, interval) = (PUT_TIMEOUT * patience(), INTERVAL * patience());
    runtime.block_on(async {
        let options = ConnectOptions::new().with_connect_timeout(limit);
        let mut client = Client::connect([endpoint], Some(options)).await.context("connect the probe")?;
        let mut puts = vec![];
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            if let Ok(Ok(_)) = timeout(limit, client.put(key.as_str(), "", None)).await {
                puts.push((begin, Instant::now()));
            }
            sleep(interval).await;
        }
        Ok(puts)
    })
}
