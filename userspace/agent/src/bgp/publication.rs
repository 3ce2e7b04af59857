use std::time::Duration;

use contiv_model::{
    bgp::Oper,
    key::{BGPS_OPER, Key},
    name::HostName,
};
use contiv_store::{Error, Store, Txn};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::report::Report;
use crate::{backoff::Backoff, error::one_line};

/// Minimum interval between writes of the record.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between reports that are read. Each message of the neighbor changes the report, and the record lists all routes.
const READ_INTERVAL: Duration = Duration::from_millis(100);

/// Writes the record of the session whenever it changes, for netmaster. The record stays when the agent stops; netmaster
/// ignores records of nodes that are not registered.
pub async fn publish(
    host: HostName,
    store: Store,
    mut reports: watch::Receiver<Report>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let known = async { reports.wait_for(|report| *report != Report::Unknown).await.is_ok() };
    if stop.run_until_cancelled(known).await != Some(true) {
        stop.cancelled().await;
        return Ok(());
    }
    let key = Key::BgpOper(host.clone()).to_string();
    // A node that never had settings writes nothing.
    let mut written: Option<Option<Oper>> = None;
    let mut due = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        let oper = reports.borrow_and_update().oper(&host);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = reports.changed() => {
                if changed.is_err() {
                    // The speaker's task has ended; it reports the reason.
                    stop.cancelled().await;
                    return Ok(());
                }
                sleep(READ_INTERVAL).await;
            }
            () = sleep_until(due), if written.as_ref() != Some(&oper) => {
                let body = oper.as_ref().map(serde_json::to_vec).transpose()?;
                match write(&store, &key, body).await {
                    Ok(()) => {
                        backoff.reset();
                        written = Some(oper);
                        due = Instant::now() + WRITE_INTERVAL;
                    }
                    Err(error) => {
                        let wait = backoff.pause();
                        let hint = match error.is_permission_denied() {
                            true => format!("; grant the role of agents readwrite on {BGPS_OPER}"),
                            false => String::new(),
                        };
                        tracing::warn!("write the BGP status: {}{hint}; retry in {wait:?}", one_line(&error));
                        tokio::select! {
                            () = stop.cancelled() => return Ok(()),
                            () = sleep(wait) => {}
                        }
                    }
                }
            }
        }
    }
}

async fn write(store: &Store, key: &str, body: Option<Vec<u8>>) -> Result<(), Error> {
    let txn = match body {
        Some(body) => Txn::new().put(key, body),
        None if store.get(key).await?.is_none() => return Ok(()),
        None => Txn::new().delete(key),
    };
    // A transaction without guards cannot conflict.
    store.commit(txn).await.map(drop)
}
