//! The store's size limit, for changes that are tried and not written.

use contiv_model::key::POLICIES;
use contiv_store::{Guard, Op, Outcome, Store, Txn};

use super::redo_log::{self, STEP_BYTES};
use super::store_problem::store_problem;
use crate::problem::{Problem, one_line};

/// No key has this revision.
const NO_REVISION: i64 = -1;

/// The largest value of a change, which the store may refuse.
pub struct LargeValue(Op);

impl LargeValue {
    /// Finds the largest value of the transaction; none if the redo log can write it to any store.
    pub fn find(txn: Txn) -> Option<LargeValue> {
        let largest = txn.ops.into_iter().max_by_key(redo_log::size)?;
        (redo_log::size(&largest) > STEP_BYTES).then_some(LargeValue(largest))
    }

    /// Fails like the commit of the change if the value exceeds the store's limit. Only the store knows
    /// its limit, which is a setting of etcd.
    pub async fn check(self, store: &Store) -> Result<(), Problem> {
        let LargeValue(op) = self;
        let (key, bytes) = (op.key().to_owned(), redo_log::size(&op));
        // The redo log has a step of its own for the value.
        let step = redo_log::encode(&[op])
            .map_err(|error| Problem::unavailable(format!("encode a record: {error}")))?;
        // The guard never holds, so nothing is written. The store checks the size before the guard.
        let guard = Guard::ModRevision { key: key.clone(), revision: NO_REVISION };
        match store.commit(Txn::new().guard(guard).put(key.as_str(), step)).await {
            Ok(Outcome::Conflict | Outcome::Committed { .. }) => Ok(()),
            Err(error) if error.is_too_large() => Err(too_large(&key, bytes)),
            Err(error) => {
                tracing::warn!(error = one_line(&error), "check the size of a change");
                Err(store_problem(&error))
            }
        }
    }
}

/// The store refuses a transaction in which `key` is the largest: `bytes` for the key and its value.
pub(super) fn too_large(key: &str, bytes: usize) -> Problem {
    let advice = match key.starts_with(POLICIES) {
        true => "distribute the rules over several policies",
        false => "reduce the number of objects below it",
    };
    Problem::conflict(format!(
        "commit {key}: {bytes} bytes exceed the store's limit (etcd: --max-request-bytes, default 1.5 MB); {advice}"
    ))
}
