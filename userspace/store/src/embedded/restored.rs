//! A watch on a store that is replaced by an older copy, with other changes since, while the watch
//! looks whether it is the same.

use super::Listening;
use super::directory::Directory;
use super::disk::{Disk, Identity};
use super::kv_service::KvService;
use super::lossy_disk::LossyDisk;
use super::shared::Shared;
use super::state::{Changes, State};
use super::watch_service::WatchService;
use crate::{Batch, Config, Status, Store};
use anyhow::{Context, Result, ensure};
use contiv_model::event::Event;
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvServer, PbKvService,
    PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbTxnRequest,
    PbTxnResponse, PbWatchRequest, PbWatchResponse, PbWatchServer, PbWatchService,
};
use futures::StreamExt;
use futures::stream::{BoxStream, Empty};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Streaming};

/// Guards against hanging.
const HANG: Duration = Duration::from_secs(30);

type Answer<T> = Result<Response<T>, tonic::Status>;

/// Serves one of several copies of a store.
#[derive(Clone)]
struct Copies(Arc<Mutex<Vec<OneCopy>>>);

struct OneCopy {
    shared: Shared,
    /// A watch ends without it.
    _durable: watch::Sender<i64>,
}

impl Copies {
    fn now(&self) -> Shared {
        self.0.lock().unwrap()[0].shared.clone()
    }

    /// Ends all streams and serves the next copy.
    fn next(&self) {
        let ended = self.0.lock().unwrap().remove(0);
        ended.shared.stop.cancel();
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[tonic::async_trait]
impl PbKvService for Copies {
    type RangeStreamStream = Empty<Result<PbRangeStreamResponse, tonic::Status>>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Answer<PbRangeResponse> {
        let last_question = request.get_ref().count_only;
        let answer = KvService(self.now()).range(request).await;
        if last_question && self.left() == 2 {
            self.next();
        }
        answer
    }

    async fn range_stream(&self, request: Request<PbRangeRequest>) -> Answer<Self::RangeStreamStream> {
        KvService(self.now()).range_stream(request).await
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Answer<PbPutResponse> {
        KvService(self.now()).put(request).await
    }

    async fn delete_range(&self, request: Request<PbDeleteRequest>) -> Answer<PbDeleteResponse> {
        KvService(self.now()).delete_range(request).await
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Answer<PbTxnResponse> {
        KvService(self.now()).txn(request).await
    }

    async fn compact(&self, request: Request<PbCompactionRequest>) -> Answer<PbCompactionResponse> {
        KvService(self.now()).compact(request).await
    }
}

#[tonic::async_trait]
impl PbWatchService for Copies {
    type WatchStream = BoxStream<'static, Result<PbWatchResponse, tonic::Status>>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Answer<Self::WatchStream> {
        WatchService(self.now()).watch(request).await
    }
}

/// A store with one put after the other.
fn copy(identity: Identity, puts: &[(&str, &str)]) -> Result<OneCopy> {
    let disk = LossyDisk::new(0);
    let (_, _, mut state): (_, _, State) = Disk::open(&disk)?;
    for (key, value) in puts {
        let put = PbPutRequest {
            key: key.as_bytes().to_vec(),
            value: value.as_bytes().to_vec(),
            ..Default::default()
        };
        state.step(&mut Changes::default()).put(put)?;
    }
    state.durable = state.history.revision();
    let ((_durable, durable), state) = (watch::channel(state.durable), Arc::new(RwLock::new(state)));
    let directory: Arc<dyn Directory> = Arc::new(disk);
    let listening = Listening::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // The copies are only read.
    let (commands, _) = std::sync::mpsc::channel();
    let stop = CancellationToken::new();
    let shared = Shared { state, commands, durable, identity, listening, directory, stop };
    Ok(OneCopy { shared, _durable })
}

/// Awaits a listing after the first.
async fn relisted(batches: &mut (impl futures::Stream<Item = Batch> + Unpin)) -> Result<Batch> {
    loop {
        let batch = batches.next().await.context("the watch ended")?;
        if batch.relisted.is_some() {
            return Ok(batch);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_restored_while_a_watch_is_opened_is_listed_again() -> Result<()> {
    let identity = Identity { cluster: 1, member: 1 };
    let before = [("k/a", "1"), ("k/b", "1")];
    let after = [("k/a", "1"), ("k/c", "1"), ("other", "1"), ("other", "2")];
    let copies = [copy(identity, &before)?, copy(identity, &before)?, copy(identity, &after)?];
    let copies = Copies(Arc::new(Mutex::new(copies.into())));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let serving = tonic::transport::Server::builder()
        .add_service(PbKvServer::new(copies.clone()))
        .add_service(PbWatchServer::new(copies.clone()))
        .serve_with_incoming(TcpIncoming::from(listener));
    let serving = tokio::spawn(serving);

    let store = Store::connect(&Config::new([address.to_string()])).await?;
    let watch = store.watch("k/");
    let mut status = watch.status();
    let mut batches = Box::pin(watch.batches());
    let first = tokio::time::timeout(HANG, relisted(&mut batches)).await??;
    ensure!(first.updates.len() == 4, "{first:?}");
    let seen = tokio::spawn(async move { relisted(&mut batches).await });
    tokio::time::timeout(HANG, status.wait_for(|status| *status == Status::Connected)).await??;

    // The first copy restarts. When it has been compared, it is replaced.
    copies.next();
    let second = tokio::time::timeout(HANG, seen).await.context("the restored store is not noticed")???;
    let changes: Vec<_> = second.updates.into_iter().map(|update| update.event).collect();
    let gone = changes.iter().any(|event| matches!(event, Event::Delete(key) if key == "k/b"));
    let new = changes.iter().any(|event| matches!(event, Event::Apply(key, _) if key == "k/c"));
    ensure!(gone && new && changes.len() == 2, "{changes:?}");
    serving.abort();
    Ok(())
}
