//! Requests of the leader to agents: removal of interfaces.

use std::collections::{BTreeMap, HashMap};
use std::iter::once;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use contiv_model::{endpoint, node, registry};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, timeout, timeout_at};

use crate::cache::ClusterCache;
use crate::problem::one_line;

/// Port of the agents' REST API, as in the original.
const PORT: u16 = 9090;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Nodes that are asked at the same time, and requests to one of them.
const NODES: usize = 64;
const REQUESTS_PER_NODE: usize = 8;
/// Size limit of an error response in bytes.
const MAX_RESPONSE: usize = 4096;

/// Interfaces that registered nodes may still have when the endpoints are deleted.
pub(super) struct Interfaces {
    /// Each endpoint with its node, sorted by endpoint.
    nodes: Vec<(String, String)>,
    /// Addresses of the nodes' agents: control address first, then VTEP address.
    agents: BTreeMap<String, Vec<String>>,
}

/// Interfaces of one node.
struct Node {
    /// Addresses of its agent.
    addresses: Vec<String>,
    endpoints: Vec<String>,
}

/// What the agents have answered. The error is the reason why an interface may remain.
type Answer = Result<(), String>;

/// Answers by endpoint.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<HashMap<String, Answer>>>);

type AgentClient = Client<HttpConnector, Body>;

impl Interfaces {
    /// Interfaces of endpoints, which are sorted.
    pub(super) fn of(endpoints: &[String], cache: &ClusterCache) -> Interfaces {
        let host =
            |id: &String| cache.get::<endpoint::State>(id).map(|endpoint| endpoint.homing_host.clone());
        let nodes = endpoints.iter().filter_map(|id| Some((id.clone(), host(id)?)));
        let mut nodes: Vec<(String, String)> = nodes.collect();
        let agents = agents(nodes.iter().map(|(_, host)| host), cache);
        nodes.retain(|(_, host)| agents.contains_key(host));
        Interfaces { nodes, agents }
    }

    /// Requests the removal of the interfaces of `deleted` endpoints, which are sorted, until `stop`.
    /// Returns one line for each interface that may remain, with the reason.
    pub(super) async fn reclaim(&self, deleted: &[String], stop: Instant) -> Vec<String> {
        let answers = Answers::default();
        let asked = ask(self.by_node(deleted), answers.clone());
        let _in_time = timeout_at(stop, asked).await.is_ok();
        let mut answers = answers.lock();
        let remaining = |(endpoint, host): &(String, String)| match answers.remove(endpoint) {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(line(endpoint, host, &why)),
            None => Some(line(endpoint, host, "no response within the time limit of the request")),
        };
        self.some(deleted).filter_map(remaining).collect()
    }

    /// Lines for interfaces of some endpoints, which are sorted.
    pub(super) fn lines(&self, endpoints: &[String], why: &str) -> Vec<String> {
        self.some(endpoints).map(|(endpoint, host)| line(endpoint, host, why)).collect()
    }

    fn some<'i>(&'i self, endpoints: &'i [String]) -> impl Iterator<Item = &'i (String, String)> {
        self.nodes.iter().filter(|(endpoint, _)| endpoints.binary_search(endpoint).is_ok())
    }

    fn by_node(&self, endpoints: &[String]) -> Vec<Node> {
        let mut nodes = BTreeMap::<&String, Vec<String>>::new();
        for (endpoint, host) in self.some(endpoints) {
            nodes.entry(host).or_default().push(endpoint.clone());
        }
        let node = |(host, endpoints): (&String, Vec<String>)| {
            let addresses = self.agents.get(host)?.clone();
            Some(Node { addresses, endpoints })
        };
        nodes.into_iter().filter_map(node).collect()
    }
}

fn line(endpoint: &str, host: &str, why: &str) -> String {
    format!("{endpoint} on {host} ({why})")
}

