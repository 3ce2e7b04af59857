//! Redo log for changes that are too large for one store transaction.
//!
//! etcd accepts 128 operations and 1.5 MB in one transaction. A larger change is split into steps,
//! and each step is written under a key of its own. Then the commit record is written. Without a
//! commit record the change has not happened. With it, the whole change is applied by this leader
//! or, if it fails, by the next leader before it does anything else. The transaction that applies a
//! step also deletes the step's key.
//!
//! Readers of the store see each key either before or after the change. All rules of a policy on a
//! group are one key.

mod guards;
mod step;

use std::ops::ControlFlow;
use std::time::Duration;

use contiv_model::key::{MODELDB, POLICY_RULES};
use contiv_store::election::Leadership;
use contiv_store::{Error, Guard, Op, Outcome, Store, Txn};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

pub(super) use step::{STEP_BYTES, fits_one_txn, size};
use step::{STEP_OPS, decode, encode};

use crate::cache::Revisions;
use crate::problem::one_line;

const PREFIX: &str = "/contiv.io/master/pending/";
/// Exists from the commit of a redo log until its last step is applied.
pub const COMMIT_RECORD: &str = "/contiv.io/master/pending/head";
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Result of committing a large change.
pub(super) enum LogOutcome {
    Committed(Revisions),
    /// A guard failed; nothing was written.
    Conflict,
    /// The commit record is written, and leadership was lost before all steps were applied. The
    /// next leader applies the whole change before it serves requests.
    Decided,
}

/// A large change and its encoded steps.
pub(super) struct RedoLog {
    name: String,
    steps: Vec<Vec<Op>>,
    /// Encoded steps.
    encoded: Vec<Vec<u8>>,
    commit_record: Vec<u8>,
}

/// Value of the commit record.
#[derive(Serialize, Deserialize)]
struct CommitRecord {
    name: String,
    steps: usize,
}

impl RedoLog {
    /// Splits `ops` into steps. `name` must differ from the names of all logs in the store. Fails
    /// if a value is not JSON.
    pub(super) fn new(name: String, mut ops: Vec<Op>) -> serde_json::Result<RedoLog> {
        // Keys that nodes read come first. Then the API's objects: an agent takes a deletion for a loss of data if the objects
        // that explain it were written before. Keys for operators, which are derived from them, come last.
        ops.sort_by_key(|op| (op.key().starts_with(POLICY_RULES), op.key().starts_with(MODELDB)));
        let mut steps: Vec<Vec<Op>> = vec![];
        let mut bytes = 0;
        for op in ops {
            bytes += size(&op);
            match steps.last_mut() {
                Some(step) if step.len() < STEP_OPS && bytes <= STEP_BYTES => step.push(op),
                _ => {
                    bytes = size(&op);
                    steps.push(vec![op]);
                }
            }
        }
        let encoded = steps.iter().map(|ops| encode(ops)).collect::<serde_json::Result<_>>()?;
        let commit_record = serde_json::to_vec(&CommitRecord { name: name.clone(), steps: steps.len() })?;
        Ok(RedoLog { name, steps, encoded, commit_record })
    }

    fn key(&self, step: usize) -> String {
        format!("{PREFIX}{}/{step:06}", self.name)
    }

    /// The transaction that writes a step. It checks a part of the guards.
    fn write_of(&self, step: usize, guards: &[Guard]) -> Txn {
        let value = self.encoded[step].clone().into();
        Txn {
            guards: guards.chunks(STEP_OPS).nth(step).unwrap_or_default().to_vec(),
            ops: vec![Op::Put { key: self.key(step), value, lease: None }],
        }
    }

    /// The transaction that writes the largest step.
    pub(super) fn largest_write(&self, guards: &[Guard]) -> Option<Txn> {
        let largest = (0..self.steps.len()).max_by_key(|step| self.encoded[*step].len())?;
        Some(self.write_of(largest, guards))
    }

