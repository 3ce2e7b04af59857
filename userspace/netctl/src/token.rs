//! The token of netmaster: `~/.netctl/config.json`, and `--token-file`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use ureq::http::Uri;

use crate::{error::Error, private_file};

fn path() -> Result<PathBuf, Error> {
    let home =
        std::env::var_os("HOME").ok_or_else(|| Error::Usage("store the token: HOME is not set".into()))?;
    Ok(PathBuf::from(home).join(".netctl/config.json"))
}

/// Reads the token that `netctl login` stored, if it is for all of these netmasters: others could use it. The original and
/// earlier releases did not store where a token is from; such a token is returned if `takes_unknown`.
pub fn read(netmasters: &[String], takes_unknown: bool) -> Result<Option<String>, Error> {
    let Ok(path) = path() else { return Ok(None) };
    let Some(text) = private_file::read(&path)? else { return Ok(None) };
    let config: Value =
        serde_json::from_str(&text).map_err(|error| Error::file("read", &path)(error.into()))?;
    Ok(token_for(&config, netmasters, takes_unknown).map(str::to_owned))
}

fn token_for<'c>(config: &'c Value, netmasters: &[String], takes_unknown: bool) -> Option<&'c str> {
    let token = config.get("token").and_then(Value::as_str)?;
    let Some(known) = config.get("netmasters").and_then(Value::as_array) else {
        return takes_unknown.then_some(token);
    };
    let is_known = |origin: String| known.iter().any(|known| known.as_str() == Some(origin.as_str()));
    netmasters.iter().all(|url| origin(url).is_some_and(is_known)).then_some(token)
}

/// Host and port of an https URL in one form; none for an invalid URL.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("https://{}:{}", uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(443)))
}

/// Reads the token from the first line of a file.
pub fn first_line(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        _ => Err(Error::Usage(format!("--token-file {}: no token in the first line", path.display()))),
    }
}

/// Stores a token for these netmasters with mode 0600.
pub fn store(token: &str, netmasters: &[String]) -> Result<(), Error> {
    let netmasters: Vec<String> = netmasters.iter().filter_map(|url| origin(url)).collect();
    private_file::write(&path()?, &format!("{}\n", json!({"token": token, "netmasters": netmasters})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_the_netmasters_where_it_was_obtained() {
        let stored = json!({"token": "t", "netmasters": ["https://a:9999", "https://b:443"]});
        let unknown = json!({"token": "t"});
        for (urls, is_for) in [
            (&["https://a:9999"][..], true),
            (&["https://A:9999/x"], true),
            (&["https://b", "https://a:9999"], true),
            (&["https://a"], false),
            (&["https://c:9999"], false),
            (&["https://a:9999", "https://c:9999"], false),
            (&["https://"], false),
        ] {
            let netmasters: Vec<String> = urls.iter().map(|&url| url.to_owned()).collect();
            for takes_unknown in [false, true] {
                let token = token_for(&stored, &netmasters, takes_unknown);
                assert_eq!(token, is_for.then_some("t"), "{urls:?}");
                let token = token_for(&unknown, &netmasters, takes_unknown);
                assert_eq!(token, takes_unknown.then_some("t"), "{urls:?}");
            }
        }
        assert_eq!(token_for(&json!({}), &[], true), None);
    }
}
