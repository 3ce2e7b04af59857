//! Authentication: who sends a request, by its token or by the certificate of its connection.

use std::future::pending;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue};
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

/// What a client presents with a request. Contains a secret; it is never logged.
#[derive(Clone)]
pub(super) struct Credentials {
    token: Option<Vec<u8>>,
    /// Subject of the certificate of the connection.
    subject: Option<Arc<Subject>>,
    /// Header of a forwarding netmaster.
    forwarded: Option<HeaderValue>,
}

/// Reason for rejecting a request before its route is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// No token, or an unknown token.
    Unauthenticated,
    /// The certificate has no role, or may not forward requests.
    Forbidden {
        /// Subject of the certificate; none if the client presented none.
        who: Option<String>,
        why: String,
    },
}

/// Subject of the certificate that the client presented to this netmaster, for forwarded requests.
#[derive(Clone, Debug)]
pub(super) struct ClientSubject(pub(super) Arc<Subject>);

/// Result of an authentication.
pub(super) struct Authenticated {
    pub(super) principal: Principal,
    /// Set if the certificate decided.
    pub(super) subject: Option<ClientSubject>,
    /// The principal is the client, also if another netmaster forwards its request.
    pub(super) is_identified: bool,
}

impl Credentials {
    /// Takes the header of a forwarding netmaster from the headers. The token stays: the leader
    /// checks it as well.
    pub(super) fn take(headers: &mut HeaderMap, peer: Option<&Peer>) -> Credentials {
        Credentials {
            forwarded: headers.remove(CLIENT_SUBJECT),
            token: presented(headers).map(<[u8]>::to_vec),
            subject: peer.and_then(|peer| peer.subject.clone()),
        }
    }
}

impl Authenticator {
    /// A token decides if there is one.
    pub(super) fn authenticate(&self, given: &Credentials) -> Result<Authenticated, Rejection> {
        if let Some(tokens) = &self.tokens
            && let Some(token) = &given.token
        {
            let principal = tokens.now().find(token).cloned().ok_or(Rejection::Unauthenticated)?;
            return Ok(Authenticated { principal, subject: None, is_identified: true });
        }
        let who = given.subject.as_ref().map(ToString::to_string);
        let Some(roles) = &self.roles else {
            if given.forwarded.is_some() {
                let why = "a client's certificate is forwarded, and there is no --role-file".into();
                return Err(Rejection::Forbidden { who, why });
            }
            if self.tokens.is_some() {
                return Err(Rejection::Unauthenticated);
            }
            let principal = Principal { name: who.unwrap_or("anonymous".into()), role: Role::Admin };
            return Ok(Authenticated { principal, subject: None, is_identified: false });
        };
        let Some(subject) = given.subject.clone() else { return Err(Rejection::Unauthenticated) };
        let roles = roles.now();
        let role = roles.role(&subject);
        let (subject, role) = match &given.forwarded {
            None => (subject, role),
            Some(_) if role != Some(Role::Netmaster) => {
                let why = format!(
                    "the certificate {subject} may not forward requests: requires the role netmaster"
                );
                return Err(Rejection::Forbidden { who, why });
            }
            Some(header) => {
                let malformed = || {
                    let why = "the forwarded subject is malformed".into();
                    Rejection::Forbidden { who, why }
                };
                let client = peer::decode(header).ok_or_else(malformed)?;
                let role = roles.role(&client);
                (Arc::new(client), role)
            }
        };
        let Some(role) = role else {
            let why = format!("the certificate {subject} has no role in the --role-file");
            return Err(Rejection::Forbidden { who: Some(subject.to_string()), why });
        };
        let principal = Principal { name: subject.to_string(), role };
        Ok(Authenticated { principal, subject: Some(ClientSubject(subject)), is_identified: true })
    }

    /// Waits until the credentials no longer give the client this name and this role.
    pub(super) async fn revoked(mut self, given: Credentials, principal: Principal) {
        loop {
            tokio::select! {
                () = reloaded(&mut self.tokens) => {}
                () = reloaded(&mut self.roles) => {}
            }
            if !self.authenticate(&given).is_ok_and(|now| now.principal == principal) {
                return;
            }
        }
    }
}

/// Never returns without a file.
async fn reloaded<T: Send + Sync + 'static>(file: &mut Option<Reloadable<T>>) {
    match file {
        Some(file) => file.changed().await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
