//! Why the store did not do what it was asked.

use crate::MAX_TXN_OPS;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tonic::Code;

/// What was being done when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Connect,
    Get,
    List,
    Commit,
    Watch,
    Grant,
    KeepAlive,
    TimeToLive,
    Revoke,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("store endpoint {endpoint:?}: {why}; write http://HOST:PORT, https://HOST:PORT or HOST:PORT")]
    Endpoint { endpoint: String, why: String },

    #[error("no store endpoint given; try http://127.0.0.1:2379")]
    NoEndpoint,

    #[error("read {what} {}", path.display())]
    TlsFile { what: &'static str, path: PathBuf, source: std::io::Error },

    /// The request was never sent, or the connection broke before the answer came.
    #[error("{operation} {key}: no connection; is etcd running at {endpoints}?")]
    Unreachable { operation: Operation, key: String, endpoints: String, source: Cause },

    #[error("{operation} {key}: no answer within {limit:?}; is etcd running and healthy at {endpoints}?")]
    Timeout { operation: Operation, key: String, endpoints: String, limit: Duration },

    /// The store answered, and the answer is no.
    #[error("{operation} {key}")]
    Refused { operation: Operation, key: String, source: Cause },

    #[error(
        "commit {key}: {guards} guards and {ops} operations; a transaction has at most {MAX_TXN_OPS} of each"
    )]
    TooManyOps { key: String, guards: usize, ops: usize },
}

/// What the store or the transport said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Cause {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The store's answer.
    Refused(Code),
    /// The connection broke; the request may have had its effect.
    Broken,
    /// The connection could not even be made.
    Unsent,
}

/// etcd tells these apart by their text only: both are `OUT_OF_RANGE`.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const TOO_LARGE: &str = "etcdserver: request is too large";

impl Error {
    /// Trying again later can help: the store is away, overloaded or without a leader.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Timeout { .. } => true,
            Error::Refused { source, .. } => {
                matches!(source.code(), Some(Code::Unavailable | Code::ResourceExhausted | Code::Aborted))
            }
            _ => false,
        }
    }

    /// For a commit: the store may or may not have written it, because the answer was lost.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Error::Timeout { .. } => true,
            Error::Unreachable { source, .. } => source.kind == Kind::Broken,
            Error::Refused { source, .. } => {
                matches!(source.code(), Some(Code::Unavailable | Code::Cancelled | Code::Unknown))
            }
            _ => false,
        }
    }

    /// The store never takes so much at once: etcd by its `--max-request-bytes`, or gRPC before it.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.text.contains(TOO_LARGE) || source.text.contains("larger than max"))
    }

    pub(crate) fn is_compacted(&self) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.code() == Some(Code::OutOfRange) && source.text == COMPACTED)
    }

    /// The lease that the request named is gone.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.code() == Some(Code::NotFound))
    }

    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, Error::Unreachable { source, .. } if source.kind == Kind::Unsent)
    }
}

impl Cause {
    /// The status of the store's answer; none if the transport failed.
    pub fn code(&self) -> Option<Code> {
        match self.kind {
            Kind::Refused(code) => Some(code),
            Kind::Broken | Kind::Unsent => None,
        }
    }

    pub(crate) fn refused(code: Code, text: impl Into<String>) -> Cause {
        Cause { kind: Kind::Refused(code), text: text.into() }
    }

    pub(crate) fn broken(text: impl Into<String>) -> Cause {
        Cause { kind: Kind::Broken, text: text.into() }
    }

    fn transport(error: &(dyn std::error::Error + 'static)) -> Cause {
        Cause { kind: if is_connect(error) { Kind::Unsent } else { Kind::Broken }, text: chain(error) }
    }
}

impl From<etcd_client::Error> for Cause {
    fn from(error: etcd_client::Error) -> Cause {
        match error {
            etcd_client::Error::GRpcStatus(status) => Cause::from(status),
            etcd_client::Error::TransportError(e) => Cause::transport(&e),
            etcd_client::Error::WatchError(_) | etcd_client::Error::LeaseKeepAliveError(_) => {
                Cause::broken(error.to_string())
            }
            other => Cause::refused(Code::InvalidArgument, other.to_string()),
        }
    }
}

impl From<tonic::Status> for Cause {
    fn from(status: tonic::Status) -> Cause {
        // A status with a source was made on this side, out of a transport error.
        match std::error::Error::source(&status) {
            Some(source) => Cause::transport(source),
            None => Cause::refused(status.code(), status.message()),
        }
    }
}

/// The error and everything below it in one line, without the repetitions that transports make.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(e) = next {
        let more = e.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = e.source();
    }
    text
}

fn is_connect(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(e) = next {
        if e.is::<tonic::ConnectError>() {
            return true;
        }
        next = e.source();
    }
    false
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Connect => "connect to",
            Operation::Get => "get",
            Operation::List => "list",
            Operation::Commit => "commit",
            Operation::Watch => "watch",
            Operation::Grant => "grant a lease for",
            Operation::KeepAlive => "keep the lease alive of",
            Operation::TimeToLive => "look at the lease of",
            Operation::Revoke => "revoke the lease of",
        })
    }
}
