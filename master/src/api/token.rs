//! Bearer tokens and their roles.

use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, header};
use contiv_daemon::secret;
use subtle::ConstantTimeEq as _;

use crate::access::{Principal, Role};

struct Token {
    principal: Principal,
    secret: String,
}

/// Accepted tokens. Only their names may be logged.
pub struct Tokens(Vec<Token>);

/// The token file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("token file")]
    Secret(#[source] secret::Error),
    #[error("{}:{line}: {why}; expected NAME ROLE TOKEN with a token of at least {MIN_LENGTH} characters", path.display())]
    Line { path: PathBuf, line: usize, why: String },
    #[error("{}: no token; expected lines of NAME ROLE TOKEN", path.display())]
    None { path: PathBuf },
}

/// Minimum length of a token in characters.
const MIN_LENGTH: usize = 16;

impl Tokens {
    /// Parses lines of `NAME ROLE TOKEN`. Empty lines and lines that start with `#` are
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
            let bad = |why: &str| Error::Line { path: path.to_owned(), line: n, why: why.to_owned() };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, role, secret] = words[..] else { return Err(bad("expected three words")) };
            let role = Role::parse(role).map_err(|error| bad(&error.to_string()))?;
            if secret.len() < MIN_LENGTH {
                return Err(bad("token too short"));
            }
            if !secret.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(bad("the token is not printable ASCII"));
            }
            if tokens.iter().any(|known| known.principal.name == name) {
                return Err(bad("duplicate name"));
            }
            if tokens.iter().any(|known| known.secret == secret) {
                return Err(bad("duplicate token"));
            }
            let principal = Principal { name: name.to_owned(), role };
            tokens.push(Token { principal, secret: secret.to_owned() });
        }
        if tokens.is_empty() { Err(Error::None { path: path.to_owned() }) } else { Ok(Tokens(tokens)) }
    }

    /// The client with the token `given`.
    pub(super) fn find(&self, given: &[u8]) -> Option<&Principal> {
        // All tokens are compared, each in constant time, so that the duration reveals only the
        // length of a token.
        let same = |token: &Token| bool::from(token.secret.as_bytes().ct_eq(given));
        let found = self.0.iter().fold(None, |found, token| if same(token) { Some(token) } else { found });
        found.map(|token| &token.principal)
    }
}

/// The token in `Authorization: Bearer` or in the original's `X-Auth-Token`.
pub(super) fn presented(headers: &HeaderMap) -> Option<&[u8]> {
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

    const FILE: &str = "# who may\nops write 0123456789abcdef\n\n  board  read\tfedcba9876543210 \nci tenant-operator:blue blue-0123456789abcdef\n";

    fn parse(text: &str) -> Result<Tokens, String> {
        Tokens::parse(text, Path::new("tokens")).map_err(|error| error.to_string())
    }

    #[test]
    fn tokens_are_found_in_both_headers() {
        let tokens = parse(FILE).unwrap();
        let ask = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )]);
            let found = presented(&headers).and_then(|given| tokens.find(given));
            found.map(|principal| (principal.name.clone(), principal.role.clone()))
        };
        let (ops, board) = (("ops".to_owned(), Role::Admin), ("board".to_owned(), Role::ReadOnly));
        assert_eq!(ask("authorization", "Bearer 0123456789abcdef"), Some(ops.clone()));
        assert_eq!(ask("x-auth-token", "0123456789abcdef"), Some(ops));
        assert_eq!(ask("authorization", "bEARER fedcba9876543210"), Some(board));
        let (_, role) = ask("x-auth-token", "blue-0123456789abcdef").unwrap();
        assert_eq!(role, Role::TenantOperator(["blue".to_owned()].into()));
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
            assert_eq!(ask(name, value), None, "{name}: {value}");
        }
    }

    #[test]
    fn invalid_lines_are_reported_without_their_token() {
        for (text, why) in [
            ("ops write", "tokens:1: expected three words"),
            ("\nops boss 0123456789abcdef", "tokens:2: unknown role"),
            ("h netmaster 0123456789abcdef", "tokens:1: unknown role"),
            ("h agent 0123456789abcdef", "tokens:1: agent needs the name of its node"),
            ("h tenant-operator: 0123456789abcdef", "tokens:1: tenant-operator needs tenants"),
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
