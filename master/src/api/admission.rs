//! Admission of requests: authentication, audit log, requests in flight, body size and time limits.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::audit_log::{AuditLog, Pending};
use super::authentication::{Authenticated, Authenticator, Credentials, Rejection};
use super::in_flight::{self, Client, InFlight, Slot};
use super::netmasters::Netmasters;
use super::paced_body::PacedBody;
use super::peer::Peer;
use super::response::ErrorFormat;
use super::route::Route;
use super::{authorization, proxy, request_id};
use crate::problem::Problem;

/// Checks that every request passes.
#[derive(Clone)]
pub struct Admission {
    pub authenticator: Authenticator,
    pub audit: Option<AuditLog>,
    pub in_flight: InFlight,
    /// They have counted the requests that they forward.
    pub netmasters: Netmasters,
    /// Time limit for the request body, and for the pauses of a client that takes a response.
    pub body_timeout: Duration,
    /// Time limit for the response.
    pub request_timeout: Duration,
}

/// Time at which a handler has to answer with what it has done so far. Later, the client gets an answer
/// that does not tell it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerBy(Instant);

/// Time between this and the end of the time limit, and its share of a short time limit.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
const ANSWER_SHARE: u32 = 4;

impl AnswerBy {
    fn within(request_timeout: Duration) -> AnswerBy {
        // A follower waits no longer for the leader.
        let limit = request_timeout.min(proxy::RESPONSE_TIMEOUT);
        AnswerBy(Instant::now() + limit - ANSWER_MARGIN.min(limit / ANSWER_SHARE))
    }

    /// The time of the request with these extensions.
    pub(super) fn of(extensions: &Extensions) -> Instant {
        extensions.get::<AnswerBy>().copied().unwrap_or_else(|| AnswerBy::within(proxy::RESPONSE_TIMEOUT)).0
    }
}

/// Largest accepted body in bytes. Objects have a few hundred bytes, and the store accepts 1.5 MB
/// in one request.
pub(super) const MAX_BODY: usize = 1 << 20;
/// Bytes of a too large body that are read and discarded, so that the client can read the error
/// response.
const MAX_DRAINED: usize = 16 << 20;

