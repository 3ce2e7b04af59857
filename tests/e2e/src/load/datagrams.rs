use std::{
    collections::{HashMap, VecDeque},
    net::{SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use testkit::Netns;

use super::worker::{Pace, RESPONSE_TIMEOUT, Stop, Worker, any, socket, would_block};

/// Concurrent flows. Each is replaced in turn, so that some flows are always new.
const FLOWS: usize = 16;
const RENEW_INTERVAL: Duration = Duration::from_millis(500);
const BURST: u64 = 64;
/// Maximum number of unanswered datagrams, so that no queue overflows on a busy machine.
const WINDOW: usize = 500;

/// Datagrams to an echo server, at a constant rate.
#[derive(Debug)]
pub struct Datagrams {
    stop: Stop,
    worker: Worker<DatagramCount>,
}

/// Counters of [`Datagrams`].
#[derive(Debug, Clone, Copy)]
pub struct DatagramCount {
    pub sent: u64,
    /// Datagrams without a response.
    pub lost: u64,
    /// Number of source ports used.
    pub flows: u64,
    /// Datagrams per second.
    pub rate: f64,
}

impl Datagrams {
    pub fn start(from: &Netns, to: SocketAddr, per_second: u64) -> Result<Datagrams> {
        let stop = Stop::default();
        let worker_stop = stop.clone();
        let worker =
            Worker::start(from, "datagrams", move || Sender::new(to, per_second)?.run(&worker_stop))?;
        Ok(Datagrams { stop, worker })
    }

    pub fn stop(self) -> Result<DatagramCount> {
        self.stop.set();
        self.worker.finish()
    }
}

struct Sender {
    to: SocketAddr,
    flows: VecDeque<UdpSocket>,
    /// Replaced flows that may still get responses, with the time of their replacement.
    retired: VecDeque<(UdpSocket, Instant)>,
    /// Unanswered datagrams, with the time of sending.
    waiting: HashMap<u64, Instant>,
    pace: Pace,
    next: u64,
    lost: u64,
    flow_count: u64,
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
            flow_count: FLOWS as u64,
        })
    }

    fn run(mut self, stop: &Stop) -> Result<DatagramCount> {
        let mut renewed = Instant::now();
        while !stop.is_set() {
            let room = WINDOW.saturating_sub(self.waiting.len()) as u64;
            for _ in 0..self.pace.due(BURST).min(room) {
                self.send()?;
            }
            if self.receive()? == 0 {
                thread::sleep(Duration::from_micros(200));
            }
            if renewed.elapsed() > RENEW_INTERVAL {
                renewed = Instant::now();
                self.expire();
                self.renew()?;
            }
        }
        let rate = self.pace.rate();
        while !self.waiting.is_empty() {
            self.receive()?;
            self.expire();
            thread::sleep(Duration::from_micros(200));
        }
        Ok(DatagramCount { sent: self.next, lost: self.lost, flows: self.flow_count, rate })
    }

    fn send(&mut self) -> Result<()> {
        let flow = &self.flows[self.next as usize % FLOWS];
        self.waiting.insert(self.next, Instant::now());
        match flow.send(&self.next.to_be_bytes()) {
            Ok(_) => {}
            // An ICMP error for an earlier datagram, which is counted as lost.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).context("send a datagram"),
        }
        self.next += 1;
        self.pace.did(1);
        Ok(())
    }

    /// Receives the available responses; returns their number.
    fn receive(&mut self) -> Result<usize> {
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
                    Err(error) => return Err(error).context("receive a response"),
                }
            }
        }
        Ok(before - self.waiting.len())
    }

    fn expire(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|_, sent| sent.elapsed() < RESPONSE_TIMEOUT);
        self.lost += (before - self.waiting.len()) as u64;
    }

    /// Replaces the oldest flow by one with another port.
    fn renew(&mut self) -> Result<()> {
        self.flows.push_back(connected(self.to)?);
        self.flow_count += 1;
        self.retired.extend(self.flows.pop_front().map(|flow| (flow, Instant::now())));
        while self.retired.front().is_some_and(|(_, since)| since.elapsed() > RESPONSE_TIMEOUT) {
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
