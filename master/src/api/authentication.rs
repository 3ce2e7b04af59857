//! Authentication: who sends a request, by its token or by the certificate of its connection.

use std::sync::Arc;

use axum::http::HeaderMap;
use contiv_daemon::reload::Reloadable;
use contiv_daemon::subject::Subject;

use super::peer::{self, CLIENT_SUBJECT, Peer};
use super::subject_roles::SubjectRoles;
use super::token::{Tokens, presented};
use crate::access::{Principal, Role};

/// Credentials that netmaster accepts. With neither, every client is an administrator.
#[derive(Clone, Default)]
pub struct Authenticator {
    pub tokens: Option<Reloadable<Tokens>>,
    /// Roles of client certificates.
    pub roles: Option<Reloadable<SubjectRoles>>,
}

/// Reason for rejecting a request before its route is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// No token, or an unknown token.
    Unauthenticated,
    /// The certificate has no role, or may not forward requests.
    Forbidden(String),
}

/// Subject of the certificate that the client presented to this netmaster, for forwarded requests.
#[derive(Clone, Debug)]
pub(super) struct ClientSubject(pub(super) Arc<Subject>);

/// Result of an authentication.
pub(super) struct Authenticated {
    pub(super) principal: Principal,
    /// Set if the certificate decided.
    pub(super) subject: Option<ClientSubject>,
}

impl Authenticator {
    /// A token decides if there is one. The header of a forwarding netmaster is taken from the
    /// headers.
    pub(super) fn authenticate(
        &self,
        headers: &mut HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Authenticated, Rejection> {
        let forwarded = headers.remove(CLIENT_SUBJECT);
        if let Some(tokens) = &self.tokens
            && let Some(given) = presented(headers)
        {
            let principal = tokens.now().find(given).cloned().ok_or(Rejection::Unauthenticated)?;
            return Ok(Authenticated { principal, subject: None });
        }
        let subject = peer.and_then(|peer| peer.subject.clone());
        let Some(roles) = &self.roles else {
            if forwarded.is_some() {
                return Err(Rejection::Forbidden(
                    "a client's certificate is forwarded, and there is no --role-file".into(),
                ));
            }
            if self.tokens.is_some() {
                return Err(Rejection::Unauthenticated);
            }
            let name = subject.map_or("anonymous".into(), |subject| subject.to_string());
            let principal = Principal { name, role: Role::Admin };
            return Ok(Authenticated { principal, subject: None });
        };
        let Some(subject) = subject else { return Err(Rejection::Unauthenticated) };
        let roles = roles.now();
        let role = roles.role(&subject);
        let (subject, role) = match forwarded {
            None => (subject, role),
            Some(_) if role != Some(Role::Netmaster) => {
                let why = format!(
                    "the certificate {subject} may not forward requests: requires the role netmaster"
                );
                return Err(Rejection::Forbidden(why));
            }
            Some(header) => {
                let client = peer::decode(&header)
                    .ok_or_else(|| Rejection::Forbidden("the forwarded subject is malformed".into()))?;
                let role = roles.role(&client);
                (Arc::new(client), role)
            }
        };
        let Some(role) = role else {
            let why = format!("the certificate {subject} has no role in the --role-file");
            return Err(Rejection::Forbidden(why));
        };
        let principal = Principal { name: subject.to_string(), role };
        Ok(Authenticated { principal, subject: Some(ClientSubject(subject)) })
    }
}

#[cfg(test)]
mod tests;
