//! Contexts: named connections, in `netctl/contexts.json` below `$XDG_CONFIG_HOME` or `~/.config`.

use std::{collections::BTreeMap, env, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{error::Error, private_file};

/// A connection to the netmasters of one cluster.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Context {
    /// URLs of the netmasters.
    pub netmaster: Vec<String>,
    /// CA bundle (PEM) for the netmasters' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cacert: Option<PathBuf>,
    /// Client certificate (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// File with a token in its first line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Whether any certificate is accepted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
}

/// All contexts of the user.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Contexts {
    /// Context that commands use if neither flags nor the environment select another connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Contexts by name.
    pub contexts: BTreeMap<String, Context>,
}

/// Path of the file; none if neither `XDG_CONFIG_HOME` nor `HOME` is an absolute path.
fn path() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(folder.join("netctl/contexts.json"))
}

impl Context {
    /// Whether the URL is one of its netmasters.
    pub fn has(&self, url: &str) -> bool {
        let url = url.trim_end_matches('/');
        self.netmaster.iter().any(|own| own.trim_end_matches('/') == url)
    }
}

impl Contexts {
    /// Reads the file; without one there are no contexts.
    pub fn read() -> Result<Contexts, Error> {
        let Some(path) = path() else { return Ok(Contexts::default()) };
        let Some(text) = private_file::read(&path)? else { return Ok(Contexts::default()) };
        serde_json::from_str(&text).map_err(|error| Error::file("read", &path)(error.into()))
    }

    /// Writes the file with mode 0600.
    pub fn write(&self) -> Result<(), Error> {
        let path = path().ok_or_else(|| {
            Error::Usage("store the context: neither XDG_CONFIG_HOME nor HOME is an absolute path".into())
        })?;
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        private_file::write(&path, &format!("{text}\n"))
    }

    /// Finds a context by name.
    pub fn find(&self, name: &str) -> Result<&Context, Error> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            Error::Usage(format!("no context {name}; known contexts: {known}"))
        })
    }
}
