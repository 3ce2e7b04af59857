//! Tokens, certificates and forwarded certificates in all combinations.

use std::fs;
use std::path::Path;

use axum::http::{HeaderValue, header};

use super::*;
use crate::access::Nodes;

const TOKENS: &str = "ci tenant-operator:blue blue-token-0123456789\n";
const ROLES: &str = "netmaster O=masters\nagent O=nodes\nadmin CN=anna\n";

fn reloadable<T: Send + Sync + 'static, E: std::error::Error + 'static>(
    read: fn(&Path) -> Result<T, E>,
    text: &str,
) -> Reloadable<T> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    testkit::write_secret(&path, text).unwrap();
    let (loaded, _follow) = Reloadable::load("test", vec![], move || read(&path)).unwrap();
    fs::remove_dir_all(dir.path()).unwrap();
    loaded
}

fn authenticator(tokens: bool, roles: bool) -> Authenticator {
    Authenticator {
        tokens: tokens.then(|| reloadable(Tokens::read, TOKENS)),
        roles: roles.then(|| reloadable(SubjectRoles::read, ROLES)),
    }
}

fn subject(text: &str) -> Arc<Subject> {
    Arc::new(peer::decode(&HeaderValue::try_from(text).unwrap()).unwrap())
}

/// `certificate` and `forwarded` are subjects, or empty.
fn credentials(token: &str, certificate: &str, forwarded: &str) -> Credentials {
    let mut headers = HeaderMap::new();
    if !token.is_empty() {
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").try_into().unwrap());
    }
    if !forwarded.is_empty() {
        headers.insert(CLIENT_SUBJECT, HeaderValue::try_from(forwarded).unwrap());
    }
    let subject = (!certificate.is_empty()).then(|| subject(certificate));
    let peer = Peer { address: "127.0.0.1:1".parse().unwrap(), subject };
    let credentials = Credentials::take(&mut headers, Some(&peer));
    assert!(!headers.contains_key(CLIENT_SUBJECT), "the header stays");
    credentials
}

fn authenticate(
    by: &Authenticator,
    token: &str,
    certificate: &str,
    forwarded: &str,
) -> Result<Principal, u16> {
    let result = by.authenticate(&credentials(token, certificate, forwarded));
    result.map(|authenticated| authenticated.principal).map_err(|rejection| match rejection {
        Rejection::Unauthenticated => 401,
        Rejection::Forbidden { .. } => 403,
    })
}

#[test]
fn a_token_decides_before_the_certificate() {
    let (none, tokens, roles, both) = (
        authenticator(false, false),
        authenticator(true, false),
        authenticator(false, true),
        authenticator(true, true),
    );
    let blue = Role::TenantOperator(["blue".to_owned()].into());
    let node = Role::Agent(Nodes::One("h1".into()));
    let token = "blue-token-0123456789";
    for (by, given, certificate, forwarded, expected) in [
        (&none, "", "", "", Ok(Role::Admin)),
        (&none, "", "CN=anna", "", Ok(Role::Admin)),
        (&none, "any", "", "", Ok(Role::Admin)),
        (&none, "", "", "CN=anna", Err(403)),
        (&tokens, token, "", "", Ok(blue.clone())),
        (&tokens, "other-token-0123456789", "", "", Err(401)),
        (&tokens, "", "", "", Err(401)),
        (&tokens, "", "CN=anna", "", Err(401)),
        (&tokens, token, "", "CN=anna", Ok(blue.clone())),
        (&roles, "", "", "", Err(401)),
        (&roles, "", "CN=anna", "", Ok(Role::Admin)),
        (&roles, "", "CN=h1,O=nodes", "", Ok(node.clone())),
        (&roles, "", "CN=stranger", "", Err(403)),
        (&roles, "", "CN=m1,O=masters", "", Ok(Role::Netmaster)),
        // Only a netmaster may name another subject.
        (&roles, "", "CN=m1,O=masters", "CN=h1,O=nodes", Ok(node.clone())),
        (&roles, "", "CN=m1,O=masters", "CN=stranger", Err(403)),
        (&roles, "", "CN=m1,O=masters", "CN=x,CN=anna", Err(403)),
        (&roles, "", "CN=m1,O=masters", "CN=m2,O=masters", Ok(Role::Netmaster)),
        (&roles, "", "CN=h1,O=nodes", "CN=anna", Err(403)),
        (&roles, "", "CN=anna", "CN=h1,O=nodes", Err(403)),
        (&roles, "", "CN=stranger", "CN=anna", Err(403)),
        (&roles, "", "", "CN=anna", Err(401)),
        (&both, token, "CN=anna", "", Ok(blue.clone())),
        (&both, "other-token-0123456789", "CN=anna", "", Err(401)),
        (&both, "", "CN=anna", "", Ok(Role::Admin)),
        (&both, token, "CN=m1,O=masters", "", Ok(blue.clone())),
    ] {
        let role = authenticate(by, given, certificate, forwarded).map(|principal| principal.role);
        assert_eq!(role, expected, "{given:?} {certificate:?} {forwarded:?}");
    }
}

#[test]
fn a_refused_certificate_is_named() {
    let by = authenticator(false, true);
    for (certificate, forwarded, expected) in [
        ("CN=stranger", "", "CN=stranger"),
        ("CN=h1,O=nodes", "CN=anna", "CN=h1,O=nodes"),
        ("CN=m1,O=masters", "CN=x,CN=anna", "CN=m1,O=masters"),
        ("CN=m1,O=masters", "CN=stranger", "CN=stranger"),
    ] {
        match by.authenticate(&credentials("", certificate, forwarded)).err() {
            Some(Rejection::Forbidden { who, .. }) => assert_eq!(who.as_deref(), Some(expected)),
            other => assert_eq!(other, None, "{certificate} {forwarded}"),
        }
    }
}
