//! Steps of a redo log: limits and encoding.

use contiv_store::{MAX_LEADER_GUARDS, MAX_LEADER_OPS, MAX_TXN_OPS, Op, Txn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Operations per step. Five are reserved: guard and put of the leader lock, deletion of the step's
/// key, deletion of the commit record, one spare.
pub(super) const STEP_OPS: usize = MAX_TXN_OPS - 5;
/// Bytes of keys and values per step. A single larger value has a step of its own.
pub(in crate::commit) const STEP_BYTES: usize = 1 << 20;
/// Padding per operation in bytes. An encoded step is longer than its transaction, so the store
/// accepts the transaction if it accepted the step.
const PADDING: usize = 64;
/// Value of a step's key.
#[derive(Serialize, Deserialize)]
struct Step {
    put: Map<String, Value>,
    delete: Vec<String>,
}

/// Whether the store accepts `txn` in one transaction together with the leader's guard. See
/// [`Leadership::commit`].
pub(in crate::commit) fn fits_one_txn(txn: &Txn) -> bool {
    let sizes = || txn.ops.iter().map(size);
    // A single value of any size has to be written in any case.
    let bytes = sizes().sum::<usize>() - sizes().max().unwrap_or(0);
    txn.ops.len() <= MAX_LEADER_OPS && txn.guards.len() <= MAX_LEADER_GUARDS && bytes <= STEP_BYTES
}

/// Size of the key and the value in bytes.
pub(in crate::commit) fn size(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}

pub(super) fn encode(ops: &[Op]) -> serde_json::Result<Vec<u8>> {
    let mut step = Step { put: Map::new(), delete: vec![] };
    for op in ops {
        match op {
            Op::Put { key, value, .. } => {
                step.put.insert(key.clone(), serde_json::from_slice(value)?);
            }
            Op::Delete { key } => step.delete.push(key.clone()),
        }
    }
    let mut value = serde_json::to_vec(&step)?;
    value.resize(value.len() + PADDING * (ops.len() + 1), b' ');
    Ok(value)
}

pub(super) fn decode(key: &str, value: &[u8]) -> Vec<Op> {
    let step: Step = match serde_json::from_slice(value) {
        Ok(step) => step,
        Err(error) => {
            tracing::error!(key, %error, "decode a step of the redo log: invalid; skipping it");
            return vec![];
        }
    };
    let puts = step.put.into_iter().filter_map(|(key, value)| {
        Some(Op::Put { key, value: serde_json::to_vec(&value).ok()?.into(), lease: None })
    });
    puts.chain(step.delete.into_iter().map(|key| Op::Delete { key })).collect()
}
