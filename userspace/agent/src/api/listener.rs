//! TCP connections of the API. Pods reach the address by infra networks, so clients must not use up the agent's file
//! descriptors.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};

/// Open connections. Further ones wait until one of them is closed.
const MAX_CONNECTIONS: usize = 256;
/// Open connections of one client address. Further ones are closed at once, so that one client does not lock out others.
const MAX_PER_ADDRESS: usize = 32;
/// Open connections of all loopback addresses together: a process on the node may use any of them.
const MAX_LOOPBACK: usize = MAX_CONNECTIONS / 2;
/// Time limit for the headers of a request, and for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);
/// Delay after `accept` failed, usually because no file descriptor was free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Serves connections until it is dropped, which closes all of them.
pub(super) async fn serve(tcp: TcpListener, app: Router) -> io::Result<()> {
    let limits =
        Limits { connections: MAX_CONNECTIONS, per_address: MAX_PER_ADDRESS, loopback: MAX_LOOPBACK };
    serve_within(tcp, app, limits).await
}

#[derive(Clone, Copy)]
struct Limits {
    connections: usize,
    per_address: usize,
    loopback: usize,
}

async fn serve_within(tcp: TcpListener, app: Router, limits: Limits) -> io::Result<()> {
    let (free, clients) = (Arc::new(Semaphore::new(limits.connections)), Clients::default());
    let mut connections = JoinSet::new();
    loop {
        if free.available_permits() == 0 {
            tracing::warn!(
                limit = limits.connections,
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
    let service = TowerToHyperService::new(app.layer(Extension(ConnectInfo(peer))));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%peer, %error, "API: connection closed with an error");
    }
}

/// Number of open connections of each client address; those of loopback are one.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that is counted.
struct Entry {
    clients: Clients,
    address: IpAddr,
}

impl Clients {
    /// Counts a connection; `None` if the client has as many as the limit allows.
    fn enter(&self, peer: IpAddr, limits: Limits) -> Option<Entry> {
        let (address, limit) = match peer.to_canonical() {
            address if address.is_loopback() => (IpAddr::V4(Ipv4Addr::LOCALHOST), limits.loopback),
            address => (address, limits.per_address),
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(Entry { clients: self.clone(), address })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut counts = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
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
    /// Waits for something that must not happen.
    const A_MOMENT: Duration = Duration::from_millis(200);

    async fn start(limits: Limits) -> SocketAddr {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
        tokio::spawn(serve_within(tcp, Router::new().route("/", get(peer)), limits));
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
        let address = start(Limits { connections: 10, per_address: 1, loopback: 2 }).await;
        let mut open = vec![];
        for from in ["127.0.0.1", "127.0.0.2"] {
            let mut stream = connect(from, address).await;
            assert!(ask(&mut stream).await.ends_with(from));
            open.push(stream);
        }
        assert_eq!(ask(&mut connect("127.0.0.3", address).await).await, "");
        // A closed connection makes room.
        drop(open.pop());
        let answered = async {
            while ask(&mut connect("127.0.0.3", address).await).await.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, answered).await.unwrap();
    }

    #[test]
    fn a_client_has_a_limited_number_of_connections() {
        let clients = Clients::default();
        let limits = Limits { connections: 10, per_address: 2, loopback: 3 };
        let enter = |address: &str| clients.enter(address.parse().unwrap(), limits);
        let mut open: Vec<_> = ["192.0.2.1", "::ffff:192.0.2.1"].map(|from| enter(from).unwrap()).into();
        assert!(enter("192.0.2.1").is_none());
        // Another address is served.
        assert!(enter("192.0.2.2").is_some());
        drop(open.pop());
        assert!(enter("192.0.2.1").is_some());
        let _local = ["127.0.0.1", "127.9.9.9", "::1"].map(|from| enter(from).unwrap());
        assert!(enter("::ffff:127.0.0.2").is_none());
    }

    #[tokio::test]
    async fn connections_above_the_limit_wait() {
        let address = start(Limits { connections: 1, per_address: 2, loopback: 2 }).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        assert!(!ask(&mut first).await.is_empty());
        let mut second = TcpStream::connect(address).await.unwrap();
        assert!(timeout(A_MOMENT, ask(&mut second)).await.is_err());
        drop(first);
        assert!(ask(&mut second).await.starts_with("HTTP/1.1 200"));
    }
}
