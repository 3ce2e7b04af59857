//! The other end of a connection, and the subjects of certificates in forwarded requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use contiv_daemon::subject::Subject;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// Subject of the client's certificate, which the TLS handshake has verified.
    pub subject: Option<Arc<Subject>>,
}

/// Request header of a forwarding netmaster: the subject of its client's certificate. It is accepted
/// only from certificates with the role of a netmaster.
pub(super) const CLIENT_SUBJECT: HeaderName = HeaderName::from_static("netmaster-client-subject");

/// Attributes of the subject, percent-encoded: `CN=web,O=ops`.
pub(super) fn encode(subject: &Subject) -> Option<HeaderValue> {
    let attribute =
        |name: &str, value: &String| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
    let common_name = subject.common_name.iter().map(|value| attribute("CN", value));
    let organizations = subject.organizations.iter().map(|value| attribute("O", value));
    HeaderValue::try_from(common_name.chain(organizations).collect::<Vec<_>>().join(",")).ok()
}

/// None if the value is malformed.
pub(super) fn decode(value: &HeaderValue) -> Option<Subject> {
    let mut subject = Subject::default();
    for attribute in value.to_str().ok()?.split(',').filter(|attribute| !attribute.is_empty()) {
        let (name, value) = attribute.split_once('=')?;
        let value = percent_decode_str(value).decode_utf8().ok()?.into_owned();
        match name {
            "CN" if subject.common_name.is_none() => subject.common_name = Some(value),
            "O" => subject.organizations.push(value),
            _ => return None,
        }
    }
    Some(subject)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_survive_forwarding() {
        for (common_name, organizations) in [
            (Some("web"), &["ops"][..]),
            (None, &["a,O=admins", "b=c"]),
            (Some("x\r\nO=admins, ü"), &[]),
            (None, &[]),
        ] {
            let subject = Subject {
                common_name: common_name.map(str::to_owned),
                organizations: organizations.iter().map(|&o| o.to_owned()).collect(),
            };
            assert_eq!(decode(&encode(&subject).unwrap()), Some(subject));
        }
        for malformed in ["CN", "X=1", "CN=a,CN=b", "O=%ff"] {
            assert_eq!(decode(&HeaderValue::from_static(malformed)), None, "{malformed}");
        }
    }
}
