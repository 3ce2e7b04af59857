//! Responses, with errors in the format that the client accepts.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

use super::proxy::NOT_DONE;
use crate::problem::{Answer, Kind, Problem};

/// Format of error responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorFormat {
    /// Status 500 and one line of text, as clients of the original expect. Temporary failures have
    /// status 503, refusals of authorization 403, failed preconditions, which the original does not
    /// know, 412, and too many requests 429.
    Text,
    /// RFC 9457 problem details with a specific status.
    ProblemDetails,
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Seconds after which another leader has usually taken over.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

impl ErrorFormat {
    pub(super) fn of(headers: &HeaderMap) -> ErrorFormat {
        let accept = headers.get_all(header::ACCEPT).into_iter().filter_map(|v| v.to_str().ok());
        let problems =
            |value: &str| value.split(',').any(|media| media.trim().starts_with("application/problem+json"));
        if accept.into_iter().any(problems) { ErrorFormat::ProblemDetails } else { ErrorFormat::Text }
    }

    pub(super) fn problem(self, problem: &Problem) -> Response<Body> {
        let is_temporary = [Kind::Unavailable, Kind::TooMany].contains(&problem.kind);
        let mut response = match self {
            ErrorFormat::Text => {
                let line = format!("{}\n", problem.text.replace('\n', " "));
                let status = match problem.kind {
                    Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                    Kind::Precondition => StatusCode::PRECONDITION_FAILED,
                    Kind::Forbidden => StatusCode::FORBIDDEN,
                    Kind::TooMany => StatusCode::TOO_MANY_REQUESTS,
                    _ => StatusCode::INTERNAL_SERVER_ERROR,
                };
                respond(status, TEXT, line)
            }
            ErrorFormat::ProblemDetails => {
                let status =
                    StatusCode::from_u16(problem.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                problem_json(status, &problem.text)
            }
        };
        if is_temporary {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if *problem == Problem::deposed() {
            response.headers_mut().insert(NOT_DONE, HeaderValue::from_static("1"));
        }
        response
    }

    /// Response for an unknown path.
    pub(super) fn no_route(self) -> Response<Body> {
        match self {
            ErrorFormat::Text => respond(StatusCode::NOT_FOUND, TEXT, "404 page not found\n"),
            ErrorFormat::ProblemDetails => problem_json(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    /// Response to a request without a valid token. The status is the same in both formats: clients
    /// of the original know it from the original's authentication proxy.
    pub(super) fn unauthorized(self) -> Response<Body> {
        let why = "token required: Authorization: Bearer TOKEN, or X-Auth-Token: TOKEN (netctl login)";
        let mut response = self.refused(StatusCode::UNAUTHORIZED, why);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response
    }

    /// Readiness probes evaluate only the status.
    pub(super) fn not_ready(self, why: &str) -> Response<Body> {
        self.refused(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    fn refused(self, status: StatusCode, why: &str) -> Response<Body> {
        match self {
            ErrorFormat::Text => respond(status, TEXT, format!("{why}\n")),
            ErrorFormat::ProblemDetails => problem_json(status, why),
        }
    }

    /// JSON body with content type text, which the original's server derives from the content.
    pub(super) fn json_as_text(self, answer: Answer) -> Response<Body> {
        match answer {
            Ok(body) => respond(StatusCode::OK, TEXT, body),
            Err(problem) => self.problem(&problem),
        }
    }

    pub(super) fn json(self, answer: Answer) -> Response<Body> {
        match answer {
            Ok(body) => respond(StatusCode::OK, JSON, body),
            Err(problem) => self.problem(&problem),
        }
    }
}

/// The client has this version of the object.
pub(super) fn not_modified() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    response
}

pub(super) fn text(body: String) -> Response<Body> {
    respond(StatusCode::OK, TEXT, body)
}

/// Response in OpenMetrics format.
pub(super) fn metrics(body: String) -> Response<Body> {
    respond(StatusCode::OK, METRICS, body)
}

/// Constant JSON body.
pub(super) fn document(text: &'static str) -> Response<Body> {
    respond(StatusCode::OK, JSON, text)
}

pub(super) fn moved(to: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn problem_json(status: StatusCode, detail: &str) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let body = json!({"type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail});
    respond(status, PROBLEM, body.to_string())
}

fn respond(status: StatusCode, content_type: HeaderValue, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // The original's server sets this header on errors.
    if content_type == TEXT && !status.is_success() {
        headers
            .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    }
    headers.insert(header::CONTENT_TYPE, content_type);
    response
}
