use std::time::Duration;

use bytes::Bytes;
use contiv_model::endpoint;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, header};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::access::Access;

/// Time limit for a request including its retries.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between attempts; a change of the leader ends it early.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time in which a netmaster that hands over answers its requests.
const ANSWER_AFTER_HANDOVER: Duration = Duration::from_millis(250);
/// Maximum size of a response body in bytes; an endpoint needs a few hundred.
const MAX_RESPONSE: usize = 1 << 20;
/// netmaster's error text if an endpoint, network or group does not exist.
const NOT_FOUND: &str = "key not found";

/// A request to netmaster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no leader, or it does not respond.
    #[error("{operation} at netmaster (is a netmaster running? the store names {})", leader.as_deref().unwrap_or("no leader"))]
    Unreachable {
        /// Operation.
        operation: String,
        /// Leader's address in the lock key.
        leader: Option<String>,
        /// Error of the last attempt.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// netmaster rejected the request.
    #[error("{operation}: netmaster refused: {message}")]
    Refused {
        /// Operation.
        operation: String,
        /// First line of the response body.
        message: String,
    },
    /// The endpoint's record is not the one that netmaster was to delete.
    #[error("{operation}: netmaster refused: {message}")]
    Changed {
        /// Operation.
        operation: String,
        /// First line of the response body.
        message: String,
    },
    /// A body cannot be encoded or decoded.
    #[error("{operation}: decode netmaster's response")]
    Response {
        /// Operation.
        operation: String,
        /// JSON error.
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Whether netmaster does not know an object that the request names.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { message, .. } if message == NOT_FOUND)
    }

    /// Whether netmaster has answered that it did not carry out the request.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Error::Refused { .. })
    }
}

/// Parameters of a new endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEndpoint {
    /// Tenant name.
    pub tenant: String,
    /// Network name.
    pub network: String,
    /// Group name; empty for none.
    pub group: String,
    /// Orchestrator's name of the endpoint.
    pub endpoint: String,
    /// Pod's display name.
    pub common_name: String,
    /// Name of this node.
    pub host: String,
}

/// Request body of `/plugin/createEndpoint` (INVENTORY 1.6).
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

/// Request body of `/plugin/deleteEndpoint`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteRequest<'a> {
    tenant_name: &'a str,
    network_name: &'a str,
    #[serde(rename = "EndpointID")]
    endpoint_id: &'a str,
    /// Netmasters of earlier releases ignore it.
    mod_revision: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CreateResponse {
    endpoint_config: endpoint::State,
}

/// Client of the leading netmaster.
#[derive(Clone)]
pub struct Master {
    access: Access,
    leader: watch::Receiver<Option<String>>,
}

impl Master {
    /// Sends requests to `leader`: the value of the lock key, `ip:port`.
    pub fn new(leader: watch::Receiver<Option<String>>, access: Access) -> Master {
        Master { access, leader }
    }

    /// The leader's address in the lock key.
    pub fn leader(&self) -> watch::Receiver<Option<String>> {
        self.leader.clone()
    }

    /// Whether the store names a leader.
    pub fn has_leader(&self) -> bool {
        self.leader.borrow().is_some()
    }

    /// Creates an endpoint, or returns the existing one. Sets `is_unanswered` if an attempt was not answered: netmaster may carry it
    /// out later.
    pub async fn create_endpoint(
        &self,
        new: &NewEndpoint,
        is_unanswered: &mut bool,
    ) -> Result<endpoint::State, Error> {
        let operation = format!("create endpoint {} on {}.{}", new.endpoint, new.network, new.tenant);
        let request = CreateRequest {
            tenant_name: &new.tenant,
            network_name: &new.network,
            service_name: &new.group,
            endpoint_id: &new.endpoint,
            common_name: &new.common_name,
            config: Config { container: &new.endpoint, host: &new.host, service_name: &new.group },
        };
        let body = self.post(&operation, "/plugin/createEndpoint", &request, is_unanswered).await?;
        let response = serde_json::from_slice::<CreateResponse>(&body);
        response
            .map(|response| response.endpoint_config)
            .map_err(|source| Error::Response { operation, source })
    }

