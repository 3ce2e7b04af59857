//! Errors with etcd's codes and texts: clients distinguish them by both.

use tonic::{Code, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    #[error("etcdserver: key not found")]
    KeyNotFound,
    #[error("etcdserver: value is provided")]
    ValueProvided,
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    #[error("etcdserver: invalid sort option")]
    InvalidSort,
    #[error("etcdserver: request is too large")]
    TooLarge,
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let code = match refusal {
            Refusal::EmptyKey
            | Refusal::KeyNotFound
            | Refusal::ValueProvided
            | Refusal::LeaseProvided
            | Refusal::TooManyOps
            | Refusal::DuplicateKey
            | Refusal::InvalidSort
            | Refusal::TooLarge => Code::InvalidArgument,
            Refusal::Compacted | Refusal::FutureRevision | Refusal::LeaseTtlTooLarge => Code::OutOfRange,
            Refusal::LeaseNotFound => Code::NotFound,
            Refusal::LeaseExists => Code::FailedPrecondition,
        };
        Status::new(code, refusal.to_string())
    }
}
