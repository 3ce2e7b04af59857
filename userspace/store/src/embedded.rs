//! An etcd v3 server in one file, for one machine.
//!
//! It serves KV, Watch and Lease, and what else `etcdctl` asks of a healthy member, without users and
//! without TLS: whoever reaches the port may read and write everything, so it belongs on loopback or on a
//! network of its own.
//!
//! The last 10,000 revisions can be watched and read, fewer if they hold more than 64 MiB of replaced values;
//! what is older is compacted by itself. Leases start anew with their full TTL when the store is opened. What was
//! acknowledged is on disk.

mod check;
mod disk;
mod history;
mod kv_service;
mod lease_service;
mod leases;
mod member_service;
mod refusal;
mod shared;
mod span;
mod state;
mod watch_service;
mod writer;

pub use disk::DiskError;

use disk::Disk;
use etcd_client::proto::{PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer};
use kv_service::KvService;
use lease_service::LeaseService;
use member_service::MemberService;
use shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::TcpIncoming;
use watch_service::WatchService;
use writer::{Command, Writer};

/// What etcd's gRPC layer takes: the largest request and what the encoding adds.
const MAX_MESSAGE: usize = check::MAX_REQUEST + (512 << 10);
/// Streams end by themselves at once; this is for connections that do not.
const GOODBYE: Duration = Duration::from_secs(2);
/// Watches of clients that vanished without a word are found out by this.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Serves until it is shut down or dropped.
///
/// After a drop the file is closed soon, after [`Server::shutdown`] it is closed already.
pub struct Server {
    address: SocketAddr,
    commands: Sender<Command>,
    stop: CancellationToken,
    ended: CancellationToken,
    serving: Option<JoinHandle<Result<(), tonic::transport::Error>>>,
    writing: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("listen at {address} for the embedded store; is an etcd or another store there already?")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("start the writer of the embedded store")]
    Thread(#[source] io::Error),
    #[error("serve the embedded store")]
    Serve(#[source] tonic::transport::Error),
    #[error("the {0} of the embedded store panicked")]
    Panicked(&'static str),
}

impl Server {
    /// Opens or makes the store in `dir` and serves it at `listen`. Needs a tokio runtime.
    pub async fn open(dir: &Path, listen: SocketAddr) -> Result<Server, Error> {
        let bound = TcpListener::bind(listen).await.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = bound.map_err(|source| Error::Listen { address: listen, source })?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the embedded store asks nobody for a password; keep strangers off its network");
        }
        let opening = dir.to_owned();
        let opened = tokio::task::spawn_blocking(move || Disk::open(&opening)).await;
        let (disk, identity, state) = opened.map_err(|_| Error::Panicked("opening"))??;

        let (commands, queue) = std::sync::mpsc::channel();
        let (durable, moved) = watch::channel(state.durable);
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let state = Arc::new(RwLock::new(state));
        let writer = Writer {
            dir: dir.to_owned(),
            disk: Some(disk),
            state: state.clone(),
            durable,
            commands: queue,
            _ended: ended.clone().drop_guard(),
        };
        let writing = thread::Builder::new().name("store-writer".into()).spawn(move || writer.run());
        let writing = writing.map_err(Error::Thread)?;
        let shared = Shared {
            state,
            commands: commands.clone(),
            durable: moved,
            identity,
            address,
            dir: dir.to_owned(),
            stop: stop.clone(),
        };
        let serving = tokio::spawn(serve(listener, shared, ended.clone().drop_guard()));
        Ok(Server { address, commands, stop, ended, serving: Some(serving), writing: Some(writing) })
    }

    /// Where it really listens, for a `listen` with port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the store has stopped by itself, which it never should: nothing is served or written any
    /// more.
    pub async fn failed(&self) {
        self.ended.cancelled().await;
    }

    /// Ends all streams and closes the file.
    pub async fn shutdown(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let served = match self.serving.take() {
            Some(mut serving) => match tokio::time::timeout(GOODBYE, &mut serving).await {
                Ok(Ok(result)) => result.map_err(Error::Serve),
                Ok(Err(_)) => Err(Error::Panicked("server")),
                Err(_) => {
                    serving.abort();
                    Ok(())
                }
            },
            None => Ok(()),
        };
        // Fails only if the thread is gone, which its join tells.
        drop(self.commands.send(Command::Stop));
        if let Some(writing) = self.writing.take() {
            let joined = tokio::task::spawn_blocking(move || writing.join()).await;
            joined.map_err(|_| Error::Panicked("closing"))?.map_err(|_| Error::Panicked("writer"))?;
        }
        served
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        drop(self.commands.send(Command::Stop));
    }
}

/// Whoever asks for `ended` learns of it also when this panics.
async fn serve(
    listener: TcpListener,
    shared: Shared,
    _ended: DropGuard,
) -> Result<(), tonic::transport::Error> {
    let stop = shared.stop.clone();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .add_service(PbKvServer::new(KvService(shared.clone())).max_decoding_message_size(MAX_MESSAGE))
        .add_service(PbWatchServer::new(WatchService(shared.clone())))
        .add_service(PbLeaseServer::new(LeaseService(shared.clone())))
        .add_service(PbClusterServer::new(MemberService(shared.clone())))
        .add_service(PbMaintenanceServer::new(MemberService(shared)))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
}
