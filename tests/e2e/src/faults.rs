//! Three members of etcd and three masters, hurt at random while clients work; then the books are checked.

mod arena;
mod chaos;
mod client;
mod floor;
mod random;
mod state;

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
use clap::Args;
use serde::Serialize;
use serde_json::json;
use testkit::wait_until;

use crate::http;
use arena::Arena;
use chaos::Fault;
use client::{Client, Log, Outcome};
use state::{BEGIN, State};

#[derive(Debug, Clone, Args)]
pub struct Options {
    /// How long things go wrong
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub seconds: u64,
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub clients: u8,
    /// Of the choices of faults and clients [default: the time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Let etcd write through to the disk, as a real one does
    #[arg(long)]
    pub fsync: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { seconds: 600, clients: 16, seed: None, fsync: false }
    }
}

/// What happened.
#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub seconds: u64,
    /// Acknowledged creates and deletes.
    pub acknowledged: usize,
    pub refused: usize,
    /// Answers 503 that say that nothing was done, and refused connections.
    pub turned_away: usize,
    /// Requests whose outcome the client does not know.
    pub unanswered: usize,
    pub longest_without_a_write_ms: f64,
    /// The same of keys that are put into etcd directly, through whichever member takes them.
    pub longest_of_etcd_ms: f64,
    /// By what was done to whom: how long until a write that began afterwards was acknowledged.
    pub recoveries: Vec<Recovery>,
    /// What cannot be: none, if all is well.
    pub wrong: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Recovery {
    pub fault: String,
    pub count: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Until etcd itself took a write.
    pub etcd_p50_ms: f64,
    pub etcd_p99_ms: f64,
}

const PATIENCE: Duration = Duration::from_secs(60);
/// After the last fault, before clients stop.
const AFTERMATH: Duration = Duration::from_secs(2);
/// Requests that were held up somewhere are carried out by then, or never.
const REST: Duration = Duration::from_secs(5);

