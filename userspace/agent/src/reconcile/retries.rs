use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Backoff, one_line};
use crate::datapath::{Error, ObjectId};

/// Objects that the datapath would not take, each with its own pause.
#[derive(Debug, Default)]
pub(super) struct Retries(BTreeMap<ObjectId, Retry>);

#[derive(Debug)]
struct Retry {
    error: String,
    due: Instant,
    backoff: Backoff,
}

impl Retries {
    pub(super) fn failed(&mut self, id: ObjectId, error: &Error) {
        let text = one_line(error);
        let mut backoff = self.0.remove(&id).map(|retry| retry.backoff).unwrap_or_default();
        let wait = backoff.pause();
        tracing::warn!("{id}: {text}; again in {wait:?}");
        self.0.insert(id, Retry { error: text, due: Instant::now() + wait, backoff });
    }

    pub(super) fn succeeded(&mut self, id: &ObjectId) {
        self.0.remove(id);
    }

    /// Forgets those that everything was measured without: they are right, or not wanted any more.
    pub(super) fn keep(&mut self, wrong: impl Fn(&ObjectId) -> bool) {
        self.0.retain(|id, _| wrong(id));
    }

    pub(super) fn error(&self, id: &ObjectId) -> Option<&str> {
        self.0.get(id).map(|retry| retry.error.as_str())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Resolves when one is due; never when there is none.
    pub(super) async fn due(&self) {
        match self.0.values().map(|retry| retry.due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn take_due(&self) -> BTreeSet<ObjectId> {
        let now = Instant::now();
        self.0.iter().filter(|(_, retry)| retry.due <= now).map(|(id, _)| id.clone()).collect()
    }
}
