//! What etcd can do by itself: a small key is put through each member, over and over. When none of them takes it, no
//! netmaster can write.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use etcd_client::{Client, ConnectOptions};
use tokio::time::{sleep, timeout};

/// Enough for a commit; one that hangs is given up and asked for anew.
const PATIENCE: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(20);

/// When puts through the member began and ended, until `stop`.
pub(super) fn observe(endpoint: &str, stop: &AtomicBool) -> Result<Vec<(Instant, Instant)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let key = format!("/probe/{endpoint}");
    runtime.block_on(async {
        let options = ConnectOptions::new().with_connect_timeout(PATIENCE);
        let mut client = Client::connect([endpoint], Some(options)).await.context("set up a probe")?;
        let mut puts = vec![];
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            if let Ok(Ok(_)) = timeout(PATIENCE, client.put(key.as_str(), "", None)).await {
                puts.push((begin, Instant::now()));
            }
            sleep(PAUSE).await;
        }
        Ok(puts)
    })
}
