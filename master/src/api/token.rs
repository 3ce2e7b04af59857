//! Who may ask, and what: bearer tokens.

use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, Method, header};
use contiv_daemon::secret;
use subtle::ConstantTimeEq as _;

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// GET and HEAD.
    Read,
    /// Everything.
    Write,
}

struct Token {
    name: String,
    scope: Scope,
    secret: String,
}

/// The tokens that are let in. Nothing of it can be logged but the names.
pub struct Tokens(Vec<Token>);

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("token file")]
    Secret(#[source] secret::Error),
    #[error("{}:{line}: {why}; expected NAME read|write TOKEN, the token of {SHORTEST} characters or more", path.display())]
    Line { path: PathBuf, line: usize, why: &'static str },
    #[error("{} has no token; expected lines of NAME read|write TOKEN", path.display())]
    None { path: PathBuf },
}

/// A token that can be guessed is none.
const SHORTEST: usize = 16;

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No token, or none that is known.
    Unknown,
    /// It is known, and may not do this.
    Forbidden,
}

impl Tokens {
    /// Lines of `NAME read|write TOKEN`; empty ones and those that begin with `#` mean nothing.
    pub fn read(path: &Path) -> Result<Tokens, Error> {
        Tokens::parse(&secret::read(path).map_err(Error::Secret)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Tokens, Error> {
        let mut tokens: Vec<Token> = Vec::new();
        for (n, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |why| Error::Line { path: path.to_owned(), line: n, why };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, scope, secret] = words[..] else { return Err(bad("not three words")) };
            let scope = match scope {
                "read" => Scope::Read,
                "write" => Scope::Write,
                _ => return Err(bad("neither read nor write")),
            };
            if secret.len() < SHORTEST {
                return Err(bad("the token is too short"));
            }
            if !secret.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(bad("the token is not printable ASCII"));
            }
            if tokens.iter().any(|known| known.name == name) {
                return Err(bad("the name is there already"));
            }
            if tokens.iter().any(|known| known.secret == secret) {
                return Err(bad("the token is there already"));
            }
            tokens.push(Token { name: name.to_owned(), scope, secret: secret.to_owned() });
        }
        if tokens.is_empty() { Err(Error::None { path: path.to_owned() }) } else { Ok(Tokens(tokens)) }
    }

    /// The name of the token that lets the request in: `Authorization: Bearer`, or the original's `X-Auth-Token`.
    pub(super) fn admit(&self, method: &Method, headers: &HeaderMap) -> Result<&str, Refusal> {
        let given = presented(headers).ok_or(Refusal::Unknown)?;
        // All are compared, each in constant time: how long it takes tells nothing but a token's length.
        let same = |token: &Token| bool::from(token.secret.as_bytes().ct_eq(given));
        let found = self.0.iter().fold(None, |found, token| if same(token) { Some(token) } else { found });
        let token = found.ok_or(Refusal::Unknown)?;
        match token.scope {
            Scope::Write => Ok(&token.name),
            Scope::Read if [Method::GET, Method::HEAD].contains(method) => Ok(&token.name),
            Scope::Read => Err(Refusal::Forbidden),
        }
    }
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-auth-token").map(|value| value.as_bytes().trim_ascii()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const FILE: &str = "# who may\nops write 0123456789abcdef\n\n  board  read\tfedcba9876543210 \n";

    fn parse(text: &str) -> Result<Tokens, String> {
        Tokens::parse(text, Path::new("tokens")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_lets_in_whom_it_names_and_no_further() {
        let tokens = parse(FILE).unwrap();
        let ask = |method: Method, name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            tokens.admit(&method, &headers).map(str::to_owned)
        };
        assert_eq!(ask(Method::POST, "authorization", "Bearer 0123456789abcdef"), Ok("ops".into()));
        assert_eq!(ask(Method::DELETE, "x-auth-token", "0123456789abcdef"), Ok("ops".into()));
        assert_eq!(ask(Method::GET, "authorization", "bEARER fedcba9876543210"), Ok("board".into()));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(ask(method, "x-auth-token", "fedcba9876543210"), Err(Refusal::Forbidden));
        }
        for (name, value) in [
            ("authorization", "Basic 0123456789abcdef"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer "),
            ("authorization", "0123456789abcdef"),
            ("x-auth-token", "0123456789abcde"),
            ("x-auth-token", "0123456789abcdefg"),
            ("x-auth-token", ""),
            ("cookie", "0123456789abcdef"),
        ] {
            assert_eq!(ask(Method::GET, name, value), Err(Refusal::Unknown), "{name}: {value}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_used_is_named_and_its_token_is_not() {
        for (text, why) in [
            ("ops write", "tokens:1: not three words"),
            ("\nops admin 0123456789abcdef", "tokens:2: neither read nor write"),
            ("ops read 0123456789", "the token is too short"),
            ("ops read 0123456789abcdé", "not printable ASCII"),
            ("a read 0123456789abcdef\na read 0123456789abcdeF", "tokens:2: the name is there"),
            ("a read 0123456789abcdef\nb read 0123456789abcdef", "tokens:2: the token is there"),
            ("# none\n", "tokens has no token"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.contains(why) && !error.contains("01234"), "{text}: {error}");
        }
    }
}
