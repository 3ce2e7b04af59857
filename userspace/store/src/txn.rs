//! Guarded transactions: what one request changes, changes in one step or not at all.

use crate::Error;
use bytes::Bytes;
use etcd_client::{Compare, CompareOp, PutOptions, TxnOp};

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

impl Txn {
    /// What it is about, in errors.
    pub(crate) fn name(&self) -> &str {
        self.ops.first().map_or("nothing", Op::key)
    }

    /// That the store takes so many.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (guards, ops) = (self.guards.len(), self.ops.len());
        match guards.max(ops) <= MAX_TXN_OPS {
            true => Ok(()),
            false => Err(Error::TooManyOps { key: self.name().to_owned(), guards, ops }),
        }
    }

    pub(crate) fn into_wire(self) -> etcd_client::Txn {
        let compares: Vec<Compare> = self.guards.into_iter().map(Guard::into_wire).collect();
        let ops: Vec<TxnOp> = self.ops.into_iter().map(Op::into_wire).collect();
        etcd_client::Txn::new().when(compares).and_then(ops)
    }
}

impl Guard {
    pub(crate) fn into_wire(self) -> Compare {
        match self {
            Guard::ModRevision { key, revision } => Compare::mod_revision(key, CompareOp::Equal, revision),
            Guard::CreateRevision { key, revision } => {
                Compare::create_revision(key, CompareOp::Equal, revision)
            }
        }
    }

    /// The key must not exist.
    pub fn absent(key: impl Into<String>) -> Guard {
        Guard::ModRevision { key: key.into(), revision: 0 }
    }
}

impl Op {
    pub(crate) fn into_wire(self) -> TxnOp {
        match self {
            Op::Put { key, value, lease } => {
                TxnOp::put(key, value, lease.map(|lease| PutOptions::new().with_lease(lease)))
            }
            Op::Delete { key } => TxnOp::delete(key, None),
        }
    }

    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}
