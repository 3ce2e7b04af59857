//! Fault injection: random faults of three etcd members and three netmasters under load. Checks the store afterwards.

mod client;
mod etcd_probe;
mod inject;
mod leased;
mod linear;
mod random;
mod register;
mod registers;
mod report;
mod slow_link;
mod stalls;
mod state;
mod topology;

use std::{
    panic,
    sync::{
        PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum as _};
use serde_json::json;
use testkit::{is_guest, patience, wait_until};

use client::{Client, Gate, Log, Outcome};
pub use inject::Kind;
use leased::Leased;
use report::Write;
pub use report::{Recovery, Report};
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
    /// Faults to choose from, separated by commas [default: all, but clock-jump only in a guest of `cargo xtask vm`]
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

impl Options {
    /// The faults to choose from; none with stalls. `guest`: no other program needs the clock of this machine.
    fn kinds(&self, guest: bool) -> Result<Vec<Kind>> {
        let allowed = |kind: &Kind| guest || *kind != Kind::ClockJump;
        if self.stalls {
            return Ok(Vec::new());
        }
        if !self.faults.iter().all(allowed) {
            bail!(
                "clock-jump sets the clock of the whole machine, which other programs need; run \
                 `cargo xtask vm --kernel 6.12 --part faults`"
            );
        }
        Ok(match self.faults.as_slice() {
            [] => Kind::value_variants().iter().copied().filter(allowed).collect(),
            chosen => chosen.to_vec(),
        })
    }
}

const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the last fault until the clients stop.
const RECOVERY_TIME: Duration = Duration::from_secs(2);
/// Delayed requests are executed within this time, or never. `CONTIV_TEST_PATIENCE` multiplies it.
const QUIET_TIME: Duration = Duration::from_secs(5);

/// Runs the test. Prints the seed first, so that a failed run can be repeated.
pub fn run(options: &Options) -> Result<Report> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seed = options.seed.unwrap_or(now);
    eprintln!("faults: seed {seed}, {} s, {} clients", options.seconds, options.clients);
    let kinds = options.kinds(is_guest())?;
    // No process has a reason to lose a lease then, given time on a machine that is emulated.
    let only_jumps = kinds == [Kind::ClockJump];
    let topology = Topology::build(Equipment {
        fsync: options.fsync,
        disks: options.stalls || kinds.contains(&Kind::DiskStall),
        slow_links: options.stalls,
        failover_after: only_jumps.then(patience),
    })?;
    topology.hub.run(|| create_networks(&topology))?;
    let reserved = read(&topology)?.reserved()?;
    topology.hub.run(|| register::create_referenced(&topology.client()?))?;
    let leased = only_jumps.then(|| Leased::read(&topology)).transpose()?;

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
            inject::run(&topology, &kinds, &gate, seed, end).map(|faults| (faults, None))
        };
        thread::sleep(RECOVERY_TIME);
        stop.store(true, Ordering::Relaxed);
        let outcomes: Result<Vec<Outcome>> = clients.into_iter().map(join).collect();
        let etcd_puts: Result<Vec<Vec<Write>>> = probes.into_iter().map(join).collect();
        let (faults, stalled) = injected?;
        anyhow::Ok((faults, stalled, outcomes?, etcd_puts?.concat()))
    })?;
    let writes = log.take();
    report::print_gaps(begin, &faults, &writes, &etcd_puts);
    wait_healthy(&topology)?;
    let state = settled(&topology)?;
    let histories: Vec<_> = outcomes.iter().map(|outcome| outcome.history.clone()).collect();
    let mut wrong = state::check(&state, &reserved, &histories)?;
    wrong.extend(outcomes.iter().flat_map(|outcome| outcome.wrong.clone()));
    let operations = outcomes.iter().flat_map(|outcome| outcome.operations.clone());
    let (checked, violations) = registers::check(&topology, begin, operations)?;
    wrong.extend(violations);
    if let Some(leased) = leased {
        wrong.extend(leased.lost(&Leased::read(&topology)?));
    }
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
        longest_without_a_write_ms: report::millis(report::longest_gap(&writes)),
        longest_of_etcd_ms: report::millis(report::longest_gap(&etcd_puts)),
        recoveries: report::recoveries(&faults, &writes, &etcd_puts),
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
    thread::sleep(QUIET_TIME * patience());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_jumps_in_guests_only() {
        let kinds = |faults: &[Kind], guest| {
            Options { faults: faults.to_vec(), ..Options::default() }.kinds(guest).ok()
        };
        assert!(kinds(&[], false).is_some_and(|all| all.len() > 3 && !all.contains(&Kind::ClockJump)));
        assert!(kinds(&[], true).is_some_and(|all| all.contains(&Kind::ClockJump)));
        assert_eq!(kinds(&[Kind::Kill, Kind::ClockJump], false), None);
        assert_eq!(kinds(&[Kind::ClockJump], true), Some(vec![Kind::ClockJump]));
        assert_eq!(kinds(&[Kind::Kill], false), Some(vec![Kind::Kill]));
    }
}
