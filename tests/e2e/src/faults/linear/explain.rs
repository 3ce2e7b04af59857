use std::time::Duration;

use super::{Action, Operation, Search, State, Verdict};

/// A short part of a history that is not linearizable, in the order of time. No order of its answered operations has
/// their results, whatever the state before the first of them was, unless it begins with the first of the history.
pub(in crate::faults) fn explain(history: &[Operation]) -> Vec<Operation> {
    let mut ends: Vec<_> = history.iter().filter_map(|op| op.end).collect();
    ends.sort_unstable();
    let violates = |part: &[Operation], state| Search::new(part, state).run() == Verdict::Violation;
    // Longer parts of a history that is not linearizable are not either.
    let failing = ends.partition_point(|end| !violates(&until(history, *end), State::Absent));
    let mut part = until(history, ends.get(failing).copied().unwrap_or(Duration::MAX));
    let mut begins: Vec<_> = part.iter().map(|op| op.begin).collect();
    begins.sort_unstable();
    let failing = begins.partition_point(|begin| violates(&from(&part, *begin), State::Unknown));
    let mut state = State::Absent;
    if let Some(last) = failing.checked_sub(1) {
        part = from(&part, begins[last]);
        state = State::Unknown;
    }
    part.sort_by_key(|op| op.begin);
    // Without its reads, a linearizable history stays linearizable.
    for index in (0..part.len()).rev() {
        let mut shorter = part.clone();
        let left_out = shorter.remove(index);
        if matches!(left_out.action, Action::Read(_) | Action::Exists) && violates(&shorter, state.clone()) {
            part = shorter;
        }
    }
    part
}

/// The history until a time: what ended later has no response.
fn until(history: &[Operation], time: Duration) -> Vec<Operation> {
    let began = history.iter().filter(|op| op.begin <= time).cloned();
    let part = began.map(|op| Operation { end: op.end.filter(|end| *end <= time), ..op });
    part.filter(|op| op.end.is_some() || op.writes()).collect()
}

/// The history from a time: what began earlier may have an effect or not.
fn from(history: &[Operation], time: Duration) -> Vec<Operation> {
    let lasting = history.iter().filter(|op| op.end.is_none_or(|end| end >= time)).cloned();
    let part = lasting.map(|op| Operation { end: op.end.filter(|_| op.begin >= time), ..op });
    part.filter(|op| op.end.is_some() || op.writes()).collect()
}