/// Addresses of the agents of nodes. A node without a registration has none.
fn agents<'h>(
    hosts: impl Iterator<Item = &'h String>,
    cache: &ClusterCache,
) -> BTreeMap<String, Vec<String>> {
    let mut agents: BTreeMap<String, Vec<String>> = hosts.map(|host| (host.clone(), vec![])).collect();
    for name in [registry::NETPLUGIN, registry::VTEP] {
        let all = cache.all::<registry::ServiceInfo>();
        for service in all.filter(|service| service.service_name == name) {
            if let Some(addresses) = agents.get_mut(&service.hostname) {
                addresses.push(service.host_addr.clone());
            }
        }
    }
    agents.values_mut().for_each(Vec::dedup);
    agents.retain(|_, addresses| !addresses.is_empty());
    agents
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the nodes.
async fn ask(nodes: Vec<Node>, answers: Answers) {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let client: AgentClient = Client::builder(TokioExecutor::new()).build(connector);
    let asked = futures::stream::iter(nodes).map(|node| node.ask(client.clone(), answers.clone()));
    asked.buffer_unordered(NODES).for_each(std::future::ready).await;
}

impl Node {
    /// An agent that does not respond is asked once, not for each interface: its time limit would add up.
    async fn ask(self, client: AgentClient, answers: Answers) {
        let mut endpoints = self.endpoints.into_iter();
        let Some(first) = endpoints.next() else { return };
        let authority = match responding(&client, &self.addresses, &first).await {
            Ok((authority, answer)) => {
                answers.lock().insert(first, answer);
                authority
            }
            Err(why) => {
                answers
                    .lock()
                    .extend(once(first).chain(endpoints).map(|endpoint| (endpoint, Err(why.clone()))));
                return;
            }
        };
        let silent = Arc::new(OnceLock::<String>::new());
        let asked = futures::stream::iter(endpoints).map(|endpoint| {
            let (client, answers) = (client.clone(), answers.clone());
            let (authority, silent) = (authority.clone(), silent.clone());
            async move {
                let answer = match silent.get() {
                    Some(why) => Err(why.clone()),
                    None => send(&client, &authority, &endpoint)
                        .await
                        .unwrap_or_else(|why| Err(silent.get_or_init(|| why).clone())),
                };
                answers.lock().insert(endpoint, answer);
            }
        });
        asked.buffer_unordered(REQUESTS_PER_NODE).for_each(std::future::ready).await;
    }
}

/// Sends the request to one address after the other. Returns the first that responds, with the answer.
async fn responding(
    client: &AgentClient,
    addresses: &[String],
    endpoint: &str,
) -> Result<(String, Answer), String> {
    let mut why = String::new();
    for address in addresses {
        let authority = match address.contains(':') {
            true => format!("[{address}]:{PORT}"),
            false => format!("{address}:{PORT}"),
        };
        match send(client, &authority, endpoint).await {
            Ok(answer) => return Ok((authority, answer)),
            Err(silent) => why = silent,
        }
    }
    Err(why)
}

/// The outer error means that there was no response.
async fn send(client: &AgentClient, authority: &str, endpoint: &str) -> Result<Answer, String> {
    match timeout(RESPONSE_TIMEOUT, exchange(client, authority, endpoint)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("{authority}: {}", one_line(&error))),
        Err(_) => Err(format!("{authority}: no response within {RESPONSE_TIMEOUT:?}")),
    }
}

async fn exchange(
    client: &AgentClient,
    authority: &str,
    endpoint: &str,
) -> Result<Answer, hyper_util::client::legacy::Error> {
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// Loopback address of this process and test, because the port is fixed.
    fn loopback(last: u8) -> IpAddr {
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        IpAddr::from([127, high, low, last])
    }

    fn interfaces(count: usize, agent: IpAddr) -> (Vec<String>, Interfaces) {
        let endpoints: Vec<String> = (0..count).map(|n| format!("net.default-{n:03}")).collect();
        let nodes = endpoints.iter().map(|endpoint| (endpoint.clone(), "away".to_owned())).collect();
        let agents = BTreeMap::from([("away".to_owned(), vec![agent.to_string()])]);
        (endpoints, Interfaces { nodes, agents })
    }

    #[tokio::test]
    async fn an_agent_that_does_not_respond_is_asked_once() {
        let address = loopback(21);
        let listener = TcpListener::bind((address, PORT)).await.unwrap();
        let connections = Arc::new(Mutex::new(0));
        let counted = connections.clone();
        let agent = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                *counted.lock().unwrap() += 1;
                let _request = stream.read(&mut [0; 1024]).await.unwrap();
            }
        });
        let (endpoints, interfaces) = interfaces(300, address);
        let stop = Instant::now() + Duration::from_secs(600);
        let left = interfaces.reclaim(&endpoints[..200], stop).await;
        assert_eq!(left.len(), 200);
        assert!(left[199].starts_with(&format!("net.default-199 on away ({address}:9090: ")), "{left:?}");
        assert_eq!(*connections.lock().unwrap(), 1);
        agent.abort();
    }

    #[tokio::test]
    async fn interfaces_without_an_answer_in_time_are_listed() {
        let address = loopback(22);
        let listener = TcpListener::bind((address, PORT)).await.unwrap();
        let (endpoints, interfaces) = interfaces(3, address);
        // The connection is established, and nothing is answered.
        let left = interfaces.reclaim(&endpoints, Instant::now() + Duration::from_millis(100)).await;
        let line = |id: &String| format!("{id} on away (no response within the time limit of the request)");
        assert_eq!(left, endpoints.iter().map(line).collect::<Vec<_>>());
        assert_eq!(interfaces.lines(&endpoints[1..2], "x"), ["net.default-001 on away (x)"]);
        drop(listener);
    }
}
