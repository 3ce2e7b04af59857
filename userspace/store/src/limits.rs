//! Limits of the store.

/// Largest number of operations, and of guards, in one transaction: etcd's default `--max-txn-ops`.
pub const MAX_TXN_OPS: usize = 128;
/// Largest number of operations in a commit of a leader. One whose answer is lost is repeated, with a transaction in it that
/// tells both apart.
pub const MAX_LEADER_OPS: usize = MAX_TXN_OPS - 3;
/// Largest number of guards in a commit of a leader, for the same reason.
pub const MAX_LEADER_GUARDS: usize = MAX_TXN_OPS - 2;
