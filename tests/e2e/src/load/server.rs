use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use testkit::Netns;

use super::worker::{Stop, Worker, socket, would_block};

/// Interval of checks of the stop flag.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Stack size of echo threads, in bytes.
const STACK: usize = 64 << 10;

/// An echo server for UDP and TCP at one address.
#[derive(Debug)]
pub struct Server {
    workers: Vec<Worker<()>>,
    stop: Stop,
    seen: Arc<AtomicU64>,
}

impl Server {
    pub fn start(namespace: &Netns, address: IpAddr, port: u16) -> Result<Server> {
        let (stop, seen) = (Stop::default(), Arc::new(AtomicU64::new(0)));
        let mut server = Server { workers: vec![], stop: stop.clone(), seen: seen.clone() };
        let datagrams = namespace.run(|| {
            let socket = socket(address, port)?;
            socket.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
            Ok(socket)
        })?;
        let listener = namespace.run(|| {
            TcpListener::bind((address, port)).with_context(|| format!("listen on {address}:{port}"))
        })?;
        listener.set_nonblocking(true)?;
        let (udp_stop, udp_seen) = (stop.clone(), seen.clone());
        server.workers.push(Worker::start(namespace, "echo-udp", move || {
            let mut bytes = [0; 2048];
            while !udp_stop.is_set() {
                match datagrams.recv_from(&mut bytes) {
                    Ok((length, from)) => {
                        udp_seen.fetch_add(1, Ordering::Relaxed);
                        // The client may have closed its socket.
                        let _sent = datagrams.send_to(&bytes[..length], from);
                    }
                    Err(error) if would_block(&error) => {}
                    // An ICMP error for an earlier response.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error).context("receive"),
                }
            }
            Ok(())
        })?);
        server.workers.push(Worker::start(namespace, "echo-tcp", move || {
            while !stop.is_set() {
                match listener.accept() {
                    Ok((stream, _)) => {
                        seen.fetch_add(1, Ordering::Relaxed);
                        let stop = stop.clone();
                        thread::Builder::new().stack_size(STACK).spawn(move || echo(stream, &stop))?;
                    }
                    Err(error) if would_block(&error) => thread::sleep(Duration::from_millis(1)),
                    Err(error) => return Err(error).context("accept"),
                }
            }
            Ok(())
        })?);
        Ok(server)
    }

    /// Number of received datagrams and accepted connections.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub fn stop(self) -> Result<()> {
        self.stop.set();
        self.workers.into_iter().try_for_each(Worker::finish)
    }
}

/// Echoes until the client closes the connection or the stop flag is set.
fn echo(mut stream: TcpStream, stop: &Stop) {
    let mut bytes = [0; 2048];
    // Accepted sockets do not inherit these settings reliably.
    if stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(STOP_CHECK_INTERVAL)))
        .is_err()
    {
        return;
    }
    while !stop.is_set() {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(length) if stream.write_all(&bytes[..length]).is_ok() => {}
            Err(error) if would_block(&error) => {}
            // The client detects and counts it.
            Ok(_) | Err(_) => return,
        }
    }
}
