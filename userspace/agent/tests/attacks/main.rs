//! Attacks on a node: one list of hostile frames, none of which any datapath may let do harm.
//!
//! An attack is a script of frames and of what must not come of them, and a control: an honest script of the same kind that
//! must succeed where a rule allows it, so that silence is not the result of a broken node. Each attack is tried from every
//! place it can come from, by every attacker and against every rule it could evade. The expected results are those of
//! `docs/src/architecture`: the fake datapath, the oracle of the conformance scenarios, has to pass the list as well.
//!
//! `CONTIV_ATTACKS` selects attacks by a part of their name or defect; `CONTIV_ATTACKS_LIST` names a file that gets one line
//! for each try that succeeded.

mod attack;
mod cases;
mod fragment;
#[path = "../node/mod.rs"]
#[expect(dead_code, reason = "the conformance scenarios use the other half")]
mod node;
mod report;
mod rules;
mod runner;
mod scene;

use anyhow::Result;
use node::harness::{EbpfNode, FakeNode, Harness as _, OvsNode};

#[test]
fn fake() -> Result<()> {
    runner::run::<FakeNode>("fake")
}

#[test]
fn ovs() -> Result<()> {
    if let Some(reason) = OvsNode::missing() {
        testkit::skip!("{reason}");
    }
    runner::run::<OvsNode>("ovs")
}

#[test]
fn ebpf() -> Result<()> {
    if let Some(reason) = EbpfNode::missing() {
        testkit::skip!("{reason}");
    }
    runner::run::<EbpfNode>("ebpf")
}
