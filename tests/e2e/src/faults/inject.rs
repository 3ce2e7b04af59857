//! Injects random faults.

mod clock;
mod nospace;
mod restore;

use std::{
    fmt,
    net::Ipv4Addr,
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use nix::sys::signal::Signal;
use testkit::{Process, etcd::Etcd, patience};

use super::{
    client::Gate,
    join,
    random::Random,
    topology::{EACH, Site, Topology},
};
use crate::{http::Client, interrupt, master::Master};

/// Maximum time between two faults.
const MAX_PAUSE: Duration = Duration::from_millis(2500);
/// Maximum duration of a fault; the minimum is half of it.
const MAX_FAULT: Duration = Duration::from_secs(4);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of requests to `/info`, which `CONTIV_TEST_PATIENCE` multiplies.
const INFO_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// kill -9, and a start some seconds later
    Kill,
    /// SIGTERM, and a start some seconds later
    Stop,
    /// SIGSTOP and SIGCONT
    Freeze,
    /// No packets to and from the others
    Partition,
    /// No packets to one etcd member
    PartialPartition,
    /// No writes to the disk of an etcd member
    DiskStall,
    /// The alarm of etcd's members for a database that has reached its quota, until it is disarmed
    Nospace,
    /// All netmasters stopped, and the state of the cluster written to a backup and restored from it
    Restore,
    /// A jump of the wall clock of all programs, by seconds to days, forwards or backwards, and back; only in a guest
    /// of `cargo xtask vm`
    ClockJump,
}

const OF_MEMBERS: [Kind; 7] = [
    Kind::Kill,
    Kind::Stop,
    Kind::Freeze,
    Kind::Partition,
    Kind::PartialPartition,
    Kind::DiskStall,
    Kind::Nospace,
];
const OF_MASTERS: [Kind; 6] =
    [Kind::Kill, Kind::Stop, Kind::Freeze, Kind::Partition, Kind::PartialPartition, Kind::Restore];

/// An injected fault.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    kind: Kind,
    target: String,
    pub(super) on_leader: bool,
    pub(super) begin: Instant,
    /// End of the fault.
    pub(super) end: Instant,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Kill => "kill -9",
            Kind::Stop => "SIGTERM",
            Kind::Freeze => "SIGSTOP",
            Kind::Partition => "partition",
            Kind::PartialPartition => "partial partition",
            Kind::DiskStall => "disk stall",
            Kind::Nospace => "NOSPACE",
            Kind::Restore => "restore",
            Kind::ClockJump => "clock jump",
        };
        write!(f, "{what} {}{}", self.target, if self.on_leader { ", leading" } else { "" })
    }
}

impl Fault {
    /// Class for statistics: kind and target.
    pub(super) fn class(&self) -> String {
        let target = self.target.trim_end_matches(|c: char| c.is_ascii_digit());
        let target = if self.on_leader { "leading master" } else { target };
        format!("{:?} {target}", self.kind)
    }
}

/// A process that faults are injected into.
pub(super) trait Target {
    fn process(&mut self) -> &mut Process;
    fn relaunch(&mut self) -> Result<()>;
}

impl Target for Master {
    fn process(&mut self) -> &mut Process {
        Master::process(self)
    }

    fn relaunch(&mut self) -> Result<()> {
        Master::relaunch(self)
    }
}

impl Target for Etcd {
    fn process(&mut self) -> &mut Process {
        Etcd::process(self)
    }

    fn relaunch(&mut self) -> Result<()> {
        Etcd::relaunch(self)
    }
}

/// Injects faults into members, into netmasters, and into the clock of all of them, at the same time, until `end`.
pub(super) fn run(
    topology: &Topology,
    kinds: &[Kind],
    gate: &Gate,
    seed: u64,
    end: Instant,
) -> Result<Vec<Fault>> {
    let (of_members, of_masters, of_clock) = thread::scope(|scope| {
        let of_masters = scope.spawn(|| masters(topology, kinds, gate, seed, end));
        let of_clock = scope.spawn(|| clock::jumps(kinds, seed + 2, end));
        (members(topology, kinds, seed + 1, end), join(of_masters), join(of_clock))
    });
    Ok([of_members?, of_masters?, of_clock?].concat())
}

/// Injects faults into one member after the other, until `end`.
fn members(topology: &Topology, kinds: &[Kind], seed: u64, end: Instant) -> Result<Vec<Fault>> {
    let kinds = chosen(kinds, &OF_MEMBERS);
    let mut random = Random::new(seed);
    let mut faults = Vec::new();
    while !kinds.is_empty() && pause(&mut random, end)? {
        let site = &topology.members[random.below(EACH)];
        let other =
            topology.members.iter().map(|member| member.address).filter(|other| *other != site.address);
        let others: Vec<_> = other.collect();
        let kind = *random.pick(&kinds).unwrap_or(&Kind::Kill);
        let duration = duration(&mut random);
        faults.push(match kind {
            Kind::DiskStall => during(kind, &site.name, || stall_disk(site, duration))?,
            Kind::Nospace => during(kind, "etcd", || nospace::raise(topology, duration))?,
            _ => inject(topology, site, kind, false, &mut random, &others)?,
        });
    }
    Ok(faults)
}

