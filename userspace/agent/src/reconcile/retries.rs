use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    datapath::{Error, ObjectId, ObjectKind},
    error::one_line,
};

/// Objects that are not in force, and why: each has its own pause, or waits for something else.
#[derive(Debug, Default)]
pub(super) struct Retries {
    all: BTreeMap<ObjectId, Retry>,
    counts: Failures,
    /// How many wait for another.
    waiting: usize,
}

/// How many objects of each kind are not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The datapath has no means for them: they are not tried again before they change.
    pub unsupported: BTreeMap<ObjectKind, usize>,
    /// The datapath would not take them: they are tried again.
    pub failed: BTreeMap<ObjectKind, usize>,
    /// The first of those that failed, of each kind, and why it did.
    pub such_as: BTreeMap<ObjectKind, (ObjectId, String)>,
}

impl Failures {
    /// All together.
    pub fn count(&self) -> usize {
        self.unsupported.values().chain(self.failed.values()).sum()
    }

    /// A line for each kind, for operators.
    pub fn lines(&self) -> Vec<String> {
        let unsupported =
            self.unsupported.iter().map(|(kind, n)| (kind, n, "not supported by this datapath yet"));
        let unsupported = unsupported.map(|(kind, n, what)| format!("{kind}: {n} {what}"));
        let failed = self.failed.iter().map(|(kind, n)| match self.such_as.get(kind) {
            Some((id, why)) => format!("{kind}: {n} failed and will be tried again, such as {id}: {why}"),
            None => format!("{kind}: {n} failed and will be tried again"),
        });
        unsupported.chain(failed).collect()
    }

    fn of(&mut self, next: &Next) -> &mut BTreeMap<ObjectKind, usize> {
        match next {
            Next::Never => &mut self.unsupported,
            Next::At(_) | Next::After(_) => &mut self.failed,
        }
    }
}

#[derive(Debug)]
struct Retry {
    error: String,
    next: Next,
    backoff: Backoff,
}

/// When it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    At(Instant),
    /// When that object is in force, or not wanted any more.
    After(ObjectId),
    /// Not before it changes.
    Never,
}

impl Retries {
    pub(super) fn failed(&mut self, id: ObjectId, error: &Error) {
        let text = one_line(error);
        let mut backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        let next = if error.is_unsupported() {
            // There may be very many. The kind is told of as a whole.
            tracing::debug!("{id}: {text}");
            if !self.counts.unsupported.contains_key(&id.kind()) {
                tracing::warn!("{}: {text}; this node goes on without them", id.kind());
            }
            Next::Never
        } else {
            let wait = backoff.pause();
            tracing::warn!("{id}: {text}; again in {wait:?}");
            Next::At(Instant::now() + wait)
        };
        self.put(id, Retry { error: text, next, backoff });
    }

    /// The object may not be in force before `other` is.
    pub(super) fn hold(&mut self, id: ObjectId, other: ObjectId) {
        let why = self.error(&other).unwrap_or_default();
        let error = format!("{other} is not in force, and {id} waits for it: {why}");
        tracing::warn!("{error}");
        let backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        self.put(id, Retry { error, next: Next::After(other), backoff });
    }

    /// The object stays as it is until something else is known of it.
    pub(super) fn block(&mut self, id: ObjectId, why: String) {
        if self.error(&id) == Some(&why) {
            return;
        }
        tracing::warn!("{id} stays as it is, and new endpoints wait for it: {why}");
        let backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        self.put(id.clone(), Retry { error: why, next: Next::After(id), backoff });
    }

    pub(super) fn succeeded(&mut self, id: &ObjectId) {
        self.take(id);
        self.release(|other| other == id);
    }

    /// Forgets those that everything was measured without: they are right, or not wanted any more.
    pub(super) fn keep(&mut self, wrong: impl Fn(&ObjectId) -> bool) {
        let right: Vec<_> = self.all.keys().filter(|id| !wrong(id)).cloned().collect();
        for id in right {
            self.take(&id);
        }
        self.release(|other| !wrong(other));
    }

    /// Forgets what is not supported where it may be now: it will be tried again.
    pub(super) fn forget_unsupported(&mut self, changed: impl Fn(&ObjectId) -> bool) {
        let gone: Vec<_> =
            self.all.keys().filter(|id| self.is_unsupported(id) && changed(id)).cloned().collect();
        for id in gone {
            self.take(&id);
        }
    }

    pub(super) fn error(&self, id: &ObjectId) -> Option<&str> {
        self.all.get(id).map(|retry| retry.error.as_str())
    }

