//! An etcd v3 server for one machine, stored in one file.
//!
//! It serves KV, Watch and Lease, and the requests that `etcdctl` makes of a healthy member,
//! without authentication and without TLS: every client that reaches it can read and write
//! everything. It therefore listens on a socket that only its user may open, or on a trusted network.
//!
//! The last 10,000 revisions can be watched and read, fewer if they hold more than 64 MiB of
//! replaced values; older ones are compacted automatically. Leases restart with their full TTL when
//! the store is opened. Acknowledged writes are on disk. After a failed write or sync, other than for
//! lack of room, the store takes no writes until it is opened anew ([`Server::failure`]).

mod check;
#[cfg(test)]
mod crashes;
mod directory;
mod disk;
mod fragments;
mod guarded_file;
mod history;
mod kv_service;
mod lease_service;
mod leases;
#[cfg(test)]
mod lossy_disk;
#[cfg(test)]
mod lost_writes;
mod member_service;
mod refusal;
#[cfg(test)]
mod restored;
mod shared;
mod span;
mod state;
#[cfg(test)]
mod torn_stream;
mod watch_service;
mod writer;

pub use disk::DiskError;

use crate::config::socket_url;
use directory::{Directory, Folder};
use disk::Disk;
use etcd_client::proto::{PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer};
use kv_service::KvService;
use lease_service::{LeaseService, show_life};
use member_service::MemberService;
use shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, RwLock};
use std::thread;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::TcpIncoming;
use watch_service::WatchService;
use writer::{Command, Writer};

/// Largest gRPC message, as in etcd: the largest request and its encoding overhead.
const MAX_MESSAGE: usize = check::MAX_REQUEST + (512 << 10);
/// Time limit of a graceful shutdown. Streams end at once; this bounds connections that do not.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 pings, which detect clients that vanished.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// A running server. It serves until it is shut down or dropped.
///
/// After a drop the file is closed soon; after [`Server::shutdown`] it is closed.
pub struct Server {
    listening: Listening,
    commands: Sender<Command>,
    stop: CancellationToken,
    ended: CancellationToken,
    failure: watch::Receiver<Option<Arc<str>>>,
    serving: Option<JoinHandle<Result<(), tonic::transport::Error>>>,
    writing: Option<thread::JoinHandle<()>>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Where the server listens.
#[derive(Clone)]
enum Listening {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listening {
    fn endpoint(&self) -> String {
        match self {
            Listening::Tcp(address) => format!("http://{address}"),
            Listening::Unix(path) => socket_url(path),
        }
    }
}

/// Why the embedded store cannot be opened or has failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened, read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The address cannot be bound.
    #[error("listen at {address} for the embedded store; is an etcd or another store there already?")]
    Listen {
        /// Address to listen at.
        address: SocketAddr,
        /// Underlying error.
        source: io::Error,
    },
    /// The writer thread cannot be started.
    #[error("start the writer of the embedded store")]
    Thread(#[source] io::Error),
    /// The gRPC server failed.
    #[error("serve the embedded store")]
    Serve(#[source] tonic::transport::Error),
    /// A part of the server panicked.
    #[error("the {0} of the embedded store panicked")]
    Panicked(&'static str),
}

impl Server {
    /// Opens or creates the store in `dir` and serves it at `listen`. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// Fails if `listen` cannot be bound, if the file is damaged, in use or cannot be accessed, or
    /// if the writer thread cannot be started.
    pub async fn open(dir: &Path, listen: SocketAddr) -> Result<Server, Error> {
        Server::open_in(folder(dir), listen).await
    }

    async fn open_in(
        directory: impl FnOnce() -> Result<Arc<dyn Directory>, DiskError> + Send + 'static,
        listen: SocketAddr,
    ) -> Result<Server, Error> {
        let bound = TcpListener::bind(listen).await.and_then(|l| Ok((l.local_addr()?, l)));
        let (address, listener) = bound.map_err(|source| Error::Listen { address: listen, source })?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the embedded store has no authentication; restrict access to its network");
        }
        Server::start(directory, Listening::Tcp(address), Listener::Tcp(listener)).await
    }

    /// Opens or creates the store in `dir` and serves it on the socket `listener` at `path`. Must be
    /// called within a tokio runtime. If the socket is in `dir`, [`make_dir`] must have made that.
    ///
    /// # Errors
    ///
    /// As [`Server::open`].
    pub async fn open_on(dir: &Path, path: &Path, listener: UnixListener) -> Result<Server, Error> {
        Server::start(folder(dir), Listening::Unix(path.to_owned()), Listener::Unix(listener)).await
    }

    async fn start(
        directory: impl FnOnce() -> Result<Arc<dyn Directory>, DiskError> + Send + 'static,
        listening: Listening,
        listener: Listener,
    ) -> Result<Server, Error> {
        let opened = tokio::task::spawn_blocking(move || {
            let directory = directory()?;
            let (disk, identity, state) = Disk::open(&*directory)?;
            Ok::<_, DiskError>((directory, disk, identity, state))
        });
        let (directory, disk, identity, state) = opened.await.map_err(|_| Error::Panicked("opening"))??;

        let (commands, queue) = std::sync::mpsc::channel();
        let (durable, moved) = watch::channel(state.durable);
        let (failure, failed) = watch::channel(None);
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let state = Arc::new(RwLock::new(state));
        let writer = Writer {
            directory: directory.clone(),
            disk: Some(disk),
            failure,
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
            listening: listening.clone(),
            directory,
            stop: stop.clone(),
        };
        let serving = tokio::spawn(serve(listener, shared, ended.clone().drop_guard()));
        let (serving, writing) = (Some(serving), Some(writing));
        Ok(Server { listening, commands, stop, ended, failure: failed, serving, writing })
    }

    /// The bound address, also for a `listen` with port 0. None if it listens on a socket of the machine.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self.listening {
            Listening::Tcp(address) => Some(address),
            Listening::Unix(_) => None,
        }
    }

