//! Waits until an agent has carried out what the store has.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{cluster::Node, interrupt};

const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Waits until all objects that the store had at this revision are in effect; fails as soon as one has failed.
pub(super) fn wait_for(node: &Node, revision: i64) -> Result<()> {
    let start = Instant::now();
    loop {
        interrupt::check()?;
        let state = node.client().get("/readyz")?.json()?;
        ensure!(state["failed"].as_u64() == Some(0), "{}: objects failed: {state}", node.name);
        if state["appliedRevision"].as_i64().is_some_and(|applied| applied >= revision) {
            return Ok(());
        }
        ensure!(start.elapsed() < TIMEOUT, "{}: revision {revision} is not in effect: {state}", node.name);
        thread::sleep(POLL_INTERVAL);
    }
}
