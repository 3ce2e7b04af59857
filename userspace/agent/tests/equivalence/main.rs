//! Random clusters and packets: a datapath treats every packet as the oracle does.
//!
//! ```text
//! generator   clusters of two tenants with the same addresses, their change, and packets
//! cluster     the objects of the node
//! packet      frames of connections, and of replies
//! oracle      the results that are allowed for a frame
//! rig         one node that is configured with one cluster after the other; frames on its links
//! case        the packets of a cluster before and after the change
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
#[path = "../node/mod.rs"]
#[expect(dead_code, reason = "the conformance scenarios and the attacks use the other half")]
mod node;
mod oracle;
mod packet;
mod parts;
mod reduction;
mod rig;

use anyhow::{Result, bail};
use campaign::Campaign;
use case::{Summary, check};
use node::harness::{EbpfNode, FakeNode, Harness, OvsNode};
use rig::Rig;

/// States of one test run. One costs a processor 0.21 s with OVS, and 0.05 s with eBPF.
const STATES_OVS: u64 = 250;
const STATES_EBPF: u64 = 1750;
const STATES_FAKE: u64 = 100;
/// The first state of a test run, which compares the same ones each time. `cargo xtask bench equivalence` draws others.
const SEED: u64 = 500;
/// States between two comparisons of the whole node with what was set.
const CHECKS: u64 = 50;

/// The oracle on both sides: the packets are varied, and a node that is asked twice gives one answer.
#[test]
fn fake() -> Result<()> {
    run::<FakeNode>("EQUIVALENCE_FAKE", STATES_FAKE)
}

#[test]
fn ovs() -> Result<()> {
    run::<OvsNode>("EQUIVALENCE_OVS", STATES_OVS)
}

#[test]
fn ebpf() -> Result<()> {
    run::<EbpfNode>("EQUIVALENCE_EBPF", STATES_EBPF)
}

fn run<H: Harness>(name: &'static str, states: u64) -> Result<()> {
    if let Some(reason) = H::missing() {
        testkit::skip!("{reason}");
    }
    let mut campaign = Campaign::new(name, states, Some(SEED))?;
    let mut rig = Rig::<H>::new()?;
    let mut summary = Summary::default();
    let random = (0..campaign.cases).map(|number| campaign.seed.wrapping_add(number));
    let seeds: Vec<u64> = reduction::regressions()?.into_iter().chain(random).collect();
    let mut previous = None;
    for seed in seeds {
        campaign.progress(summary.states, seed);
        let cluster = reduction::cluster(seed)?;
        if let Err(error) = check(&mut rig, &cluster, &mut summary) {
            let report = reduction::report(&mut rig, seed, previous, &error)?;
            bail!("{report}");
        }
        if summary.states.is_multiple_of(CHECKS) {
            rig.check()?;
        }
        previous = Some(seed);
    }
    rig.finish()?;
    campaign.finish(summary.states, &summary);
    if summary.states >= STATES_FAKE {
        summary.check_variety()?;
    }
    Ok(())
}
