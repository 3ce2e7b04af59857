//! Checks the histories of all registers.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    time::Instant,
};

use anyhow::Result;
use serde::Serialize;

use super::{
    linear::{self, Operation, Verdict},
    register::{self, Register},
    topology::Topology,
};

/// Client of the last reads, after the run.
const LAST: usize = 99;

#[derive(Debug, Default, Serialize)]
pub struct Checked {
    pub objects: usize,
    pub operations: usize,
    /// Operations without a response, which may have taken effect at any later time or never.
    pub unanswered: usize,
    /// Acknowledged writes of the objects of which about every second write takes more than 128 operations.
    pub large: usize,
    /// Objects whose history is not linearizable.
    pub violations: usize,
    /// Objects whose history was too long to decide.
    pub undecided: usize,
}

/// Returns what was checked, and the violations.
pub(super) fn check(
    topology: &Topology,
    epoch: Instant,
    operations: impl Iterator<Item = (Register, Operation)>,
) -> Result<(Checked, Vec<String>)> {
    let mut histories: BTreeMap<Register, Vec<Operation>> = BTreeMap::new();
    for (register, operation) in operations {
        histories.entry(register).or_default().push(operation);
    }
    let begin = epoch.elapsed();
    let last = topology.hub.run(|| register::read_all(&topology.client()?))?;
    let end = Some(epoch.elapsed());
    for (register, action) in last {
        histories.entry(register).or_default().push(Operation { client: LAST, begin, end, action });
    }
    let (mut checked, mut wrong) = (Checked::default(), Vec::new());
    for (register, history) in &histories {
        let count = |of: fn(&Operation) -> bool| history.iter().filter(|op| of(op)).count();
        checked.objects += 1;
        checked.operations += history.len();
        checked.unanswered += count(|op| op.end.is_none() && op.writes());
        if register.is_large() {
            checked.large += count(|op| op.end.is_some() && op.writes());
        }
        match linear::check(history) {
            Verdict::Linearizable => {}
            Verdict::Violation => {
                checked.violations += 1;
                wrong.push(describe(*register, history));
            }
            Verdict::Undecided => {
                checked.undecided += 1;
                wrong.push(format!("{register:?}: not decided whether its history is linearizable"));
            }
        }
    }
    Ok((checked, wrong))
}

fn describe(register: Register, history: &[Operation]) -> String {
    let mut text = format!("{register:?}: not linearizable:");
    for operation in linear::explain(history) {
        // Writing to a string does not fail.
        let _written = write!(text, "\n    {operation}");
    }
    text
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { objects, operations, unanswered, large, violations, undecided } = self;
        write!(
            f,
            "{operations} operations on {objects} shared objects checked for linearizability, {unanswered} of them \
             without a response, {large} writes of large objects: {violations} violations, \
             {undecided} undecided"
        )
    }
}
