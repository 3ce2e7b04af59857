use std::{
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::Result;
use testkit::Netns;

use super::{Over, Pace, Worker, any, socket, would_block};

/// A denied connection that is tried is silent; nobody waits for it for long.
const MOMENT: Duration = Duration::from_millis(5);
/// Datagrams of one source port, before the next is new.
const OF_ONE: u64 = 50;

/// What the rules deny, tried all the time.
#[derive(Debug)]
pub struct Denied {
    over: Over,
    worker: Worker<Tried>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tried {
    pub datagrams: u64,
    pub connections: u64,
    /// Datagrams that were answered, connections that were made.
    pub let_through: u64,
}

impl Denied {
    /// Turns from one target to the next.
    pub fn start(from: &Netns, targets: Vec<SocketAddr>, per_second: u64) -> Result<Denied> {
        let over = Over::default();
        let theirs = over.clone();
        let worker = Worker::start(from, "denied", move || {
            let mut tried = Tried::default();
            let mut pace = Pace::new(per_second);
            for target in targets.iter().cycle() {
                if theirs.is_set() || targets.is_empty() {
                    break;
                }
                datagrams(*target, &mut pace, &mut tried)?;
                tried.connections += 1;
                tried.let_through += u64::from(TcpStream::connect_timeout(target, MOMENT).is_ok());
            }
            Ok(tried)
        })?;
        Ok(Denied { over, worker })
    }

    pub fn stop(self) -> Result<Tried> {
        self.over.set();
        self.worker.finish()
    }
}

fn datagrams(target: SocketAddr, pace: &mut Pace, tried: &mut Tried) -> Result<()> {
    let socket = socket(any(target), 0)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    let mut bytes = [0; 64];
    let mut sent = 0;
    while sent < OF_ONE {
        let due = pace.due(8);
        for _ in 0..due {
            socket.send(b"may I?")?;
        }
        (sent, tried.datagrams) = (sent + due, tried.datagrams + due);
        pace.did(due);
        thread::sleep(Duration::from_millis(1));
        match socket.recv(&mut bytes) {
            Ok(_) => tried.let_through += 1,
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
