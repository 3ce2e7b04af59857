//! Linearizability of the operations on one object: whether there is an order in which they could have been carried
//! out one after the other, each between its begin and its end.
//!
//! The search of Wing and Gong: it takes the operations one by one, and goes back where no further one fits. Lowe's
//! memory of visited configurations keeps it short.

mod explain;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

pub(super) use explain::explain;

pub(super) type Value = Arc<str>;

/// Effect of an operation, and its result if there was a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Creates the object with this value, or updates it.
    Put(Value),
    /// Creates the object, and fails if it exists.
    Create(Value),
    /// Creates the object if it does not exist. netmaster chooses the value, and returns it.
    Ensure(Option<Value>),
    /// Fails if the object does not exist.
    Delete,
    /// Returns the value; none if the object does not exist.
    Read(Option<Value>),
    /// Was refused because the object exists.
    Exists,
}

#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) client: usize,
    /// Time since the begin of the run.
    pub(super) begin: Duration,
    /// None if there was no response: the operation may take effect at any time after `begin`, or never.
    pub(super) end: Option<Duration>,
    pub(super) action: Action,
}

/// State of the object between two operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Anything: before the first operation of a part of a history.
    Unknown,
    Absent,
    /// Exists with a value that no response has told yet.
    Exists,
    Value(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Linearizable,
    Violation,
    /// The search was given up.
    Undecided,
}

/// Stands for the values that no response has told.
const UNTOLD: &str = "(untold)";

/// Maximum number of configurations of a search.
const MAX_VISITED: usize = 2_000_000;

/// Checks the history of an object that does not exist at first.
pub(super) fn check(history: &[Operation]) -> Verdict {
    Search::new(history, State::Absent).run()
}

impl Action {
    /// State after the operation; none if its result is impossible.
    fn apply(&self, state: &State) -> Option<State> {
        match (self, state) {
            (Action::Put(value), _) => Some(State::Value(value.clone())),
            (Action::Create(value), State::Absent | State::Unknown) => Some(State::Value(value.clone())),
            (Action::Ensure(None), State::Absent | State::Unknown) => Some(State::Exists),
            (Action::Ensure(None), state) => Some(state.clone()),
            (Action::Ensure(Some(value)), State::Absent | State::Exists | State::Unknown) => {
                Some(State::Value(value.clone()))
            }
            (Action::Delete, State::Exists | State::Value(_) | State::Unknown) => Some(State::Absent),
            (Action::Read(None), State::Absent | State::Unknown) => Some(State::Absent),
            (Action::Read(Some(value)), State::Exists | State::Unknown) => Some(State::Value(value.clone())),
            (Action::Ensure(Some(value)) | Action::Read(Some(value)), State::Value(current)) => {
                (value == current).then(|| state.clone())
            }
            (Action::Exists, State::Exists | State::Unknown) => Some(State::Exists),
            (Action::Exists, State::Value(_)) => Some(state.clone()),
            (Action::Create(_), State::Exists | State::Value(_))
            | (Action::Delete | Action::Read(Some(_)) | Action::Exists, State::Absent)
            | (Action::Read(None), State::Exists | State::Value(_)) => None,
        }
    }

    /// The same action for all values that no response has told: they are interchangeable.
    fn without_untold(&self, told: &HashSet<&Value>) -> Action {
        match self {
            Action::Put(value) if !told.contains(value) => Action::Put(UNTOLD.into()),
            Action::Create(value) if !told.contains(value) => Action::Create(UNTOLD.into()),
            action => action.clone(),
        }
    }
}