/// Injects faults into one netmaster after the other, most of them into the leader, until `end`.
fn masters(topology: &Topology, kinds: &[Kind], gate: &Gate, seed: u64, end: Instant) -> Result<Vec<Fault>> {
    let kinds = chosen(kinds, &OF_MASTERS);
    let mut random = Random::new(seed);
    let others: Vec<_> = topology.members.iter().map(|member| member.address).collect();
    let mut faults = Vec::new();
    while !kinds.is_empty() && pause(&mut random, end)? {
        let kind = *random.pick(&kinds).unwrap_or(&Kind::Kill);
        if kind == Kind::Restore {
            // Longer than the others, and so less often.
            if random.percent(30) {
                faults.push(during(kind, "netmasters", || restore::restore(topology, gate))?);
            }
            continue;
        }
        let (chosen, at_leader) = (random.below(EACH), random.percent(60));
        let leader = topology.hub.run(|| Ok(leader(topology)))?;
        let target = if at_leader { leader.unwrap_or(chosen) } else { chosen };
        let site = &topology.masters[target];
        faults.push(inject(topology, site, kind, leader == Some(target), &mut random, &others)?);
    }
    Ok(faults)
}

fn chosen(kinds: &[Kind], of: &[Kind]) -> Vec<Kind> {
    of.iter().filter(|kind| kinds.contains(kind)).copied().collect()
}

fn duration(random: &mut Random) -> Duration {
    MAX_FAULT / 2 + MAX_FAULT.mul_f64(random.below(50) as f64 / 100.0)
}

/// A fault that `inject` begins and ends.
fn during(kind: Kind, target: &str, inject: impl FnOnce() -> Result<()>) -> Result<Fault> {
    let begin = Instant::now();
    inject().with_context(|| format!("{kind:?} of {target}"))?;
    Ok(Fault { kind, target: target.to_owned(), on_leader: false, begin, end: Instant::now() })
}

fn stall_disk(site: &Site<Etcd>, duration: Duration) -> Result<()> {
    match &site.disk {
        Some(disk) => disk.stall(duration)?.wait(),
        None => bail!("the member has no disk of its own"),
    }
}

/// Waits until the next fault of a program, as long as the machine needs to get over one; returns false at the end of the test.
fn pause(random: &mut Random, end: Instant) -> Result<bool> {
    // Twice as patient: an emulated guest gets over a fault in half a minute, a host in a second.
    pause_at_most(MAX_PAUSE * patience().pow(2), random, end)
}

fn pause_at_most(most: Duration, random: &mut Random, end: Instant) -> Result<bool> {
    interrupt::check()?;
    thread::sleep(most / 4 + most.mul_f64(random.below(75) as f64 / 100.0));
    Ok(Instant::now() < end)
}

/// Index of the netmaster that reports to be the leader.
pub(super) fn leader(topology: &Topology) -> Option<usize> {
    topology.masters.iter().position(|site| {
        let info = Client::with_timeout(site.server(), INFO_TIMEOUT * patience()).get("/info");
        info.and_then(|response| response.json()).is_ok_and(|info| info["current-state"] == "leader")
    })
}

fn inject<P: Target>(
    topology: &Topology,
    site: &Site<P>,
    kind: Kind,
    on_leader: bool,
    random: &mut Random,
    others: &[Ipv4Addr],
) -> Result<Fault> {
    let duration = duration(random);
    let other = *random.pick(others).unwrap_or(&site.address);
    let mut program = site.program.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let done = match kind {
        Kind::Kill => {
            program.process().kill()?;
            thread::sleep(duration);
            program.relaunch()
        }
        Kind::Stop => {
            program.process().terminate(STOP_TIMEOUT)?;
            thread::sleep(duration);
            program.relaunch()
        }
        Kind::Freeze => {
            program.process().freeze()?;
            thread::sleep(duration);
            program.process().signal(Signal::SIGCONT)
        }
        Kind::Partition => {
            topology.disconnect(site)?;
            thread::sleep(duration);
            topology.reconnect(site)
        }
        Kind::PartialPartition => {
            site.block(other)?;
            thread::sleep(duration);
            site.unblock(other)
        }
        Kind::DiskStall | Kind::Nospace | Kind::Restore | Kind::ClockJump => {
            bail!("{kind:?} is not a fault of one process")
        }
    };
    let fault = Fault { kind, target: site.name.clone(), on_leader, begin, end: Instant::now() };
    done.with_context(|| format!("end the fault {fault}"))?;
    Ok(fault)
}
