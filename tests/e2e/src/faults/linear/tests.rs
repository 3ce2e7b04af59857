use std::{sync::Arc, time::Duration};

use super::{Action, Operation, Search, State, Verdict, check, explain};
use crate::faults::random::Random;

/// An operation with its begin and end; end 0 stands for no response.
fn op(begin: u64, end: u64, action: Action) -> Operation {
    let end = (end != 0).then(|| Duration::from_secs(end));
    Operation { client: 0, begin: Duration::from_secs(begin), end, action }
}

fn put(value: &str) -> Action {
    Action::Put(value.into())
}

fn read(value: &str) -> Action {
    Action::Read(Some(value.into()))
}

const NOTHING: Action = Action::Read(None);

fn ok(history: &[Operation]) {
    let shown = &history[..history.len().min(10)];
    assert_eq!(check(history), Verdict::Linearizable, "{} operations: {shown:#?}", history.len());
}

fn violation(history: &[Operation]) {
    assert_eq!(check(history), Verdict::Violation, "{history:#?}");
    let part = explain(history);
    assert!(!part.is_empty() && part.len() <= history.len());
}

#[test]
fn operations_one_after_the_other() {
    ok(&[op(1, 2, put("a")), op(3, 4, read("a")), op(5, 6, Action::Delete), op(7, 8, NOTHING)]);
    violation(&[op(1, 2, put("a")), op(3, 4, NOTHING)]);
    violation(&[op(1, 2, put("a")), op(3, 4, put("b")), op(5, 6, read("a"))]);
    violation(&[op(1, 2, NOTHING), op(3, 4, Action::Delete)]);
    violation(&[op(1, 2, put("a")), op(3, 4, Action::Delete), op(5, 6, Action::Delete)]);
}

#[test]
fn concurrent_operations_have_some_order() {
    let both = [op(1, 9, put("a")), op(1, 9, put("b"))];
    ok(&[both[0].clone(), both[1].clone(), op(2, 3, read("a")), op(4, 5, read("b"))]);
    ok(&[both[0].clone(), both[1].clone(), op(2, 3, read("b")), op(4, 5, read("a"))]);
    violation(&[
        both[0].clone(),
        both[1].clone(),
        op(2, 3, read("a")),
        op(4, 5, read("b")),
        op(6, 7, read("a")),
    ]);
    // A stale read beside a write: a later one must not be older.
    ok(&[op(1, 2, put("a")), op(3, 9, put("b")), op(4, 5, read("a")), op(6, 7, read("b"))]);
    violation(&[op(1, 2, put("a")), op(3, 9, put("b")), op(4, 5, read("b")), op(6, 7, read("a"))]);
}

#[test]
fn an_unanswered_operation_has_an_effect_once_or_never() {
    let lost = [op(1, 2, put("a")), op(3, 0, put("b"))];
    let then = |rest: &[Operation]| [&lost[..], rest].concat();
    ok(&then(&[op(4, 5, read("a")), op(6, 7, read("a"))]));
    ok(&then(&[op(4, 5, read("a")), op(90, 91, read("b"))]));
    violation(&then(&[op(4, 5, read("b")), op(6, 7, read("a"))]));
    violation(&then(&[op(4, 5, read("b")), op(6, 7, put("c")), op(8, 9, read("b"))]));
    violation(&then(&[op(4, 5, NOTHING)]));
    // Not before its begin.
    violation(&[op(1, 2, read("b")), op(3, 0, put("b"))]);
    // Two of them: the second deletion needs the lost creation.
    ok(&then(&[op(4, 5, Action::Delete), op(6, 7, Action::Delete), op(8, 9, NOTHING)]));
    violation(&then(&[op(4, 5, Action::Delete), op(6, 7, Action::Delete), op(8, 9, Action::Delete)]));
    // A chain: the creation needs the deletion, which no client saw.
    let chain = [op(1, 2, put("a")), op(3, 0, Action::Delete), op(3, 0, Action::Create("b".into()))];
    ok(&[&chain[..], &[op(4, 5, read("b"))]].concat());
    violation(&[&chain[..1], &chain[2..], &[op(4, 5, read("b"))]].concat());
}

