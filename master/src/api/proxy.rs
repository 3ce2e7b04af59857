//! A follower asks the leader, and passes on what it says.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::response::Response;
use contiv_daemon::client::{Connector, Way};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::answer::{Wants, bad_gateway};
use crate::problem::Problem;

/// Keeps connections to the leader.
#[derive(Clone)]
pub struct Proxy {
    client: Client<Connector, Body>,
    way: Way,
}

/// Of one connection, not of the request.
const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

impl Proxy {
    pub fn new(way: Way) -> Proxy {
        Proxy { client: Client::builder(TokioExecutor::new()).build(way.connector()), way }
    }

    /// The bodies of request and answer stream through.
    pub(super) async fn forward(&self, leader: &str, request: Request, wants: Wants) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = self.way.url(leader, path).parse::<Uri>() else {
            let error = format!("the leader's lock holds {leader:?}, which is no address");
            return wants.problem(&Problem::unavailable(error));
        };
        head.uri = uri;
        strip(&mut head.headers);
        head.headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
        match self.client.request(Request::from_parts(head, body)).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                strip(&mut head.headers);
                Response::from_parts(head, Body::new(body))
            }
            Err(error) => {
                let text = format!("leader {leader}: {}", crate::committer::one_line(&error));
                tracing::warn!("{text}");
                bad_gateway(&text)
            }
        }
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}
