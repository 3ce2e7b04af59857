//! Fault injection: random faults of three etcd members and three netmasters under load. Checks the store afterwards.

mod client;
mod etcd_probe;
mod inject;
mod linear;
mod random;
mod register;
mod registers;
mod slow_link;
mod stalls;
mod state;
mod topology;

use std::{
    collections::BTreeMap,
    fmt, panic,
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum as _};
use serde::Serialize;
use serde_json::json;
use testkit::wait_until;

use client::{Client, Gate, Log, Outcome};
use inject::Fault;
pub use inject::Kind;
use registers::Checked;
use stalls::Observed;
pub use stalls::Stalls;
use state::{INITIAL_NETWORKS, State};
use topology::{Equipment, Topology};

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Duration of the fault injection in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub seconds: u64,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub clients: u8,
    /// Seed of the random faults and requests [default: current time in seconds]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Run etcd with fsync, as in production
    #[arg(long)]
    pub fsync: bool,
    /// Faults to choose from, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_enum, conflicts_with = "stalls")]
    pub faults: Vec<Kind>,
    /// Stall disks, processors and the network instead, and count elections that were not necessary; replace a killed
    /// or cut off leader on a busy machine
    #[arg(long)]
    pub stalls: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { seconds: 600, clients: 16, seed: None, fsync: false, faults: Vec::new(), stalls: false }
    }
}

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
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Times until a successful put into etcd itself.
    pub etcd_p50_ms: f64,
    pub etcd_p99_ms: f64,
}

const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the last fault until the clients stop.
const RECOVERY_TIME: Duration = Duration::from_secs(2);
/// Delayed requests are executed within this time, or never.
const QUIET_TIME: Duration = Duration::from_secs(5);

/// Runs the test. Prints the seed first, so that a failed run can be repeated.
pub fn run(options: &Options) -> Result<Report> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = options.seed.unwrap_or(now);
    eprintln!("faults: seed {seed}, {} s, {} clients", options.seconds, options.clients);
    let kinds = match options.faults.as_slice() {
        _ if options.stalls => &[],
        [] => Kind::value_variants(),
        chosen => chosen,
    };
    let topology = Topology::build(Equipment {
        fsync: options.fsync,
        disks: options.stalls || kinds.contains(&Kind::DiskStall),
        slow_links: options.stalls,
    })?;
    topology.hub.run(|| create_networks(&topology))?;
    let reserved = read(&topology)?.reserved()?;
    topology.hub.run(|| register::create_referenced(&topology.client()?))?;

    let (log, gate, stop) = (Log::default(), Gate::default(), AtomicBool::new(false));
    let begin = Instant::now();
    let observed = Observed::default();
    let (faults, stalled, outcomes, etcd_puts) = thread::scope(|scope| {
        let servers: Vec<_> = topology.masters.iter().map(topology::Site::server).collect();
        let clients: Vec<_> = (0..options.clients)
            .map(|number| {
                let client = Client::new(
                    usize::from(number),
                    seed + 100 + u64::from(number),
                    &servers,
                    begin,
                    (&log, &gate),
                );
                let (hub, stop) = (&topology.hub, &stop);
                scope.spawn(move || hub.run(|| client.run(stop)))
            })
            .collect();
        let probes: Vec<_> = topology
            .endpoints()
            .into_iter()
            .map(|endpoint| {
                let (hub, stop) = (&topology.hub, &stop);
                scope.spawn(move || hub.run(|| etcd_probe::run(&endpoint, stop)))
            })
            .collect();
        let end = begin + Duration::from_secs(options.seconds);
        let injected = if options.stalls {
            let stalled = watch_and_stall(scope, &topology, &observed, &stop, seed, end);
            stalled.map(|stalled| (Vec::new(), Some(stalled)))
        } else {
            let masters = scope.spawn({
                let (topology, gate) = (&topology, &gate);
                move || inject::masters(topology, kinds, gate, seed, end)
            });
            let members = inject::members(&topology, kinds, seed + 1, end);
            let masters = join(masters);
            members.and_then(|members| Ok(([members, masters?].concat(), None)))
        };
        thread::sleep(RECOVERY_TIME);
        stop.store(true, Ordering::Relaxed);
        let outcomes: Result<Vec<Outcome>> = clients.into_iter().map(join).collect();
        let etcd_puts: Result<Vec<Vec<Write>>> = probes.into_iter().map(join).collect();
        let (faults, stalled) = injected?;
        anyhow::Ok((faults, stalled, outcomes?, etcd_puts?.concat()))
    })?;
    let writes = log.take();
    print_gaps(begin, &faults, &writes, &etcd_puts);
    wait_healthy(&topology)?;
    let state = settled(&topology)?;
    let histories: Vec<_> = outcomes.iter().map(|outcome| outcome.history.clone()).collect();
    let mut wrong = state::check(&state, &reserved, &histories)?;
    wrong.extend(outcomes.iter().flat_map(|outcome| outcome.wrong.clone()));
    let operations = outcomes.iter().flat_map(|outcome| outcome.operations.clone());
    let (checked, violations) = registers::check(&topology, begin, operations)?;
    wrong.extend(violations);
    if !wrong.is_empty() {
        print_logs(&topology);
    }
    let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum();
    Ok(Report {
        seed,
        seconds: options.seconds,
        acknowledged: writes.len(),
        refused: sum(|outcome| outcome.refused),
        turned_away: sum(|outcome| outcome.turned_away),
        unanswered: sum(|outcome| outcome.unanswered),
        longest_without_a_write_ms: millis(longest_gap(&writes)),
        longest_of_etcd_ms: millis(longest_gap(&etcd_puts)),
        recoveries: recoveries(&faults, &writes, &etcd_puts),
        checked,
        stalled,
        wrong,
    })
}

