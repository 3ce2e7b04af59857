//! Requests to netmaster.
//!
//! The leader's address is the value of the lock key; who watches it tells us. Every request that is
//! made here may be made twice: creating an endpoint that is there returns it, and deleting one that
//! is not there is what was wanted. So a request that fails while leadership moves is repeated until
//! its deadline.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use contiv_daemon::{
    client::{Connector, Transport},
    reload::Reloadable,
    secret,
    tls::{self, KeyPair},
};
use contiv_model::endpoint;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, header, header::HeaderValue};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::config::MasterFlags;

/// How long one request may take, with its repetitions.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two attempts, unless the leader changes before.
const PAUSE: Duration = Duration::from_millis(200);
/// An endpoint's body is a few hundred bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// What netmaster answers when an endpoint, network or group does not exist.
const NOT_FOUND: &str = "key not found";

/// A request to netmaster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody leads, or the leader did not answer.
    #[error("{operation} at netmaster (is a netmaster running? the store names {})", leader.as_deref().unwrap_or("no leader"))]
    Unreachable {
        /// What was asked.
        operation: String,
        /// Whom the lock key names.
        leader: Option<String>,
        /// What the last attempt met.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The master said no.
    #[error("{operation}: netmaster refused: {message}")]
    Refused {
        /// What was asked.
        operation: String,
        /// The first line of its answer.
        message: String,
    },
    /// The master's answer is not what was agreed.
    #[error("{operation}: read netmaster's answer")]
    Answer {
        /// What was asked.
        operation: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

/// What an endpoint is asked for with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEndpoint {
    /// The tenant's name.
    pub tenant: String,
    /// The network's name.
    pub network: String,
    /// The group's name, or empty.
    pub group: String,
    /// What the orchestrator calls it.
    pub endpoint: String,
    /// The pod's name, for people.
    pub common_name: String,
    /// This node.
    pub host: String,
}

/// The body of `/plugin/createEndpoint` (INVENTORY 1.6).
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct CreateRequest<'a> {
    tenant_name: &'a str,
    network_name: &'a str,
    service_name: &'a str,
    #[serde(rename = "EndpointID")]
    endpoint_id: &'a str,
    #[serde(rename = "EPCommonName")]
    common_name: &'a str,
    #[serde(rename = "ConfigEP")]
    config: Config<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Config<'a> {
    container: &'a str,
    host: &'a str,
    service_name: &'a str,
}

/// The body of `/plugin/deleteEndpoint`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteRequest<'a> {
    tenant_name: &'a str,
    network_name: &'a str,
    #[serde(rename = "EndpointID")]
    endpoint_id: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    endpoint_config: endpoint::State,
}

/// How netmaster is asked: as the files said when they were looked at last.
#[derive(Clone)]
pub struct Access(Reloadable<Papers>);

struct Papers {
    way: Transport,
    client: Client<Connector, Full<Bytes>>,
    /// `Bearer` and a token; never shown.
    token: Option<HeaderValue>,
}

