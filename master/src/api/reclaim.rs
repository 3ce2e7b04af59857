//! Requests of the leader to agents: removal of interfaces.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contiv_model::{node, registry};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use crate::cache::ClusterCache;
use crate::problem::one_line;

/// Port of the agents' REST API, as in the original.
const PORT: u16 = 9090;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
const BATCH: usize = 16;
/// Size limit of an error response in bytes.
const MAX_RESPONSE: usize = 4096;

/// An interface that a node may still have although its endpoint is deleted.
#[derive(Clone, Debug)]
pub(super) struct ReclaimRequest {
    pub(super) endpoint: String,
    host: String,
    /// Addresses of the node's agent: control address first, then VTEP address.
    addresses: Vec<String>,
}

impl ReclaimRequest {
    /// None if the endpoint's node has no registration.
    pub(super) fn of(endpoint: &str, host: &str, cache: &ClusterCache) -> Option<ReclaimRequest> {
        let addresses = |name: &str| {
            let all = cache.all::<registry::ServiceInfo>();
            let mine: Vec<String> = all
                .filter(|service| service.service_name == name && service.hostname == host)
                .map(|service| service.host_addr.clone())
                .collect();
            mine
        };
        let mut addresses = [addresses(registry::NETPLUGIN), addresses(registry::VTEP)].concat();
        addresses.dedup();
        let (endpoint, host) = (endpoint.to_owned(), host.to_owned());
        (!addresses.is_empty()).then_some(ReclaimRequest { endpoint, host, addresses })
    }
}

/// Requests the removal of the interfaces. Returns one line for each interface that may remain,
/// with the reason.
pub(super) async fn reclaim(requests: Vec<ReclaimRequest>) -> Vec<String> {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let asked = futures::stream::iter(requests).map(|request| {
        let client = client.clone();
        async move {
            let why = send(&client, &request).await.err()?;
            Some(format!("{} on {} ({why})", request.endpoint, request.host))
        }
    });
    asked.buffer_unordered(BATCH).filter_map(std::future::ready).collect().await
}

/// Uses the first address that responds.
async fn send(client: &Client<HttpConnector, Body>, request: &ReclaimRequest) -> Result<(), String> {
    let mut why = String::new();
    for address in &request.addresses {
        let authority = match address.contains(':') {
            true => format!("[{address}]:{PORT}"),
            false => format!("{address}:{PORT}"),
        };
        match timeout(RESPONSE_TIMEOUT, send_to(client, &authority, &request.endpoint)).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => why = format!("{authority}: {}", one_line(&error)),
            Err(_) => why = format!("{authority}: no response within {RESPONSE_TIMEOUT:?}"),
        }
    }
    Err(why)
}

/// The outer error means that there was no response.
async fn send_to(
    client: &Client<HttpConnector, Body>,
    authority: &str,
    endpoint: &str,
) -> Result<Result<(), String>, hyper_util::client::legacy::Error> {
    let id = utf8_percent_encode(endpoint, NON_ALPHANUMERIC);
    let request = Request::builder()
        .method(Method::DELETE)
        .uri(format!("http://{authority}/debug/reclaimEndpoint/{id}"))
        .body(Body::empty());
    let request = match request {
        Ok(request) => request,
        Err(error) => return Ok(Err(format!("{authority}: {error}"))),
    };
    let answer = client.request(request).await?;
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(Ok(()));
    }
    let body = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await;
    let text =
        body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned()).unwrap_or_default();
    // The interface does not exist any more.
    Ok(if text.ends_with(node::NOTHING_TO_RECLAIM) {
        Ok(())
    } else {
        Err(format!("{authority}: {status}: {text}"))
    })
}