/// Observes leaders and writes while the stalls last.
fn watch_and_stall<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    topology: &'scope Topology,
    observed: &'scope Observed,
    stop: &'scope AtomicBool,
    seed: u64,
    end: Instant,
) -> Result<Stalls> {
    for endpoint in topology.endpoints() {
        scope.spawn(move || topology.hub.run(|| observed.watch_lock(&endpoint, stop)));
    }
    for site in &topology.masters {
        scope.spawn(move || topology.hub.run(|| observed.probe(site, stop)));
    }
    stalls::wait_first_leader(observed)?;
    stalls::run(topology, observed, seed, end)
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn create_networks(topology: &Topology) -> Result<()> {
    let client = topology.client()?;
    for (name, subnet) in INITIAL_NETWORKS {
        let network =
            json!({"tenantName": "default", "networkName": name, "encap": "vlan", "subnet": subnet});
        client.post_json(&format!("/api/v1/networks/default:{name}/"), &network)?;
    }
    Ok(())
}

fn read(topology: &Topology) -> Result<State> {
    let member = topology.members.first().context("no etcd member")?;
    State::read(&member.program.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits until all members and netmasters are healthy.
fn wait_healthy(topology: &Topology) -> Result<()> {
    for member in &topology.members {
        member.program.lock().unwrap_or_else(PoisonError::into_inner).wait_healthy()?;
    }
    for master in &topology.masters {
        let mut program = master.program.lock().unwrap_or_else(PoisonError::into_inner);
        program.wait_leading()?;
    }
    Ok(())
}

/// Waits until the store does not change any more, and returns its state.
fn settled(topology: &Topology) -> Result<State> {
    thread::sleep(QUIET_TIME);
    wait_until(SETTLE_TIMEOUT, "the store to settle", || {
        let before = read(topology)?;
        thread::sleep(Duration::from_millis(500));
        let after = read(topology)?;
        Ok((!after.has_journals() && before.entries() == after.entries()).then_some(after))
    })
}

/// Prints the last output of the netmasters.
fn print_logs(topology: &Topology) {
    for site in &topology.masters {
        let program = site.program.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!("--- last output of {}:\n{}", site.name, program.tail());
    }
}

/// Begin and end of a write.
type Write = (Instant, Instant);

/// Minimum length of a reported gap.
const LONG_GAP: Duration = Duration::from_millis(1500);

/// Intervals between the ends of consecutive writes.
fn gaps(writes: &[Write]) -> Vec<Write> {
    let mut ends: Vec<_> = writes.iter().map(|(_, end)| *end).collect();
    ends.sort_unstable();
    ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn longest_gap(writes: &[Write]) -> Duration {
    gaps(writes).iter().map(|(from, to)| *to - *from).max().unwrap_or_default()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Prints each long gap without a write, the faults during it, and the part of it in which etcd had no successful put.
fn print_gaps(begin: Instant, faults: &[Fault], writes: &[Write], etcd_puts: &[Write]) {
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

fn recoveries(faults: &[Fault], writes: &[Write], etcd_puts: &[Write]) -> Vec<Recovery> {
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
            "faults: {fault}: first write after {:.0} ms, etcd itself after {:.0} ms",
            millis(took),
            millis(etcd)
        );
    }
    let percentile = |all: &mut Vec<Duration>, percent: usize| {
        all.sort_unstable();
        millis(all[(all.len() * percent).div_ceil(100).max(1) - 1])
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
}

impl Report {
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
            writeln!(
                f,
                "{fault:24} {count:4} times, first write after {p50_ms:.0} ms (p50), {p99_ms:.0} ms (p99); etcd \
                 itself {etcd_p50_ms:.0} ms, {etcd_p99_ms:.0} ms"
            )?;
        }
        if let Some(stalled) = &self.stalled {
            write!(f, "{stalled}")?;
        }
        f.write_str(&self.summary())
    }
}
