//! Why a request was refused, in the words that clients know.

use std::fmt;

/// A refused request: one line of text, and what kind of refusal it is.
///
/// The original answers every failure with status 500 and the text, and its clients read the text only then; the
/// kind decides the status for clients that ask for RFC 9457 problems. [`Kind::Unavailable`] is 503 for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request itself is wrong.
    Invalid,
    /// What it names is not there.
    NotFound,
    /// It does not go together with what is there.
    Conflict,
    /// Its body is larger than any that means something.
    TooLarge,
    /// Its body did not come in time.
    TooSlow,
    /// What netmaster had to ask for it refused, or did not answer.
    Gateway,
    /// Another time, or another netmaster, may do it.
    Unavailable,
    /// The original does it; this release does not.
    NotBuilt,
}

/// The body of an answer, or why there is none.
pub type Answer = Result<Vec<u8>, Problem>;

impl Kind {
    /// The status of an RFC 9457 problem.
    pub fn status(self) -> u16 {
        match self {
            Kind::Invalid => 400,
            Kind::NotFound => 404,
            Kind::Conflict => 409,
            Kind::TooLarge => 413,
            Kind::TooSlow => 408,
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

    pub fn not_found(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::NotFound, text: text.into() }
    }

    pub fn conflict(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Conflict, text: text.into() }
    }

    pub fn too_large(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::TooLarge, text: text.into() }
    }

    pub fn too_slow(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::TooSlow, text: text.into() }
    }

    pub fn gateway(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Gateway, text: text.into() }
    }

    pub fn unavailable(text: impl Into<String>) -> Problem {
        Problem { kind: Kind::Unavailable, text: text.into() }
    }

    /// Nothing was done.
    pub fn deposed() -> Problem {
        Problem::unavailable("this netmaster leads no more; try again")
    }

    /// `what` is a plural or a call: "policy objects", "updateEndpoint".
    pub fn not_built(what: impl fmt::Display) -> Problem {
        let verb = if what.to_string().ends_with('s') { "are" } else { "is" };
        Problem { kind: Kind::NotBuilt, text: format!("{what} {verb} not built yet") }
    }

    /// The original's words for a key that its store does not have.
    pub fn key_not_found() -> Problem {
        Problem::not_found("key not found")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error with its causes.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " ")
}