/// Prints the seed first, so that it is known whatever happens.
pub fn run(options: &Options) -> Result<Report> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = options.seed.unwrap_or(now);
    eprintln!("faults: seed {seed}, {} s, {} clients", options.seconds, options.clients);
    let arena = Arena::build(options.fsync)?;
    arena.hub.run(|| begin(&arena))?;
    let reserved = read(&arena)?.reserved()?;

    let (log, stop) = (Log::default(), AtomicBool::new(false));
    let begin = Instant::now();
    let (faults, outcomes, floor) = thread::scope(|scope| {
        let servers: Vec<_> = arena.masters.iter().map(arena::Site::server).collect();
        let clients: Vec<_> = (0..options.clients)
            .map(|number| {
                let client = Client::new(usize::from(number), seed + 100 + u64::from(number), &servers, &log);
                let (hub, stop) = (&arena.hub, &stop);
                scope.spawn(move || hub.run(|| client.run(stop)))
            })
            .collect();
        let probes: Vec<_> = arena
            .endpoints()
            .into_iter()
            .map(|endpoint| {
                let (hub, stop) = (&arena.hub, &stop);
                scope.spawn(move || hub.run(|| floor::observe(&endpoint, stop)))
            })
            .collect();
        let end = begin + Duration::from_secs(options.seconds);
        let masters = scope.spawn({
            let arena = &arena;
            move || chaos::masters(arena, seed, end)
        });
        let members = chaos::members(&arena, seed + 1, end);
        let masters = join(masters);
        thread::sleep(AFTERMATH);
        stop.store(true, Ordering::Relaxed);
        let outcomes: Result<Vec<Outcome>> = clients.into_iter().map(join).collect();
        let floor: Result<Vec<Vec<Write>>> = probes.into_iter().map(join).collect();
        anyhow::Ok(([members?, masters?].concat(), outcomes?, floor?.concat()))
    })?;
    let writes = log.take();
    tell_gaps(begin, &faults, &writes, &floor);
    settle(&arena)?;
    let state = rested(&arena)?;
    let histories: Vec<_> = outcomes.iter().map(|outcome| outcome.history.clone()).collect();
    let mut wrong = state::check(&state, &reserved, &histories)?;
    wrong.extend(outcomes.iter().flat_map(|outcome| outcome.wrong.clone()));
    if !wrong.is_empty() {
        tell_all(&arena);
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
        longest_of_etcd_ms: millis(longest_gap(&floor)),
        recoveries: recoveries(&faults, &writes, &floor),
        wrong,
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn begin(arena: &Arena) -> Result<()> {
    let client = http::Client::new(arena.masters.first().context("a master")?.server());
    for (name, subnet) in BEGIN {
        let network =
            json!({"tenantName": "default", "networkName": name, "encap": "vlan", "subnet": subnet});
        client.post_json(&format!("/api/v1/networks/default:{name}/"), &network)?;
    }
    Ok(())
}

fn read(arena: &Arena) -> Result<State> {
    let member = arena.members.first().context("a member")?;
    State::read(&member.program.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Everybody is there again, and answers.
fn settle(arena: &Arena) -> Result<()> {
    for member in &arena.members {
        member.program.lock().unwrap_or_else(PoisonError::into_inner).wait_healthy()?;
    }
    for master in &arena.masters {
        let mut program = master.program.lock().unwrap_or_else(PoisonError::into_inner);
        program.wait_leading()?;
    }
    Ok(())
}

/// When nothing changes any more.
fn rested(arena: &Arena) -> Result<State> {
    thread::sleep(REST);
    wait_until(PATIENCE, "the store to come to rest", || {
        let before = read(arena)?;
        thread::sleep(Duration::from_millis(500));
        let after = read(arena)?;
        Ok((!after.has_journals() && before.entries() == after.entries()).then_some(after))
    })
}

/// What the programs said, for whoever has to find out.
fn tell_all(arena: &Arena) {
    for site in &arena.masters {
        let program = site.program.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!("--- {} said:\n{}", site.name, program.tail());
    }
}

/// When it began and ended.
type Write = (Instant, Instant);

/// Gaps that are worth a line.
const LONG: Duration = Duration::from_millis(1500);

/// From the end of one write to that of the next.
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

/// Each long time without a write, what was going on, and how much of it etcd itself took no write.
fn tell_gaps(begin: Instant, faults: &[Fault], writes: &[Write], floor: &[Write]) {
    let at = |instant: Instant| instant.saturating_duration_since(begin).as_secs_f64();
    let etcd = gaps(floor);
    for (from, to) in gaps(writes).into_iter().filter(|(from, to)| *to - *from > LONG) {
        let etcd = etcd.iter().map(|(a, b)| (*b).min(to).saturating_duration_since((*a).max(from)));
        let etcd = etcd.max().unwrap_or_default();
        eprintln!(
            "faults: no write from {:.2} s to {:.2} s, {:.0} ms; etcd itself took none for {:.0} ms of it",
            at(from),
            at(to),
            millis(to - from),
            millis(etcd)
        );
        for fault in faults.iter().filter(|fault| fault.begin < to && fault.end + LONG > from) {
            eprintln!("faults:     {fault}, from {:.2} s to {:.2} s", at(fault.begin), at(fault.end));
        }
    }
}

fn recoveries(faults: &[Fault], writes: &[Write], floor: &[Write]) -> Vec<Recovery> {
    let mut by_class: BTreeMap<String, (Vec<Duration>, Vec<Duration>)> = BTreeMap::new();
    for fault in faults {
        let again = |writes: &[Write]| {
            let after = writes.iter().filter(|(begin, _)| *begin >= fault.begin).map(|(_, end)| *end).min();
            after.map_or(Duration::MAX, |end| end - fault.begin)
        };
        let (took, etcd) = (again(writes), again(floor));
        let class = by_class.entry(fault.class()).or_default();
        class.0.push(took);
        class.1.push(etcd);
        eprintln!(
            "faults: {fault}: written again after {:.0} ms, etcd itself {:.0} ms",
            millis(took),
            millis(etcd)
        );
    }
    let rank = |all: &mut Vec<Duration>, percent: usize| {
        all.sort_unstable();
        millis(all[(all.len() * percent).div_ceil(100).max(1) - 1])
    };
    by_class
        .into_iter()
        .map(|(fault, (mut all, mut etcd))| Recovery {
            fault,
            count: all.len(),
            p50_ms: rank(&mut all, 50),
            p99_ms: rank(&mut all, 99),
            etcd_p50_ms: rank(&mut etcd, 50),
            etcd_p99_ms: rank(&mut etcd, 99),
        })
        .collect()
}

impl Report {
    /// An error that names everything that cannot be.
    pub fn verify(&self) -> Result<()> {
        if !self.wrong.is_empty() {
            bail!("seed {}: {} things cannot be:\n{}", self.seed, self.wrong.len(), self.wrong.join("\n"));
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, {} s: {} writes acknowledged, {} refused, {} turned away, {} without an answer",
            self.seed, self.seconds, self.acknowledged, self.refused, self.turned_away, self.unanswered
        )?;
        writeln!(
            f,
            "longest time without a successful write: {:.0} ms; of etcd itself: {:.0} ms",
            self.longest_without_a_write_ms, self.longest_of_etcd_ms
        )?;
        for recovery in &self.recoveries {
            let Recovery { fault, count, p50_ms, p99_ms, etcd_p50_ms, etcd_p99_ms } = recovery;
            writeln!(
                f,
                "{fault:24} {count:4} times, written again after {p50_ms:.0} ms (p50), {p99_ms:.0} ms (p99); etcd \
                 itself {etcd_p50_ms:.0} ms, {etcd_p99_ms:.0} ms"
            )?;
        }
        write!(f, "{} things that cannot be", self.wrong.len())
    }
}
