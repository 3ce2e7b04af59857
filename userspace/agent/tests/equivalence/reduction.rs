//! Cases from seeds, the reduction of cases that fail, and the list of seeds that failed before.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow};
use netplugin::datapath::Desired;
use proptest::{
    strategy::{Strategy as _, ValueTree as _},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    case::{Summary, check},
    cluster::Cluster,
    generator::clusters,
    node::harness::Harness,
    parts,
    rig::Rig,
};

/// One seed per line, with a comment behind it.
const REGRESSIONS: &str = "tests/equivalence/regressions.txt";
/// Time for the reduction of a case.
const TIME: Duration = Duration::from_secs(120);
/// Characters of a case in a comment.
const COMMENT: usize = 1500;

/// Seeds of cases that failed before.
pub(crate) fn regressions() -> Result<Vec<u64>> {
    let text = fs::read_to_string(REGRESSIONS).with_context(|| format!("read {REGRESSIONS}"))?;
    let lines = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    let seed = |line: &str| line.parse().with_context(|| format!("{REGRESSIONS}: seed {line:?}"));
    lines.filter(|line| !line.is_empty()).map(seed).collect()
}

/// The cluster of a seed.
pub(crate) fn cluster(seed: u64) -> Result<Cluster> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let tree = clusters().new_tree(&mut runner).map_err(|reason| anyhow!("generate a cluster: {reason}"))?;
    Ok(tree.current())
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
    let whole = cluster(seed)?;
    let Some(mut reason) = fails(&whole)? else {
        return Ok(format!("seed {seed} fails only after {previous:?}: {error:#}\n{whole:#?}"));
    };
    let (start, mut removed) = (Instant::now(), BTreeSet::new());
    let mut length = parts::of(&whole).len();
    while length > 1 {
        length = length.div_ceil(2);
        let left: Vec<_> = parts::of(&whole).into_iter().filter(|part| !removed.contains(part)).collect();
        for chunk in left.chunks(length) {
            if start.elapsed() > TIME {
                break;
            }
            let more: BTreeSet<_> = removed.iter().chain(chunk).copied().collect();
            if let Some(error) = fails(&parts::without(&whole, &more))? {
                (removed, reason) = (more, error);
            }
        }
    }
    let smallest = parts::without(&whole, &removed);
    let comment: String = format!("{smallest:?}").chars().take(COMMENT).collect();
    let mut file = OpenOptions::new().append(true).open(REGRESSIONS)?;
    writeln!(file, "{seed} # {comment}")?;
    Ok(format!("seed {seed}, reduced: {reason:#}\n{smallest:#?}"))
}
