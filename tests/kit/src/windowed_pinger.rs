//! Echo requests, few of which are unanswered at a time.

use std::{
    collections::BTreeMap,
    io::{Error, ErrorKind},
    net::{IpAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::{
    capture::enlarge_buffer, packet::internet_checksum, ping::Ping, resource::netns::Netns, wait::patience,
};

/// Maximum number of unanswered requests. They fit into every queue on the way.
const WINDOW: usize = 16;
/// Header of an echo request or reply.
const HEADER: usize = 8;

/// Sends echo requests until [`WindowedPinger::finish`]. While [`WINDOW`] of them are unanswered it waits, as long as it takes.
///
/// A [`Pinger`](crate::Pinger) goes on sending: while a switch gets no processor, its queues overflow, and requests are lost that
/// it has not seen.
#[derive(Debug)]
pub struct WindowedPinger {
    target: IpAddr,
    shared: Arc<Shared>,
    /// `None` when it has finished.
    thread: Option<JoinHandle<Result<Ping>>>,
}

#[derive(Debug, Default)]
struct Shared {
    answers: AtomicUsize,
    /// When to stop waiting for replies. If set, no requests are sent.
    end: Mutex<Option<Instant>>,
}

impl Shared {
    fn end(&self) -> Option<Instant> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_end(&self, end: Instant) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }
}

impl WindowedPinger {
    /// Sends at most one request in an `interval`.
    pub fn start(namespace: &Netns, target: IpAddr, interval: Duration) -> Result<WindowedPinger> {
        let socket = namespace.run(|| connect(target))?;
        // A reply that is waited for does not delay the next request.
        socket.set_read_timeout(Some((interval / 4).max(Duration::from_millis(1))))?;
        let shared = Arc::new(Shared::default());
        let requests = Requests::new(socket, target, Arc::clone(&shared));
        let send = move || requests.run(interval);
        let thread = thread::Builder::new().name("pinger".to_owned()).spawn(send)?;
        Ok(WindowedPinger { target, shared, thread: Some(thread) })
    }

    pub fn target(&self) -> IpAddr {
        self.target
    }

    /// Number of replies so far.
    pub fn answers(&self) -> usize {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Sends no more, and waits for the replies until `deadline` has passed, which `CONTIV_TEST_PATIENCE` multiplies. A request
    /// without a reply is lost then.
    pub fn finish(mut self, deadline: Duration) -> Result<Ping> {
        self.shared.set_end(Instant::now() + deadline * patience());
        let thread = self.thread.take().context("it has finished")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for WindowedPinger {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shared.set_end(Instant::now());
        }
    }
}

/// Opens a raw socket for ICMP with one host, in the namespace of the calling thread.
fn connect(target: IpAddr) -> Result<UdpSocket> {
    let (family, protocol) = match target {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let socket =
        socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).context("open a raw socket")?;
    enlarge_buffer(&socket)?;
    // For the calls that all sockets with IP addresses have.
    let socket = UdpSocket::from(socket);
    socket.connect((target, 0)).with_context(|| format!("connect to {target}"))?;
    Ok(socket)
}

struct Requests {
    socket: UdpSocket,
    is_ipv6: bool,
    /// Identifier of the echo requests.
    id: u16,
    shared: Arc<Shared>,
    /// Number of requests.
    sent: u64,
    /// Unanswered requests by number, with the time of sending.
    unanswered: BTreeMap<u64, Instant>,
    /// Sum of the round-trip times.
    waited: Duration,
}

impl Requests {
    fn new(socket: UdpSocket, target: IpAddr, shared: Arc<Shared>) -> Requests {
        static NEXT_ID: AtomicU16 = AtomicU16::new(1);
        Requests {
            socket,
            is_ipv6: target.is_ipv6(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            shared,
            sent: 0,
            unanswered: BTreeMap::new(),
            waited: Duration::ZERO,
        }
    }

    fn run(mut self, interval: Duration) -> Result<Ping> {
        let mut next = Instant::now();
        loop {
            let now = Instant::now();
            match self.shared.end() {
                Some(end) if self.unanswered.is_empty() || now >= end => break,
                None if now >= next && self.unanswered.len() < WINDOW => {
                    self.send(now)?;
                    next = now + interval;
                }
                _ => {}
            }
            self.receive()?;
        }
        let (sent, lost) = (u32::try_from(self.sent)?, u32::try_from(self.unanswered.len())?);
        let received = sent - lost;
        Ok(Ping { sent, received, rtt: (received > 0).then(|| self.waited / received) })
    }

    fn send(&mut self, now: Instant) -> Result<()> {
        let number = self.sent;
        self.sent += 1;
        self.unanswered.insert(number, now);
        match self.socket.send(&self.request(number)) {
            Err(error) if !is_passing(&error) => Err(error).context("send an echo request"),
            _ => Ok(()),
        }
    }

    fn request(&self, number: u64) -> Vec<u8> {
        let kind = if self.is_ipv6 { 128 } else { 8 };
        let mut message = vec![kind, 0, 0, 0];
        message.extend(self.id.to_be_bytes());
        message.extend((number as u16).to_be_bytes());
        message.extend(number.to_be_bytes());
        // The kernel computes that of ICMPv6, which covers the addresses.
        if !self.is_ipv6 {
            let checksum = internet_checksum(&[&message]);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        message
    }

    /// Receives one message, if one comes within the timeout of the socket.
    fn receive(&mut self) -> Result<()> {
        let mut bytes = [0; 256];
        let length = match self.socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(error).context("receive an echo reply"),
        };
        let number = self.answered_by(&bytes[..length]);
        // A reply may come twice.
        if let Some(sent) = number.and_then(|number| self.unanswered.remove(&number)) {
            self.waited += sent.elapsed();
            self.shared.answers.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The number of the request that a received packet answers.
    fn answered_by(&self, packet: &[u8]) -> Option<u64> {
        // Raw sockets receive the header of IPv4, and not that of IPv6.
        let (start, kind) = if self.is_ipv6 { (0, 129) } else { (usize::from(packet.first()? & 0xf) * 4, 0) };
        let message = packet.get(start..)?;
        let is_own = *message.first()? == kind && message.get(4..6)? == self.id.to_be_bytes();
        let number = message.get(HEADER..)?.first_chunk()?;
        is_own.then(|| u64::from_be_bytes(*number))
    }
}

/// Whether a call failed only because nothing has arrived, or an ICMP error has: the request that caused it is not answered.
fn is_passing(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}