/// The flags' files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Certificates.
    #[error("set up https to netmaster (--master-ca, --master-cert)")]
    Tls(#[from] tls::Error),
    /// The token's file.
    #[error("--master-token-file")]
    Token(#[from] secret::Error),
    /// The token.
    #[error("--master-token-file {}: the token is not printable ASCII", .0.display())]
    Form(PathBuf),
}

impl Access {
    /// By plain http, as anybody.
    pub fn plain() -> Result<Access, AccessError> {
        let (access, _no_files) = Access::read(MasterFlags::default())?;
        Ok(access)
    }

    /// As the flags say, and what must be run for it to follow the files.
    pub fn read(
        flags: MasterFlags,
    ) -> Result<(Access, impl Future<Output = ()> + Send + 'static), AccessError> {
        let files = [&flags.master_ca, &flags.master_cert, &flags.master_key, &flags.master_token_file];
        let files = files.into_iter().flatten().cloned().collect();
        let (papers, follow) =
            Reloadable::load("certificates and token for netmaster", files, move || Papers::read(&flags))?;
        Ok((Access(papers), follow))
    }
}

impl Papers {
    fn read(flags: &MasterFlags) -> Result<Papers, AccessError> {
        let own = flags.master_cert.clone().zip(flags.master_key.clone());
        let own = own.map(|(certificate, key)| KeyPair { certificate, key });
        let tls = flags.master_ca.as_deref().map(|ca| tls::client(ca, own.as_ref())).transpose()?;
        let token = match &flags.master_token_file {
            None => None,
            Some(path) => {
                let token = HeaderValue::try_from(format!("Bearer {}", secret::read_line(path)?));
                let mut token = token.map_err(|_| AccessError::Form(path.clone()))?;
                token.set_sensitive(true);
                Some(token)
            }
        };
        let way = Transport::new(tls)?;
        let client = Client::builder(TokioExecutor::new()).build(way.connector());
        Ok(Papers { way, client, token })
    }
}

/// Whoever leads.
#[derive(Clone)]
pub struct Master {
    access: Access,
    leader: watch::Receiver<Option<String>>,
}

impl Master {
    /// Follows `leader`: the value of the lock key, `ip:port`.
    pub fn new(leader: watch::Receiver<Option<String>>, access: Access) -> Master {
        Master { access, leader }
    }

    /// Makes an endpoint, or returns the one that is there.
    pub async fn create_endpoint(&self, new: &NewEndpoint) -> Result<endpoint::State, Error> {
        let operation = format!("create endpoint {} on {}.{}", new.endpoint, new.network, new.tenant);
        let request = CreateRequest {
            tenant_name: &new.tenant,
            network_name: &new.network,
            service_name: &new.group,
            endpoint_id: &new.endpoint,
            common_name: &new.common_name,
            config: Config { container: &new.endpoint, host: &new.host, service_name: &new.group },
        };
        let answer = self.post(&operation, "/plugin/createEndpoint", &request).await?;
        let answer = serde_json::from_slice::<Answer>(&answer);
        answer.map(|a| a.endpoint_config).map_err(|source| Error::Answer { operation, source })
    }

    /// Removes an endpoint and frees its addresses; true when it was there.
    pub async fn delete_endpoint(&self, tenant: &str, network: &str, endpoint: &str) -> Result<bool, Error> {
        let operation = format!("delete endpoint {endpoint} on {network}.{tenant}");
        let request = DeleteRequest { tenant_name: tenant, network_name: network, endpoint_id: endpoint };
        match self.post(&operation, "/plugin/deleteEndpoint", &request).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { message, .. }) if message == NOT_FOUND => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn post(&self, operation: &str, path: &str, body: &impl Serialize) -> Result<Bytes, Error> {
        let failed = |source| Error::Answer { operation: operation.to_owned(), source };
        let body = Bytes::from(serde_json::to_vec(body).map_err(failed)?);
        let deadline = Instant::now() + PATIENCE;
        let mut leader = self.leader.clone();
        loop {
            let address = leader.borrow_and_update().clone();
            let attempt = timeout_at(deadline, self.attempt(address.as_deref(), path, body.clone()));
            let source = match attempt.await {
                Ok(Ok(Reply::Done(body))) => return Ok(body),
                Ok(Ok(Reply::Refused(message))) => {
                    return Err(Error::Refused { operation: operation.to_owned(), message });
                }
                Ok(Err(source)) => source,
                Err(elapsed) => elapsed.into(),
            };
            if Instant::now() + PAUSE >= deadline {
                return Err(Error::Unreachable { operation: operation.to_owned(), leader: address, source });
            }
            tracing::debug!("{operation}: {source}, again");
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                Ok(()) = leader.changed() => {}
            }
        }
    }

    /// One request. An `Err` may pass by itself, a refusal does not.
    async fn attempt(
        &self,
        leader: Option<&str>,
        path: &str,
        body: Bytes,
    ) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
        let leader = leader.ok_or("no netmaster leads")?;
        let papers = self.access.0.now();
        let mut request = Request::post(papers.way.url(leader, path))
            .header(header::CONTENT_TYPE, "application/json")
            // netmaster closes a connection after the answer unless it is asked not to.
            .header(header::CONNECTION, "keep-alive")
            .body(Full::new(body))?;
        if let Some(token) = &papers.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        let answer = papers.client.request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await?.to_bytes();
        if status.is_success() {
            return Ok(Reply::Done(body));
        }
        let text = String::from_utf8_lossy(&body);
        let message = text.lines().next().unwrap_or_default().to_owned();
        if status == StatusCode::SERVICE_UNAVAILABLE
            || status == StatusCode::BAD_GATEWAY
            || is_passing(&message)
        {
            return Err(format!("{leader} answered {status}: {message}").into());
        }
        Ok(Reply::Refused(message))
    }
}

