use std::{
    collections::{HashMap, VecDeque},
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use testkit::Netns;

use super::{Over, PATIENCE, Pace, Worker, any, socket, would_block};

/// At a time; one after the other makes room for a new one, so that there are always young flows, too.
const FLOWS: usize = 16;
const RENEWED_EVERY: Duration = Duration::from_millis(500);
const BURST: u64 = 64;
/// On the way at most, so that no queue on the way overflows when a machine has too much to do.
const WINDOW: usize = 500;

/// Datagrams to an echo, at a steady rate.
#[derive(Debug)]
pub struct Datagrams {
    over: Over,
    worker: Worker<Delivered>,
}

/// What became of the datagrams.
#[derive(Debug, Clone, Copy)]
pub struct Delivered {
    pub sent: u64,
    /// Without an answer.
    pub lost: u64,
    /// Source ports that were used.
    pub flows: u64,
    /// Datagrams a second; as many answers came back.
    pub rate: f64,
}

impl Datagrams {
    pub fn start(from: &Netns, to: SocketAddr, per_second: u64) -> Result<Datagrams> {
        let over = Over::default();
        let theirs = over.clone();
        let worker = Worker::start(from, "datagrams", move || Sender::new(to, per_second)?.run(&theirs))?;
        Ok(Datagrams { over, worker })
    }

    pub fn stop(self) -> Result<Delivered> {
        self.over.set();
        self.worker.finish()
    }
}

struct Sender {
    to: SocketAddr,
    flows: VecDeque<UdpSocket>,
    /// Still to be listened to, since when.
    retired: VecDeque<(UdpSocket, Instant)>,
    /// When each was sent.
    waiting: HashMap<u64, Instant>,
    pace: Pace,
    next: u64,
    lost: u64,
    made: u64,
}

impl Sender {
    fn new(to: SocketAddr, per_second: u64) -> Result<Sender> {
        let flows = (0..FLOWS).map(|_| connected(to)).collect::<Result<_>>()?;
        Ok(Sender {
            to,
            flows,
            retired: VecDeque::new(),
            waiting: HashMap::new(),
            pace: Pace::new(per_second),
            next: 0,
            lost: 0,
            made: FLOWS as u64,
        })
    }

    fn run(mut self, over: &Over) -> Result<Delivered> {
        let mut renewed = Instant::now();
        while !over.is_set() {
            let room = WINDOW.saturating_sub(self.waiting.len()) as u64;
            for _ in 0..self.pace.due(BURST).min(room) {
                self.send()?;
            }
            if self.listen()? == 0 {
                thread::sleep(Duration::from_micros(200));
            }
            if renewed.elapsed() > RENEWED_EVERY {
                renewed = Instant::now();
                self.give_up();
                self.renew()?;
            }
        }
        let rate = self.pace.rate();
        while !self.waiting.is_empty() {
            self.listen()?;
            self.give_up();
            thread::sleep(Duration::from_micros(200));
        }
        Ok(Delivered { sent: self.next, lost: self.lost, flows: self.made, rate })
    }

    fn send(&mut self) -> Result<()> {
        let flow = &self.flows[self.next as usize % FLOWS];
        self.waiting.insert(self.next, Instant::now());
        match flow.send(&self.next.to_be_bytes()) {
            Ok(_) => {}
            // An ICMP error about an earlier one: that has no answer and is counted by that.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).context("send a datagram"),
        }
        self.next += 1;
        self.pace.did(1);
        Ok(())
    }

    /// Takes the answers that are there; how many.
    fn listen(&mut self) -> Result<usize> {
        let before = self.waiting.len();
        let mut bytes = [0; 64];
        for flow in self.flows.iter().chain(self.retired.iter().map(|(flow, _)| flow)) {
            loop {
                match flow.recv(&mut bytes) {
                    Ok(_) => {
                        let number = bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes));
                        self.waiting.remove(&number);
                    }
                    Err(error) if would_block(&error) => break,
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error).context("receive an answer"),
                }
            }
        }
        Ok(before - self.waiting.len())
    }

    fn give_up(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|_, sent| sent.elapsed() < PATIENCE);
        self.lost += (before - self.waiting.len()) as u64;
    }

    /// The oldest flow makes room for one with another port.
    fn renew(&mut self) -> Result<()> {
        self.flows.push_back(connected(self.to)?);
        self.made += 1;
        self.retired.extend(self.flows.pop_front().map(|flow| (flow, Instant::now())));
        while self.retired.front().is_some_and(|(_, since)| since.elapsed() > PATIENCE) {
            self.retired.pop_front();
        }
        Ok(())
    }
}

fn connected(to: SocketAddr) -> Result<UdpSocket> {
    let socket = socket(any(to), 0)?;
    socket.connect(to).with_context(|| format!("connect to {to}"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
