//! The token of netmaster: `~/.netctl/config.json`, and `--token-file`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{error::Error, private_file};

fn path() -> Result<PathBuf, Error> {
    let home =
        std::env::var_os("HOME").ok_or_else(|| Error::Usage("store the token: HOME is not set".into()))?;
    Ok(PathBuf::from(home).join(".netctl/config.json"))
}

/// Reads the token that `netctl login` stored, if there is one.
pub fn read() -> Result<Option<String>, Error> {
    let Ok(path) = path() else { return Ok(None) };
    let Some(text) = private_file::read(&path)? else { return Ok(None) };
    let config: Value =
        serde_json::from_str(&text).map_err(|error| Error::file("read", &path)(error.into()))?;
    Ok(config.get("token").and_then(Value::as_str).map(str::to_owned))
}

/// Reads the token from the first line of a file.
pub fn first_line(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        _ => Err(Error::Usage(format!("--token-file {}: no token in the first line", path.display()))),
    }
}

/// Stores a token with mode 0600.
pub fn store(token: &str) -> Result<(), Error> {
    private_file::write(&path()?, &format!("{}\n", json!({"token": token})))
}
