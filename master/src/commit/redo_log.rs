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

mod step;

use std::ops::ControlFlow;
use std::time::Duration;

use contiv_model::key::POLICY_RULES;
use contiv_store::election::Leadership;
use contiv_store::{Error, Guard, Op, Outcome, Store, Txn};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use step::{STEP_BYTES, STEP_OPS, decode, encode};
pub(super) use step::{fits_one_txn, size};

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
        // Keys that nodes read come first. Keys for operators, which are derived from them, come
        // last.
        ops.sort_by_key(|op| op.key().starts_with(POLICY_RULES));
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

    /// Writes the log and applies it if the `guards` hold. After an error nothing has been changed.
    pub(super) async fn commit(
        self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<LogOutcome, Error> {
        let encoded = self.write_steps(store, leadership, guards).await;
        let done = match encoded {
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

    /// Writes the steps, checks the guards, and writes the commit record.
    async fn write_steps(
        &self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<Outcome, Error> {
        let mut guards = guards.chunks(STEP_OPS);
        for (n, encoded) in self.encoded.iter().enumerate() {
            let txn = Txn {
                guards: guards.next().unwrap_or_default().to_vec(),
                ops: vec![Op::Put { key: self.key(n), value: encoded.clone().into(), lease: None }],
            };
            if leadership.commit(txn).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
        }
        for rest in guards {
            let txn = Txn { guards: rest.to_vec(), ops: vec![] };
            if leadership.commit(txn).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
        }
        let txn =
            Txn::new().guard(Guard::absent(COMMIT_RECORD)).put(COMMIT_RECORD, self.commit_record.clone());
        match leadership.commit(txn).await {
            Err(error) if error.outcome_unknown() => self.is_committed(store, leadership, error).await,
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
mod tests {
    use super::*;

    fn put(key: &str, bytes: usize) -> Op {
        let value = serde_json::to_vec(&"x".repeat(bytes)).unwrap();
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    #[test]
    fn steps_fit_the_store_and_rules_for_operators_come_last() {
        let rule = format!("{POLICY_RULES}r");
        let mut ops: Vec<Op> = vec![put(&rule, 1)];
        ops.extend((0..300).map(|n| put(&format!("k{n}"), 1)));
        ops.extend([put("big", 1_400_000), put("half", 600_000), put("half2", 600_000)]);
        let log = RedoLog::new("1-1".into(), ops.clone()).unwrap();
        assert!(log.steps.iter().all(|step| step.len() <= STEP_OPS));
        for step in &log.steps {
            assert!(step.len() == 1 || step.iter().map(size).sum::<usize>() <= STEP_BYTES);
            let txn = step.iter().map(size).sum::<usize>() + log.key(0).len() + COMMIT_RECORD.len();
            assert!(encode(step).unwrap().len() > txn, "what can be encoded down can be carried out");
            assert_eq!(decode("", &encode(step).unwrap()).len(), step.len());
        }
        let order: Vec<&Op> = log.steps.iter().flatten().collect();
        assert_eq!((order.len(), order.last().map(|op| op.key())), (ops.len(), Some(rule.as_str())));
        assert!(!fits_one_txn(&Txn { guards: vec![], ops }));
    }

    #[test]
    fn steps_are_decoded_byte_for_byte() {
        let body = r#"{"id":"b","a":1,"z":{"y":[],"x":null},"text":"ü\"\\"}"#;
        let ops = vec![
            Op::Put { key: "k".into(), value: body.as_bytes().to_vec().into(), lease: None },
            Op::Delete { key: "d".into() },
        ];
        assert_eq!(decode("", &encode(&ops).unwrap()), ops);
    }

    #[test]
    fn a_log_with_invalid_json_is_rejected() {
        let op = Op::Put { key: "k".into(), value: b"no json".to_vec().into(), lease: None };
        assert!(RedoLog::new("1".into(), vec![op]).is_err());
    }

    /// Starts an embedded store and becomes its leader.
    async fn start_leader(dir: &std::path::Path) -> (contiv_store::embedded::Server, Store, Leadership) {
        let server = contiv_store::embedded::Server::open(dir, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = format!("http://{}", server.local_addr());
        let store = Store::connect(&contiv_store::Config::new([address])).await.unwrap();
        let leadership = lead(&store).await;
        (server, store, leadership)
    }

    async fn lead(store: &Store) -> Leadership {
        let timing = contiv_store::election::Timing {
            ttl: Duration::from_secs(30),
            staleness: Duration::from_secs(1),
        };
        contiv_store::election::campaign(store, "lock", "me", timing).await.unwrap()
    }

    async fn keys(store: &Store, prefix: &str) -> usize {
        store.list(prefix).await.unwrap().items.len()
    }

    fn many() -> Vec<Op> {
        (0..300).map(|n| put(&format!("k{n}"), 10)).collect()
    }

    #[tokio::test]
    async fn the_next_leader_applies_committed_logs_only() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, store, leadership) = start_leader(dir.path()).await;
        // The leader fails before the commit record is written.
        let uncommitted = RedoLog::new("1".into(), many()).unwrap();
        let txn = Txn::new().put(uncommitted.key(0), uncommitted.encoded[0].clone());
        let _committed = store.commit(txn).await.unwrap();
        assert!(recover(&store, &leadership).await.is_continue());
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));

        // The leader fails after the first step is applied.
        let committed = RedoLog::new("2".into(), many()).unwrap();
        let guards = (0..300).map(|n| Guard::absent(format!("k{n}"))).collect();
        let outcome = committed.write_steps(&store, &leadership, guards).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed { .. }));
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (4, 0));
        let ops = committed.steps[0].iter().cloned().chain([Op::Delete { key: committed.key(0) }]).collect();
        let _committed = store.commit(Txn { guards: vec![], ops }).await.unwrap();
        leadership.resign().await.unwrap();
        let leadership = lead(&store).await;
        assert!(recover(&store, &leadership).await.is_continue());
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 300));
        assert!(recover(&store, &leadership).await.is_continue(), "there is nothing left to do");
    }

    #[tokio::test]
    async fn a_failed_guard_or_lost_leadership_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, store, leadership) = start_leader(dir.path()).await;
        let _committed = store.commit(Txn::new().put("other", "1")).await.unwrap();
        for last in [0, 400] {
            // A failing guard in the first transaction, or after the steps.
            let mut guards: Vec<Guard> = (0..400).map(|n| Guard::absent(format!("k{n}"))).collect();
            guards.insert(last, Guard::absent("other"));
            let done = RedoLog::new(format!("{last}"), many())
                .unwrap()
                .commit(&store, &leadership, guards)
                .await
                .unwrap();
            assert!(matches!(done, LogOutcome::Conflict));
            assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));
        }
        let done =
            RedoLog::new("c".into(), many()).unwrap().commit(&store, &leadership, vec![]).await.unwrap();
        let LogOutcome::Committed(revisions) = done else { panic!("not committed") };
        for kv in store.list("k").await.unwrap().items {
            assert_eq!(revisions.of(&kv.key), kv.mod_revision);
        }

        let _committed = store.commit(Txn::new().delete("lock")).await.unwrap();
        let done =
            RedoLog::new("d".into(), vec![put("late", 1)]).unwrap().commit(&store, &leadership, vec![]).await;
        assert!(matches!(done, Ok(LogOutcome::Conflict)));
        assert_eq!(keys(&store, "late").await, 0);
    }
}
