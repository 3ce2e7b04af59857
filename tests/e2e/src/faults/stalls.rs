//! Stalls instead of ends of processes: disks that write nothing, processors that others use, a network with 500 ms of
//! delay. The leader must stay. On a busy machine, a leader that is killed or cut off must be replaced soon.

use std::{
    collections::BTreeMap,
    fmt,
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::json;
use testkit::{Process, patience, wait_until};

use super::{
    inject,
    random::Random,
    topology::{EACH, Site, Topology},
};
use crate::{http, interrupt, master::Master};

/// Longest stall in seconds; the shortest has half of it.
const MAX_SECONDS: usize = 6;
/// Time without stalls after each.
const QUIET: Duration = Duration::from_secs(2);
/// For each direction.
const DELAY: Duration = Duration::from_millis(250);
/// Number of busy loops for each processor.
const THIEVES: usize = 2;
/// Time for which a leader stays killed or cut off.
const GONE: Duration = Duration::from_secs(4);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// A store that works takes less time for a write.
const PROMPT: Duration = Duration::from_millis(500);
/// Shorter than a replacement: a request that a dead leader has must not hide the next leader.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1000);
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stall {
    OneDisk,
    AllDisks,
    Processors,
    Network,
    DiskAndProcessors,
}

const STALLS: [Stall; 5] =
    [Stall::OneDisk, Stall::AllDisks, Stall::Processors, Stall::Network, Stall::DiskAndProcessors];

impl Stall {
    fn name(self) -> &'static str {
        match self {
            Stall::OneDisk => "disk of one member",
            Stall::AllDisks => "disks of all members",
            Stall::Processors => "processors",
            Stall::Network => "network, 500 ms",
            Stall::DiskAndProcessors => "disk of one member and processors",
        }
    }
}

/// Results of the stalls.
#[derive(Debug, Default, Serialize)]
pub struct Stalls {
    /// By what stalled.
    pub stalls: BTreeMap<String, Stayed>,
    /// Replacements of a leader on a busy machine, by what happened to it.
    pub replacements: BTreeMap<String, Replacements>,
}

#[derive(Debug, Default, Serialize)]
pub struct Stayed {
    pub times: usize,
    pub seconds: f64,
    /// Other leaders elected although the leader ran.
    pub false_failovers: usize,
}

/// Times in ms from the fault until another netmaster has the lock, and until it has written.
#[derive(Debug, Default, Serialize)]
pub struct Replacements {
    pub lock_ms: Vec<f64>,
    pub write_ms: Vec<f64>,
}

/// What is observed during the run.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Creation revisions of the leader's lock, and when they were seen first.
    locks: Mutex<BTreeMap<i64, Instant>>,
    /// Begin and end of the writes of the probes.
    writes: Mutex<Vec<(Instant, Instant)>>,
}

impl Observed {
    fn leaders(&self) -> usize {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn lock_after(&self, time: Instant) -> Option<Instant> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.values().copied().filter(|seen| *seen > time).min()
    }

    fn write_after(&self, time: Instant) -> Option<Instant> {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.iter().filter(|(begin, _)| *begin > time).map(|(_, end)| *end).min()
    }

    /// Reads the lock at a member until `stop`.
    pub(super) fn watch_lock(&self, endpoint: &str, stop: &AtomicBool) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut client = etcd_client::Client::connect([endpoint], None).await?;
            while !stop.load(Ordering::Relaxed) {
                let read = client.get(contiv_model::key::LEADER, None);
                if let Ok(Ok(answer)) = tokio::time::timeout(PROBE_TIMEOUT, read).await
                    && let Some(lock) = answer.kvs().first()
                {
                    let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
                    locks.entry(lock.create_revision()).or_insert_with(Instant::now);
                }
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
            Ok(())
        })
    }

    /// Writes through a netmaster until `stop`.
    pub(super) fn probe(&self, site: &Site<Master>, stop: &AtomicBool) -> Result<()> {
        let client = http::Client::with_timeout(site.server(), PROBE_TIMEOUT);
        let path = format!("/api/v1/netprofiles/default:probe-{}/", site.name);
        for number in 1.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let bandwidth = format!("{} kbps", number % 1000 + 1);
            let body = json!({
                "tenantName": "default", "profileName": format!("probe-{}", site.name), "bandwidth": bandwidth,
            });
            let begin = Instant::now();
            if client.post_json(&path, &body).is_ok() {
                let write = (begin, Instant::now());
                self.writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
            }
            thread::sleep(PROBE_INTERVAL);
        }
        Ok(())
    }
}

/// Stalls, and replaces a leader on a busy machine, alternately, until `end`.
pub(super) fn run(topology: &Topology, observed: &Observed, seed: u64, end: Instant) -> Result<Stalls> {
    let mut random = Random::new(seed);
    let mut result = Stalls::default();
    let begin = Instant::now();
    while Instant::now() < end {
        interrupt::check()?;
        let stall = *random.pick(&STALLS).unwrap_or(&Stall::OneDisk);
        let seconds = MAX_SECONDS / 2 + random.below(MAX_SECONDS / 2 + 1);
        let (before, start) = (observed.leaders(), Instant::now());
        inject_stall(topology, stall, Duration::from_secs(u64::try_from(seconds)?), &mut random)?;
        thread::sleep(QUIET);
        let more = observed.leaders() - before;
        if more > 0 {
            eprintln!(
                "stalls: {more} more leaders during the stall of {} from {:.2} s",
                stall.name(),
                (start - begin).as_secs_f64()
            );
        }
        let stayed = result.stalls.entry(stall.name().to_owned()).or_default();
        stayed.times += 1;
        stayed.seconds += start.elapsed().as_secs_f64();
        stayed.false_failovers += more;

        let kill = random.percent(50);
        let name = if kill { "killed" } else { "cut off" };
        if let Some((lock, write)) = replace(topology, observed, kill, begin)? {
            let replacements = result.replacements.entry(name.to_owned()).or_default();
            replacements.lock_ms.push(lock);
            replacements.write_ms.push(write);
        }
    }
    Ok(result)
}

