//! Authentication and authorization by bearer tokens.

use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, Method, header};
use contiv_daemon::secret;
use subtle::ConstantTimeEq as _;

/// Scope of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// GET and HEAD only.
    Read,
    /// All methods.
    Write,
}

struct Token {
    name: String,
    scope: Scope,
    secret: String,
}

/// Accepted tokens. Only their names may be logged.
pub struct Tokens(Vec<Token>);

/// The token file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("token file")]
    Secret(#[source] secret::Error),
    #[error("{}:{line}: {why}; expected NAME read|write TOKEN with a token of at least {MIN_LENGTH} characters", path.display())]
    Line { path: PathBuf, line: usize, why: &'static str },
    #[error("{}: no token; expected lines of NAME read|write TOKEN", path.display())]
    None { path: PathBuf },
}

/// Minimum length of a token in characters.
const MIN_LENGTH: usize = 16;

/// Reason for rejecting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// No token, or an unknown token.
    Unauthenticated,
    /// The token's scope does not include the method.
    Forbidden,
}

impl Tokens {
    /// Parses lines of `NAME read|write TOKEN`. Empty lines and lines that start with `#` are
    /// ignored.
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
            let [name, scope, secret] = words[..] else { return Err(bad("expected three words")) };
            let scope = match scope {
                "read" => Scope::Read,
                "write" => Scope::Write,
                _ => return Err(bad("the scope is neither read nor write")),
            };
            if secret.len() < MIN_LENGTH {
                return Err(bad("token too short"));
            }
            if !secret.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(bad("the token is not printable ASCII"));
            }
            if tokens.iter().any(|known| known.name == name) {
                return Err(bad("duplicate name"));
            }
            if tokens.iter().any(|known| known.secret == secret) {
                return Err(bad("duplicate token"));
            }
            tokens.push(Token { name: name.to_owned(), scope, secret: secret.to_owned() });
        }
        if tokens.is_empty() { Err(Error::None { path: path.to_owned() }) } else { Ok(Tokens(tokens)) }
    }

    /// Returns the name of the token in `Authorization: Bearer` or in the original's
    /// `X-Auth-Token`.
    pub(super) fn authorize(&self, method: &Method, headers: &HeaderMap) -> Result<&str, Denial> {
        let given = presented(headers).ok_or(Denial::Unauthenticated)?;
        // All tokens are compared, each in constant time, so that the duration reveals only the
        // length of a token.
        let same = |token: &Token| bool::from(token.secret.as_bytes().ct_eq(given));
        let found = self.0.iter().fold(None, |found, token| if same(token) { Some(token) } else { found });
        let token = found.ok_or(Denial::Unauthenticated)?;
        match token.scope {
            Scope::Write => Ok(&token.name),
            Scope::Read if [Method::GET, Method::HEAD].contains(method) => Ok(&token.name),
            Scope::Read => Err(Denial::Forbidden),
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
    fn tokens_authorize_their_scope_only() {
        let tokens = parse(FILE).unwrap();
        let ask = |method: Method, name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            tokens.authorize(&method, &headers).map(str::to_owned)
        };
        assert_eq!(ask(Method::POST, "authorization", "Bearer 0123456789abcdef"), Ok("ops".into()));
        assert_eq!(ask(Method::DELETE, "x-auth-token", "0123456789abcdef"), Ok("ops".into()));
        assert_eq!(ask(Method::GET, "authorization", "bEARER fedcba9876543210"), Ok("board".into()));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert_eq!(ask(method, "x-auth-token", "fedcba9876543210"), Err(Denial::Forbidden));
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
            assert_eq!(ask(Method::GET, name, value), Err(Denial::Unauthenticated), "{name}: {value}");
        }
    }

    #[test]
    fn invalid_lines_are_reported_without_their_token() {
        for (text, why) in [
            ("ops write", "tokens:1: expected three words"),
            ("\nops admin 0123456789abcdef", "tokens:2: the scope is neither read nor write"),
            ("ops read 0123456789", "token too short"),
            ("ops read 0123456789abcdé", "not printable ASCII"),
            ("a read 0123456789abcdef\na read 0123456789abcdeF", "tokens:2: duplicate name"),
            ("a read 0123456789abcdef\nb read 0123456789abcdef", "tokens:2: duplicate token"),
            ("# none\n", "tokens: no token"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(error.contains(why) && !error.contains("01234"), "{text}: {error}");
        }
    }
}