    /// Writes the log and applies it if the `guards` hold. After an error nothing has been changed.
    pub(super) async fn commit(
        self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<LogOutcome, Error> {
        let done = match self.write(store, leadership, guards).await {
            Ok(Outcome::Committed { .. }) => return Ok(self.apply(leadership).await),
            Ok(Outcome::Conflict) => Ok(LogOutcome::Conflict),
            Err(error) => Err(error),
        };
        if let Err(error) =
            delete_keys(leadership, &(0..self.steps.len()).map(|i| self.key(i)).collect::<Vec<_>>()).await
        {
            tracing::debug!(
                error = one_line(&error),
                "delete a redo log: failed; the next leader deletes it"
            );
        }
        done
    }

    /// Writes the steps and the commit record, if the guards hold.
    async fn write(
        &self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<Outcome, Error> {
        match self.write_steps(leadership, &guards).await? {
            Outcome::Committed { revision } => {
                self.decide(store, leadership, guards::at_commit(guards, revision)).await
            }
            Outcome::Conflict => Ok(Outcome::Conflict),
        }
    }

    /// Writes the steps, and checks the guards in several transactions. Returns the revision of the
    /// first one.
    async fn write_steps(&self, leadership: &Leadership, guards: &[Guard]) -> Result<Outcome, Error> {
        let mut first = None;
        for n in 0..self.steps.len() {
            match leadership.commit(self.write_of(n, guards)).await? {
                Outcome::Committed { revision } => first = first.or(Some(revision)),
                Outcome::Conflict => return Ok(Outcome::Conflict),
            }
        }
        for rest in guards.chunks(STEP_OPS).skip(self.steps.len()) {
            let txn = Txn { guards: rest.to_vec(), ops: vec![] };
            if leadership.commit(txn).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
        }
        Ok(Outcome::Committed { revision: first.unwrap_or_default() })
    }

    /// Writes the commit record if the guards hold.
    async fn decide(
        &self,
        store: &Store,
        leadership: &Leadership,
        mut guards: Vec<Guard>,
    ) -> Result<Outcome, Error> {
        guards.push(Guard::absent(COMMIT_RECORD));
        let txn = Txn { guards, ops: vec![] }.put(COMMIT_RECORD, self.commit_record.clone());
        match leadership.commit(txn).await {
            Err(error) if error.outcome_unknown() || error.is_out_of_space() => {
                self.is_committed(store, leadership, error).await
            }
            result => result,
        }
    }

    /// Finds out whether the commit record was written, after its response was lost.
    async fn is_committed(
        &self,
        store: &Store,
        leadership: &Leadership,
        lost: Error,
    ) -> Result<Outcome, Error> {
        while !leadership.is_lost() {
            let commit_record = match leadership.resolve_pending().await {
                Ok(true) => store.get(COMMIT_RECORD).await,
                Ok(false) => return Err(lost),
                Err(error) => Err(error),
            };
            match commit_record {
                Ok(Some(kv))
                    if read_commit_record(&kv.value)
                        .is_some_and(|commit_record| commit_record.name == self.name) =>
                {
                    return Ok(Outcome::Committed { revision: kv.mod_revision });
                }
                Ok(_) => return Err(lost),
                Err(error) => wait(leadership, &error).await,
            }
        }
        Err(lost)
    }

    /// Applies the steps until all are done or leadership is lost.
    async fn apply(self, leadership: &Leadership) -> LogOutcome {
        let mut revisions = Revisions::default();
        let last = self.steps.len();
        for (n, ops) in self.steps.iter().enumerate() {
            let step = Op::Delete { key: self.key(n) };
            let commit_record = (n + 1 == last).then(|| Op::Delete { key: COMMIT_RECORD.to_owned() });
            let keys: Vec<String> = ops.iter().map(|op| op.key().to_owned()).collect();
            let txn =
                Txn { guards: vec![], ops: ops.iter().cloned().chain([step]).chain(commit_record).collect() };
            match commit_until_done(leadership, txn).await {
                ControlFlow::Continue(revision) => revisions.record(keys, revision),
                ControlFlow::Break(()) => return LogOutcome::Decided,
            }
        }
        LogOutcome::Committed(revisions)
    }
}

/// Applies the log of an earlier leader if it has a commit record, and deletes it otherwise. Breaks
/// when leadership is lost.
pub(super) async fn recover(store: &Store, leadership: &Leadership) -> ControlFlow<()> {
    let found = loop {
        if leadership.is_lost() {
            return ControlFlow::Break(());
        }
        match store.list(PREFIX).await {
            Ok(found) => break found.items,
            Err(error) => wait(leadership, &error).await,
        }
    };
    let commit_record =
        found.iter().find(|kv| kv.key == COMMIT_RECORD).and_then(|kv| read_commit_record(&kv.value));
    let mut orphans: Vec<String> = vec![];
    let mut steps = vec![];
    for kv in &found {
        match commit_record
            .as_ref()
            .filter(|commit_record| kv.key.starts_with(&format!("{PREFIX}{}/", commit_record.name)))
        {
            Some(_) => steps.push((kv.key.clone(), decode(&kv.key, &kv.value))),
            None => orphans.push(kv.key.clone()),
        }
    }
    if !steps.is_empty() {
        tracing::info!(steps = steps.len(), "applying the redo log of an earlier leader");
    }
    for (key, ops) in steps {
        let ops = ops.into_iter().chain([Op::Delete { key }]).collect();
        if commit_until_done(leadership, Txn { guards: vec![], ops }).await.is_break() {
            return ControlFlow::Break(());
        }
    }
    // Includes the commit record, after all steps are applied.
    while let Err(error) = delete_keys(leadership, &orphans).await {
        if leadership.is_lost() {
            return ControlFlow::Break(());
        }
        wait(leadership, &error).await;
    }
    ControlFlow::Continue(())
}

async fn delete_keys(leadership: &Leadership, keys: &[String]) -> Result<(), Error> {
    for some in keys.chunks(STEP_OPS) {
        let ops = some.iter().map(|key| Op::Delete { key: key.clone() }).collect();
        // A conflict means that another netmaster leads. It deletes them.
        let _deposed = leadership.commit(Txn { guards: vec![], ops }).await?;
    }
    Ok(())
}

/// Repeats the transaction until it is committed, and returns the revision. The transaction must be
/// idempotent.
async fn commit_until_done(leadership: &Leadership, txn: Txn) -> ControlFlow<(), i64> {
    while !leadership.is_lost() {
        match leadership.commit(txn.clone()).await {
            Ok(Outcome::Committed { revision }) => return ControlFlow::Continue(revision),
            Ok(Outcome::Conflict) => return ControlFlow::Break(()),
            Err(error) => wait(leadership, &error).await,
        }
    }
    ControlFlow::Break(())
}

async fn wait(leadership: &Leadership, error: &Error) {
    tracing::warn!(error = one_line(error), "redo log: the store does not accept a transaction; retrying");
    tokio::select! {
        () = leadership.lost() => {}
        () = sleep(RETRY_INTERVAL) => {}
    }
}

fn read_commit_record(value: &[u8]) -> Option<CommitRecord> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests;
