//! Connections: how many, how slow, encrypted or not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use contiv_daemon::reload::Reloadable;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// How clients are served.
#[derive(Clone)]
pub(super) struct Terms {
    /// None: plain http.
    pub(super) tls: Option<Reloadable<ServerConfig>>,
    /// For a TLS handshake, for a request's headers, and for each piece of an answer.
    pub(super) client_timeout: Duration,
    /// Connections that may be open, over all listeners.
    pub(super) room: Arc<Semaphore>,
}

pub(super) struct Listener {
    tcp: TcpListener,
    terms: Terms,
}

/// Headers of one request, with the request line: more is answered 431.
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// After accept failed: mostly for want of file descriptors, which come back.
const PAUSE: Duration = Duration::from_millis(100);

impl Listener {
    pub(super) async fn bind(address: SocketAddr, terms: Terms) -> anyhow::Result<Listener> {
        let tcp = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address} (is another netmaster running here?)"))?;
        let scheme = if terms.tls.is_some() { "https" } else { "http" };
        let bound = tcp.local_addr()?;
        tracing::info!(address = %bound, scheme, "listening");
        if terms.tls.is_none() && !bound.ip().is_loopback() {
            tracing::warn!(
                address = %bound,
                "the API is served without TLS on an address that others reach; give --tls-cert and --tls-key"
            );
        }
        Ok(Listener { tcp, terms })
    }

    /// Until `closing`; then what is under way is answered.
    pub(super) async fn serve(self, app: Router, closing: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut full = false;
        loop {
            let room = match self.terms.room.clone().try_acquire_owned() {
                Ok(room) => {
                    full = false;
                    room
                }
                Err(_) => {
                    if !full {
                        tracing::warn!(
                            "as many connections are open as may be (--max-connections); more wait"
                        );
                    }
                    full = true;
                    tokio::select! {
                        () = closing.cancelled() => break,
                        Some(_) = connections.join_next() => continue,
                        Ok(room) = self.terms.room.clone().acquire_owned() => room,
                    }
                }
            };
            let accepted = tokio::select! {
                () = closing.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.tcp.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection =
                        Connection { peer, terms: self.terms.clone(), closing: closing.clone(), _room: room };
                    connections.spawn(connection.run(stream, app.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    sleep(PAUSE).await;
                }
            }
        }
        drop(self.tcp);
        while connections.join_next().await.is_some() {}
    }
}

struct Connection {
    peer: SocketAddr,
    terms: Terms,
    closing: CancellationToken,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream, app: Router) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %self.peer, %error, "set TCP_NODELAY");
        }
        let mut stream = TimeoutStream::new(stream);
        // A client that does not take its answer; the time begins anew with each piece that it takes.
        stream.set_write_timeout(Some(self.terms.client_timeout));
        let stream = Box::pin(stream);
        let Some(tls) = &self.terms.tls else { return self.http(stream, app).await };
        let handshake = TlsAcceptor::from(tls.now()).accept(stream);
        match timeout(self.terms.client_timeout, handshake).await {
            Ok(Ok(stream)) => self.http(stream, app).await,
            Ok(Err(error)) => tracing::info!(peer = %self.peer, %error, "refused a connection"),
            Err(_) => tracing::info!(peer = %self.peer, "no TLS handshake in time"),
        }
    }

    async fn http(&self, stream: impl AsyncRead + AsyncWrite + Unpin, app: Router) {
        let service = service_fn(|request| app.clone().oneshot(request));
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(self.terms.client_timeout)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEADER_BYTES)
            // As the original writes them; some scripts look for them so.
            .title_case_headers(true)
            // A client may close its side when it has asked.
            .half_close(true);
        let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %self.peer, error = crate::problem::one_line(&error), "a connection broke off");
        }
    }
}
