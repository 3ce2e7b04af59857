//! A watch whose stream ends between two fragments of a response.

use super::Listening;
use super::directory::Directory;
use super::disk::{Disk, Identity};
use super::kv_service::KvService;
use super::lossy_disk::LossyDisk;
use super::shared::Shared;
use super::state::{Changes, State};
use super::watch_service::WatchService;
use crate::{Config, Store};
use anyhow::{Context, Result, ensure};
use etcd_client::proto::{
    PbKvServer, PbPutRequest, PbWatchRequest, PbWatchResponse, PbWatchServer, PbWatchService,
};
use futures::StreamExt;
use futures::future::ready;
use futures::stream::BoxStream;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Streaming};

/// Guards against hanging.
const HANG: Duration = Duration::from_secs(30);
/// Keys of a revision.
const KEYS: usize = 128;

/// Serves a store. The first stream ends after its first fragment.
struct TornStream {
    shared: Shared,
    has_ended: AtomicBool,
}

#[tonic::async_trait]
impl PbWatchService for TornStream {
    type WatchStream = BoxStream<'static, Result<PbWatchResponse, tonic::Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, tonic::Status> {
        let stream = WatchService(self.shared.clone()).watch(request).await?.into_inner();
        if self.has_ended.swap(true, Ordering::Relaxed) {
            return Ok(Response::new(stream));
        }
        let mut ends = false;
        let torn = stream.take_while(move |message| {
            let continues = !ends;
            ends |= message.as_ref().is_ok_and(|message| message.fragment);
            ready(continues)
        });
        Ok(Response::new(torn.boxed()))
    }
}

/// A store with two revisions, which are larger than a message together.
fn two_revisions() -> Result<(LossyDisk, State)> {
    let disk = LossyDisk::new(0);
    let (_, _, mut state): (_, _, State) = Disk::open(&disk)?;
    for bytes in [8_000, 11_000] {
        let mut changes = Changes::default();
        let mut step = state.step(&mut changes);
        for key in 0..KEYS {
            let (key, value) = (format!("k/{key:03}").into_bytes(), vec![b'x'; bytes]);
            step.put(PbPutRequest { key, value, ..Default::default() })?;
        }
    }
    state.durable = state.history.revision();
    Ok((disk, state))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_arrived_in_part_is_read_again() -> Result<()> {
    let (disk, state) = two_revisions()?;
    let ((_durable, durable), state) = (watch::channel(state.durable), Arc::new(RwLock::new(state)));
    let directory: Arc<dyn Directory> = Arc::new(disk);
    let listening = Listening::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // The store is only read.
    let (commands, _) = std::sync::mpsc::channel();
    let (identity, stop) = (Identity { cluster: 1, member: 1 }, CancellationToken::new());
    let shared = Shared { state, commands, durable, identity, listening, directory, stop };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let serving = tonic::transport::Server::builder()
        .add_service(PbKvServer::new(KvService(shared.clone())))
        .add_service(PbWatchServer::new(TornStream { shared, has_ended: AtomicBool::new(false) }))
        .serve_with_incoming(TcpIncoming::from(listener));
    let serving = tokio::spawn(serving);

    let store = Store::connect(&Config::new([address.to_string()])).await?;
    let mut batches = Box::pin(store.watch_after("k/", 1).batches());
    let (mut revisions, mut resumed) = (Vec::new(), false);
    while revisions.len() < 2 * KEYS {
        let batch = tokio::time::timeout(HANG, batches.next()).await?.context("the watch ended")?;
        ensure!(batch.relisted.is_none(), "the watch lists the keys");
        ensure!(batch.updates.len().is_multiple_of(KEYS), "a revision is torn");
        revisions.extend(batch.updates.iter().map(|update| update.revision));
        resumed |= batch.resumed;
    }
    ensure!(resumed, "the stream did not end");
    ensure!(revisions == [[2_i64; KEYS], [3; KEYS]].concat(), "{revisions:?}");
    serving.abort();
    Ok(())
}
