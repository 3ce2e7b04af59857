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

use super::{Over, Worker, socket, would_block};

/// How long a server waits before it looks whether all is over.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that only echoes needs no more.
const STACK: usize = 64 << 10;

/// Echoes what comes over UDP and TCP to one address.
#[derive(Debug)]
pub struct Server {
    workers: Vec<Worker<()>>,
    over: Over,
    seen: Arc<AtomicU64>,
}

impl Server {
    pub fn start(namespace: &Netns, address: IpAddr, port: u16) -> Result<Server> {
        let (over, seen) = (Over::default(), Arc::new(AtomicU64::new(0)));
        let mut server = Server { workers: vec![], over: over.clone(), seen: seen.clone() };
        let datagrams = namespace.run(|| {
            let socket = socket(address, port)?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok(socket)
        })?;
        let listener = namespace.run(|| {
            TcpListener::bind((address, port)).with_context(|| format!("listen on {address}:{port}"))
        })?;
        listener.set_nonblocking(true)?;
        let (their_over, their_seen) = (over.clone(), seen.clone());
        server.workers.push(Worker::start(namespace, "echo-udp", move || {
            let mut bytes = [0; 2048];
            while !their_over.is_set() {
                match datagrams.recv_from(&mut bytes) {
                    Ok((length, from)) => {
                        their_seen.fetch_add(1, Ordering::Relaxed);
                        // Nobody may listen there any more.
                        let _sent = datagrams.send_to(&bytes[..length], from);
                    }
                    Err(error) if would_block(&error) => {}
                    // What ICMP told of an earlier answer.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error).context("receive"),
                }
            }
            Ok(())
        })?);
        server.workers.push(Worker::start(namespace, "echo-tcp", move || {
            while !over.is_set() {
                match listener.accept() {
                    Ok((stream, _)) => {
                        seen.fetch_add(1, Ordering::Relaxed);
                        let over = over.clone();
                        thread::Builder::new().stack_size(STACK).spawn(move || echo(stream, &over))?;
                    }
                    Err(error) if would_block(&error) => thread::sleep(Duration::from_millis(1)),
                    Err(error) => return Err(error).context("accept"),
                }
            }
            Ok(())
        })?);
        Ok(server)
    }

    /// Datagrams and connections that have come.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub fn stop(self) -> Result<()> {
        self.over.set();
        self.workers.into_iter().try_for_each(Worker::finish)
    }
}

/// Until the client goes, or all is over.
fn echo(mut stream: TcpStream, over: &Over) {
    let mut bytes = [0; 2048];
    // Accepted sockets are not as their listener is.
    if stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK))).is_err() {
        return;
    }
    while !over.is_set() {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(length) if stream.write_all(&bytes[..length]).is_ok() => {}
            Err(error) if would_block(&error) => {}
            // The client notices by itself, and counts it.
            Ok(_) | Err(_) => return,
        }
    }
}
