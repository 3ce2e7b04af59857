//! `netctl login`, and the token that it keeps.

use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{Error, client::Client};

fn path() -> Result<PathBuf, Error> {
    let home = std::env::var_os("HOME")
        .ok_or_else(|| Error::Usage("HOME is not set: no place for a token".into()))?;
    Ok(PathBuf::from(home).join(".netctl/config.json"))
}

/// The token, if somebody has logged in.
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

/// The token in a file that somebody names.
pub fn first_line(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        _ => {
            Err(Error::Usage(format!("--token-file {}: there is no token in its first line", path.display())))
        }
    }
}

fn keep(token: &str) -> Result<(), Error> {
    let path = path()?;
    if let Some(folder) = path.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(Error::file("make", folder))?;
    }
    // Renamed into place: never half a file, nor one that others could read.
    let new = path.with_extension("json.new");
    let write = || {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        writeln!(file, "{}", json!({"token": token}))?;
        fs::rename(&new, &path)
    };
    write().map_err(Error::file("write", &path))
}

/// Asks for name and password, and keeps the token that they are good for.
pub fn login(client: &Client, out: &mut dyn Write) -> Result<(), Error> {
    if !client.is_secure() {
        return Err(Error::Refused(
            "login requires a https auth_proxy URL: --netmaster https://HOST:10000".into(),
        ));
    }
    write!(out, "Username: ")?;
    out.flush()?;
    let stdin = io::stdin();
    let mut user = String::new();
    stdin.lock().read_line(&mut user)?;
    let password = if stdin.is_terminal() {
        rpassword::prompt_password("Password: ")?
    } else {
        let mut line = String::new();
        stdin.lock().read_line(&mut line)?;
        line.trim_end_matches(['\r', '\n']).to_owned()
    };
    keep(&client.login(user.trim(), &password)?)?;
    Ok(writeln!(out, "Login successful")?)
}
