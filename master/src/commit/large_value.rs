//! The store's size limit, for changes that are tried and not written.

use contiv_model::key::POLICIES;
use contiv_store::{Guard, Outcome, Store, Txn};

use super::redo_log::{self, RedoLog, STEP_BYTES};
use super::store_problem::store_problem;
use crate::problem::{Problem, one_line};

/// No key has this revision.
const NO_REVISION: i64 = -1;

/// The largest value of a change, which the store may refuse.
pub struct LargeValue {
    key: String,
    /// Size of the key and the value.
    bytes: usize,
    /// Writes the value as the redo log does.
    write: Txn,
}

impl LargeValue {
    /// Finds the largest value of the transaction; none if the redo log can write it to any store. Fails if
    /// a value is not JSON.
    pub fn find(txn: Txn) -> serde_json::Result<Option<LargeValue>> {
        let Txn { guards, ops } = txn;
        let sizes = ops.iter().map(|op| (op.key(), redo_log::size(op)));
        let Some((key, bytes)) =
            sizes.max_by_key(|(_, bytes)| *bytes).filter(|(_, bytes)| *bytes > STEP_BYTES)
        else {
            return Ok(None);
        };
        let key = key.to_owned();
        let write = RedoLog::new("dry-run".to_owned(), ops)?.largest_write(&guards);
        Ok(write.map(|write| LargeValue { key, bytes, write }))
    }

    /// Fails like the commit of the change if the value exceeds the store's limit. Only the store knows
    /// its limit, which is a setting of etcd.
    pub async fn check(self, store: &Store) -> Result<(), Problem> {
        let LargeValue { key, bytes, write } = self;
        // This guard never holds, so nothing is written. The store checks the size before the guards.
        let guard = Guard::ModRevision { key: key.clone(), revision: NO_REVISION };
        match store.commit(write.guard(guard)).await {
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
