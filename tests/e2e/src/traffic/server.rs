use std::{
    collections::HashMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd as _, RawFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};

/// Interval of checks of the stop flag, in milliseconds.
const STOP_CHECK_INTERVAL: u16 = 50;
const CHUNK: usize = 256 << 10;
const EVENTS: usize = 64;

/// What the server does with received data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Echo,
    Discard,
}

/// Received data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Received {
    pub(super) bytes: usize,
    /// Time from the first to the last byte.
    pub(super) time: Duration,
}

/// Serves all connections with one thread until `over` is set and no data is left. Listeners may be in any namespace.
pub(super) fn serve(listeners: &[TcpListener], mode: Mode, over: &AtomicBool) -> Result<Received> {
    let mut server = Server {
        epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll")?,
        listeners: listeners.iter().map(|listener| (listener.as_raw_fd(), listener)).collect(),
        streams: HashMap::new(),
        mode,
        bytes: 0,
        span: None,
    };
    for listener in listeners {
        listener.set_nonblocking(true)?;
        server.epoll.add(listener, readable(listener.as_raw_fd()))?;
    }
    let (mut events, mut buffer) = (vec![EpollEvent::empty(); EVENTS], vec![0; CHUNK]);
    loop {
        let ready = match server.epoll.wait(&mut events, STOP_CHECK_INTERVAL) {
            Ok(0) if over.load(Ordering::SeqCst) => break,
            Ok(ready) => ready,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error).context("wait for clients"),
        };
        for event in &events[..ready] {
            server.handle(event.data() as RawFd, &mut buffer)?;
        }
    }
    let time = server.span.map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(Received { bytes: server.bytes, time })
}

fn readable(fd: RawFd) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, fd as u64)
}

struct Server<'a> {
    epoll: Epoll,
    listeners: HashMap<RawFd, &'a TcpListener>,
    streams: HashMap<RawFd, TcpStream>,
    mode: Mode,
    bytes: usize,
    /// Arrival of the first and the last bytes.
    span: Option<(Instant, Instant)>,
}

impl Server<'_> {
    fn handle(&mut self, fd: RawFd, buffer: &mut [u8]) -> Result<()> {
        if let Some(listener) = self.listeners.get(&fd) {
            return match listener.accept() {
                Ok((stream, _)) => {
                    // The stream stays blocking: it is read only when it is readable.
                    self.epoll.add(&stream, readable(stream.as_raw_fd()))?;
                    self.streams.insert(stream.as_raw_fd(), stream);
                    Ok(())
                }
                // Reset before accept(2).
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) =>
                {
                    Ok(())
                }
                Err(error) => Err(error).context("accept"),
            };
        }
        let Some(stream) = self.streams.get_mut(&fd) else { return Ok(()) };
        match stream.read(buffer) {
            // The client detects a missing response.
            Ok(length @ 1..) if self.mode == Mode::Discard || stream.write_all(&buffer[..length]).is_ok() => {
                let now = Instant::now();
                self.span = Some(self.span.map_or((now, now), |(first, _)| (first, now)));
                self.bytes += length;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Closed or reset. close(2) removes the socket from the epoll set.
            Ok(_) | Err(_) => drop(self.streams.remove(&fd)),
        }
        Ok(())
    }
}
