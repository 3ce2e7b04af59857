//! Failed requests, with error texts that clients of the original expect.

use std::fmt;

/// A failed request: one line of text and the kind of failure.
///
/// The original answers every failure with status 500 and the text, and its clients read the text
/// only with that status. The kind determines the status for clients that request RFC 9457 problem
/// details. [`Kind::Unavailable`] is 503, [`Kind::Forbidden`] 403, [`Kind::Precondition`] 412 and
/// [`Kind::TooMany`] 429 for all clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is invalid.
    Invalid,
    /// An object that the request refers to does not exist.
    NotFound,
    /// The role of the client does not cover the request.
    Forbidden,
    /// The request conflicts with existing objects.
    Conflict,
    /// The object is not in the state that the request requires.
    Precondition,
    /// The request body exceeds the size limit.
    TooLarge,
    /// The request body did not arrive in time.
    TooSlow,
    /// The client has too many requests in flight.
    TooMany,
    /// A server that netmaster depends on failed or did not respond.
    Gateway,
    /// Temporary failure; the client can retry.
    Unavailable,
    /// The original supports the request; this release does not.
    NotBuilt,
}

/// Words for a change that has an unknown outcome. netctl does not repeat such a request.
const MAY_BE_DONE: &str = "the request may have been carried out";

/// Body of a response, or the failure.
pub type Answer = Result<Vec<u8>, Problem>;

impl Kind {
    /// HTTP status of the RFC 9457 problem.
    pub fn status(self) -> u16 {
        match self {
            Kind::Invalid => 400,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Conflict => 409,
            Kind::Precondition => 412,
            Kind::TooLarge => 413,
            Kind::TooSlow => 408,
            Kind::TooMany => 429,
            Kind::Gateway => 502,
            Kind::Unavailable => 503,
            Kind::NotBuilt => 501,
        }
    }
}

impl Problem {
    pub fn invalid(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Invalid, text: text.into() }
    }

    pub fn forbidden(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Forbidden, text: text.into() }
    }

    pub fn not_found(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::NotFound, text: text.into() }
    }

    pub fn conflict(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Conflict, text: text.into() }
    }

    pub fn precondition(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Precondition, text: text.into() }
    }

    pub fn too_large(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::TooLarge, text: text.into() }
    }

    pub fn too_slow(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::TooSlow, text: text.into() }
    }

    pub fn too_many(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::TooMany, text: text.into() }
    }

    pub fn gateway(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Gateway, text: text.into() }
    }

    pub fn unavailable(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Unavailable, text: text.into() }
    }

    /// A temporary failure after which the outcome of a change is unknown.
    pub fn unknown_outcome(why: impl fmt::Display) -> Problem {
        Problem::unavailable(format!("{why}; {MAY_BE_DONE}"))
    }

    pub fn is_unknown_outcome(&self) -> bool {
        self.text.ends_with(MAY_BE_DONE)
    }

    /// This netmaster is no longer the leader. Nothing was changed.
    pub fn deposed() -> Problem {
        Problem::unavailable("this netmaster is no longer the leader; retry")
    }

    /// `what` is a plural noun or a call: "policy objects", "updateEndpoint".
    pub fn not_built(what: impl fmt::Display) -> Problem {
        let verb = if what.to_string().ends_with('s') { "are" } else { "is" };
        Problem { kind: Kind::NotBuilt, text: format!("{what} {verb} not built yet") }
    }

    /// The original's text for a key that does not exist in its store.
    pub fn key_not_found() -> Problem {
        Problem::not_found("key not found")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The error and its causes on one line.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " ")
}
