//! Forwards requests from a follower to the leader.
//!
//! Bodies are streamed in both directions. A request that was certainly not carried out (no
//! connection to the leader, or the receiver answered that it is not the leader) is sent to the
//! next leader. A request that may have been carried out is never sent twice.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request};
use axum::response::Response;
use contiv_daemon::client::{Connector, Transport};
use contiv_daemon::reload::Reloadable;
use contiv_daemon::tls;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};

use super::authentication::ClientSubject;
use super::peer::{self, CLIENT_SUBJECT};
use super::replay::{ReplayHandle, ReplayableBody};
use super::request_id;
use super::route::Route;
use crate::leadership::Roles;
use crate::problem::one_line;

/// HTTP client with a connection pool to the leader.
#[derive(Clone)]
pub struct Proxy(Reloadable<LeaderClient>);

struct LeaderClient {
    client: Client<Connector, ReplayableBody>,
    way: Transport,
}

/// A request without a response.
pub(super) struct ForwardError {
    /// Reason, on one line.
    pub(super) why: String,
    /// The request, if it can be sent again.
    pub(super) request: Option<Request>,
}

/// Headers of the connection (RFC 9110, section 7.6.1). `Connection` may list more.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Entry of a forwarding netmaster in the `Via` header.
const VIA: &str = "1.1 netmaster";
/// Response header for followers: the request was not carried out, because the receiver is not the
/// leader.
pub(super) const NOT_DONE: HeaderName = HeaderName::from_static("netmaster-not-done");
/// Time limit for a response of the leader.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a deposed leader to answer a request in progress. One that stops commits the requests that it
/// has accepted before it gives up the lock, so the answers are on their way. One that was cut off does not answer.
const DEPOSED_TIMEOUT: Duration = Duration::from_millis(250);

impl Proxy {
    /// Creates the proxy and the task that reloads the transport when `files` change. The caller
    /// must run the task.
    pub fn new(
        files: Vec<PathBuf>,
        way: impl Fn() -> Result<Transport, tls::Error> + Send + 'static,
    ) -> Result<(Proxy, impl Future<Output = ()> + Send + 'static), tls::Error> {
        let client = move || {
            let way = way()?;
            Ok(LeaderClient { client: Client::builder(TokioExecutor::new()).build(way.connector()), way })
        };
        let (client, follow) = Reloadable::load("certificates of the leader transport", files, client)?;
        Ok((Proxy(client), follow))
    }

    /// Returns the leader's response. Fails if there is none, or if `leader` is deposed meanwhile.
    pub(super) async fn forward(
        &self,
        leader: &str,
        request: Request,
        roles: &Roles,
    ) -> Result<Response<Body>, ForwardError> {
        let client = self.0.now();
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = client.way.url(leader, path).parse::<Uri>() else {
            let why = format!(
                "forward to the leader: the leader lock contains {leader:?}, which is not an address"
            );
            return Err(ForwardError { why, request: None });
        };
        let Some(onward) = onward(&head, uri) else {
            let why = "forward to the leader: the subject of the client's certificate is too long".into();
            return Err(ForwardError { why, request: None });
        };
        let (replayable, handle) = ReplayableBody::new(body);

        let asked = timeout(RESPONSE_TIMEOUT, client.client.request(Request::from_parts(onward, replayable)));
        // A deposed leader that hangs does not answer. One that shuts down answers, or reports that
        // it did not carry out the request.
        let deposed = async {
            roles.deposed(leader).await;
            match Route::of(&head.method, &head.uri) {
                // The deposed leader still asks the nodes, and nothing else knows what for.
                Route::CleanUp { .. } => sleep(RESPONSE_TIMEOUT).await,
                _ if is_repeatable(&head.method) => {}
                _ => sleep(DEPOSED_TIMEOUT).await,
            }
        };
        let (why, not_done) = tokio::select! {
            answer = asked => match answer {
                Ok(Ok(response)) if response.headers().contains_key(NOT_DONE) => ("is no longer the leader", true),
                Ok(Ok(response)) => {
                    let (mut head, body) = response.into_parts();
                    strip_hop_by_hop(&mut head.headers);
                    return Ok(Response::from_parts(head, Body::new(body)));
                }
                Ok(Err(error)) => {
                    let unsent = error.is_connect();
                    let what = if unsent { "is unreachable" } else { "closed the connection before it responded" };
                    tracing::info!(leader, method = %head.method, path = %head.uri.path(), error = one_line(&error), "forward a request: the leader {what}");
                    (what, unsent)
                }
                Err(_) => ("does not respond", false),
            },
            () = deposed => ("is no longer the leader", false),
        };
        let why = format!(
            "forward to the leader: netmaster {leader} {why}; retry, another netmaster takes over if it has failed"
        );
        Err(forward_error(why, not_done, head, &handle))
    }
}

