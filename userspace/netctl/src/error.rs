//! Errors and outcomes of commands, with their exit codes.

use std::path::Path;

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
    /// netmaster rejected the request: exit 3.
    #[error("{0}")]
    Refused(String),
    /// Invalid files, or several requests that netmaster rejected; one line each: exit 3.
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

    /// Prefixes a rejection with the object of a file; `remaining` is the number of later changes that are not sent.
    pub fn with_object(self, object: String, remaining: usize) -> Error {
        match self {
            Error::Refused(message) if remaining == 0 => Error::Refused(format!("{object}: {message}")),
            Error::Refused(message) => {
                Error::Refused(format!("{object}: {message} (later changes not sent: {remaining})"))
            }
            other => other,
        }
    }

    /// Whether the reader of the output closed the pipe. This is not reported.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 1,
            Error::Request { .. } | Error::Refused(_) | Error::Several(_) | Error::Answer { .. } => 3,
            Error::File { .. } | Error::Output(_) => 4,
        }
    }
}

/// Result of a command that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit 0.
    Done,
    /// `policy check` found that the connection is denied. Exit 5, which no failure has.
    Denied,
}

impl Outcome {
    /// Exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Denied => 5,
        }
    }
}
