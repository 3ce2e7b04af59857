//! What the leader asks of nodes.

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

use crate::cache::World;
use crate::problem::one_line;

/// The port of the agents' REST service, as in the original.
const PORT: u16 = 9090;
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(20);
const AT_ONCE: usize = 16;
/// Of an answer that says why not.
const LONGEST: usize = 4096;

/// An endpoint whose interface a node may still have.
#[derive(Clone, Debug)]
pub(super) struct Orphan {
    pub(super) endpoint: String,
    host: String,
    /// Where the node's agent may be: its control address first, then its VTEP.
    addresses: Vec<String>,
}

impl Orphan {
    /// None if the endpoint's node is not there: then nobody has to be asked.
    pub(super) fn of(endpoint: &str, host: &str, world: &World) -> Option<Orphan> {
        let addresses = |name: &str| {
            let all = world.all::<registry::ServiceInfo>();
            let mine: Vec<String> = all
                .filter(|service| service.service_name == name && service.hostname == host)
                .map(|service| service.host_addr.clone())
                .collect();
            mine
        };
        let mut addresses = [addresses(registry::NETPLUGIN), addresses(registry::VTEP)].concat();
        addresses.dedup();
        let (endpoint, host) = (endpoint.to_owned(), host.to_owned());
        (!addresses.is_empty()).then_some(Orphan { endpoint, host, addresses })
    }
}

/// Asks the nodes to take the interfaces away. Tells which are still there, and why.
pub(super) async fn reclaim(orphans: Vec<Orphan>) -> Vec<String> {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let asked = futures::stream::iter(orphans).map(|orphan| {
        let client = client.clone();
        async move {
            let why = ask(&client, &orphan).await.err()?;
            Some(format!("{} on {} ({why})", orphan.endpoint, orphan.host))
        }
    });
    asked.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

/// At the first address where somebody answers.
async fn ask(client: &Client<HttpConnector, Body>, orphan: &Orphan) -> Result<(), String> {
    let mut why = String::new();
    for address in &orphan.addresses {
        let place = match address.contains(':') {
            true => format!("[{address}]:{PORT}"),
            false => format!("{address}:{PORT}"),
        };
        match timeout(ANSWER, ask_at(client, &place, &orphan.endpoint)).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(error)) => why = format!("{place}: {}", one_line(&error)),
            Err(_) => why = format!("{place}: no answer within {ANSWER:?}"),
        }
    }
    Err(why)
}

/// The outer error means that nobody answered.
async fn ask_at(
    client: &Client<HttpConnector, Body>,
    place: &str,
    endpoint: &str,
) -> Result<Result<(), String>, hyper_util::client::legacy::Error> {
    let id = utf8_percent_encode(endpoint, NON_ALPHANUMERIC);
    let request = Request::builder()
        .method(Method::DELETE)
        .uri(format!("http://{place}/debug/reclaimEndpoint/{id}"))
        .body(Body::empty());
    let request = match request {
        Ok(request) => request,
        Err(error) => return Ok(Err(format!("{place}: {error}"))),
    };
    let answer = client.request(request).await?;
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(Ok(()));
    }
    let body = Limited::new(answer.into_body(), LONGEST).collect().await;
    let text =
        body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned()).unwrap_or_default();
    // Nothing is left to be taken away: all the better.
    Ok(if text.ends_with(node::NOTHING_TO_RECLAIM) {
        Ok(())
    } else {
        Err(format!("{place}: {status}: {text}"))
    })
}
