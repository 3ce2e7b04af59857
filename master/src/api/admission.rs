//! What a request must pass before anybody looks at what it asks.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use contiv_daemon::reload::Reloadable;
use http_body_util::BodyExt as _;
use hyper::body::Frame;
use tokio::time::{Sleep, sleep, timeout};

use super::response::Wants;
use super::token::{Refusal, Tokens};
use crate::problem::Problem;

/// Who is let in, and for how long.
#[derive(Clone)]
pub struct Gate {
    /// None: everybody.
    pub tokens: Option<Reloadable<Tokens>>,
    /// A body must have come by then.
    pub body_timeout: Duration,
    /// And the answer must be ready by then.
    pub request_timeout: Duration,
}

/// The largest body that is read: objects have a few hundred bytes, and the store takes 1.5 MB in one request.
pub(super) const LARGEST_BODY: usize = 1 << 20;
/// So much of a body that is too large is taken from the wire and thrown away, so that the client has not been cut off
/// when it comes to read why.
const LARGEST_WASTE: usize = 16 << 20;

/// Answered to anybody: probes have no tokens, and a client finds out whom it talks to.
const FREE: [&str; 3] = ["/healthz", "/readyz", "/version"];

pub(super) async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response<Body> {
    let persistent = keeps_alive(request.headers());
    let mut response = gate.admit(request, next).await;
    if !persistent {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Only where the client asks for it: those of the original are used to a connection for each request.
fn keeps_alive(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("keep-alive"))
}

impl Gate {
    async fn admit(&self, request: Request, next: Next) -> Response<Body> {
        let wants = Wants::of(request.headers());
        if let Some(tokens) = self.tokens.as_ref().filter(|_| !FREE.contains(&request.uri().path())) {
            match tokens.now().admit(request.method(), request.headers()) {
                Ok(name) => tracing::debug!(token = name, method = %request.method(), uri = %request.uri()),
                Err(Refusal::Unknown) => return wants.unauthorized(),
                Err(Refusal::Forbidden) => return wants.forbidden(request.method()),
            }
        }
        let large = request.body().size_hint().lower() > LARGEST_BODY as u64;
        if large && request.headers().contains_key(header::EXPECT) {
            // The client waits to be told before it sends anything.
            return wants.problem(&too_large());
        }
        let broken: Broken = Arc::default();
        let (head, body) = request.into_parts();
        let mut body = Bounded {
            body,
            left: LARGEST_BODY,
            due: Box::pin(sleep(self.body_timeout)),
            broken: broken.clone(),
        };
        if large {
            body.waste().await;
            return wants.problem(&too_large());
        }
        let answer = next.run(Request::from_parts(head, Body::new(body)));
        let response = match timeout(self.request_timeout, answer).await {
            Ok(response) => response,
            Err(_) => {
                let text = format!(
                    "no answer within {} s; the request may have been carried out",
                    self.request_timeout.as_secs()
                );
                wants.problem(&Problem::unavailable(text))
            }
        };
        match broken.get() {
            Some(problem) => wants.problem(problem),
            None => response,
        }
    }
}

fn too_large() -> Problem {
    Problem::too_large(format!("the request's body is too large: at most {LARGEST_BODY} bytes are read"))
}

/// Why a body was not read to its end, if it was not.
type Broken = Arc<OnceLock<Problem>>;

/// A body that ends in an error when it is too large or comes too late.
struct Bounded {
    body: Body,
    left: usize,
    due: Pin<Box<Sleep>>,
    broken: Broken,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cut(Problem);

impl Bounded {
    fn cut<T>(&self, problem: Problem) -> Poll<Option<Result<T, Cut>>> {
        let problem = self.broken.get_or_init(|| problem).clone();
        Poll::Ready(Some(Err(Cut(problem))))
    }

    /// Takes a body that is too large from the wire, up to a point.
    async fn waste(&mut self) {
        self.left = LARGEST_WASTE;
        while let Some(Ok(_)) = self.frame().await {}
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let size = frame.data_ref().map_or(0, Bytes::len);
                match self.left.checked_sub(size) {
                    Some(left) => {
                        self.left = left;
                        Poll::Ready(Some(Ok(frame)))
                    }
                    None => self.cut(too_large()),
                }
            }
            Poll::Ready(Some(Err(error))) => {
                let text = format!("read the request's body: {}", crate::problem::one_line(&error));
                self.cut(Problem::invalid(text))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.due.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => self.cut(Problem::too_slow("the request's body did not come in time")),
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