    /// Deletes an endpoint and frees its addresses, if the store has its record of `revision`; 0 for no record. True if it existed.
    pub async fn delete_endpoint(
        &self,
        tenant: &str,
        network: &str,
        endpoint: &str,
        revision: i64,
    ) -> Result<bool, Error> {
        let operation = format!("delete endpoint {endpoint} on {network}.{tenant}");
        let request = DeleteRequest {
            tenant_name: tenant,
            network_name: network,
            endpoint_id: endpoint,
            mod_revision: revision,
        };
        match self.post(&operation, "/plugin/deleteEndpoint", &request, &mut false).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a request until it is answered, or for [`REQUEST_TIMEOUT`]. Sets `is_unanswered` if an attempt was not.
    async fn post(
        &self,
        operation: &str,
        path: &str,
        body: &impl Serialize,
        is_unanswered: &mut bool,
    ) -> Result<Bytes, Error> {
        let failed = |source| Error::Response { operation: operation.to_owned(), source };
        let body = Bytes::from(serde_json::to_vec(body).map_err(failed)?);
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let mut leader = self.leader.clone();
        loop {
            let address = leader.borrow_and_update().clone();
            let attempt = self.attempt(address.as_deref(), path, body.clone());
            let attempt = timeout_at(deadline, attempt);
            let answer = tokio::select! {
                biased;
                answer = attempt => answer,
                () = replaced(leader.clone(), address.as_deref()) => Ok(Err("another netmaster leads".into())),
            };
            let source = match answer {
                Ok(Ok(Reply::Done(body))) => return Ok(body),
                Ok(Ok(Reply::Refused(message))) => {
                    return Err(Error::Refused { operation: operation.to_owned(), message });
                }
                Ok(Ok(Reply::Changed(message))) => {
                    return Err(Error::Changed { operation: operation.to_owned(), message });
                }
                Ok(Err(source)) => source,
                Err(elapsed) => elapsed.into(),
            };
            *is_unanswered |= address.is_some();
            if Instant::now() + RETRY_INTERVAL >= deadline {
                return Err(Error::Unreachable { operation: operation.to_owned(), leader: address, source });
            }
            tracing::debug!("{operation}: {source}; retrying");
            tokio::select! {
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
                Ok(()) = leader.changed() => {}
            }
        }
    }

    /// Sends one request. An `Err` is temporary; the other replies are final.
    async fn attempt(
        &self,
        leader: Option<&str>,
        path: &str,
        body: Bytes,
    ) -> Result<Reply, Box<dyn std::error::Error + Send + Sync>> {
        let leader = leader.ok_or("no netmaster leads")?;
        let credentials = self.access.current();
        let mut request = Request::post(credentials.transport.url(leader, path))
            .header(header::CONTENT_TYPE, "application/json")
            // netmaster closes the connection after the response without this header.
            .header(header::CONNECTION, "keep-alive")
            .body(Full::new(body))?;
        if let Some(token) = &credentials.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        }
        let response = credentials.client.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await?.to_bytes();
        if status.is_success() {
            return Ok(Reply::Done(body));
        }
        let text = String::from_utf8_lossy(&body);
        let message = text.lines().next().unwrap_or_default().to_owned();
        // A proxy before netmaster may limit requests, or have no answer.
        if status == StatusCode::SERVICE_UNAVAILABLE
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::BAD_GATEWAY
            || status == StatusCode::GATEWAY_TIMEOUT
            || is_temporary(&message)
        {
            return Err(format!("{leader} answered {status}: {message}").into());
        }
        Ok(match status {
            StatusCode::PRECONDITION_FAILED => Reply::Changed(message),
            _ => Reply::Refused(message),
        })
    }
}

