//! TCP benchmarks between namespaces: throughput, connection rate, latency.

mod server;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    ops::AddAssign,
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
use server::{Mode, Received};

const IO_TIMEOUT: TimeVal = TimeVal::new(5, 0);
const CHUNK: usize = 128 << 10;
/// Fixed port: each test has its own namespace.
const PORT: u16 = 5201;

/// Client, target and servers of a benchmark.
#[derive(Debug, Clone)]
pub struct Route {
    pub client: Netns,
    /// Address that the client connects to: a server, or a service address in front of the servers.
    pub target: SocketAddr,
    pub servers: Vec<(Netns, SocketAddr)>,
    /// CPUs to pin the threads to; none leaves the choice to the kernel.
    pub cpus: Option<Cpus>,
}

#[derive(Debug, Clone, Copy)]
pub struct Cpus {
    pub client: usize,
    pub server: usize,
}

/// Connections that were opened one after the other by each client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connections {
    pub count: u64,
    pub time: Duration,
    /// CPU time of client and server together; excludes other processes.
    pub cpu: Duration,
}

impl Connections {
    pub fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }

    /// CPU time of one connection in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.count as f64
    }
}

impl AddAssign for Connections {
    fn add_assign(&mut self, other: Connections) {
        self.count += other.count;
        self.time += other.time;
        self.cpu += other.cpu;
    }
}

impl Route {
    /// Route to an address of a namespace.
    pub fn direct(client: &Netns, server: &Netns, address: IpAddr) -> Route {
        let target = SocketAddr::from((address, PORT));
        Route { client: client.clone(), target, servers: vec![(server.clone(), target)], cpus: None }
    }

    /// Throughput of one connection, in bits of payload per second.
    pub fn throughput(&self, duration: Duration) -> Result<f64> {
        let send = || -> Result<()> {
            let mut stream = connect(self.target)?;
            let (start, chunk) = (Instant::now(), vec![0; CHUNK]);
            while start.elapsed() < duration {
                stream.write_all(&chunk).context("send")?;
            }
            Ok(())
        };
        let (served, ()) = self.run(Mode::Discard, send)?;
        Ok(served.bytes as f64 * 8.0 / served.time.as_secs_f64())
    }

    /// Each of `clients` threads opens one connection after the other: connect, one byte in each direction, reset.
    pub fn connections(&self, clients: usize, duration: Duration) -> Result<Connections> {
        let measure = || -> Result<Connections> {
            let (start, spent) = (Instant::now(), processor::cpu_time()?);
            let client = || -> Result<u64> {
                let mut connections = 0;
                while start.elapsed() < duration {
                    exchange(self.target)?;
                    connections += 1;
                }
                Ok(connections)
            };
            let count = thread::scope(|scope| {
                let clients: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
                let join = |client: thread::ScopedJoinHandle<'_, Result<u64>>| {
                    client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                clients.into_iter().map(join).sum::<Result<u64>>()
            })?;
            Ok(Connections { count, time: start.elapsed(), cpu: processor::cpu_time()? - spent })
        };
        Ok(self.run(Mode::Echo, measure)?.1)
    }

    /// Duration of each connection from socket to response, one after the other; at least one.
    pub fn exchanges(&self, duration: Duration) -> Result<Vec<Duration>> {
        let measure = || -> Result<Vec<Duration>> {
            let (start, mut times) = (Instant::now(), vec![exchange(self.target)?]);
            while start.elapsed() < duration {
                times.push(exchange(self.target)?);
            }
            Ok(times)
        };
        Ok(self.run(Mode::Echo, measure)?.1)
    }

    /// Runs the server until the client has ended; returns the results of both.
    fn run<T: Send>(&self, mode: Mode, client: impl FnOnce() -> Result<T> + Send) -> Result<(Received, T)> {
        let listeners = self.listeners()?;
        let over = AtomicBool::new(false);
        let serve = || {
            self.cpus.map_or(Ok(()), |cpus| processor::pin_to(cpus.server))?;
            server::serve(&listeners, mode, &over)
        };
        let call = || {
            self.cpus.map_or(Ok(()), |cpus| processor::pin_to(cpus.client))?;
            client()
        };
        thread::scope(|scope| {
            let server = thread::Builder::new().name("server".to_owned()).spawn_scoped(scope, serve)?;
            let found = self.client.run(call).with_context(|| format!("TCP to {}", self.target));
            over.store(true, Ordering::SeqCst);
            let served = server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // The client's error has the cause; the server's follows from it.
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

/// Duration of one connection with one byte in each direction.
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

/// Connects with fewer system calls than `TcpStream::connect_timeout`.
fn connect(target: SocketAddr) -> Result<TcpStream> {
    let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket::socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Also limits connect(2).
    setsockopt(&socket, sockopt::SendTimeout, &IO_TIMEOUT)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &IO_TIMEOUT)?;
    socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(target)).context("connect")?;
    Ok(TcpStream::from(socket))
}

#[cfg(test)]
mod tests {
    use testkit::needs;

    use super::*;

    #[test]
    fn route_measures_between_namespaces() {
        needs!(root(), binary("ip"));
        let (client, server) = (Netns::new("client").unwrap(), Netns::new("server").unwrap());
        client.veth("eth0", &server, "eth0").unwrap();
        for (namespace, address) in [(&client, "10.9.0.1/24"), (&server, "10.9.0.2/24")] {
            namespace.address("eth0", address).unwrap();
            namespace.up("eth0").unwrap();
        }
        let mut route = Route::direct(&client, &server, "10.9.0.2".parse().unwrap());
        let duration = Duration::from_millis(50);
        assert!(route.throughput(duration).unwrap() > 0.0);
        assert!(route.connections(2, duration).unwrap().per_second() > 0.0);
        route.cpus = Some(Cpus { client: 0, server: 0 });
        assert!(!route.exchanges(duration).unwrap().is_empty());
        route.target.set_port(9);
        let error = route.exchanges(duration).unwrap_err();
        assert!(format!("{error:#}").contains("TCP to 10.9.0.2:9: connect"), "{error:#}");
    }
}
