use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::{
    backoff::Backoff,
    datapath::{Error, ObjectId, ObjectKind},
    error::one_line,
};

/// Failed objects: each is retried with its own backoff, waits for another object, or is not supported.
#[derive(Debug, Default)]
pub(super) struct Retries {
    all: BTreeMap<ObjectId, Retry>,
    counts: Failures,
    /// Number of objects that wait for another object.
    waiting: usize,
}

/// Number of failed objects of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Objects that the datapath does not support; not retried until they change.
    pub unsupported: BTreeMap<ObjectKind, usize>,
    /// Objects that failed; retried.
    pub failed: BTreeMap<ObjectKind, usize>,
    /// First failed object of each kind, with its error.
    pub first: BTreeMap<ObjectKind, (ObjectId, String)>,
}

impl Failures {
    /// Total number of objects.
    pub fn count(&self) -> usize {
        self.unsupported.values().chain(self.failed.values()).sum()
    }

    /// Formats one line per kind for operators.
    pub fn lines(&self) -> Vec<String> {
        let unsupported =
            self.unsupported.iter().map(|(kind, n)| (kind, n, "not supported by this datapath yet"));
        let unsupported = unsupported.map(|(kind, n, what)| format!("{kind}: {n} {what}"));
        let failed = self.failed.iter().map(|(kind, n)| match self.first.get(kind) {
            Some((id, why)) => format!("{kind}: {n} failed, retrying; first: {id}: {why}"),
            None => format!("{kind}: {n} failed, retrying"),
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

/// Time of the next attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    At(Instant),
    /// When that object is in effect, or no longer desired.
    After(ObjectId),
    /// When the object changes.
    Never,
}

impl Retries {
    pub(super) fn failed(&mut self, id: ObjectId, error: &Error) {
        let text = one_line(error);
        let mut backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        let next = if error.is_unsupported() {
            // One warning per kind: there may be many objects.
            tracing::debug!("{id}: {text}");
            if !self.counts.unsupported.contains_key(&id.kind()) {
                tracing::warn!("{}: {text}; the node continues without them", id.kind());
            }
            Next::Never
        } else {
            let wait = backoff.pause();
            tracing::warn!("{id}: {text}; retry in {wait:?}");
            Next::At(Instant::now() + wait)
        };
        self.put(id, Retry { error: text, next, backoff });
    }

    /// Postpones an object until `other` is in effect.
    pub(super) fn wait_for(&mut self, id: ObjectId, other: ObjectId) {
        let why = self.error(&other).unwrap_or_default();
        let error = format!("{id} waits for {other}: {why}");
        tracing::warn!("{error}");
        let backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        self.put(id, Retry { error, next: Next::After(other), backoff });
    }

    /// Blocks an object until its data changes. Returns false if it is already blocked for this reason.
    pub(super) fn block(&mut self, id: ObjectId, why: String) -> bool {
        if self.error(&id) == Some(&why) {
            return false;
        }
        let backoff = self.take(&id).map(|retry| retry.backoff).unwrap_or_default();
        self.put(id.clone(), Retry { error: why, next: Next::After(id), backoff });
        true
    }

    pub(super) fn succeeded(&mut self, id: &ObjectId) {
        self.take(id);
        self.release(|other| other == id);
    }

    /// Keeps only the objects that `wrong` selects; the others are in sync, or no longer desired.
    pub(super) fn keep(&mut self, wrong: impl Fn(&ObjectId) -> bool) {
        let done: Vec<_> = self.all.keys().filter(|id| !wrong(id)).cloned().collect();
        for id in done {
            self.take(&id);
        }
        self.release(|other| !wrong(other));
    }

    /// Removes the unsupported objects that changed, so that they are tried again.
    pub(super) fn clear_unsupported(&mut self, changed: impl Fn(&ObjectId) -> bool) {
        let gone: Vec<_> =
            self.all.keys().filter(|id| self.is_unsupported(id) && changed(id)).cloned().collect();
        for id in gone {
            self.take(&id);
        }
    }

    pub(super) fn error(&self, id: &ObjectId) -> Option<&str> {
        self.all.get(id).map(|retry| retry.error.as_str())
    }

    /// Reports whether the object is blocked until its data changes.
    pub(super) fn is_blocked(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|retry| retry.next == Next::After(id.clone()))
    }

    /// Whether the object failed and will be retried.
    pub(super) fn is_retried(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|retry| retry.next != Next::Never)
    }

    pub(super) fn is_unsupported(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|retry| retry.next == Next::Never)
    }

