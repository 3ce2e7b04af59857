//! A link between two interfaces whose packets arrive with a delay.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use testkit::{Netns, capture::Tap};

/// Time between looks whether the link is dropped.
const POLL: Duration = Duration::from_millis(100);

pub(super) struct SlowLink {
    /// For each direction, in ms.
    delay: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SlowLink {
    /// Passes frames from one interface to the other in `namespace`, both ways. Their senders must finish checksums.
    pub(super) fn new(namespace: &Netns, links: [&str; 2]) -> Result<SlowLink> {
        let (delay, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut threads = Vec::new();
        for [from, to] in [links, [links[1], links[0]]] {
            let (from, to) = (Tap::open(namespace, from)?, Tap::open(namespace, to)?);
            let (delay, stop) = (delay.clone(), stop.clone());
            threads.push(thread::spawn(move || pass(&from, &to, &delay, &stop)));
        }
        Ok(SlowLink { delay, stop, threads })
    }

    pub(super) fn set(&self, delay: Duration) {
        self.delay.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn pass(from: &Tap, to: &Tap, delay: &AtomicU64, stop: &AtomicBool) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        while let Some((_, frame)) = queue.pop_front_if(|(due, _)| *due <= now) {
            // A link that is down loses it.
            let _lost = to.send(&frame);
        }
        let wait = queue.front().map_or(POLL, |(due, _)| due.saturating_duration_since(now));
        match from.next(wait.min(POLL)) {
            Ok(Some(frame)) if !frame.outgoing => {
                let delay = Duration::from_millis(delay.load(Ordering::Relaxed));
                queue.push_back((Instant::now() + delay, frame.bytes));
            }
            Ok(_) => {}
            // The link is down.
            Err(_) => thread::sleep(POLL / 10),
        }
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("a thread of a slow link panicked");
            }
        }
    }
}
