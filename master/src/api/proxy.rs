//! A follower asks the leader, and passes on what it says.
//!
//! Bodies stream through in both directions. What surely was not carried out, because it did not reach a leader or
//! because who got it says so, may go to the next one; what may have been carried out is never sent twice.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request};
use axum::response::Response;
use contiv_daemon::client::{Connector, Transport};
use contiv_daemon::reload::Reloadable;
use contiv_daemon::tls;
use futures::{StreamExt as _, stream};
use hyper::body::{Frame, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::{sleep, timeout};

use crate::leadership::Roles;
use crate::problem::one_line;

/// Keeps connections to the leader.
#[derive(Clone)]
pub struct Proxy(Reloadable<Ways>);

struct Ways {
    client: Client<Connector, Lent>,
    way: Transport,
}

/// A request that got no answer.
pub(super) struct Unanswered {
    /// One line that says why.
    pub(super) why: String,
    /// The request, if it may be sent again.
    pub(super) request: Option<Request>,
}

/// Of one connection, not of the request (RFC 9110, section 7.6.1); and those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// What a netmaster that passes a request on writes into `Via`.
const VIA: &str = "1.1 netmaster";
/// In an answer to a follower: the request was not carried out, because who was asked leads no more.
pub(super) const NOT_DONE: HeaderName = HeaderName::from_static("netmaster-not-done");
/// Longer than the leader lets any request take.
const ANSWER: Duration = Duration::from_secs(60);
/// A leader that was deposed has so long to say what became of a request.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Proxy {
    /// What `way` makes of the files, and what must be run for it to follow them.
    pub fn new(
        files: Vec<PathBuf>,
        way: impl Fn() -> Result<Transport, tls::Error> + Send + 'static,
    ) -> Result<(Proxy, impl Future<Output = ()> + Send + 'static), tls::Error> {
        let ways = move || {
            let way = way()?;
            Ok(Ways { client: Client::builder(TokioExecutor::new()).build(way.connector()), way })
        };
        let (ways, follow) = Reloadable::load("certificates for the way to the leader", files, ways)?;
        Ok((Proxy(ways), follow))
    }

    /// The leader's answer; or that there is none, also because `leader` was deposed meanwhile.
    pub(super) async fn forward(
        &self,
        leader: &str,
        request: Request,
        roles: &Roles,
    ) -> Result<Response<Body>, Unanswered> {
        let ways = self.0.now();
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = ways.way.url(leader, path).parse::<Uri>() else {
            let why = format!("the leader's lock holds {leader:?}, which is no address");
            return Err(Unanswered { why, request: None });
        };
        let mut onward = head.clone();
        onward.uri = uri;
        strip(&mut onward.headers);
        onward.headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
        onward.headers.append(header::VIA, HeaderValue::from_static(VIA));
        let (lent, owner) = Lent::new(body);

        let asked = timeout(ANSWER, ways.client.request(Request::from_parts(onward, lent)));
        // One that hangs does not answer; one that stops in order answers what it has, or says that it did not do it.
        let deposed = async {
            roles.deposed(leader).await;
            if !is_repeatable(&head.method) {
                sleep(LAST_WORDS).await;
            }
        };
        let (why, undone) = tokio::select! {
            answer = asked => match answer {
                Ok(Ok(response)) if response.headers().contains_key(NOT_DONE) => ("leads no more", true),
                Ok(Ok(response)) => {
                    let (mut head, body) = response.into_parts();
                    strip(&mut head.headers);
                    return Ok(Response::from_parts(head, Body::new(body)));
                }
                Ok(Err(error)) => {
                    let unsent = error.is_connect();
                    let what = if unsent { "cannot be reached" } else { "broke off before it had answered" };
                    tracing::info!(leader, method = %head.method, path = %head.uri.path(), error = one_line(&error), "the leader {what}");
                    (what, unsent)
                }
                Err(_) => ("does not answer", false),
            },
            () = deposed => ("leads no more", false),
        };
        let why =
            format!("the leader, netmaster {leader}, {why}; try again: another takes over when it is gone");
        Err(unanswered(why, undone, head, &owner))
    }
}

/// `undone`: it surely was not carried out.
fn unanswered(mut why: String, undone: bool, head: request::Parts, owner: &Owner) -> Unanswered {
    if !undone && !is_repeatable(&head.method) {
        why += "; the request may have been carried out";
        return Unanswered { why, request: None };
    }
    Unanswered { why, request: owner.take_back().map(|body| Request::from_parts(head, body)) }
}

/// Whether a follower asks.
pub(super) fn is_passed_on(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::VIA).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|by| by.trim() == VIA)
}

fn is_repeatable(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn strip(headers: &mut HeaderMap) {
    let named = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// A request's body on loan to a connection.
struct Lent(Arc<Mutex<Loan>>);

/// Takes the body back, with what has been read of it.
struct Owner(Arc<Mutex<Loan>>);

struct Loan {
    body: Option<Body>,
    /// What has been read: no more than the gate lets pass.
    read: Vec<Bytes>,
}

impl Lent {
    fn new(body: Body) -> (Lent, Owner) {
        let loan = Arc::new(Mutex::new(Loan { body: Some(body), read: Vec::new() }));
        (Lent(loan.clone()), Owner(loan))
    }
}

impl Owner {
    fn take_back(&self) -> Option<Body> {
        let mut loan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = loan.body.take()?;
        let read = std::mem::take(&mut loan.read);
        if read.is_empty() {
            return Some(rest);
        }
        let read = stream::iter(read.into_iter().map(Ok::<_, axum::Error>));
        Some(Body::from_stream(read.chain(rest.into_data_stream())))
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut loan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(body) = &mut loan.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            loan.read.extend(frame.data_ref().cloned());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let loan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loan.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let loan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loan.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
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
        strip(&mut map);
        assert_eq!(map, headers(&[("x-yours", "2"), ("authorization", "Bearer t")]));
    }

    #[test]
    fn a_follower_is_known_on_any_line() {
        assert!(!is_passed_on(&headers(&[("via", "1.0 fred")])));
        assert!(is_passed_on(&headers(&[("via", "1.0 fred"), ("via", "1.1 wilma, 1.1 netmaster")])));
    }

    #[tokio::test]
    async fn a_body_comes_back_whole() {
        let pieces = || Body::from_stream(stream::iter(["one", "two"].map(Ok::<_, axum::Error>)));
        for read in 0..=2 {
            let (lent, owner) = Lent::new(pieces());
            let mut lent = Body::new(lent).into_data_stream();
            for _ in 0..read {
                lent.next().await.unwrap().unwrap();
            }
            let back = axum::body::to_bytes(owner.take_back().unwrap(), 9).await.unwrap();
            assert_eq!(back, "onetwo", "after {read} pieces");
            assert!(lent.next().await.is_none() && owner.take_back().is_none());
        }
    }
}