pub(super) async fn pass(
    State(admission): State<Admission>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let persistent = keeps_alive(request.headers());
    let id = request_id::of(request.headers_mut());
    let audit = Pending::new(admission.audit.clone(), &id, &mut request);
    let mut response = admission.authenticate(request, next, audit).await;
    response.headers_mut().insert(request_id::HEADER, id);
    if !persistent {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Only on request of the client: clients of the original expect one request per connection.
fn keeps_alive(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("keep-alive"))
}

impl Admission {
    /// Authenticates the client, and writes the audit log.
    async fn authenticate(&self, mut request: Request, next: Next, mut audit: Pending) -> Response<Body> {
        let format = ErrorFormat::of(request.headers());
        let peer = request.extensions().get::<Peer>().cloned();
        let route = Route::of(request.method(), request.uri());
        let open = authorization::is_open(&route);
        let has_via = proxy::is_forwarded(request.headers());
        let credentials = Credentials::take(request.headers_mut(), peer.as_ref());
        let response = match self.authenticator.authenticate(&credentials) {
            Ok(sender) => {
                let (method, uri) = (request.method(), request.uri());
                tracing::debug!(who = sender.principal.name, id = audit.id(), %method, %uri);
                audit.set_principal(&sender.principal);
                let is_counted = in_flight::is_counted(&route, &sender.principal.role);
                // Clients can send the header of a netmaster, too.
                let is_netmaster = |peer: &Peer| self.netmasters.has(peer.address.ip());
                let forwarded = is_counted && has_via && peer.as_ref().is_some_and(is_netmaster);
                let client = Client::of(&sender, peer.as_ref(), forwarded).filter(|_| is_counted);
                match client.map(|client| self.in_flight.begin(client)).transpose() {
                    Ok(slot) => self.pass_on(request, next, format, credentials, sender, slot).await,
                    Err(problem) => format.problem(&problem),
                }
            }
            // The handlers of these routes ask for no principal.
            Err(_) if open => self.admit(request, next, format).await,
            Err(Rejection::Unauthenticated) => format.unauthorized(),
            Err(Rejection::Forbidden { who, why }) => {
                if let Some(who) = &who {
                    audit.set_who(who);
                }
                format.problem(&Problem::forbidden(why))
            }
        };
        audit.finish(&response);
        response
    }

    /// Passes on the request of an authenticated client. It is in flight until the response is taken.
    async fn pass_on(
        &self,
        mut request: Request,
        next: Next,
        format: ErrorFormat,
        credentials: Credentials,
        sender: Authenticated,
        mut slot: Option<Slot>,
    ) -> Response<Body> {
        let Authenticated { principal, subject, .. } = sender;
        request.extensions_mut().insert(principal.clone());
        if let Some(subject) = subject {
            request.extensions_mut().insert(subject);
        }
        if let Some(slot) = &slot {
            request.extensions_mut().insert(slot.stream_memory());
        }
        // The response to a change tells what was done.
        let is_refusable = request.method() == Method::GET;
        let response = self.admit(request, next, format).await;
        if is_refusable
            && let (Some(slot), Some(bytes)) = (&mut slot, response.body().size_hint().exact())
            && let Err(problem) = slot.count_response(bytes)
        {
            return format.problem(&problem);
        }
        let response = match is_watch(&response) {
            // The client may keep it open for longer than its credentials are valid.
            true => ended_by(response, self.authenticator.clone().revoked(credentials, principal)),
            false => response,
        };
        response.map(|body| Body::new(PacedBody::new(body, slot, self.body_timeout)))
    }

    /// Limits the size of the body and the time.
    async fn admit(&self, request: Request, next: Next, format: ErrorFormat) -> Response<Body> {
        let large = request.body().size_hint().lower() > MAX_BODY as u64;
        if large && request.headers().contains_key(header::EXPECT) {
            // With `Expect: 100-continue` the client has not sent the body yet.
            return format.problem(&too_large());
        }
        let error: SharedFailure = Arc::default();
        let (mut head, body) = request.into_parts();
        let mut body = LimitedBody {
            body,
            remaining: MAX_BODY,
            deadline: Box::pin(sleep(self.body_timeout)),
            error: error.clone(),
        };
        if large {
            body.drain().await;
            return format.problem(&too_large());
        }
        head.extensions.insert(AnswerBy::within(self.request_timeout));
        let answer = next.run(Request::from_parts(head, Body::new(body)));
        let response = match timeout(self.request_timeout, answer).await {
            Ok(response) => response,
            Err(_) => {
                let why = format!("no response within {} s", self.request_timeout.as_secs());
                format.problem(&Problem::unknown_outcome(why))
            }
        };
        match error.get() {
            Some(problem) => format.problem(problem),
            None => response,
        }
    }
}

/// Whether the response is a stream of changes, of this netmaster or of the leader.
fn is_watch(response: &Response<Body>) -> bool {
    response.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == "text/event-stream")
}

/// The response, which ends when `end` does.
fn ended_by(response: Response<Body>, end: impl Future<Output = ()> + Send + 'static) -> Response<Body> {
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(end)))
}

fn too_large() -> Problem {
    Problem::too_large(format!("request body too large: the limit is {MAX_BODY} bytes"))
}

/// Reason why reading the body failed, if it failed.
type SharedFailure = Arc<OnceLock<Problem>>;

/// A body that fails if it exceeds the size limit or the time limit.
struct LimitedBody {
    body: Body,
    remaining: usize,
    deadline: Pin<Box<Sleep>>,
    error: SharedFailure,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BodyReadError(Problem);

impl LimitedBody {
    fn fail<T>(&self, problem: Problem) -> Poll<Option<Result<T, BodyReadError>>> {
        let problem = self.error.get_or_init(|| problem).clone();
        Poll::Ready(Some(Err(BodyReadError(problem))))
    }

    /// Reads and discards a too large body.
    async fn drain(&mut self) {
        self.remaining = MAX_DRAINED;
        while let Some(Ok(_)) = self.frame().await {}
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = BodyReadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyReadError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let size = frame.data_ref().map_or(0, Bytes::len);
                match self.remaining.checked_sub(size) {
                    Some(remaining) => {
                        self.remaining = remaining;
                        Poll::Ready(Some(Ok(frame)))
                    }
                    None => self.fail(too_large()),
                }
            }
            Poll::Ready(Some(Err(error))) => {
                let text = format!("read the request body: {}", crate::problem::one_line(&error));
                self.fail(Problem::invalid(text))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.deadline.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => self.fail(Problem::too_slow("read the request body: time limit exceeded")),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