impl Operation {
    /// Whether it may have an effect although there was no response.
    pub(super) fn writes(&self) -> bool {
        match self.action {
            Action::Put(_) | Action::Create(_) | Action::Ensure(_) | Action::Delete => true,
            Action::Read(_) | Action::Exists => false,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Choice {
    Answered(usize),
    Unanswered(usize),
}

/// A step of the search, and what is needed to undo it.
struct Step {
    choice: Choice,
    front: usize,
    state: State,
    without: Option<State>,
    /// Choices that were not tried instead of it.
    others: Vec<Choice>,
}

#[derive(PartialEq, Eq, Hash)]
struct Configuration {
    front: usize,
    ahead: Vec<usize>,
    effective: u64,
    state: State,
    without: Option<State>,
}

struct Search<'a> {
    /// In the order of their begin.
    answered: Vec<(&'a Operation, Duration)>,
    /// Begin and action, in the order of the begin.
    unanswered: Vec<(Duration, Action)>,
    /// Which of them are taken.
    taken: Vec<bool>,
    effective: Vec<bool>,
    /// Hash of the indices that are in `effective`.
    effective_hash: u64,
    /// The first answered operation that is not taken.
    front: usize,
    state: State,
    /// If the last operation was unanswered: the state without it. The next one must need it.
    without: Option<State>,
    visited: HashSet<Configuration>,
}

impl<'a> Search<'a> {
    fn new(history: &'a [Operation], state: State) -> Search<'a> {
        let mut answered: Vec<_> = history.iter().filter_map(|op| Some((op, op.end?))).collect();
        let told = history.iter().filter(|op| op.end.is_some()).filter_map(|op| match &op.action {
            Action::Read(Some(value)) | Action::Ensure(Some(value)) => Some(value),
            _ => None,
        });
        let told: HashSet<_> = told.collect();
        let unanswered = history.iter().filter(|op| op.end.is_none() && op.writes());
        let mut unanswered: Vec<_> =
            unanswered.map(|op| (op.begin, op.action.without_untold(&told))).collect();
        answered.sort_by_key(|(op, _)| op.begin);
        unanswered.sort_by_key(|(begin, _)| *begin);
        Search {
            taken: vec![false; answered.len()],
            effective: vec![false; unanswered.len()],
            effective_hash: 0,
            answered,
            unanswered,
            front: 0,
            state,
            without: None,
            visited: HashSet::new(),
        }
    }

    fn run(mut self) -> Verdict {
        let mut steps: Vec<Step> = Vec::new();
        let mut choices = self.choices();
        while self.front < self.answered.len() {
            if self.visited.len() > MAX_VISITED {
                return Verdict::Undecided;
            }
            let Some(choice) = choices.pop() else {
                let Some(step) = steps.pop() else { return Verdict::Violation };
                choices = self.undo(step);
                continue;
            };
            let Some(step) = self.take(choice, &mut choices) else { continue };
            if self.visited.insert(self.configuration()) {
                steps.push(step);
                choices = self.choices();
            } else {
                choices = self.undo(step);
            }
        }
        Verdict::Linearizable
    }

    /// Operations that may come next; the last one is tried first.
    fn choices(&self) -> Vec<Choice> {
        let mut limit = Duration::MAX;
        let mut window = Vec::new();
        for (index, (op, end)) in self.answered.iter().enumerate().skip(self.front) {
            if op.begin > limit {
                break;
            }
            if !self.taken[index] {
                limit = limit.min(*end);
                window.push(index);
            }
        }
        let mut choices: Vec<Choice> = Vec::new();
        let mut actions: Vec<&Action> = Vec::new();
        for (index, (_, action)) in
            self.unanswered.iter().enumerate().take_while(|(_, (begin, _))| *begin <= limit)
        {
            // Operations with the same effect are interchangeable, and one that changes nothing need not take effect.
            let is_useful = || action.apply(&self.state).is_some_and(|next| next != self.state);
            if !self.effective[index] && !actions.contains(&action) && is_useful() {
                actions.push(action);
                choices.push(Choice::Unanswered(index));
            }
        }
        window.retain(|index| self.answered[*index].0.begin <= limit);
        window.sort_by_key(|index| std::cmp::Reverse(self.answered[*index].1));
        choices.extend(window.into_iter().map(Choice::Answered));
        choices
    }

    fn take(&mut self, choice: Choice, others: &mut Vec<Choice>) -> Option<Step> {
        let (action, unanswered) = match choice {
            Choice::Answered(index) => (&self.answered[index].0.action, false),
            Choice::Unanswered(index) => (&self.unanswered[index].1, true),
        };
        let next = action.apply(&self.state)?;
        // If this one is possible with the same effect without the unanswered operation before it, that one need not
        // have taken effect.
        if self.without.as_ref().is_some_and(|without| action.apply(without).as_ref() == Some(&next)) {
            return None;
        }
        let state = std::mem::replace(&mut self.state, next);
        let without = std::mem::replace(&mut self.without, unanswered.then(|| state.clone()));
        let front = self.front;
        match choice {
            Choice::Answered(index) => self.taken[index] = true,
            Choice::Unanswered(index) => self.set_effective(index, true),
        }
        while self.taken.get(self.front) == Some(&true) {
            self.front += 1;
        }
        Some(Step { choice, front, state, without, others: std::mem::take(others) })
    }

    fn undo(&mut self, step: Step) -> Vec<Choice> {
        match step.choice {
            Choice::Answered(index) => self.taken[index] = false,
            Choice::Unanswered(index) => self.set_effective(index, false),
        }
        (self.front, self.state, self.without) = (step.front, step.state, step.without);
        step.others
    }

    fn set_effective(&mut self, index: usize, is_effective: bool) {
        self.effective[index] = is_effective;
        let mut hasher = DefaultHasher::new();
        index.hash(&mut hasher);
        self.effective_hash ^= hasher.finish();
    }

    fn configuration(&self) -> Configuration {
        let ahead = self.taken.iter().enumerate().skip(self.front);
        // No operation that begins after the end of the first one is taken.
        let end = self.answered.get(self.front).map_or(Duration::ZERO, |(_, end)| *end);
        let ahead = ahead.take_while(|(index, _)| self.answered[*index].0.begin <= end);
        Configuration {
            front: self.front,
            ahead: ahead.filter(|(_, taken)| **taken).map(|(index, _)| index).collect(),
            effective: self.effective_hash,
            state: self.state.clone(),
            without: self.without.clone(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:2}, {:10.4} s to ", self.client, self.begin.as_secs_f64())?;
        match self.end {
            Some(end) => write!(f, "{:10.4} s: ", end.as_secs_f64())?,
            None => f.write_str("no response: ")?,
        }
        match &self.action {
            Action::Put(value) => write!(f, "put {value}"),
            Action::Create(value) => write!(f, "create {value}"),
            Action::Ensure(Some(value)) => write!(f, "create, returned {value}"),
            Action::Ensure(None) => write!(f, "create"),
            Action::Delete => write!(f, "delete"),
            Action::Read(Some(value)) => write!(f, "read {value}"),
            Action::Read(None) => write!(f, "not found"),
            Action::Exists => write!(f, "refused: exists"),
        }
    }
}
