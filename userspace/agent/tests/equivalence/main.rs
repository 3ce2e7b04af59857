//! Random clusters and packets: a datapath treats every packet as the oracle does.
//!
//! ```text
//! generator   clusters of two tenants with the same addresses, their change, and packets
//! cluster     the objects of the node
//! packet      frames of connections, and of replies
//! oracle      the results that are allowed for a frame
//! rig         one node that is configured with one cluster after the other; frames on its links
//! case        the packets of a cluster before and after the change
//! lifecycle   services that are created and deleted
//! exclusions  what is not compared, with reasons
//! parts       what a smaller case lacks
//! reduction   smaller cases that fail too, and cases that failed before
//! ```
//!
//! The frames are sent and received on the links of a running node, so that this covers what neither `ofproto/trace` nor
//! `BPF_PROG_TEST_RUN` can: the selection of backends by the switch, tunnels, tags and the port that a frame leaves by.
//! `cargo xtask bench equivalence --states` runs more cases.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../packets/campaign.rs"]
mod campaign;
mod case;
mod cluster;
mod exclusions;
mod generator;
mod lifecycle;
#[path = "../node/mod.rs"]
#[expect(dead_code, reason = "the conformance scenarios and the attacks use the other half")]
mod node;
mod oracle;
mod packet;
mod parts;
mod reduction;
mod rig;

use std::{
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Result, bail};
use campaign::Campaign;
use case::{Summary, check};
use node::harness::{EbpfNode, FakeNode, Harness, OvsNode};
use rig::Rig;

/// States of one test run. One costs a processor 0.21 s with OVS, and 0.05 s with eBPF.
const STATES_OVS: u64 = 250;
const STATES_EBPF: u64 = 1750;
const STATES_FAKE: u64 = 100;
/// Nodes that share them. A change of eBPF programs and maps mostly waits for a grace period of the kernel (RCU).
const NODES_OVS: usize = 2;
const NODES_EBPF: usize = 6;
const NODES_FAKE: usize = 2;
/// The first state of a test run, which compares the same ones each time. `cargo xtask bench equivalence` draws others.
const SEED: u64 = 500;
/// States between two comparisons of a whole node with what was set.
const CHECKS: u64 = 50;

/// The oracle on both sides: the packets are varied, and a node that is asked twice gives one answer.
#[test]
fn fake() -> Result<()> {
    run::<FakeNode>("EQUIVALENCE_FAKE", STATES_FAKE, NODES_FAKE)
}

#[test]
fn ovs() -> Result<()> {
    run::<OvsNode>("EQUIVALENCE_OVS", STATES_OVS, NODES_OVS)
}

#[test]
fn ebpf() -> Result<()> {
    run::<EbpfNode>("EQUIVALENCE_EBPF", STATES_EBPF, NODES_EBPF)
}

fn run<H: Harness>(name: &'static str, states: u64, nodes: usize) -> Result<()> {
    if let Some(reason) = H::missing() {
        testkit::skip!("{reason}");
    }
    let campaign = Campaign::new(name, states, Some(SEED))?;
    let random = (0..campaign.cases).rev().map(|number| campaign.seed.wrapping_add(number));
    let seeds = random.chain(reduction::regressions()?).collect();
    let run = Mutex::new(Run { campaign, seeds, summary: Summary::default() });
    thread::scope(|scope| -> Result<()> {
        let start = || {
            let name = thread::current().name().unwrap_or(name).to_owned();
            thread::Builder::new().name(name).spawn_scoped(scope, || node::<H>(&run))
        };
        let running: Vec<_> = (0..nodes).map(|_| start()).collect::<Result<_, _>>()?;
        // All nodes end before the first failure is reported.
        let results: Vec<_> = running.into_iter().map(thread::ScopedJoinHandle::join).collect();
        results.into_iter().try_for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    let Run { campaign, summary, .. } = run.into_inner()?;
    campaign.finish(summary.states, &summary);
    if summary.states >= STATES_FAKE {
        summary.check_variety()?;
    }
    Ok(())
}

/// What the nodes share.
struct Run {
    campaign: Campaign,
    /// Of the states that no node has taken, the next one last.
    seeds: Vec<u64>,
    summary: Summary,
}

/// Ends the run for all nodes, also if one panics. At the end no state is left.
struct End<'a>(&'a Mutex<Run>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seeds.clear();
    }
}

/// Checks states on one node until none is left.
fn node<H: Harness>(run: &Mutex<Run>) -> Result<()> {
    let _end = End(run);
    let mut rig = Rig::<H>::new()?;
    let mut previous = None;
    for number in 1u64.. {
        let Some(seed) = next(run) else { break };
        let cluster = reduction::cluster(seed)?;
        let mut summary = Summary::default();
        if let Err(error) = check(&mut rig, &cluster, &mut summary) {
            let report = reduction::report(&mut rig, seed, previous, &error)?;
            bail!("{report}");
        }
        run.lock().unwrap().summary += summary;
        if number.is_multiple_of(CHECKS) {
            rig.check()?;
        }
        previous = Some(seed);
    }
    rig.finish()
}

fn next(run: &Mutex<Run>) -> Option<u64> {
    let mut run = run.lock().unwrap();
    let seed = run.seeds.pop()?;
    let done = run.summary.states;
    run.campaign.progress(done, seed);
    Some(seed)
}
