//! Cases from seeds, the reduction of cases that fail, and the list of seeds that failed before.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow};
use netplugin::datapath::Desired;
use proptest::{
    strategy::{Strategy as _, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    case::{Summary, check},
    cluster::Cluster,
    generator::clusters,
    node::harness::Harness,
    rig::Rig,
};

/// One seed per line, with a comment behind it.
const REGRESSIONS: &str = "tests/equivalence/regressions.txt";
const TIME: Duration = Duration::from_secs(60);
/// Characters of a case in a comment.
const COMMENT: usize = 1500;

/// Seeds of cases that failed before.
pub(crate) fn regressions() -> Result<Vec<u64>> {
    let text = fs::read_to_string(REGRESSIONS).with_context(|| format!("read {REGRESSIONS}"))?;
    let lines = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    let seed = |line: &str| line.parse().with_context(|| format!("{REGRESSIONS}: seed {line:?}"));
    lines.filter(|line| !line.is_empty()).map(seed).collect()
}

fn tree(seed: u64) -> Result<impl ValueTree<Value = Cluster>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    clusters().new_tree(&mut runner).map_err(|reason| anyhow!("generate a cluster: {reason}"))
}

/// The cluster of a seed.
pub(crate) fn cluster(seed: u64) -> Result<Cluster> {
    Ok(tree(seed)?.current())
}

/// Reduces a case that has failed and adds its seed to the list. Returns the description.
pub(crate) fn report<H: Harness>(
    rig: &mut Rig<H>,
    seed: u64,
    previous: Option<u64>,
    error: &Error,
) -> Result<String> {
    println!("seed {seed} failed, reducing it: {error:#}");
    let mut fails = |cluster: &Cluster| -> Result<Option<Error>> {
        rig.set(Desired::default())?;
        Ok(check(rig, cluster, &mut Summary::default()).err())
    };
    let mut tree = tree(seed)?;
    let Some(mut reason) = fails(&tree.current())? else {
        return Ok(format!("seed {seed} fails only after {previous:?}: {error:#}\n{:#?}", tree.current()));
    };
    let start = Instant::now();
    let mut smallest = tree.current();
    let mut goes_on = tree.simplify();
    while goes_on && start.elapsed() < TIME {
        let current = tree.current();
        goes_on = match fails(&current)? {
            Some(error) => {
                (smallest, reason) = (current, error);
                tree.simplify()
            }
            None => tree.complicate(),
        };
    }
    let comment: String = format!("{smallest:?}").chars().take(COMMENT).collect();
    let mut file = OpenOptions::new().append(true).open(REGRESSIONS)?;
    writeln!(file, "{seed} # {comment}")?;
    Ok(format!("seed {seed}, reduced: {reason:#}\n{smallest:#?}"))
}
