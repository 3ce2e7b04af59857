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

/// How long the server waits before it looks whether all is over, in milliseconds.
const LOOK: u16 = 50;
const CHUNK: usize = 256 << 10;
const EVENTS: usize = 64;

/// What is done with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Duty {
    Echo,
    Swallow,
}

/// What came.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Served {
    pub(super) bytes: usize,
    /// From the first byte to the last.
    pub(super) time: Duration,
}

/// Serves all connections with one thread, whatever namespaces the listeners are in, until all is over and nothing more comes.
pub(super) fn serve(listeners: &[TcpListener], duty: Duty, over: &AtomicBool) -> Result<Served> {
    let mut server = Server {
        epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll")?,
        listeners: listeners.iter().map(|listener| (listener.as_raw_fd(), listener)).collect(),
        streams: HashMap::new(),
        duty,
        bytes: 0,
        span: None,
    };
    for listener in listeners {
        listener.set_nonblocking(true)?;
        server.epoll.add(listener, readable(listener.as_raw_fd()))?;
    }
    let (mut events, mut buffer) = (vec![EpollEvent::empty(); EVENTS], vec![0; CHUNK]);
    loop {
        let ready = match server.epoll.wait(&mut events, LOOK) {
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
    Ok(Served { bytes: server.bytes, time })
}

fn readable(fd: RawFd) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, fd as u64)
}

struct Server<'a> {
    epoll: Epoll,
    listeners: HashMap<RawFd, &'a TcpListener>,
    streams: HashMap<RawFd, TcpStream>,
    duty: Duty,
    bytes: usize,
    /// When the first and the last bytes came.
    span: Option<(Instant, Instant)>,
}

impl Server<'_> {
    fn handle(&mut self, fd: RawFd, buffer: &mut [u8]) -> Result<()> {
        if let Some(listener) = self.listeners.get(&fd) {
            return match listener.accept() {
                Ok((stream, _)) => {
                    // It stays blocking: it is only read when something is there.
                    self.epoll.add(&stream, readable(stream.as_raw_fd()))?;
                    self.streams.insert(stream.as_raw_fd(), stream);
                    Ok(())
                }
                // Reset before it was taken.
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
            // Its client notices by itself when an answer is missing.
            Ok(length @ 1..) if self.duty == Duty::Swallow || stream.write_all(&buffer[..length]).is_ok() => {
                let now = Instant::now();
                self.span = Some(self.span.map_or((now, now), |(first, _)| (first, now)));
                self.bytes += length;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Closed, or reset; closing takes it out of the epoll.
            Ok(_) | Err(_) => drop(self.streams.remove(&fd)),
        }
        Ok(())
    }
}
