//! The embedded store of a cluster with one machine.

use std::path::Path;

use anyhow::Context as _;
use contiv_daemon::socket;
use contiv_store::embedded::{Server, make_dir};

use crate::config::StoreListen;

/// Opens the store in `dir`. It listens on a socket there unless `listen` names something else.
pub async fn open(dir: &Path, listen: Option<&StoreListen>) -> anyhow::Result<Server> {
    let socket = dir.join("store.sock");
    let path = match listen {
        Some(StoreListen::Tcp(address)) => {
            return Server::open(dir, *address)
                .await
                .with_context(|| format!("open the embedded store in {} on {address}", dir.display()));
        }
        Some(StoreListen::Unix(path)) => path,
        None => &socket,
    };
    let what = || format!("open the embedded store in {}", dir.display());
    make_dir(dir).with_context(what)?;
    let listener = socket::listen(path, "--store-listen unix:PATH").with_context(what)?;
    Server::open_on(dir, path, listener).await.with_context(what)
}