#[test]
fn creations_that_are_refused_or_choose_the_value() {
    let create = |value: &str| Action::Create(value.into());
    let ensure = |value: &str| Action::Ensure(Some(value.into()));
    ok(&[op(1, 2, create("a")), op(3, 4, Action::Exists), op(5, 6, read("a"))]);
    violation(&[op(1, 2, create("a")), op(3, 4, create("b"))]);
    violation(&[op(1, 2, Action::Exists)]);
    ok(&[op(1, 2, ensure("x")), op(3, 4, ensure("x")), op(5, 6, read("x"))]);
    violation(&[op(1, 2, ensure("x")), op(3, 4, ensure("y"))]);
    violation(&[op(1, 2, ensure("x")), op(3, 4, NOTHING)]);
    let lost = op(1, 0, Action::Ensure(None));
    ok(&[lost.clone(), op(2, 3, NOTHING), op(4, 5, read("x")), op(6, 7, ensure("x"))]);
    violation(&[lost, op(4, 5, read("x")), op(6, 7, ensure("y"))]);
}

#[test]
fn the_explanation_is_the_part_that_fails() {
    let mut history: Vec<_> = (1..200)
        .flat_map(|n| {
            [op(4 * n, 4 * n + 1, put(&n.to_string())), op(4 * n + 2, 4 * n + 3, read(&n.to_string()))]
        })
        .collect();
    history[203].action = read("7");
    let part = explain(&history);
    assert!(part.len() <= 2 && part.iter().any(|op| op.action == read("7")), "{part:#?}");
}

/// Runs random operations against a register; each takes effect at a time within its interval.
fn recorded(random: &mut Random, length: usize, clients: usize) -> Vec<Operation> {
    let mut value: Option<Arc<str>> = None;
    let mut free = vec![0; clients];
    let mut history = Vec::new();
    for time in 1..=length {
        let effect = 100 * time as u64;
        let client = random.below(clients);
        let begin = (effect - random.below(350).min(effect as usize - 1) as u64).max(free[client]);
        let end = (effect + random.below(350) as u64).max(begin + 1);
        let lost = random.percent(4);
        let takes_effect = begin <= effect && !(lost && random.percent(50));
        if begin > effect {
            continue;
        }
        free[client] = end + 1;
        let action = match random.below(10) {
            0..4 => Action::Put(format!("v{time}").into()),
            4 if value.is_some() || lost => Action::Delete,
            5 if value.is_some() => Action::Exists,
            6 if value.is_none() || lost => Action::Create(format!("v{time}").into()),
            _ => Action::Read(value.clone()),
        };
        if takes_effect {
            match &action {
                Action::Put(new) => value = Some(new.clone()),
                Action::Create(new) if value.is_none() => value = Some(new.clone()),
                Action::Delete => value = None,
                _ => {}
            }
        }
        history.push(Operation { client, ..op(begin, if lost { 0 } else { end }, action) });
    }
    history
}

#[test]
fn histories_of_a_register_are_linearizable() {
    for seed in 0..100 {
        ok(&recorded(&mut Random::new(seed), 400, 16));
    }
    ok(&recorded(&mut Random::new(1000), 10_000, 16));
}

/// Tries all orders.
fn is_linearizable(history: &[Operation], state: &State) -> bool {
    let answered = || history.iter().filter_map(|op| op.end);
    let Some(limit) = answered().min() else { return true };
    (0..history.len()).filter(|index| history[*index].begin <= limit).any(|index| {
        let mut rest = history.to_vec();
        let next = rest.remove(index).action.apply(state);
        next.is_some_and(|next| is_linearizable(&rest, &next))
    })
}

#[test]
fn the_search_agrees_with_trying_all_orders() {
    let mut random = Random::new(1);
    let mut violations = 0;
    for _ in 0..3000 {
        let history: Vec<_> = (0..6)
            .map(|_| {
                let begin = 1 + random.below(12) as u64;
                let end = if random.percent(25) { 0 } else { begin + 1 + random.below(6) as u64 };
                let value = ["a", "b"][random.below(2)];
                let action = match random.below(8) {
                    0 | 1 => put(value),
                    2 => Action::Create(value.into()),
                    3 => Action::Ensure((end != 0).then(|| value.into())),
                    4 => Action::Delete,
                    5 => Action::Exists,
                    6 => NOTHING,
                    _ => read(value),
                };
                op(begin, end, action)
            })
            .filter(|op| op.end.is_some() || op.writes())
            .collect();
        let expected = is_linearizable(&history, &State::Absent);
        assert_eq!(check(&history) == Verdict::Linearizable, expected, "{history:#?}");
        if !expected {
            violations += 1;
            let part = explain(&history);
            let from_start = Search::new(&part, State::Absent).run();
            assert_eq!(from_start, Verdict::Violation, "{history:#?}: {part:#?}");
        }
    }
    assert!((300..2700).contains(&violations), "{violations}");
}
