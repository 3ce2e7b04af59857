//! What a failed attempt means: whether the request may be repeated, and where.

use std::{io::ErrorKind, time::Duration};

use ureq::{
    Timeout,
    http::{HeaderMap, header},
};

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }
}

/// Limit of one wait for a netmaster that is temporarily unavailable.
const LONGEST_WAIT: Duration = Duration::from_secs(4);
/// netmaster's words for a change whose answer was lost; repeating it could fail, for example with "not found".
const MAY_BE_DONE: &str = "the request may have been carried out";

/// Whether another netmaster may be asked after this failure: the request was not sent, or it changes nothing.
pub(super) fn may_try_next(method: Method, sent: bool, error: &ureq::Error) -> bool {
    let unconnected = match error {
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => true,
        ureq::Error::Io(source) => matches!(
            source.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::AddrNotAvailable
        ),
        _ => false,
    };
    let lost = matches!(error, ureq::Error::Io(_) | ureq::Error::Timeout(_)) && !is_tls(error);
    !sent && unconnected || method == Method::Get && lost
}

/// Returns the time to wait before a request that was answered with 503 or 429 is repeated; none if it must not be.
pub(super) fn repeat_after(method: Method, headers: &HeaderMap, text: &str) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    let repeatable = method == Method::Get || !text.contains(MAY_BE_DONE);
    repeatable.then(|| Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// Whether certificates or the protocol were refused.
fn is_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => true,
        ureq::Error::Io(source) => source.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
        _ => false,
    }
}

/// Remedy for a failed request to `url`.
pub(super) fn hint(method: Method, url: &str, sent: bool, error: &ureq::Error) -> &'static str {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};

    // A server that requires a client certificate may close the connection before its alert is read.
    let closed = matches!(error, ureq::Error::Io(source)
        if matches!(source.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof));
    if is_tls(error) || closed && url.starts_with("https://") {
        "--cacert sets the CA bundle for netmaster's certificate; --cert and --key set a client certificate if it requires one"
    } else if matches!(error, ureq::Error::ConnectProxyFailed(_)) {
        "check that netmaster runs there; the proxy of HTTPS_PROXY or HTTP_PROXY has not connected to it, and NO_PROXY lists \
         hosts without one"
    } else if sent && method != Method::Get {
        "the change may have been carried out; look at the object before you repeat it"
    } else {
        "check that netmaster runs there; --netmaster or NETMASTER sets the URL"
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn changes_are_repeated_only_if_they_were_not_sent() {
        let io = |kind: ErrorKind| ureq::Error::Io(kind.into());
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let tls = ureq::Error::Io(io::Error::new(ErrorKind::InvalidData, unknown));
        for (sent, error, get, change) in [
            (false, io(ErrorKind::ConnectionRefused), true, true),
            (false, io(ErrorKind::HostUnreachable), true, true),
            (false, ureq::Error::HostNotFound, true, true),
            (false, ureq::Error::Timeout(Timeout::Connect), true, true),
            (false, ureq::Error::ConnectProxyFailed("proxy server responded 502/502".into()), true, true),
            // The peer of an established connection is gone.
            (true, io(ErrorKind::HostUnreachable), true, false),
            (true, io(ErrorKind::ConnectionReset), true, false),
            (true, ureq::Error::Timeout(Timeout::Global), true, false),
            (false, ureq::Error::Timeout(Timeout::Global), true, false),
            (false, tls, false, false),
            (false, ureq::Error::BadUri("x".into()), false, false),
        ] {
            assert_eq!(may_try_next(Method::Get, sent, &error), get, "{sent} {error}");
            assert_eq!(may_try_next(Method::Post, sent, &error), change, "{sent} {error}");
            assert_eq!(may_try_next(Method::Delete, sent, &error), change, "{sent} {error}");
        }
    }

    #[test]
    fn wait_is_bounded() {
        let after = |text: &'static str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            repeat_after(Method::Post, &headers, "no leader")
        };
        assert_eq!(after("1"), Some(Duration::from_secs(1)));
        assert_eq!(after("86400"), Some(LONGEST_WAIT));
        assert_eq!(after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(repeat_after(Method::Get, &HeaderMap::new(), ""), None);
    }
}