/// Head of the request to the leader; none if the subject of the client is too long for a header.
fn onward(head: &request::Parts, uri: Uri) -> Option<request::Parts> {
    let mut onward = head.clone();
    onward.uri = uri;
    strip_hop_by_hop(&mut onward.headers);
    onward.headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
    onward.headers.append(header::VIA, HeaderValue::from_static(VIA));
    // A client may name the header in `Connection`; the audit logs are joined by it.
    if let Some(id) = head.headers.get(request_id::HEADER) {
        onward.headers.insert(request_id::HEADER, id.clone());
    }
    // The leader sees the certificate of this netmaster.
    if let Some(ClientSubject(subject)) = head.extensions.get() {
        onward.headers.insert(CLIENT_SUBJECT, peer::encode(subject)?);
    }
    Some(onward)
}

/// `not_done`: the request was certainly not carried out.
fn forward_error(
    mut why: String,
    not_done: bool,
    head: request::Parts,
    handle: &ReplayHandle,
) -> ForwardError {
    if !not_done && !is_repeatable(&head.method) {
        why += "; the request may have been carried out";
        return ForwardError { why, request: None };
    }
    ForwardError { why, request: handle.take_back().map(|body| Request::from_parts(head, body)) }
}

/// Whether the request was forwarded by a follower.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::VIA).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|by| by.trim() == VIA)
}

fn is_repeatable(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use contiv_daemon::subject::Subject;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut map = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("x-yours", "2"),
            ("authorization", "Bearer t"),
        ]);
        strip_hop_by_hop(&mut map);
        assert_eq!(map, headers(&[("x-yours", "2"), ("authorization", "Bearer t")]));
    }

    #[test]
    fn clients_cannot_remove_what_the_leader_needs() {
        let subject = Subject { common_name: Some("web".into()), organizations: vec![] };
        let mut request = Request::new(Body::empty());
        *request.headers_mut() = headers(&[
            ("connection", "x-request-id, via, netmaster-client-subject, x-mine"),
            ("x-request-id", "one"),
            ("x-request-id", "two"),
            ("x-mine", "1"),
        ]);
        request.extensions_mut().insert(ClientSubject(subject.into()));
        let (head, _) = request.into_parts();
        let forwarded = onward(&head, Uri::from_static("http://leader/")).unwrap();
        let expected = headers(&[
            ("connection", "keep-alive"),
            ("via", VIA),
            ("x-request-id", "one"),
            ("netmaster-client-subject", "CN=web"),
        ]);
        assert_eq!((forwarded.headers, forwarded.uri), (expected, Uri::from_static("http://leader/")));
    }

    #[test]
    fn forwarded_requests_are_recognised() {
        assert!(!is_forwarded(&headers(&[("via", "1.0 fred")])));
        assert!(is_forwarded(&headers(&[("via", "1.0 fred"), ("via", "1.1 wilma, 1.1 netmaster")])));
    }
}
