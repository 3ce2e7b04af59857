//! Errors and outcomes of commands, with their exit codes.

use std::{mem, path::Path};

/// Cause of a failed command. The exit codes are the original's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid arguments: exit 1.
    #[error("{0}")]
    Usage(String),
    /// The request did not reach netmaster: exit 3.
    #[error("{method} {url} ({hint})")]
    Request {
        /// HTTP method.
        method: &'static str,
        /// Complete URL.
        url: String,
        /// Remedy for the operator.
        hint: &'static str,
        /// Error of the HTTP client.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The request reached none of several netmasters; one line each: exit 3.
    #[error("{}", .0.join("\n"))]
    Unreachable(Vec<String>),
    /// netmaster rejected the request: exit 3.
    #[error("{0}")]
    Refused(String),
    /// The role of the client does not allow the request: exit 3.
    #[error("{0}")]
    Forbidden(String),
    /// The object is not in the state that the change was made for; nothing was changed: exit 3.
    #[error("{0}")]
    Conflict(String),
    /// netmaster is temporarily unavailable, also after repetitions of the request, or a proxy has no answer of it: exit 3.
    #[error("{0}")]
    Unavailable(String),
    /// Invalid files, several requests that netmaster rejected, or one about an object of a file that failed; one line each:
    /// exit 3.
    #[error("{}", .0.join("\n"))]
    Several(Vec<String>),
    /// The response body is not the expected JSON: exit 3.
    #[error("read the answer to {method} {url}")]
    Answer {
        /// HTTP method.
        method: &'static str,
        /// Complete URL.
        url: String,
        /// Parser error.
        #[source]
        source: serde_json::Error,
    },
    /// A part of the path of a traced packet is unknown: exit 3.
    #[error("{0}")]
    Incomplete(String),
    /// The condition of `wait` was not met in time: exit 5.
    #[error("{0}")]
    TimedOut(String),
    /// A file cannot be read or written: exit 4.
    #[error("{action} {}", path.display())]
    File {
        /// Failed operation, such as `read`.
        action: &'static str,
        /// Path of the file.
        path: std::path::PathBuf,
        /// System error.
        #[source]
        source: std::io::Error,
    },
    /// The terminal or pipe failed: exit 4.
    #[error("read from standard input or write to standard output")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// Returns a converter from system errors to [`Error::File`].
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    }

    /// Error of a request that reached no netmaster, from the error of each attempt.
    pub fn unreachable(mut attempts: Vec<Error>) -> Error {
        match attempts.pop() {
            Some(only) if attempts.is_empty() => only,
            last => {
                let lines = attempts.into_iter().chain(last).map(|error| one_line(&error));
                Error::Unreachable(lines.collect())
            }
        }
    }

    /// Prefixes the failure of a request with the object of a file; `remaining` is the number of later changes that are not
    /// sent.
    pub fn with_object(self, object: impl std::fmt::Display, remaining: usize) -> Error {
        let text = |message: String| with_remaining(format!("{object}: {message}"), remaining);
        match self {
            Error::Refused(message) => Error::Refused(text(message)),
            Error::Forbidden(message) => Error::Forbidden(text(message)),
            Error::Conflict(message) => Error::Conflict(text(message)),
            Error::Unavailable(message) => Error::Unavailable(text(message)),
            other @ (Error::Request { .. } | Error::Unreachable(_) | Error::Answer { .. }) => {
                Error::Several(vec![text(one_line(&other).replace('\n', "; "))])
            }
            other => other,
        }
    }

    /// Whether the same request may succeed later: netmaster could not be reached or was unavailable.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::Request { .. } | Error::Unreachable(_) | Error::Unavailable(_))
    }

    /// Whether the reader of the output closed the pipe. This is not reported.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 1,
            Error::Request { .. }
            | Error::Unreachable(_)
            | Error::Refused(_)
            | Error::Forbidden(_)
            | Error::Conflict(_)
            | Error::Unavailable(_)
            | Error::Several(_)
            | Error::Incomplete(_)
            | Error::Answer { .. } => 3,
            Error::File { .. } | Error::Output(_) => 4,
            Error::TimedOut(_) => 5,
        }
    }
}

/// Lines of the requests of a command that netmaster has rejected. A rejection does not stop later requests; any other failure
/// does.
#[derive(Debug, Default)]
pub struct Rejections(Vec<String>);

impl Rejections {
    /// Adds the failure of a request, as `line` reports its message; `remaining` is the number of later requests. Fails with all
    /// lines if it is no rejection, and the later requests must not be sent then.
    pub fn add(
        &mut self,
        error: Error,
        remaining: usize,
        line: impl Fn(&str) -> String,
    ) -> Result<(), Error> {
        match error {
            Error::Refused(message) | Error::Forbidden(message) | Error::Conflict(message) => {
                self.0.push(line(&message));
                Ok(())
            }
            error => {
                let message = with_remaining(one_line(&error).replace('\n', "; "), remaining);
                self.0.push(line(&message));
                Err(Error::Several(mem::take(&mut self.0)))
            }
        }
    }

    /// Fails with all lines, if there are any.
    pub fn finish(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Several(self.0)) }
    }
}

/// Adds the number of later changes that are not sent to a message.
fn with_remaining(message: String, remaining: usize) -> String {
    match remaining {
        0 => message,
        _ => format!("{message} (later changes not sent: {remaining})"),
    }
}

/// An error and its causes in one line.
pub fn one_line(error: &Error) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    line
}

/// Result of a command that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit 0.
    Done,
    /// `policy check` found that the connection is denied: exit 5, which no failed request has.
    Denied,
    /// `diff` found differences: exit 5.
    Different,
}

impl Outcome {
    /// Exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Denied | Outcome::Different => 5,
        }
    }
}
