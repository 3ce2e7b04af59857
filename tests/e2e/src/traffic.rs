//! TCP between namespaces: how much, how many connections, and how long one takes.

mod server;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::{
    socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt},
    time::TimeVal,
};
use testkit::Netns;

use crate::processor;
use server::{Duty, Served};

const PATIENCE: TimeVal = TimeVal::new(5, 0);
const CHUNK: usize = 128 << 10;
/// In a namespace of which nobody else uses ports.
const PORT: u16 = 5201;

/// Where the connections of a client go, and who answers them.
#[derive(Debug, Clone)]
pub struct Route {
    pub client: Netns,
    /// What the client connects to: one of the servers, or an address that is translated to them.
    pub target: SocketAddr,
    pub servers: Vec<(Netns, SocketAddr)>,
    /// Of the client's threads and of the server's; where the kernel wants them if none.
    pub processors: Option<Processors>,
}

#[derive(Debug, Clone, Copy)]
pub struct Processors {
    pub client: usize,
    pub server: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct ConnectionRate {
    pub per_second: f64,
    /// Of processors' time for each, by both ends: what others do on the machine meanwhile is not in it.
    pub processor_us: f64,
}

impl Route {
    /// To an address of a namespace.
    pub fn direct(client: &Netns, server: &Netns, address: IpAddr) -> Route {
        let target = SocketAddr::from((address, PORT));
        Route { client: client.clone(), target, servers: vec![(server.clone(), target)], processors: None }
    }

    /// Bits per second of one connection.
    pub fn throughput(&self, duration: Duration) -> Result<f64> {
        let send = || -> Result<()> {
            let mut stream = connect(self.target)?;
            let (start, chunk) = (Instant::now(), vec![0; CHUNK]);
            while start.elapsed() < duration {
                stream.write_all(&chunk).context("send")?;
            }
            Ok(())
        };
        let (served, ()) = self.run(Duty::Swallow, send)?;
        Ok(served.bytes as f64 * 8.0 / served.time.as_secs_f64())
    }

    /// Connections per second by so many clients, each of which makes one after the other: connect, one byte there and
    /// back, reset.
    pub fn connection_rate(&self, clients: usize, duration: Duration) -> Result<ConnectionRate> {
        let count = || -> Result<ConnectionRate> {
            let (start, spent) = (Instant::now(), processor::time_spent()?);
            let client = || -> Result<u64> {
                let mut connections = 0;
                while start.elapsed() < duration {
                    exchange(self.target)?;
                    connections += 1;
                }
                Ok(connections)
            };
            let made = thread::scope(|scope| {
                let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
                let join = |client: thread::ScopedJoinHandle<'_, Result<u64>>| {
                    client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                clients.into_iter().map(join).sum::<Result<u64>>()
            })?;
            let per_second = made as f64 / start.elapsed().as_secs_f64();
            let spent = processor::time_spent()? - spent;
            Ok(ConnectionRate { per_second, processor_us: spent.as_secs_f64() * 1e6 / made as f64 })
        };
        Ok(self.run(Duty::Echo, count)?.1)
    }

    /// How long each connection took from its socket to the answer; one after the other, at least one.
    pub fn exchanges(&self, duration: Duration) -> Result<Vec<Duration>> {
        let measure = || -> Result<Vec<Duration>> {
            let (start, mut times) = (Instant::now(), vec![exchange(self.target)?]);
            while start.elapsed() < duration {
                times.push(exchange(self.target)?);
            }
            Ok(times)
        };
        Ok(self.run(Duty::Echo, measure)?.1)
    }

    /// Runs the server, and the client until its end; gives what both found.
    fn run<T: Send>(&self, duty: Duty, client: impl FnOnce() -> Result<T> + Send) -> Result<(Served, T)> {
        let listeners = self.listeners()?;
        let over = AtomicBool::new(false);
        let serve = || {
            self.processors.map_or(Ok(()), |processors| processor::stay_on(processors.server))?;
            server::serve(&listeners, duty, &over)
        };
        let call = || {
            self.processors.map_or(Ok(()), |processors| processor::stay_on(processors.client))?;
            client()
        };
        thread::scope(|scope| {
            let server = thread::Builder::new().name("server".to_owned()).spawn_scoped(scope, serve)?;
            let found = self.client.run(call).with_context(|| format!("TCP to {}", self.target));
            over.store(true, Ordering::SeqCst);
            let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // The client's error is the one that tells what happened.
            let found = found?;
            Ok((served?, found))
        })
    }

    fn listeners(&self) -> Result<Vec<TcpListener>> {
        let listen = |(namespace, address): &(Netns, SocketAddr)| {
            namespace.run(|| TcpListener::bind(address).with_context(|| format!("listen on {address}")))
        };
        self.servers.iter().map(listen).collect()
    }
}

/// One connection, from its socket to the answer to a byte.
fn exchange(target: SocketAddr) -> Result<Duration> {
    let start = Instant::now();
    let mut stream = connect(target)?;
    // A reset leaves no TIME_WAIT, so that ports do not run out.
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    let mut byte = [7];
    stream.write_all(&byte).context("send a byte")?;
    stream.read_exact(&mut byte).context("read the echo")?;
    Ok(start.elapsed())
}

/// With fewer calls of the kernel than `TcpStream::connect_timeout` needs.
fn connect(target: SocketAddr) -> Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Also how long it may take to connect.
    setsockopt(&socket, sockopt::SendTimeout, &PATIENCE)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &PATIENCE)?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(target)).context("connect")?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use testkit::needs;

    use super::*;

    #[test]
    fn connections_are_answered_in_another_namespace() {
        needs!(root(), binary("ip"));
        let (client, server) = (Netns::new("client").unwrap(), Netns::new("server").unwrap());
        client.veth("eth0", &server, "eth0").unwrap();
        for (namespace, address) in [(&client, "10.9.0.1/24"), (&server, "10.9.0.2/24")] {
            namespace.address("eth0", address).unwrap();
            namespace.up("eth0").unwrap();
        }
        let mut route = Route::direct(&client, &server, "10.9.0.2".parse().unwrap());
        let moment = Duration::from_millis(50);
        assert!(route.throughput(moment).unwrap() > 0.0);
        assert!(route.connection_rate(2, moment).unwrap().per_second > 0.0);
        route.processors = Some(Processors { client: 0, server: 0 });
        assert!(!route.exchanges(moment).unwrap().is_empty());
        route.target.set_port(9);
        let error = route.exchanges(moment).unwrap_err();
        assert!(format!("{error:#}").contains("TCP to 10.9.0.2:9: connect"), "{error:#}");
    }
}