    /// Where clients connect, as [`Config`](crate::Config) takes it.
    pub fn endpoint(&self) -> String {
        self.listening.endpoint()
    }

    /// Resolves if the store has stopped because of a failure. It then serves and writes nothing.
    pub async fn failed(&self) {
        self.ended.cancelled().await;
    }

    /// Why the store takes no writes until it is opened anew: a write or a sync of its file failed,
    /// other than for lack of room. Reads and watches are still served.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.failure.clone()
    }

    /// Ends all streams and closes the file.
    ///
    /// # Errors
    ///
    /// Fails if the gRPC server failed, or if a part of the server panicked.
    pub async fn shutdown(mut self) -> Result<(), Error> {
        self.stop.cancel();
        let served = match self.serving.take() {
            Some(mut serving) => match tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut serving).await {
                Ok(Ok(result)) => result.map_err(Error::Serve),
                Ok(Err(_)) => Err(Error::Panicked("server")),
                Err(_) => {
                    serving.abort();
                    Ok(())
                }
            },
            None => Ok(()),
        };
        // Fails only if the thread has ended, which its join reports.
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

/// Makes the directory of a store if it is missing. It and those above it outlive a power failure.
///
/// # Errors
///
/// Fails if a directory cannot be made or written to the disk.
pub fn make_dir(dir: &Path) -> Result<(), Error> {
    Ok(Folder::new(dir).map(drop).map_err(|e| DiskError::Directory(dir.to_owned(), e))?)
}

/// Whether `dir` has the file of a store; [`Server::open`] creates one otherwise.
///
/// # Errors
///
/// Fails if the directory may not be searched.
pub fn has_store(dir: &Path) -> io::Result<bool> {
    dir.join(disk::FILE).try_exists()
}

fn folder(dir: &Path) -> impl FnOnce() -> Result<Arc<dyn Directory>, DiskError> + Send + 'static {
    let dir = dir.to_owned();
    move || match Folder::new(&dir) {
        Ok(folder) => Ok(Arc::new(folder)),
        Err(e) => Err(DiskError::Directory(dir, e)),
    }
}

/// Serves until `stop`. `_ended` is dropped also when this panics.
async fn serve(listener: Listener, shared: Shared, _ended: DropGuard) -> Result<(), tonic::transport::Error> {
    let stop = shared.stop.clone();
    let life = show_life(shared.clone());
    let router = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .add_service(PbKvServer::new(KvService(shared.clone())).max_decoding_message_size(MAX_MESSAGE))
        .add_service(PbWatchServer::new(WatchService(shared.clone())))
        .add_service(PbLeaseServer::new(LeaseService(shared.clone())))
        .add_service(PbClusterServer::new(MemberService(shared.clone())))
        .add_service(PbMaintenanceServer::new(MemberService(shared)));
    let served = async {
        match listener {
            Listener::Tcp(listener) => {
                let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await
            }
            Listener::Unix(listener) => {
                let incoming = UnixListenerStream::new(listener);
                router.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await
            }
        }
    };
    tokio::select! {
        result = served => result,
        never = life => match never {},
    }
}