/// Waits until another netmaster has led for a while: one that stops in order still answers its requests, one whose machine has failed
/// does not even close its connections.
async fn replaced(mut leader: watch::Receiver<Option<String>>, asked: Option<&str>) {
    let is_other = |now: &Option<String>| now.is_some() && now.as_deref() != asked;
    if leader.wait_for(is_other).await.is_err() {
        // No more leaders are known.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(ANSWER_AFTER_HANDOVER).await;
}

enum Reply {
    Done(Bytes),
    Refused(String),
    /// A precondition of the request does not hold.
    Changed(String),
}

/// Error texts of a follower while the leader changes (INVENTORY 1.1). All errors have status 500.
fn is_temporary(message: &str) -> bool {
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
    async fn request_body_matches_the_original() {
        let router = Router::new().route("/plugin/createEndpoint", post(|body: String| async move {
            assert_eq!(
                body,
                r#"{"TenantName":"t","NetworkName":"n","ServiceName":"g","EndpointID":"c1","EPCommonName":"pod","ConfigEP":{"Container":"c1","Host":"h","ServiceName":"g"}}"#
            );
            r#"{"EndpointConfig":{"id":"n.t-c1","ipAddress":"10.0.0.1"}}"#
        }));
        let (_sender, leader) = watch::channel(Some(serve(router).await));
        let mut is_unanswered = false;
        let endpoint = master(leader).create_endpoint(&new_endpoint(), &mut is_unanswered).await.unwrap();
        assert!(!is_unanswered);
        assert_eq!((endpoint.id.as_str(), endpoint.ip_address.as_str()), ("n.t-c1", "10.0.0.1"));
    }

    #[tokio::test]
    async fn request_is_repeated_until_the_leader_changes() {
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
        let (sender, leader) = watch::channel(Some(serve(deposed).await));
        let master = master(leader);
        let deleting = tokio::spawn(async move { master.delete_endpoint("t", "n", "c1", 7).await });
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        sender.send(Some(serve(new).await)).unwrap();
        assert!(deleting.await.unwrap().unwrap());
    }

    /// A netmaster that does not know whether it has created the endpoint may still be about to.
    #[tokio::test]
    async fn an_attempt_without_an_answer_is_reported() {
        let answer_second = |State(asked): State<Arc<AtomicUsize>>| async move {
            match asked.fetch_add(1, Ordering::Relaxed) {
                0 => (StatusCode::SERVICE_UNAVAILABLE, "no response within 60 s\n"),
                1 => (StatusCode::GATEWAY_TIMEOUT, "no response\n"),
                2 => (StatusCode::OK, r#"{"EndpointConfig":{"id":"n.t-c1","ipAddress":"10.0.0.1"}}"#),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, "no address left\n"),
            }
        };
        let router = Router::new().route("/plugin/createEndpoint", post(answer_second));
        let (_sender, leader) = watch::channel(Some(serve(router.with_state(Arc::default())).await));
        let master = master(leader);
        for (is_repeated, is_created) in [(true, true), (false, false)] {
            let mut is_unanswered = false;
            let created = master.create_endpoint(&new_endpoint(), &mut is_unanswered).await;
            assert_eq!((is_unanswered, created.is_ok()), (is_repeated, is_created));
        }
    }

    /// The machine of a netmaster that has failed closes no connection.
    #[tokio::test]
    async fn a_request_goes_to_the_next_leader_if_the_first_does_not_answer() {
        let asked = Arc::new(AtomicUsize::new(0));
        let silent = |State(asked): State<Arc<AtomicUsize>>| async move {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        };
        let dead = Router::new().route("/plugin/createEndpoint", post(silent)).with_state(asked.clone());
        let answer = || async { r#"{"EndpointConfig":{"id":"n.t-c1","ipAddress":"10.0.0.1"}}"# };
        let next = Router::new().route("/plugin/createEndpoint", post(answer));
        let (sender, leader) = watch::channel(Some(serve(dead).await));
        let master = master(leader);
        let creating = tokio::spawn(async move {
            let mut is_unanswered = false;
            let created = master.create_endpoint(&new_endpoint(), &mut is_unanswered).await;
            (created.is_ok(), is_unanswered)
        });
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        sender.send(Some(serve(next).await)).unwrap();
        assert_eq!(creating.await.unwrap(), (true, true));
    }

    #[tokio::test]
    async fn refusal_is_final_and_a_missing_endpoint_counts_as_deleted() {
        let refuse_with = |message: &'static str| {
            let refuse = move || async move { (StatusCode::INTERNAL_SERVER_ERROR, message) };
            Router::new().route("/plugin/deleteEndpoint", post(refuse))
        };
        let (_sender, leader) = watch::channel(Some(serve(refuse_with("key not found\n")).await));
        assert!(!master(leader).delete_endpoint("t", "n", "c1", 7).await.unwrap());
        let (_sender, leader) = watch::channel(Some(serve(refuse_with("no\nat all\n")).await));
        let error = master(leader).delete_endpoint("t", "n", "c1", 7).await.unwrap_err();
        assert_eq!(error.to_string(), "delete endpoint c1 on n.t: netmaster refused: no");
    }

    #[tokio::test]
    async fn a_deletion_is_of_one_revision_of_the_record() {
        let router = Router::new().route(
            "/plugin/deleteEndpoint",
            post(|body: String| async move {
                assert_eq!(body, r#"{"TenantName":"t","NetworkName":"n","EndpointID":"c1","ModRevision":7}"#);
                (StatusCode::PRECONDITION_FAILED, "its record has revision 8\n")
            }),
        );
        let (_sender, leader) = watch::channel(Some(serve(router).await));
        let error = master(leader).delete_endpoint("t", "n", "c1", 7).await.unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error:?}");
    }
}
