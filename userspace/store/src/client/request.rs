//! Requests, with their time limits and retries.

use super::Store;
use crate::backoff::Backoff;
use crate::{Error, Operation};
use std::time::Duration;
use tokio::time::Instant;

/// With several members: time limit of one attempt of a request that may be repeated.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// With several members: time limit of one attempt of a request that may not be repeated. An
/// election among the members takes less.
const ONCE_LIMIT: Duration = Duration::from_secs(3);
/// Longest pause before the next of several members is tried.
const PAUSE: Duration = Duration::from_millis(200);
/// Time that a member still has to answer after another request has given it up.
const GRACE: Duration = Duration::from_millis(300);

/// Whether a request is sent again after its answer was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// The request only reads, or is idempotent.
    Always,
    /// The caller finds out whether the request took effect. Not repeated if the store refused it.
    Lost,
    /// Only if the request certainly was not sent.
    Unsent,
}

/// Time limits of a request.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// For all attempts together.
    pub(super) all: Duration,
    /// For the first attempt. Each later one has twice as long as the one before.
    pub(super) first: Duration,
    /// For one attempt, at most.
    pub(super) longest: Duration,
}

impl Store {
    pub(crate) async fn request<T, F, A>(
        &self,
        operation: Operation,
        key: &str,
        again: Again,
        send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let (all, first) = (self.shared.request_timeout, self.patience(again));
        let limits = Limits { all, first, longest: Duration::MAX };
        self.request_within(limits, operation, key, again, send).await
    }

    /// Time limit of one attempt.
    pub(super) fn patience(&self, again: Again) -> Duration {
        match again {
            _ if !self.shared.members.several() => self.shared.request_timeout,
            Again::Always | Again::Lost => ANSWER_LIMIT,
            Again::Unsent => ONCE_LIMIT,
        }
    }

    /// Sends a request with other limits.
    pub(super) async fn request_within<T, F, A>(
        &self,
        limits: Limits,
        operation: Operation,
        key: &str,
        again: Again,
        send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let start = Instant::now();
        let result = self.attempts(limits, operation, key, again, send).await;
        self.shared.metrics.record(operation, &result, start.elapsed());
        result
    }

    async fn attempts<T, F, A>(
        &self,
        limits: Limits,
        operation: Operation,
        key: &str,
        again: Again,
        mut send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let (deadline, mut patience) = (Instant::now() + limits.all, limits.first);
        let members = &self.shared.members;
        let mut backoff = Backoff::default();
        let mut earlier: Option<Error> = None;
        loop {
            let (turn, start) = (members.turn(), Instant::now());
            let left_alone = async {
                members.moved(turn).await;
                tokio::time::sleep(GRACE).await;
            };
            let error = tokio::select! {
                answer = send() => match answer {
                    Ok(answer) => {
                        self.answered();
                        return Ok(answer);
                    }
                    Err(e) => self.error(operation, key, e),
                },
                () = tokio::time::sleep_until(deadline.min(start + patience)) => {
                    let cut_short = again == Again::Always && start.elapsed() < patience;
                    match earlier.take_if(|_| cut_short) {
                        // The attempt had too little time to tell more than the one before.
                        Some(earlier) => return Err(earlier),
                        None => self.timeout(operation, key, start.elapsed()),
                    }
                }
                () = left_alone => self.timeout(operation, key, start.elapsed()),
            };
            if error.is_transient() {
                members.failed(turn, &error).await;
            }
            let retry = error.needs_login()
                || error.is_transient()
                    && match again {
                        Again::Always => true,
                        Again::Lost => error.is_unsent() || error.outcome_unknown(),
                        Again::Unsent => error.is_unsent(),
                    };
            let wait = backoff.next().min(if members.several() { PAUSE } else { Duration::MAX });
            tracing::debug!(%operation, key, %error, retry, "request failed");
            let error = match earlier.take() {
                // Whether the lost attempt took effect is as unknown as before.
                Some(lost) if again == Again::Lost && lost.hides_outcome_of(&error) => lost,
                _ => error,
            };
            if !retry || Instant::now() + wait >= deadline {
                return Err(error);
            }
            earlier = Some(error);
            // The next member needs a new connection, which takes longer on a slow network.
            patience = (patience * 2).min(limits.longest);
            tokio::time::sleep(wait).await;
        }
    }
}
