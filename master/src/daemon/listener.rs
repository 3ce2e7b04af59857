//! TCP listeners: connection limit, timeouts and TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use contiv_daemon::clients::{ClientConnection, ClientLimits, Clients};
use contiv_daemon::reload::Reloadable;
use contiv_daemon::subject::Subject;
use hyper::Request;
use hyper::body::Incoming;
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

use crate::api::Peer;

/// Configuration shared by all listeners.
#[derive(Clone)]
pub(super) struct ListenerConfig {
    /// TLS configuration; none for plain HTTP.
    pub(super) tls: Option<Reloadable<ServerConfig>>,
    /// Time limit for a TLS handshake, for the headers of a request, and for each write of a
    /// response.
    pub(super) client_timeout: Duration,
    /// Limit of open connections of each listener.
    pub(super) max_connections: usize,
}

pub(super) struct Listener {
    tcp: TcpListener,
    config: ListenerConfig,
    /// Connections that may still be opened. Listeners do not share it: clients of the external
    /// address must not lock out the other netmasters.
    connection_limit: Arc<Semaphore>,
    clients: Clients,
}

/// Size limit of the request line and headers in bytes; larger ones are answered with 431.
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// Delay after `accept` failed, usually because no file descriptor was free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

impl ListenerConfig {
    /// One client address has half of the connections. What runs on this machine is not limited.
    fn limits(&self) -> ClientLimits {
        ClientLimits { per_address: self.max_connections.div_ceil(2), loopback: self.max_connections }
    }
}

impl Listener {
    pub(super) async fn bind(address: SocketAddr, config: ListenerConfig) -> anyhow::Result<Listener> {
        let tcp = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address} (is another netmaster running here?)"))?;
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let bound = tcp.local_addr()?;
        tracing::info!(address = %bound, scheme, "listening");
        if config.tls.is_none() && !bound.ip().is_loopback() {
            tracing::warn!(
                address = %bound,
                "the API is served without TLS on a non-loopback address; set --tls-cert and --tls-key"
            );
        }
        let connection_limit = Semaphore::new(config.max_connections).into();
        Ok(Listener { tcp, config, connection_limit, clients: Clients::default() })
    }

    /// Serves until `closing` is cancelled, and then completes requests in progress. When `aborting` is
    /// cancelled as well, it drops them, and returns when they are dropped: a request that is dropped
    /// writes its entry of the audit log.
    pub(super) async fn serve(self, app: Router, closing: CancellationToken, aborting: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut full = false;
        loop {
            let permit = match self.connection_limit.clone().try_acquire_owned() {
                Ok(permit) => {
                    full = false;
                    permit
                }
                Err(_) => {
                    if !full {
                        tracing::warn!(
                            "connection limit reached (--max-connections); further connections wait"
                        );
                    }
                    full = true;
                    tokio::select! {
                        () = closing.cancelled() => break,
                        Some(_) = connections.join_next() => continue,
                        Ok(permit) = self.connection_limit.clone().acquire_owned() => permit,
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
                    let Some(entry) = self.clients.enter(peer.ip(), self.config.limits()) else {
                        tracing::debug!(%peer, "connection refused, the client has too many");
                        continue;
                    };
                    let connection = Connection {
                        peer,
                        config: self.config.clone(),
                        closing: closing.clone(),
                        _counted: (permit, entry),
                    };
                    connections.spawn(connection.run(stream, app.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accept a connection");
                    sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            }
        }
        drop(self.tcp);
        let completed = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            () = completed => {}
            () = aborting.cancelled() => connections.shutdown().await,
        }
    }
}

struct Connection {
    peer: SocketAddr,
    config: ListenerConfig,
    closing: CancellationToken,
    _counted: (OwnedSemaphorePermit, ClientConnection),
}

impl Connection {
    async fn run(self, stream: TcpStream, app: Router) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %self.peer, %error, "set TCP_NODELAY");
        }
        let mut stream = TimeoutStream::new(stream);
        // Limits each write of a response to a slow client.
        stream.set_write_timeout(Some(self.config.client_timeout));
        let stream = Box::pin(stream);
        let Some(tls) = &self.config.tls else { return self.http(stream, None, app).await };
        let handshake = TlsAcceptor::from(tls.now()).accept(stream);
        match timeout(self.config.client_timeout, handshake).await {
            Ok(Ok(stream)) => {
                let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
                // A certificate that cannot be read has no name, and so no role.
                let subject = certificates.first().map(|own| Subject::of(own).unwrap_or_default());
                self.http(stream, subject, app).await;
            }
            Ok(Err(error)) => tracing::info!(peer = %self.peer, %error, "TLS handshake failed"),
            Err(_) => tracing::info!(peer = %self.peer, "TLS handshake: time limit exceeded"),
        }
    }

    async fn http(&self, stream: impl AsyncRead + AsyncWrite + Unpin, subject: Option<Subject>, app: Router) {
        let peer = Peer { address: self.peer, subject: subject.map(Arc::new) };
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            app.clone().oneshot(request)
        });
        let mut server = http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.client_timeout)
            .max_headers(MAX_HEADERS)
            .max_header_size(MAX_HEADER_BYTES)
            // The original writes headers in title case, and scripts rely on it.
            .title_case_headers(true)
            // Clients may close their sending side after the request.
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
            tracing::debug!(peer = %self.peer, error = crate::problem::one_line(&error), "connection closed with an error");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::AsyncWriteExt as _;
    use tokio::sync::mpsc;

    use super::*;

    /// Set when the request is dropped.
    struct Dropped(Arc<AtomicBool>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_request_outlives_an_aborted_listener() {
        let config =
            ListenerConfig { tls: None, client_timeout: Duration::from_secs(60), max_connections: 10 };
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), config).await.unwrap();
        let address = listener.tcp.local_addr().unwrap();
        let (begin, mut begun) = mpsc::channel::<()>(1);
        let dropped = Arc::new(AtomicBool::default());
        let of_request = dropped.clone();
        let app = Router::new().fallback(move || async move {
            let _dropped = Dropped(of_request);
            begin.send(()).await.unwrap();
            pending::<()>().await;
        });
        let (closing, aborting) = (CancellationToken::new(), CancellationToken::new());
        let serving = tokio::spawn(listener.serve(app, closing.clone(), aborting.clone()));
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: netmaster\r\n\r\n").await.unwrap();
        begun.recv().await.unwrap();
        closing.cancel();
        assert!(!serving.is_finished() && !dropped.load(Ordering::SeqCst));
        aborting.cancel();
        serving.await.unwrap();
        assert!(dropped.load(Ordering::SeqCst));
    }
}
