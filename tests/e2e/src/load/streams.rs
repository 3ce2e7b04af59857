use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::socket::{setsockopt, sockopt};
use testkit::Netns;

use super::{Over, PATIENCE, Pace, Worker};

/// Connections that stay, and are all used again and again.
#[derive(Debug)]
pub struct Streams {
    over: Over,
    worker: Worker<Kept>,
}

/// What became of connections that should stay.
#[derive(Debug, Clone)]
pub struct Kept {
    pub connections: usize,
    /// Questions that were answered.
    pub exchanges: u64,
    /// Connections that ended, or did not answer.
    pub broken: usize,
    /// The first of them.
    pub why: Option<String>,
}

impl Streams {
    /// Returns when all are made.
    pub fn open(from: &Netns, to: SocketAddr, connections: usize) -> Result<Streams> {
        let streams = from.run(|| {
            (0..connections)
                .map(|number| connect(to).with_context(|| format!("connection {number}")))
                .collect::<Result<Vec<_>>>()
        })?;
        let over = Over::default();
        let theirs = over.clone();
        let worker = Worker::start(from, "streams", move || Ok(use_all(streams, &theirs)))?;
        Ok(Streams { over, worker })
    }

    pub fn stop(self) -> Result<Kept> {
        self.over.set();
        self.worker.finish()
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE).with_context(|| format!("connect to {to}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn use_all(mut streams: Vec<TcpStream>, over: &Over) -> Kept {
    let mut kept = Kept { connections: streams.len(), exchanges: 0, broken: 0, why: None };
    // Once more after the end, so that each is seen to be well.
    let mut last = false;
    loop {
        streams.retain_mut(|stream| match ask(stream, kept.exchanges) {
            Ok(()) => {
                kept.exchanges += 1;
                true
            }
            Err(error) => {
                kept.broken += 1;
                kept.why.get_or_insert_with(|| format!("{:?}: {error:#}", stream.local_addr()));
                false
            }
        });
        if last || streams.is_empty() {
            return kept;
        }
        last = over.is_set();
        thread::sleep(Duration::from_millis(10));
    }
}

fn ask(stream: &mut TcpStream, number: u64) -> Result<()> {
    let mut answer = [0; 8];
    stream.write_all(&number.to_be_bytes()).context("ask")?;
    stream.read_exact(&mut answer).context("read the answer")?;
    anyhow::ensure!(u64::from_be_bytes(answer) == number, "another answer than its own");
    Ok(())
}

/// Connections that are made, used once and closed, one after the other.
#[derive(Debug)]
pub struct NewStreams {
    over: Over,
    worker: Worker<Opened>,
}

/// What became of new connections.
#[derive(Debug, Clone)]
pub struct Opened {
    pub made: u64,
    pub failed: u64,
    /// The first that failed.
    pub why: Option<String>,
}

impl NewStreams {
    pub fn start(from: &Netns, to: SocketAddr, per_second: u64) -> Result<NewStreams> {
        let over = Over::default();
        let theirs = over.clone();
        let worker = Worker::start(from, "new-streams", move || {
            let mut pace = Pace::new(per_second);
            let mut opened = Opened { made: 0, failed: 0, why: None };
            while !theirs.is_set() {
                if pace.due(1) == 0 {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                pace.did(1);
                match once(to, opened.made) {
                    Ok(()) => opened.made += 1,
                    Err(error) => {
                        opened.failed += 1;
                        opened.why.get_or_insert_with(|| format!("{error:#}"));
                    }
                }
            }
            Ok(opened)
        })?;
        Ok(NewStreams { over, worker })
    }

    pub fn stop(self) -> Result<Opened> {
        self.over.set();
        self.worker.finish()
    }
}

fn once(to: SocketAddr, number: u64) -> Result<()> {
    let mut stream = connect(to)?;
    ask(&mut stream, number)?;
    // A reset leaves no TIME_WAIT, so that ports do not run out.
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}