    /// It failed, and may not next time.
    pub(super) fn is_awaited(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|retry| retry.next != Next::Never)
    }

    pub(super) fn is_unsupported(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|retry| retry.next == Next::Never)
    }

    pub(super) fn counts(&self) -> &Failures {
        &self.counts
    }

    /// Resolves when one is due; never when there is none.
    pub(super) async fn due(&self) {
        let due = self.all.values().filter_map(|retry| match retry.next {
            Next::At(due) => Some(due),
            Next::After(_) | Next::Never => None,
        });
        match due.min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn take_due(&self) -> BTreeSet<ObjectId> {
        let now = Instant::now();
        let is_due = |retry: &Retry| matches!(retry.next, Next::At(due) if due <= now);
        self.all.iter().filter(|(_, retry)| is_due(retry)).map(|(id, _)| id.clone()).collect()
    }

    /// What waits for these is due.
    fn release(&mut self, done: impl Fn(&ObjectId) -> bool) {
        // Asked for each object that is made: not for each all those that failed.
        if self.waiting == 0 {
            return;
        }
        for retry in self.all.values_mut() {
            if matches!(&retry.next, Next::After(other) if done(other)) {
                retry.next = Next::At(Instant::now());
                self.waiting -= 1;
            }
        }
    }

    fn put(&mut self, id: ObjectId, retry: Retry) {
        if retry.next != Next::Never {
            let first = self.counts.such_as.get(&id.kind()).is_none_or(|(first, _)| id <= *first);
            if first {
                self.counts.such_as.insert(id.kind(), (id.clone(), retry.error.clone()));
            }
        }
        *self.counts.of(&retry.next).entry(id.kind()).or_default() += 1;
        self.waiting += usize::from(matches!(retry.next, Next::After(_)));
        self.all.insert(id, retry);
    }

    fn take(&mut self, id: &ObjectId) -> Option<Retry> {
        let retry = self.all.remove(id)?;
        self.waiting -= usize::from(matches!(retry.next, Next::After(_)));
        let counts = self.counts.of(&retry.next);
        if let Some(count) = counts.get_mut(&id.kind()) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&id.kind());
            }
        }
        if self.counts.such_as.get(&id.kind()).is_some_and(|(first, _)| first == id) {
            self.counts.such_as.remove(&id.kind());
            let is_like =
                |(other, retry): &(&ObjectId, &Retry)| other.kind() == id.kind() && retry.next != Next::Never;
            if let Some((next, retry)) = self.all.range(id..).find(is_like) {
                self.counts.such_as.insert(id.kind(), (next.clone(), retry.error.clone()));
            }
        }
        Some(retry)
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::group::GroupNumber;

    use super::*;
    use crate::datapath::{Group, Kind, Object};

    fn group(number: u32) -> Object {
        let number = GroupNumber::try_from(number).unwrap();
        Object::Group(Group { number, dscp: None, rate: None, rules: [].into() })
    }

    #[test]
    fn what_is_not_supported_is_counted_and_not_tried_again() {
        let mut retries = Retries::default();
        for n in 1..4 {
            retries.failed(group(n).id(), &Error::unsupported(Kind::Ovs, &group(n)));
        }
        assert_eq!(
            retries.counts().lines(),
            ["groups with policies, DSCP or bandwidth: 3 not supported by this datapath yet"]
        );
        assert!(retries.take_due().is_empty());
        assert!(retries.is_unsupported(&group(1).id()) && !retries.is_awaited(&group(1).id()));
        retries.keep(|id| *id == group(1).id());
        assert_eq!(retries.counts().count(), 1);
        retries.failed(group(1).id(), &Error::new(Kind::Ovs, "set", "no"));
        assert_eq!(
            retries.counts().lines(),
            [
                "groups with policies, DSCP or bandwidth: 1 failed and will be tried again, such as group 1: ovs datapath: set: no"
            ]
        );
        retries.failed(group(3).id(), &Error::new(Kind::Ovs, "set", "not this one"));
        retries.failed(group(2).id(), &Error::new(Kind::Ovs, "set", "nor this"));
        retries.failed(group(1).id(), &Error::new(Kind::Ovs, "set", "still no"));
        let told = |retries: &Retries| retries.counts().lines().concat();
        assert!(
            told(&retries)
                .contains("3 failed and will be tried again, such as group 1: ovs datapath: set: still no")
        );
        retries.succeeded(&group(1).id());
        assert!(
            told(&retries)
                .contains("2 failed and will be tried again, such as group 2: ovs datapath: set: nor this")
        );
    }

    #[test]
    fn what_waits_for_another_is_due_when_that_is_there() {
        let mut retries = Retries::default();
        let endpoint = ObjectId::Local("e".into());
        retries.failed(group(1).id(), &Error::new(Kind::Ebpf, "set group 1", "the map is full"));
        retries.hold(endpoint.clone(), group(1).id());
        assert!(retries.error(&endpoint).unwrap().contains("the map is full"));
        assert!(retries.take_due().is_empty());
        retries.succeeded(&group(1).id());
        assert_eq!(retries.take_due(), [endpoint].into());
    }
}