enum Reply {
    Done(Bytes),
    Refused(String),
}

/// What a follower says while leadership moves (INVENTORY 1.1): all errors have status 500.
fn is_passing(message: &str) -> bool {
    matches!(message, "Leader not found" | "Self proxying error")
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{Router, extract::State, routing::post};

    use super::*;

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        address
    }

    fn master(leader: watch::Receiver<Option<String>>) -> Master {
        Master::new(leader, Access::plain().unwrap())
    }

    fn new_endpoint() -> NewEndpoint {
        NewEndpoint {
            tenant: "t".into(),
            network: "n".into(),
            group: "g".into(),
            endpoint: "c1".into(),
            common_name: "pod".into(),
            host: "h".into(),
        }
    }

    #[tokio::test]
    async fn the_request_is_the_originals() {
        let router = Router::new().route("/plugin/createEndpoint", post(|body: String| async move {
            assert_eq!(
                body,
                r#"{"TenantName":"t","NetworkName":"n","ServiceName":"g","EndpointID":"c1","EPCommonName":"pod","ConfigEP":{"Container":"c1","Host":"h","ServiceName":"g"}}"#
            );
            r#"{"EndpointConfig":{"id":"n.t-c1","ipAddress":"10.0.0.1"}}"#
        }));
        let (_tell, leader) = watch::channel(Some(serve(router).await));
        let endpoint = master(leader).create_endpoint(&new_endpoint()).await.unwrap();
        assert_eq!((endpoint.id.as_str(), endpoint.ip_address.as_str()), ("n.t-c1", "10.0.0.1"));
    }

    #[tokio::test]
    async fn a_change_of_leader_is_waited_for() {
        let asked = Arc::new(AtomicUsize::new(0));
        let deposed = Router::new()
            .route(
                "/plugin/deleteEndpoint",
                post(|State(asked): State<Arc<AtomicUsize>>| async move {
                    asked.fetch_add(1, Ordering::Relaxed);
                    (StatusCode::INTERNAL_SERVER_ERROR, "Leader not found\n")
                }),
            )
            .with_state(asked.clone());
        let new = Router::new().route("/plugin/deleteEndpoint", post(|| async { "{}" }));
        let (tell, leader) = watch::channel(Some(serve(deposed).await));
        let master = master(leader);
        let deleting = tokio::spawn(async move { master.delete_endpoint("t", "n", "c1").await });
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        tell.send(Some(serve(new).await)).unwrap();
        assert!(deleting.await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn a_refusal_is_told_at_once_and_what_is_gone_is_gone() {
        let answer = |message: &'static str| {
            let refuse = move || async move { (StatusCode::INTERNAL_SERVER_ERROR, message) };
            Router::new().route("/plugin/deleteEndpoint", post(refuse))
        };
        let (_tell, leader) = watch::channel(Some(serve(answer("key not found\n")).await));
        assert!(!master(leader).delete_endpoint("t", "n", "c1").await.unwrap());
        let (_tell, leader) = watch::channel(Some(serve(answer("no\nat all\n")).await));
        let error = master(leader).delete_endpoint("t", "n", "c1").await.unwrap_err();
        assert_eq!(error.to_string(), "delete endpoint c1 on n.t: netmaster refused: no");
    }
}