    pub(super) fn counts(&self) -> &Failures {
        &self.counts
    }

    /// Waits until an object is due; waits forever if there is none.
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

    /// Makes the objects due that wait for one of the selected objects.
    fn release(&mut self, done: impl Fn(&ObjectId) -> bool) {
        // Called for each successful object: avoid the scan in the common case.
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
            let first = self.counts.first.get(&id.kind()).is_none_or(|(first, _)| id <= *first);
            if first {
                self.counts.first.insert(id.kind(), (id.clone(), retry.error.clone()));
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
        if self.counts.first.get(&id.kind()).is_some_and(|(first, _)| first == id) {
            self.counts.first.remove(&id.kind());
            let is_like =
                |(other, retry): &(&ObjectId, &Retry)| other.kind() == id.kind() && retry.next != Next::Never;
            if let Some((next, retry)) = self.all.range(id..).find(is_like) {
                self.counts.first.insert(id.kind(), (next.clone(), retry.error.clone()));
            }
        }
        Some(retry)
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::policy::Identity;

    use super::*;
    use crate::datapath::{Group, Kind, Object, Unsupported};

    fn group(number: u32) -> Object {
        Object::Group(Group::new(Identity::try_from(number).unwrap(), []))
    }

    #[test]
    fn unsupported_objects_are_counted_and_not_retried() {
        let mut retries = Retries::default();
        for n in 1..4 {
            retries.failed(group(n).id(), &Error::unsupported(Kind::Ovs, &group(n), Unsupported::Object));
        }
        assert_eq!(
            retries.counts().lines(),
            ["groups with policies, DSCP or bandwidth: 3 not supported by this datapath yet"]
        );
        assert!(retries.take_due().is_empty());
        assert!(retries.is_unsupported(&group(1).id()) && !retries.is_retried(&group(1).id()));
        retries.keep(|id| *id == group(1).id());
        assert_eq!(retries.counts().count(), 1);
        retries.failed(group(1).id(), &Error::new(Kind::Ovs, "set", "no"));
        assert_eq!(
            retries.counts().lines(),
            [
                "groups with policies, DSCP or bandwidth: 1 failed, retrying; first: group 1: ovs datapath: set: no"
            ]
        );
        retries.failed(group(3).id(), &Error::new(Kind::Ovs, "set", "not this one"));
        retries.failed(group(2).id(), &Error::new(Kind::Ovs, "set", "nor this"));
        retries.failed(group(1).id(), &Error::new(Kind::Ovs, "set", "still no"));
        let lines = |retries: &Retries| retries.counts().lines().concat();
        assert!(lines(&retries).contains("3 failed, retrying; first: group 1: ovs datapath: set: still no"));
        retries.succeeded(&group(1).id());
        assert!(lines(&retries).contains("2 failed, retrying; first: group 2: ovs datapath: set: nor this"));
    }

    #[test]
    fn waiting_object_is_due_when_its_dependency_succeeds() {
        let mut retries = Retries::default();
        let endpoint = ObjectId::Local("e".into());
        retries.failed(group(1).id(), &Error::new(Kind::Ebpf, "set group 1", "the map is full"));
        retries.wait_for(endpoint.clone(), group(1).id());
        assert!(retries.error(&endpoint).unwrap().contains("the map is full"));
        assert!(retries.take_due().is_empty());
        retries.succeeded(&group(1).id());
        assert_eq!(retries.take_due(), [endpoint].into());
    }
}
