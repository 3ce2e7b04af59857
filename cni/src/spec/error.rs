use serde::Serialize;

use super::Version;

/// What kind of failure it is, for the runtime. Numbers from 100 on are the plugin's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration's version is none that the plugin speaks, or too old for the command.
    IncompatibleVersion,
    /// A field of the configuration is not supported.
    UnsupportedField,
    /// The container is unknown.
    UnknownContainer,
    /// An environment variable is missing or wrong.
    InvalidEnvironment,
    /// Reading or writing failed.
    Io,
    /// The configuration is no JSON of the right form.
    Decode,
    /// The configuration does not make sense.
    InvalidConfig,
    /// Something passing: the runtime should try again.
    TryAgain,
    /// The agent could not do what was asked.
    Agent,
    /// Any other number, as the agent gave it.
    Other(u32),
}

impl Code {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Code::IncompatibleVersion => 1,
            Code::UnsupportedField => 2,
            Code::UnknownContainer => 3,
            Code::InvalidEnvironment => 4,
            Code::Io => 5,
            Code::Decode => 6,
            Code::InvalidConfig => 7,
            Code::TryAgain => 11,
            Code::Agent => 100,
            Code::Other(number) => number,
        }
    }
}

impl From<u32> for Code {
    fn from(number: u32) -> Code {
        match number {
            1 => Code::IncompatibleVersion,
            2 => Code::UnsupportedField,
            3 => Code::UnknownContainer,
            4 => Code::InvalidEnvironment,
            5 => Code::Io,
            6 => Code::Decode,
            7 => Code::InvalidConfig,
            11 => Code::TryAgain,
            100 => Code::Agent,
            other => Code::Other(other),
        }
    }
}

/// A failure as the specification wants it told: on standard output, with exit status 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct Error {
    /// What kind.
    pub code: Code,
    /// What failed, in one line.
    pub msg: String,
    /// Why, and what to try.
    pub details: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    cni_version: &'static str,
    code: u32,
    msg: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    details: &'a str,
}

impl Error {
    /// A failure without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Error {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// The same failure with the reason.
    #[must_use]
    pub fn details(self, details: impl Into<String>) -> Error {
        Error { details: details.into(), ..self }
    }

    /// The JSON of `version`, in one line.
    pub fn to_json(&self, version: Version) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Body {
            cni_version: version.as_str(),
            code: self.code.number(),
            msg: &self.msg,
            details: &self.details,
        })
    }
}
