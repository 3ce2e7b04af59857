//! What the kernel's verifier made of the programs.

use anyhow::{Context as _, Result};
use aya::programs::SchedClassifier;
use contiv_abi::maps::{FROM_OVERLAY, FROM_POD, FROM_UPLINK};
use testkit::needs;

use crate::node::Node;

/// A tenth of it is spent; policy and services are still to come.
const BUDGET: u32 = 15_000;

#[test]
fn programs_stay_within_their_budget() -> Result<()> {
    needs!(root());
    let mut node = Node::new("verifier")?;
    node.converge()?;
    for name in [FROM_POD, FROM_OVERLAY, FROM_UPLINK] {
        let info = SchedClassifier::from_pin(node.pin(name))?.info()?;
        let processed = info.verified_instruction_count().context("the kernel does not tell")?;
        println!("{name}: {processed} instructions processed");
        assert!(processed <= BUDGET, "{name}: {processed}");
    }
    Ok(())
}
