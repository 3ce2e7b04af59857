//! URL of the gateway to an ACI fabric.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;

/// Base URL of the gateway to an ACI fabric: `http://HOST:PORT` or `https://HOST:PORT`, without a
/// trailing slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayUrl {
    url: String,
    is_https: bool,
}

impl FromStr for GatewayUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<GatewayUrl, Self::Err> {
        const EXPECTED: &str =
            "expected http://HOST:PORT or https://HOST:PORT, such as http://localhost:5000";
        let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
        match (uri.scheme_str(), uri.authority(), uri.query()) {
            // The scheme of the text may be in upper case.
            (Some(scheme @ ("http" | "https")), Some(_), None) => {
                Ok(GatewayUrl { url: text.trim_end_matches('/').to_owned(), is_https: scheme == "https" })
            }
            _ => Err(EXPECTED),
        }
    }
}

impl GatewayUrl {
    pub fn is_https(&self) -> bool {
        self.is_https
    }
}

impl fmt::Display for GatewayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}
