//! Results of a run.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde::Serialize;

use super::{inject::Fault, registers::Checked, stalls::Stalls};

/// Results of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub seconds: u64,
    /// Number of acknowledged creates and deletes.
    pub acknowledged: usize,
    pub refused: usize,
    /// Responses 503 to requests that were not executed, and refused connections.
    pub turned_away: usize,
    /// Requests with an unknown result.
    pub unanswered: usize,
    pub longest_without_a_write_ms: f64,
    /// Longest time without a successful put into etcd itself, through any member.
    pub longest_of_etcd_ms: f64,
    /// Times from a fault until the acknowledgement of a write that began after it, by kind of fault and target.
    pub recoveries: Vec<Recovery>,
    /// Operations that were checked for linearizability.
    pub checked: Checked,
    /// What stalls did, if there were any instead of faults.
    pub stalled: Option<Stalls>,
    /// Consistency violations; empty if the test passes.
    pub wrong: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Recovery {
    pub fault: String,
    pub count: usize,
    /// `None` if there was no write any more.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Times until a successful put into etcd itself.
    pub etcd_p50_ms: Option<f64>,
    pub etcd_p99_ms: Option<f64>,
}

/// Begin and end of a write.
pub(super) type Write = (Instant, Instant);

/// Minimum length of a reported gap.
const LONG_GAP: Duration = Duration::from_millis(1500);

/// Intervals between the ends of consecutive writes.
fn gaps(writes: &[Write]) -> Vec<Write> {
    let mut ends: Vec<_> = writes.iter().map(|(_, end)| *end).collect();
    ends.sort_unstable();
    ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

pub(super) fn longest_gap(writes: &[Write]) -> Duration {
    gaps(writes).iter().map(|(from, to)| *to - *from).max().unwrap_or_default()
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Prints each long gap without a write, the faults during it, and the part of it in which etcd had no successful put.
pub(super) fn print_gaps(begin: Instant, faults: &[Fault], writes: &[Write], etcd_puts: &[Write]) {
    let at = |instant: Instant| instant.saturating_duration_since(begin).as_secs_f64();
    let etcd = gaps(etcd_puts);
    for (from, to) in gaps(writes).into_iter().filter(|(from, to)| *to - *from > LONG_GAP) {
        let etcd = etcd.iter().map(|(a, b)| (*b).min(to).saturating_duration_since((*a).max(from)));
        let etcd = etcd.max().unwrap_or_default();
        eprintln!(
            "faults: no write from {:.2} s to {:.2} s, {:.0} ms; etcd itself {:.0} ms of it",
            at(from),
            at(to),
            millis(to - from),
            millis(etcd)
        );
        for fault in faults.iter().filter(|fault| fault.begin < to && fault.end + LONG_GAP > from) {
            eprintln!("faults:     {fault}, from {:.2} s to {:.2} s", at(fault.begin), at(fault.end));
        }
    }
}

/// Milliseconds, unless it lasted to the end of the run.
fn finite(duration: Duration) -> Option<f64> {
    (duration < Duration::MAX).then(|| millis(duration))
}

fn after(ms: Option<f64>) -> String {
    ms.map_or_else(|| "never".to_owned(), |ms| format!("after {ms:.0} ms"))
}

pub(super) fn recoveries(faults: &[Fault], writes: &[Write], etcd_puts: &[Write]) -> Vec<Recovery> {
    let mut by_class: BTreeMap<String, (Vec<Duration>, Vec<Duration>)> = BTreeMap::new();
    for fault in faults {
        let recovery = |writes: &[Write]| {
            let after = writes.iter().filter(|(begin, _)| *begin >= fault.begin).map(|(_, end)| *end).min();
            after.map_or(Duration::MAX, |end| end - fault.begin)
        };
        let (took, etcd) = (recovery(writes), recovery(etcd_puts));
        let class = by_class.entry(fault.class()).or_default();
        class.0.push(took);
        class.1.push(etcd);
        eprintln!(
            "faults: {fault}: first write {}, etcd itself {}",
            after(finite(took)),
            after(finite(etcd))
        );
    }
    let percentile = |all: &mut Vec<Duration>, percent: usize| {
        all.sort_unstable();
        finite(all[(all.len() * percent).div_ceil(100).max(1) - 1])
    };
    by_class
        .into_iter()
        .map(|(fault, (mut all, mut etcd))| Recovery {
            fault,
            count: all.len(),
            p50_ms: percentile(&mut all, 50),
            p99_ms: percentile(&mut all, 99),
            etcd_p50_ms: percentile(&mut etcd, 50),
            etcd_p99_ms: percentile(&mut etcd, 99),
        })
        .collect()
}

impl Report {
    /// Fails with all consistency violations.
    pub fn verify(&self) -> Result<()> {
        let false_failovers = self.stalled.as_ref().map_or(0, Stalls::false_failovers);
        if false_failovers > 0 {
            bail!("seed {}: {false_failovers} elections although the leader ran", self.seed);
        }
        if !self.wrong.is_empty() {
            bail!(
                "seed {}: {} consistency violations:\n{}",
                self.seed,
                self.wrong.len(),
                self.wrong.join("\n")
            );
        }
        Ok(())
    }

    /// Counts of the run, without the recoveries.
    pub fn summary(&self) -> String {
        let Report { seed, seconds, acknowledged, refused, turned_away, unanswered, .. } = self;
        format!(
            "seed {seed}, {seconds} s: {acknowledged} writes acknowledged, {refused} rejected, {turned_away} \
             unavailable, {unanswered} without a response\n\
             longest time without a successful write: {:.0} ms; of etcd itself: {:.0} ms\n\
             {}\n{} consistency violations",
            self.longest_without_a_write_ms,
            self.longest_of_etcd_ms,
            self.checked,
            self.wrong.len()
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for recovery in &self.recoveries {
            let Recovery { fault, count, p50_ms, p99_ms, etcd_p50_ms, etcd_p99_ms } = recovery;
            let [p50, p99, etcd_p50, etcd_p99] =
                [p50_ms, p99_ms, etcd_p50_ms, etcd_p99_ms].map(|ms| after(*ms));
            writeln!(
                f,
                "{fault:24} {count:4} times, first write {p50} (p50), {p99} (p99); etcd itself {etcd_p50}, {etcd_p99}"
            )?;
        }
        if let Some(stalled) = &self.stalled {
            write!(f, "{stalled}")?;
        }
        f.write_str(&self.summary())
    }
}
