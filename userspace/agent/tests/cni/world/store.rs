//! The store stops and starts.

use std::{net::SocketAddr, path::Path};

use contiv_store::embedded;

use super::World;

impl World {
    /// Stops the store, which refuses connections then, and returns its address.
    pub(crate) async fn stop_store(&mut self) -> SocketAddr {
        let server = self.server.take().unwrap();
        let listen = server.local_addr().unwrap();
        server.shutdown().await.unwrap();
        listen
    }

    pub(crate) async fn start_store(&mut self, listen: SocketAddr) {
        let folder = self.directory.path().join("store");
        self.server = Some(embedded::Server::open(&folder, listen).await.unwrap());
    }

    /// Stops the store, lets `change` replace its directory, and starts it again.
    pub(crate) async fn replace_store(&mut self, change: impl FnOnce(&Path)) {
        let listen = self.stop_store().await;
        change(&self.directory.path().join("store"));
        self.start_store(listen).await;
    }
}
