//! Guarded transactions: what one request changes, changes in one step or not at all.

use bytes::Bytes;

/// Operations (and guards) that the store takes in one transaction: etcd's default `--max-txn-ops`.
pub const MAX_TXN_OPS: usize = 128;

/// Puts and deletes that happen together if every guard holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub guards: Vec<Guard>,
    pub ops: Vec<Op>,
}

/// A condition that the store checks in the same step as the writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key was last written at `revision`; 0: the key does not exist.
    ModRevision { key: String, revision: i64 },
    /// The key was created at `revision`; 0: the key does not exist.
    CreateRevision { key: String, revision: i64 },
}

/// One write. A transaction may name a key only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put { key: String, value: Bytes, lease: Option<i64> },
    Delete { key: String },
}

/// What became of a transaction that the store decided on.
#[must_use = "a conflict means that nothing was written"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed {
        revision: i64,
    },
    /// A guard did not hold: nothing was written. Read again and decide anew.
    Conflict,
}

impl Txn {
    pub fn new() -> Txn {
        Txn::default()
    }

    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Txn {
        self.guards.push(guard);
        self
    }

    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Txn {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Txn {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }
}

impl Guard {
    /// The key must not exist.
    pub fn absent(key: impl Into<String>) -> Guard {
        Guard::ModRevision { key: key.into(), revision: 0 }
    }
}

impl Op {
    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}
