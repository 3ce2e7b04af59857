//! Metrics of requests.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;

use super::{path, route_template};
use crate::metrics::Metrics;

/// Records duration and status of every request that is answered.
pub(super) async fn pass(State(metrics): State<Metrics>, request: Request, next: Next) -> Response<Body> {
    let start = Instant::now();
    let route = route_template::of(&path::parts(request.uri()));
    let method = label(request.method());
    let response = next.run(request).await;
    metrics.requests.record(route, method, response.status().as_u16(), start.elapsed());
    response
}

/// Clients may send any word as method.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
