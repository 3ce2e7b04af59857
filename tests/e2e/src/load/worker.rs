//! Parts that all kinds of load share: threads, sockets, pacing.

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

/// Stop flag that all workers of a load check.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A response counts as lost after this time.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A thread with sockets in a namespace; it ends when the stop flag is set.
pub(super) struct Worker<T>(JoinHandle<Result<T>>);

impl<T: Send + 'static> Worker<T> {
    pub(super) fn start(
        namespace: &Netns,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Worker<T>> {
        let namespace = namespace.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || namespace.run(work))?;
        Ok(Worker(thread))
    }

    pub(super) fn finish(self) -> Result<T> {
        self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.thread().name().fmt(f)
    }
}

/// Binds a socket with buffers that do not overflow while its thread is not scheduled.
pub(super) fn socket(address: IpAddr, port: u16) -> Result<UdpSocket> {
    const BUFFER: usize = 8 << 20;
    let socket =
        UdpSocket::bind((address, port)).with_context(|| format!("bind UDP port {port} of {address}"))?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).context("set the socket buffer size")?;
    setsockopt(&socket, sockopt::SndBufForce, &BUFFER).context("set the socket buffer size")?;
    Ok(socket)
}

/// The unspecified address of the family.
pub(super) fn any(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

pub(super) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Paces steps at a constant rate, and catches up after delays.
pub(super) struct Pace {
    start: Instant,
    done: u64,
    per_second: u64,
}

impl Pace {
    pub(super) fn new(per_second: u64) -> Pace {
        Pace { start: Instant::now(), done: 0, per_second }
    }

    /// Number of steps that are due, at most `max`.
    pub(super) fn due(&self, max: u64) -> u64 {
        let target = self.start.elapsed().as_micros() as u64 * self.per_second / 1_000_000;
        target.saturating_sub(self.done).min(max)
    }

    pub(super) fn did(&mut self, steps: u64) {
        self.done += steps;
    }

    pub(super) fn rate(&self) -> f64 {
        self.done as f64 / self.start.elapsed().as_secs_f64()
    }
}
