use std::str::FromStr;

use serde::Serialize;

use super::Version;

/// Error code of the specification. Codes from 100 on are specific to the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The configuration's version is not supported, or too old for the command.
    IncompatibleVersion,
    /// A field of the configuration is not supported.
    UnsupportedField,
    /// The container does not exist.
    UnknownContainer,
    /// An environment variable is missing or invalid.
    InvalidEnvironment,
    /// Reading or writing failed.
    Io,
    /// The configuration is not valid JSON, or a field has the wrong type.
    Decode,
    /// The configuration is invalid.
    InvalidConfig,
    /// A temporary failure: the runtime should retry.
    TryAgain,
    /// The plugin cannot serve an ADD now.
    Unavailable,
    /// The plugin cannot serve an ADD now, and attached containers may have limited connectivity.
    LimitedConnectivity,
    /// The agent failed to serve the request.
    Agent,
    /// Another code, as returned by the agent.
    Other(u32),
}

impl Code {
    /// The number in JSON.
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
            Code::Unavailable => 50,
            Code::LimitedConnectivity => 51,
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
            50 => Code::Unavailable,
            51 => Code::LimitedConnectivity,
            100 => Code::Agent,
            other => Code::Other(other),
        }
    }
}

/// An error in the specification's form: printed to standard output, with exit status 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct Error {
    /// Error code.
    pub code: Code,
    /// What failed, in one line.
    pub msg: String,
    /// Cause, and what to do.
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
    /// An error without details.
    pub fn new(code: Code, msg: impl Into<String>) -> Error {
        Error { code, msg: msg.into(), details: String::new() }
    }

    /// Adds the details.
    #[must_use]
    pub fn details(self, details: impl Into<String>) -> Error {
        Error { details: details.into(), ..self }
    }

    /// JSON of `version`, in one line.
    pub fn to_json(&self, version: Version) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Body {
            cni_version: version.as_str(),
            code: self.code.number(),
            msg: &self.msg,
            details: &self.details,
        })
    }
}

impl FromStr for Version {
    type Err = Error;

    /// An empty text means 0.1.0: configurations of that version had no `cniVersion`.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Version::V0_1_0);
        }
        Version::ALL.into_iter().find(|v| v.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Version::ALL.iter().map(|v| v.as_str()).collect();
            Error::new(Code::IncompatibleVersion, format!("cniVersion {text:?} is not supported"))
                .details(format!("supported versions: {}", known.join(", ")))
        })
    }
}
