//! Traffic that goes on while something happens to the nodes: datagrams and connections through services, connections
//! that stay, and tries of what the rules deny. What is lost, broken or let through is counted, never timed.

mod datagrams;
mod denied;
mod server;
mod streams;

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use testkit::Netns;

pub use datagrams::{Datagrams, Delivered};
pub use denied::{Denied, Tried};
pub use server::Server;
pub use streams::{Kept, NewStreams, Opened, Streams};

/// What all parts of a load look at to know that they should end.
#[derive(Debug, Clone, Default)]
pub struct Over(Arc<AtomicBool>);

impl Over {
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// How long an answer may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread whose sockets are in a namespace; it ends by itself when all is over.
struct Worker<T>(JoinHandle<Result<T>>);

impl<T: Send + 'static> Worker<T> {
    fn start(
        namespace: &Netns,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Worker<T>> {
        let namespace = namespace.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || namespace.run(work))?;
        Ok(Worker(thread))
    }

    fn finish(self) -> Result<T> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.thread().name().fmt(f)
    }
}

/// With buffers in which nothing is lost while its owner has no processor.
fn socket(address: IpAddr, port: u16) -> Result<UdpSocket> {
    const ROOM: usize = 8 << 20;
    let socket =
        UdpSocket::bind((address, port)).with_context(|| format!("bind UDP port {port} of {address}"))?;
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM).context("make room for datagrams")?;
    setsockopt(&socket, sockopt::SndBufForce, &ROOM).context("make room for datagrams")?;
    Ok(socket)
}

/// The unspecified address of the family.
fn any(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Lets a step happen so often, and catches up when it was late.
struct Pace {
    start: Instant,
    done: u64,
    per_second: u64,
}

impl Pace {
    fn new(per_second: u64) -> Pace {
        Pace { start: Instant::now(), done: 0, per_second }
    }

    /// How many steps are due now, at most so many.
    fn due(&self, most: u64) -> u64 {
        let wanted = self.start.elapsed().as_micros() as u64 * self.per_second / 1_000_000;
        wanted.saturating_sub(self.done).min(most)
    }

    fn did(&mut self, steps: u64) {
        self.done += steps;
    }

    fn rate(&self) -> f64 {
        self.done as f64 / self.start.elapsed().as_secs_f64()
    }
}
