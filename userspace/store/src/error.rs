//! Errors of the store client.

use crate::MAX_TXN_OPS;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tonic::Code;

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Connecting to the store.
    Connect,
    /// Reading one key.
    Get,
    /// Reading all keys of a prefix.
    List,
    /// Committing a transaction.
    Commit,
    /// Watching a prefix.
    Watch,
    /// Granting a lease.
    Grant,
    /// Renewing a lease.
    KeepAlive,
    /// Reading the remaining time of a lease.
    TimeToLive,
    /// Revoking a lease.
    Revoke,
    /// Compacting the history.
    Compact,
    /// Reading the size of the database and its alarms.
    Status,
}

/// Why a request to the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint in the configuration is malformed.
    #[error("store endpoint {endpoint:?}: {why}; write http://HOST:PORT, https://HOST:PORT or HOST:PORT")]
    Endpoint {
        /// The endpoint as configured.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },

    /// The configuration has no endpoint.
    #[error("no store endpoint given; try http://127.0.0.1:2379")]
    NoEndpoint,

    /// A TLS file cannot be read.
    #[error("read {what} {}", path.display())]
    TlsFile {
        /// What the file contains.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Underlying error.
        source: std::io::Error,
    },

    /// The request was not sent, or the connection broke before the answer arrived.
    #[error("{operation} {key}: no connection; is etcd running at {endpoints}?")]
    Unreachable {
        /// Operation that failed.
        operation: Operation,
        /// Key or prefix that the request is for.
        key: String,
        /// Endpoints of the configuration, separated by commas.
        endpoints: String,
        /// Underlying error.
        source: Cause,
    },

    /// The store did not answer in time.
    #[error("{operation} {key}: no answer within {limit:?}; is etcd running and healthy at {endpoints}?")]
    Timeout {
        /// Operation that failed.
        operation: Operation,
        /// Key or prefix that the request is for.
        key: String,
        /// Endpoints of the configuration, separated by commas.
        endpoints: String,
        /// Time limit that was exceeded.
        limit: Duration,
    },

    /// The store refused the request.
    #[error("{operation} {key}")]
    Refused {
        /// Operation that failed.
        operation: Operation,
        /// Key or prefix that the request is for.
        key: String,
        /// Underlying error.
        source: Cause,
    },

    /// The database has reached its quota: the store refuses all requests that would make it grow,
    /// until an operator frees space. No other member accepts them.
    #[error(
        "{operation} {key}: the database of etcd has reached its quota (alarm NOSPACE); compact and defragment it, then run `etcdctl alarm disarm`"
    )]
    OutOfSpace {
        /// Operation that failed.
        operation: Operation,
        /// Key or prefix that the request is for.
        key: String,
    },

    /// A transaction exceeds [`MAX_TXN_OPS`].
    #[error(
        "commit {key}: {guards} guards and {ops} operations; a transaction has at most {MAX_TXN_OPS} of each"
    )]
    TooManyOps {
        /// Key or prefix that the request is for.
        key: String,
        /// Number of guards.
        guards: usize,
        /// Number of operations.
        ops: usize,
    },
}

/// Error reported by the store or by the transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Cause {
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Status in the store's answer.
    Refused(Code),
    /// The connection broke; the request may have taken effect.
    Broken,
    /// The connection could not be established.
    Unsent,
}

/// etcd distinguishes these two by the text only: both have the code `OUT_OF_RANGE`.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const TOO_LARGE: &str = "etcdserver: request is too large";
/// Its code `RESOURCE_EXHAUSTED` is also that of an overloaded member.
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

/// Of a request whose token has expired, or is older than the last change of etcd's users and roles.
const STALE_LOGIN: [&str; 2] =
    ["etcdserver: invalid auth token", "etcdserver: revision of auth store is old"];
/// Also what etcd before 3.5 says of a watch with such a token.
const DENIED: &str = "etcdserver: permission denied";

