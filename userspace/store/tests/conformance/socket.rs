//! The embedded store on a socket of the machine.

use crate::kv::Committed as _;
use anyhow::{Context, Result, ensure};
use contiv_model::event::Event;
use contiv_store::{Config, KeyValue, Store, Txn, embedded::Server};
use futures::StreamExt as _;
use std::path::Path;
use std::time::Duration;
use testkit::scratch_dir;
use tokio::net::UnixListener;

async fn open(dir: &Path) -> Result<Server> {
    let path = dir.join("store.sock");
    let _old = std::fs::remove_file(&path);
    Ok(Server::open_on(dir, &path, UnixListener::bind(&path)?).await?)
}

/// Guards against hanging.
const HANG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn requests_watches_and_leases_go_over_a_socket_and_outlive_a_restart() -> Result<()> {
    let dir = scratch_dir("store")?;
    let server = open(dir.path()).await?;
    let endpoint = format!("unix://{}", dir.path().join("store.sock").display());
    ensure!(server.endpoint() == endpoint && server.local_addr().is_none(), "{}", server.endpoint());

    let store = Store::connect(&Config::parse(&endpoint)?).await?;
    let _kept = store.register("lease", "v", Duration::from_secs(60)).await?;
    let mut watch = store.watch("k");
    store.commit(Txn::new().put("k", "1")).await?.committed()?;
    server.shutdown().await?;
    let server = open(dir.path()).await?;
    // Over the connection that was made before.
    store.commit(Txn::new().put("k", "2")).await?.committed()?;
    // After a restart it may come in a new snapshot.
    let is_second = |event: &Event<String, KeyValue>| matches!(event, Event::Apply(_, kv) | Event::InitApply(_, kv) if kv.value == "2");
    let second = async { while watch.next().await.is_some_and(|update| !is_second(&update.event)) {} };
    tokio::time::timeout(HANG, second).await.context("the change was not seen")?;
    ensure!(store.get("lease").await?.is_some());
    server.shutdown().await?;
    Ok(())
}
