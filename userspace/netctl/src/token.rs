//! The token of netmaster: `~/.netctl/config.json`, and `--token-file`.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::error::Error;

fn path() -> Result<PathBuf, Error> {
    let home =
        std::env::var_os("HOME").ok_or_else(|| Error::Usage("store the token: HOME is not set".into()))?;
    Ok(PathBuf::from(home).join(".netctl/config.json"))
}

/// Reads the token that `netctl login` stored, if there is one.
pub fn read() -> Result<Option<String>, Error> {
    let Ok(path) = path() else { return Ok(None) };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::file("read", &path))?,
    };
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
    let path = path()?;
    if let Some(folder) = path.parent() {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(Error::file("create", folder))?;
    }
    // Renaming makes the replacement atomic, and the file is never readable by others.
    let new = path.with_extension("json.new");
    let write = || {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        writeln!(file, "{}", json!({"token": token}))?;
        fs::rename(&new, &path)
    };
    write().map_err(Error::file("write", &path))
}
