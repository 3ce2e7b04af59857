//! Limits of the store.

/// Largest number of operations, and of guards, in one transaction: etcd's default `--max-txn-ops`.
pub const MAX_TXN_OPS: usize = 128;
