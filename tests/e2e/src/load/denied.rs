use std::{
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::Result;
use testkit::Netns;

use super::worker::{Pace, Stop, Worker, any, socket, would_block};

/// Connection timeout: denied connections get no response.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(5);
/// Datagrams per source port.
const PER_PORT: u64 = 50;

/// Traffic that rules deny, sent continuously.
#[derive(Debug)]
pub struct Denied {
    stop: Stop,
    worker: Worker<DeniedCount>,
}

/// Counters of [`Denied`].
#[derive(Debug, Clone, Copy, Default)]
pub struct DeniedCount {
    pub datagrams: u64,
    pub connections: u64,
    /// Datagrams with a response, and established connections.
    pub allowed: u64,
}

impl Denied {
    /// Sends to the targets in turn.
    pub fn start(from: &Netns, targets: Vec<SocketAddr>, per_second: u64) -> Result<Denied> {
        let stop = Stop::default();
        let worker_stop = stop.clone();
        let worker = Worker::start(from, "denied", move || {
            let mut count = DeniedCount::default();
            let mut pace = Pace::new(per_second);
            for target in targets.iter().cycle() {
                if worker_stop.is_set() || targets.is_empty() {
                    break;
                }
                datagrams(*target, &mut pace, &mut count)?;
                count.connections += 1;
                count.allowed += u64::from(TcpStream::connect_timeout(target, CONNECT_TIMEOUT).is_ok());
            }
            Ok(count)
        })?;
        Ok(Denied { stop, worker })
    }

    pub fn stop(self) -> Result<DeniedCount> {
        self.stop.set();
        self.worker.finish()
    }
}

fn datagrams(target: SocketAddr, pace: &mut Pace, count: &mut DeniedCount) -> Result<()> {
    let socket = socket(any(target), 0)?;
    socket.connect(target)?;
    socket.set_nonblocking(true)?;
    let mut bytes = [0; 64];
    let mut sent = 0;
    while sent < PER_PORT {
        let due = pace.due(8);
        for _ in 0..due {
            socket.send(b"denied")?;
        }
        (sent, count.datagrams) = (sent + due, count.datagrams + due);
        pace.did(due);
        thread::sleep(Duration::from_millis(1));
        match socket.recv(&mut bytes) {
            Ok(_) => count.allowed += 1,
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
