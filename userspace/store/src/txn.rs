//! Guarded transactions: the changes of one request are applied together or not at all.

use crate::{Error, MAX_TXN_OPS};
use bytes::Bytes;
use etcd_client::{Compare, CompareOp, PutOptions, TxnOp};

/// Puts and deletes that are applied together if every guard holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions, all of which must hold.
    pub guards: Vec<Guard>,
    /// Writes, in any order.
    pub ops: Vec<Op>,
}

/// A condition that the store checks atomically with the writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key was last written at `revision`; 0: the key does not exist.
    ModRevision {
        /// Key to check.
        key: String,
        /// Expected revision, or 0.
        revision: i64,
    },
    /// The key was created at `revision`; 0: the key does not exist.
    CreateRevision {
        /// Key to check.
        key: String,
        /// Expected revision, or 0.
        revision: i64,
    },
    /// No key from `first` to `last` (both included) was put after `revision`. A deletion is not
    /// noticed.
    NotPutSince {
        /// First key of the range.
        first: String,
        /// Last key of the range.
        last: String,
        /// Revision up to which puts are permitted.
        revision: i64,
    },
}

/// One write. A transaction names a key at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the value of the key and attaches it to the lease, if one is given.
    Put {
        /// Key to write.
        key: String,
        /// New value.
        value: Bytes,
        /// Lease to attach the key to.
        lease: Option<i64>,
    },
    /// Deletes the key if it exists.
    Delete {
        /// Key to delete.
        key: String,
    },
}

/// Result of a transaction that the store has decided on.
#[must_use = "a conflict means that nothing was written"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All operations were applied.
    Committed {
        /// The store's revision of the transaction.
        revision: i64,
    },
    /// A guard did not hold: nothing was written. Read again and decide anew.
    Conflict,
}

impl Txn {
    /// A transaction without guards and operations.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Txn {
        self.guards.push(guard);
        self
    }

    /// Adds a put without a lease.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Txn {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Txn {
        self.ops.push(Op::Delete { key: key.into() });
        self
    }
}

impl Txn {
    /// Key that stands for the transaction in error messages.
    pub(crate) fn name(&self) -> &str {
        self.ops.first().map_or("nothing", Op::key)
    }

    /// Checks the number of guards and operations.
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
            Guard::NotPutSince { first, last, revision } => {
                let end = format!("{last}\0");
                Compare::mod_revision(first, CompareOp::Less, revision.saturating_add(1)).with_range(end)
            }
        }
    }

    /// The condition that the key does not exist.
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

    /// The key that the operation writes.
    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}
