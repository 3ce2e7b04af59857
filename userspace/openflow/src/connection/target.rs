//! Addresses of switches.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Address of a switch. The text form is `unix:/run/openvswitch/br0.mgmt` or `tcp:127.0.0.1:6653`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Path of a Unix stream socket, such as the `BRIDGE.mgmt` socket of ovs-vswitchd.
    Unix(PathBuf),
    /// `HOST:PORT` of a passive TCP connection (`ptcp:` on the side of the switch).
    Tcp(String),
}

/// The text of a [`Target`] is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parse switch address {0:?}: expected unix:PATH or tcp:HOST:PORT")]
pub struct TargetError(String);

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Target::Unix(path.into())),
            Some(("tcp", address)) if address.contains(':') => Ok(Target::Tcp(address.into())),
            _ => Err(TargetError(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix(path) => write!(f, "unix:{}", path.display()),
            Target::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Idle time before the first probe of a TCP connection, and between probes. A switch that disappears is noticed after a minute.
const KEEPALIVE_TIME: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

impl Target {
    pub(super) async fn open(&self) -> std::io::Result<(Reader, Writer)> {
        Ok(match self {
            Target::Unix(path) => {
                let (reader, writer) = UnixStream::connect(path).await?.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Target::Tcp(address) => {
                let (reader, writer) = connect_tcp(address).await?.into_split();
                (Box::new(reader), Box::new(writer))
            }
        })
    }
}

/// A receiver of notifications sends nothing, so that only probes show that the switch has disappeared.
async fn connect_tcp(address: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn tcp_connections_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect_tcp(&listener.local_addr().unwrap().to_string()).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_TIME);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_RETRIES);
    }
}
