use std::time::Duration;

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
    }
}
