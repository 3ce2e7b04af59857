//! What goes wrong, and when.

use std::{
    fmt,
    net::Ipv4Addr,
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use testkit::{Process, etcd::Etcd};

use super::{
    arena::{Arena, EACH, Site},
    random::Random,
};
use crate::{http::Client, interrupt, master::Master};

/// From one fault's end to the next one's begin, at most.
const PEACE: Duration = Duration::from_millis(2500);
/// A fault lasts from half of this to all of it.
const TROUBLE: Duration = Duration::from_secs(4);
const STOP: Duration = Duration::from_secs(15);
/// An answer to `/info` that takes longer is none.
const PROMPT: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    Stop,
    Pause,
    Cut,
    /// Between it and one member of etcd alone.
    Sever,
}

const KINDS: [Kind; 5] = [Kind::Kill, Kind::Stop, Kind::Pause, Kind::Cut, Kind::Sever];

/// One that happened.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    kind: Kind,
    target: String,
    pub(super) on_leader: bool,
    pub(super) begin: Instant,
    /// When the victim was let go.
    pub(super) end: Instant,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Kill => "kill -9",
            Kind::Stop => "SIGTERM",
            Kind::Pause => "SIGSTOP",
            Kind::Cut => "partition",
            Kind::Sever => "half partition",
        };
        write!(f, "{what} {}{}", self.target, if self.on_leader { ", leading" } else { "" })
    }
}

impl Fault {
    /// What faults are counted by.
    pub(super) fn class(&self) -> String {
        let target = self.target.trim_end_matches(|c: char| c.is_ascii_digit());
        let target = if self.on_leader { "leading master" } else { target };
        format!("{:?} {target}", self.kind)
    }
}

/// A program that can be hurt.
pub(super) trait Victim {
    fn process(&mut self) -> &mut Process;
    fn relaunch(&mut self) -> Result<()>;
}

impl Victim for Master {
    fn process(&mut self) -> &mut Process {
        Master::process(self)
    }

    fn relaunch(&mut self) -> Result<()> {
        Master::relaunch(self)
    }
}

impl Victim for Etcd {
    fn process(&mut self) -> &mut Process {
        Etcd::process(self)
    }

    fn relaunch(&mut self) -> Result<()> {
        Etcd::relaunch(self)
    }
}

/// One member after the other, until `end`.
pub(super) fn members(arena: &Arena, seed: u64, end: Instant) -> Result<Vec<Fault>> {
    let mut random = Random::new(seed);
    let mut faults = Vec::new();
    while peace(&mut random, end)? {
        let site = &arena.members[random.below(EACH)];
        let other = arena.members.iter().map(|member| member.address).filter(|other| *other != site.address);
        let others: Vec<_> = other.collect();
        faults.push(hurt(arena, site, false, &mut random, &others)?);
    }
    Ok(faults)
}

/// One master after the other, half of the time the leader, until `end`.
pub(super) fn masters(arena: &Arena, seed: u64, end: Instant) -> Result<Vec<Fault>> {
    let mut random = Random::new(seed);
    let others: Vec<_> = arena.members.iter().map(|member| member.address).collect();
    let mut faults = Vec::new();
    while peace(&mut random, end)? {
        let (chosen, aim) = (random.below(EACH), random.percent(60));
        let leader = arena.hub.run(|| Ok(leader(arena)))?;
        let target = if aim { leader.unwrap_or(chosen) } else { chosen };
        let site = &arena.masters[target];
        faults.push(hurt(arena, site, leader == Some(target), &mut random, &others)?);
    }
    Ok(faults)
}

/// False when it is time to end.
fn peace(random: &mut Random, end: Instant) -> Result<bool> {
    interrupt::check()?;
    thread::sleep(PEACE / 4 + PEACE.mul_f64(random.below(75) as f64 / 100.0));
    Ok(Instant::now() < end)
}

/// The number of the master that says it leads.
fn leader(arena: &Arena) -> Option<usize> {
    arena.masters.iter().position(|site| {
        let info = Client::impatient(site.server(), PROMPT).get("/info");
        info.and_then(|answer| answer.json()).is_ok_and(|info| info["current-state"] == "leader")
    })
}

fn hurt<P: Victim>(
    arena: &Arena,
    site: &Site<P>,
    on_leader: bool,
    random: &mut Random,
    others: &[Ipv4Addr],
) -> Result<Fault> {
    let kind = *random.pick(&KINDS).unwrap_or(&Kind::Kill);
    let lasts = TROUBLE / 2 + TROUBLE.mul_f64(random.below(50) as f64 / 100.0);
    let other = *random.pick(others).unwrap_or(&site.address);
    let mut program = site.program.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let done = match kind {
        Kind::Kill => {
            program.process().kill()?;
            thread::sleep(lasts);
            program.relaunch()
        }
        Kind::Stop => {
            program.process().terminate(STOP)?;
            thread::sleep(lasts);
            program.relaunch()
        }
        Kind::Pause => {
            program.process().freeze()?;
            thread::sleep(lasts);
            program.process().signal(Signal::SIGCONT)
        }
        Kind::Cut => {
            arena.cut(site)?;
            thread::sleep(lasts);
            arena.join(site)
        }
        Kind::Sever => {
            site.sever(other)?;
            thread::sleep(lasts);
            site.mend(other)
        }
    };
    let fault = Fault { kind, target: site.name.clone(), on_leader, begin, end: Instant::now() };
    done.with_context(|| format!("end of: {fault}"))?;
    Ok(fault)
}
