use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use testkit::Netns;

use super::worker::{Pace, RESPONSE_TIMEOUT, Stop, Worker};

/// Persistent connections, each with continuous requests.
#[derive(Debug)]
pub struct Streams {
    stop: Stop,
    worker: Worker<StreamCount>,
}

/// Counters of [`Streams`].
#[derive(Debug, Clone)]
pub struct StreamCount {
    pub connections: usize,
    /// Answered requests.
    pub exchanges: u64,
    /// Connections that were closed or did not respond.
    pub broken: usize,
    /// Error of the first broken connection.
    pub first_error: Option<String>,
}

impl Streams {
    /// Returns when all connections are established.
    pub fn open(from: &Netns, to: SocketAddr, connections: usize) -> Result<Streams> {
        let streams = from.run(|| {
            (0..connections)
                .map(|number| connect(to).with_context(|| format!("connection {number}")))
                .collect::<Result<Vec<_>>>()
        })?;
        let stop = Stop::default();
        let worker_stop = stop.clone();
        let worker = Worker::start(from, "streams", move || Ok(run(streams, &worker_stop)))?;
        Ok(Streams { stop, worker })
    }

    pub fn stop(self) -> Result<StreamCount> {
        self.stop.set();
        self.worker.finish()
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream =
        TcpStream::connect_timeout(&to, RESPONSE_TIMEOUT).with_context(|| format!("connect to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    Ok(stream)
}

fn run(mut streams: Vec<TcpStream>, stop: &Stop) -> StreamCount {
    let mut count = StreamCount { connections: streams.len(), exchanges: 0, broken: 0, first_error: None };
    // One more round after the stop flag is set, so that every connection is checked.
    let mut last = false;
    loop {
        streams.retain_mut(|stream| match exchange(stream, count.exchanges) {
            Ok(()) => {
                count.exchanges += 1;
                true
            }
            Err(error) => {
                count.broken += 1;
                count.first_error.get_or_insert_with(|| format!("{:?}: {error:#}", stream.local_addr()));
                false
            }
        });
        if last || streams.is_empty() {
            return count;
        }
        last = stop.is_set();
        thread::sleep(Duration::from_millis(10));
    }
}

fn exchange(stream: &mut TcpStream, number: u64) -> Result<()> {
    let mut response = [0; 8];
    stream.write_all(&number.to_be_bytes()).context("send the request")?;
    stream.read_exact(&mut response).context("read the response")?;
    anyhow::ensure!(u64::from_be_bytes(response) == number, "response of another request");
    Ok(())
}

/// Short connections: opened, used for one request and closed, one after the other.
#[derive(Debug)]
pub struct NewStreams {
    stop: Stop,
    worker: Worker<NewStreamCount>,
}

/// Counters of [`NewStreams`].
#[derive(Debug, Clone)]
pub struct NewStreamCount {
    pub opened: u64,
    pub failed: u64,
    /// Error of the first failed connection.
    pub first_error: Option<String>,
}

impl NewStreams {
    pub fn start(from: &Netns, to: SocketAddr, per_second: u64) -> Result<NewStreams> {
        let stop = Stop::default();
        let worker_stop = stop.clone();
        let worker = Worker::start(from, "new-streams", move || {
            let mut pace = Pace::new(per_second);
            let mut count = NewStreamCount { opened: 0, failed: 0, first_error: None };
            while !worker_stop.is_set() {
                if pace.due(1) == 0 {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                pace.did(1);
                match once(to, count.opened) {
                    Ok(()) => count.opened += 1,
                    Err(error) => {
                        count.failed += 1;
                        count.first_error.get_or_insert_with(|| format!("{error:#}"));
                    }
                }
            }
            Ok(count)
        })?;
        Ok(NewStreams { stop, worker })
    }

    pub fn stop(self) -> Result<NewStreamCount> {
        self.stop.set();
        self.worker.finish()
    }
}

fn once(to: SocketAddr, number: u64) -> Result<()> {
    let mut stream = connect(to)?;
    exchange(&mut stream, number)?;
    // A reset leaves no TIME_WAIT, so that ports do not run out.
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}