impl Error {
    /// Returns true if a retry can succeed: the store is unavailable, overloaded or without a
    /// leader, or wants a new login.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::Timeout { .. } => true,
            Error::Refused { .. } if self.needs_login() => true,
            // gRPC's limit of the size of a message has the code of an overloaded member.
            Error::Refused { source, .. } if !self.is_too_large() => {
                matches!(source.code(), Some(Code::Unavailable | Code::ResourceExhausted | Code::Aborted))
            }
            _ => false,
        }
    }

    /// For a commit: returns true if the answer was lost, so that the transaction may or may not
    /// have been applied.
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

    /// Whether a new login may help. The store has not carried out the request. The client library logs in again
    /// only for expired tokens, and not for watches: they are refused in their streams.
    pub(crate) fn needs_login(&self) -> bool {
        let Error::Refused { operation, source, .. } = self else { return false };
        STALE_LOGIN.iter().any(|text| source.text.contains(text))
            || *operation == Operation::Watch && source.text.contains(DENIED)
    }

    /// Returns true if the request exceeds a size limit: etcd's `--max-request-bytes`, or gRPC's
    /// message size.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.text.contains(TOO_LARGE) || source.text.contains("larger than max"))
    }

    /// Returns true if the database has reached its quota. If the quota was reached while a commit
    /// was in progress, etcd refuses it although it has applied it: read the keys before a retry.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Error::OutOfSpace { .. })
    }

    /// Returns true if the store's user lacks the permission for the request.
    pub fn is_permission_denied(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.code() == Some(Code::PermissionDenied))
    }

    /// Whether the requested revision was compacted.
    pub fn is_compacted(&self) -> bool {
        matches!(self, Error::Refused { source, .. }
            if source.code() == Some(Code::OutOfRange) && source.text == COMPACTED)
    }

    /// Whether the requested revision was compacted, or is not reached yet.
    pub(crate) fn is_out_of_range(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.code() == Some(Code::OutOfRange))
    }

    /// Whether the answer exceeds the largest message that the client accepts.
    pub(crate) fn is_answer_too_large(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.text.contains("decoded message length too large"))
    }

    /// Returns true if the lease of the request does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { source, .. } if source.code() == Some(Code::NotFound))
    }

    /// For an attempt of a commit and a later one that failed with `later`: whether the commit may
    /// have been applied although `later` alone means that it was not. Callers take
    /// [`Error::is_out_of_space`] for an unknown outcome themselves, and its text helps operators.
    pub(crate) fn hides_outcome_of(&self, later: &Error) -> bool {
        self.outcome_unknown() && !later.outcome_unknown() && !later.is_out_of_space()
    }

    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, Error::Unreachable { source, .. } if source.kind == Kind::Unsent)
    }
}

impl Cause {
    /// Whether the database has reached its quota.
    pub(crate) fn is_out_of_space(&self) -> bool {
        self.code() == Some(Code::ResourceExhausted) && self.text.contains(NO_SPACE)
    }

    /// The gRPC status in the store's answer; `None` if the transport failed.
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
        // tonic creates a status with a source locally, from a transport error.
        match std::error::Error::source(&status) {
            Some(source) => Cause::transport(source),
            None => Cause::refused(status.code(), status.message()),
        }
    }
}

/// The error and its sources in one line, without the repetitions of transport errors.
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

/// The error and its source in one line.
pub(crate) fn one_line(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
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
            Operation::KeepAlive => "renew the lease of",
            Operation::TimeToLive => "read the lease of",
            Operation::Revoke => "revoke the lease of",
            Operation::Compact => "compact",
            Operation::Status => "read the status of",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code, text: &str) -> Error {
        let (operation, key) = (Operation::Commit, "k".to_owned());
        Error::Refused { operation, key, source: Cause::refused(code, text) }
    }

    #[test]
    fn a_request_that_is_too_large_is_not_repeated() {
        let too_large = refused(Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)");
        assert!(too_large.is_too_large() && !too_large.is_transient());
        let overloaded = refused(Code::ResourceExhausted, "etcdserver: too many requests");
        assert!(!overloaded.is_too_large() && overloaded.is_transient());
    }

    #[test]
    fn later_errors_do_not_hide_that_a_commit_may_be_applied() {
        let unreachable = |source| Error::Unreachable {
            operation: Operation::Commit,
            key: "k".to_owned(),
            endpoints: String::new(),
            source,
        };
        let lost = unreachable(Cause::broken("reset"));
        let unsent = unreachable(Cause { kind: Kind::Unsent, text: "refused".to_owned() });
        let denied = refused(Code::PermissionDenied, "permission denied");
        let full = Error::OutOfSpace { operation: Operation::Commit, key: "k".to_owned() };
        assert_eq!(
            [&unsent, &denied, &full, &lost].map(|later| lost.hides_outcome_of(later)),
            [true, true, false, false]
        );
        assert!(!unsent.hides_outcome_of(&denied));
    }
}
