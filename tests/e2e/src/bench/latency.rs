use std::{
    panic, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Latency and rate of a series of calls.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Latency {
    pub(super) count: usize,
    /// Rate of all clients together.
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

impl Latency {
    /// Statistics of the calls of all clients within `elapsed`; none without calls.
    pub(super) fn of(mut calls: Vec<Duration>, elapsed: Duration) -> Option<Latency> {
        calls.sort_unstable();
        Some(Latency {
            count: calls.len(),
            per_second: calls.len() as f64 / elapsed.as_secs_f64(),
            p50_ms: milliseconds(percentile(&calls, 50)?),
            p99_ms: milliseconds(percentile(&calls, 99)?),
        })
    }

    /// Statistics of sequential calls.
    pub(super) fn of_series(calls: Vec<Duration>) -> Option<Latency> {
        let sum = calls.iter().sum();
        Latency::of(calls, sum)
    }
}

/// Latency of single events that many observers see.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Spread {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

impl Spread {
    pub(super) fn of(mut delays: Vec<Duration>) -> Option<Spread> {
        delays.sort_unstable();
        Some(Spread {
            p50_ms: milliseconds(percentile(&delays, 50)?),
            p99_ms: milliseconds(percentile(&delays, 99)?),
            max_ms: milliseconds(*delays.last()?),
        })
    }
}

/// Runs `call` in `clients` threads until `duration` has passed.
pub(super) fn in_parallel(
    clients: usize,
    duration: Duration,
    call: impl Fn(usize, usize) -> Result<()> + Sync,
) -> Result<Latency> {
    let start = Instant::now();
    let mut calls = vec![];
    thread::scope(|scope| {
        let call = &call;
        let series = |client| {
            let mut calls = vec![];
            while start.elapsed() < duration {
                let begin = Instant::now();
                call(client, calls.len())?;
                calls.push(begin.elapsed());
            }
            anyhow::Ok(calls)
        };
        let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || series(client))).collect();
        for thread in threads {
            calls.extend(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?);
        }
        anyhow::Ok(())
    })?;
    Latency::of(calls, start.elapsed()).context("no call was measured")
}

/// Nearest-rank percentile.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let calls: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let latency = Latency::of(calls, Duration::from_secs(2)).unwrap();
        assert_eq!((latency.p50_ms, latency.p99_ms, latency.per_second), (100.0, 198.0, 100.0));
        let one = Latency::of_series(vec![Duration::from_millis(4)]).unwrap();
        assert_eq!((one.p50_ms, one.p99_ms, one.per_second), (4.0, 4.0, 250.0));
        assert!(Latency::of_series(vec![]).is_none());
        let spread = Spread::of((1..=200).map(Duration::from_millis).collect()).unwrap();
        assert_eq!((spread.p50_ms, spread.p99_ms, spread.max_ms), (100.0, 198.0, 200.0));
    }
}
