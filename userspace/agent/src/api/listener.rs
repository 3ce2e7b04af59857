//! TCP connections of the API. Pods can reach the address through infra networks, so clients must not exhaust the agent's
//! file descriptors.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::ConnectInfo};
use contiv_daemon::clients::{ClientLimits, Clients};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};
use tokio_io_timeout::TimeoutStream;

/// Maximum number of open connections. Further ones wait until a connection is closed.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of open connections of one client address. Further ones are closed at once, so that one client does not
/// lock out others.
const MAX_PER_ADDRESS: usize = 32;
/// Maximum number of open connections of all loopback addresses together: a process on the node may use any of these
/// addresses.
const MAX_LOOPBACK: usize = MAX_CONNECTIONS / 2;
/// Time limit for the headers of a request, for an idle connection, and for each write of a response to a slow client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Seconds without traffic after which a client is probed, and between probes. A stream of events may be idle for a long
/// time.
const KEEPALIVE: u32 = 30;
/// Number of unanswered probes after which a connection is closed.
const KEEPALIVE_PROBES: u32 = 3;
/// Delay after `accept` failed, usually because no file descriptor was free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Serves connections until it is dropped, which closes all of them.
pub(super) async fn serve(tcp: TcpListener, app: Router) -> io::Result<()> {
    let limits = ClientLimits { per_address: MAX_PER_ADDRESS, loopback: MAX_LOOPBACK };
    serve_within(tcp, app, (MAX_CONNECTIONS, limits)).await
}

async fn serve_within(
    tcp: TcpListener,
    app: Router,
    (max_connections, limits): (usize, ClientLimits),
) -> io::Result<()> {
    let (free, clients) = (Arc::new(Semaphore::new(max_connections)), Clients::default());
    let mut connections = JoinSet::new();
    loop {
        if free.available_permits() == 0 {
            tracing::warn!(
                limit = max_connections,
                "API: connection limit reached; further connections wait"
            );
        }
        let permit = free.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (stream, peer) = match tcp.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "API: accept a connection");
                sleep(ACCEPT_RETRY_INTERVAL).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Some(entry) = clients.enter(peer.ip(), limits) else {
            tracing::debug!(%peer, "API: connection refused, the client has too many");
            continue;
        };
        let app = app.clone();
        connections.spawn(async move {
            let _held = (permit, entry);
            connection(stream, peer, app).await;
        });
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, app: Router) {
    if let Err(error) = keep_alive(&stream) {
        tracing::debug!(%peer, %error, "API: set the keepalive of a connection");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(CLIENT_TIMEOUT));
    let service = TowerToHyperService::new(app.layer(Extension(ConnectInfo(peer))));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .serve_connection(TokioIo::new(Box::pin(stream)), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "API: connection closed with an error");
    }
}

/// Closes connections whose client has vanished without closing them.
fn keep_alive(stream: &TcpStream) -> nix::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    /// Time to wait for something that must not happen.
    const A_MOMENT: Duration = Duration::from_millis(200);

    async fn start(max_connections: usize, limits: ClientLimits) -> SocketAddr {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
        tokio::spawn(serve_within(tcp, Router::new().route("/", get(peer)), (max_connections, limits)));
        address
    }

    /// Sends a request and reads the response; empty if the server closed the connection.
    async fn ask(stream: &mut TcpStream) -> String {
        // A server that has closed the connection may refuse the request.
        drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await);
        let mut response = vec![0; 4096];
        let length = timeout(SOON, stream.read(&mut response)).await.unwrap().unwrap_or_default();
        String::from_utf8_lossy(&response[..length]).into_owned()
    }

    /// Connects from a local address.
    async fn connect(from: &str, to: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[tokio::test]
    async fn processes_of_the_node_share_a_number_of_connections() {
        let address = start(10, ClientLimits { per_address: 1, loopback: 2 }).await;
        let mut open = vec![];
        for from in ["127.0.0.1", "127.0.0.2"] {
            let mut stream = connect(from, address).await;
            assert!(ask(&mut stream).await.ends_with(from));
            open.push(stream);
        }
        assert_eq!(ask(&mut connect("127.0.0.3", address).await).await, "");
        // A closed connection admits another one.
        drop(open.pop());
        let answered = async {
            while ask(&mut connect("127.0.0.3", address).await).await.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, answered).await.unwrap();
    }

    #[tokio::test]
    async fn connections_above_the_limit_wait() {
        let address = start(1, ClientLimits { per_address: 2, loopback: 2 }).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(!ask(&mut first).await.is_empty());
        let mut second = TcpStream::connect(address).await.unwrap();
        assert!(timeout(A_MOMENT, ask(&mut second)).await.is_err());
        drop(first);
        assert!(ask(&mut second).await.starts_with("HTTP/1.1 200"));
    }
}