fn inject_stall(topology: &Topology, stall: Stall, duration: Duration, random: &mut Random) -> Result<()> {
    let one = random.below(EACH);
    let _thieves = match stall {
        Stall::Processors | Stall::DiskAndProcessors => Some(thieves(duration)?),
        _ => None,
    };
    let stalled = |index: usize| match stall {
        Stall::OneDisk | Stall::DiskAndProcessors => index == one,
        Stall::AllDisks => true,
        Stall::Processors | Stall::Network => false,
    };
    let disks = topology.members.iter().enumerate().filter(|(index, _)| stalled(*index));
    let disks = disks.filter_map(|(_, member)| member.disk.as_ref());
    let _disks = disks.map(|disk| disk.stall(duration)).collect::<Result<Vec<_>>>()?;
    if stall == Stall::Network {
        topology.masters.iter().for_each(|master| master.delay(DELAY));
    }
    thread::sleep(duration);
    topology.masters.iter().for_each(|master| master.delay(Duration::ZERO));
    Ok(())
}

/// Busy loops that compete with all others for the processors. Each ends by itself after so many seconds of a
/// processor, also if this process is killed.
fn thieves(duration: Duration) -> Result<Vec<Process>> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let seconds = duration.as_secs().max(1);
    (0..processors * THIEVES)
        .map(|_| {
            let mut command = Command::new("prlimit");
            command.args([&format!("--cpu={seconds}"), "sh", "-c", "while :; do :; done"]);
            Process::spawn("thief", command)
        })
        .collect()
}

/// Kills the leader or cuts it off on a busy machine. Returns the times in ms until another one has the lock, and until
/// it has written; none if there was no leader.
fn replace(topology: &Topology, observed: &Observed, kill: bool, run: Instant) -> Result<Option<(f64, f64)>> {
    // etcd may take some seconds more to recover from a stall of all disks. No netmaster could be elected meanwhile.
    let is_written = || {
        let since = Instant::now().checked_sub(PROMPT * patience()).context("the clock has just begun")?;
        Ok(observed.write_after(since))
    };
    wait_until(READY_TIMEOUT, "prompt writes before a leader is replaced", is_written)?;
    let Some(index) = topology.hub.run(|| Ok(inject::leader(topology)))? else { return Ok(None) };
    let site = &topology.masters[index];
    let thieves = thieves(GONE)?;
    // Busy for a while before.
    thread::sleep(QUIET / 2);
    let mut master = site.program.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    match kill {
        true => master.kill()?,
        false => topology.disconnect(site)?,
    }
    thread::sleep(GONE);
    drop(thieves);
    match kill {
        true => master.relaunch()?,
        false => topology.reconnect(site)?,
    }
    let [lock, write] = [observed.lock_after(begin), observed.write_after(begin)]
        .map(|time| time.map_or(f64::INFINITY, |time| (time - begin).as_secs_f64() * 1e3));
    let what = if kill { "killed" } else { "cut off" };
    let at = (begin - run).as_secs_f64();
    eprintln!(
        "stalls: {} {what} at {at:.2} s: lock after {lock:.0} ms, write after {write:.0} ms",
        site.name
    );
    // The others must not lose their leader for reasons that this fault left behind.
    let client = http::Client::with_timeout(site.server(), READY_TIMEOUT);
    let ready = || Ok(client.get("/readyz").is_ok_and(|answer| answer.status == 200).then_some(()));
    topology.hub.run(|| wait_until(READY_TIMEOUT, "the netmaster to be ready again", ready))?;
    thread::sleep(QUIET);
    Ok(Some((lock, write)))
}

impl Stalls {
    /// Lines of a table.
    pub fn rows(&self) -> Vec<[String; 4]> {
        let stayed = self.stalls.iter().map(|(name, stayed)| {
            let Stayed { times, seconds, false_failovers } = stayed;
            [
                format!("stall of {name}"),
                times.to_string(),
                format!("{seconds:.0} s"),
                format!("{false_failovers} false fail-overs"),
            ]
        });
        let replaced = self.replacements.iter().map(|(name, replaced)| {
            let Replacements { lock_ms, write_ms } = replaced;
            let figures = |all: &[f64]| {
                let at = |percent| percentile(all, percent);
                format!("p50 {:.0}, p99 {:.0}, longest {:.0} ms", at(50), at(99), at(100))
            };
            [
                format!("leader {name}"),
                lock_ms.len().to_string(),
                format!("lock {}", figures(lock_ms)),
                format!("write {}", figures(write_ms)),
            ]
        });
        stayed.chain(replaced).collect()
    }

    pub(super) fn false_failovers(&self) -> usize {
        self.stalls.values().map(|stayed| stayed.false_failovers).sum()
    }
}

fn percentile(all: &[f64], percent: usize) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * percent).div_ceil(100).max(1) - 1).copied().unwrap_or_default()
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().iter().try_for_each(|row| writeln!(f, "{}", row.join("  ")))
    }
}

/// Waits until a leader has been seen.
pub(super) fn wait_first_leader(observed: &Observed) -> Result<()> {
    wait_until(READY_TIMEOUT, "a leader", || Ok((observed.leaders() > 0).then_some(()))).context("stalls")
}
