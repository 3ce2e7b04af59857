//! HTTP client of the ACI gateway.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use contiv_daemon::client::{Connector, Transport};
use contiv_daemon::reload::Reloadable;
use contiv_daemon::tls;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::time::timeout;

use crate::domain::fabric::Spec;
use crate::problem::{Problem, one_line};

#[derive(Clone)]
pub struct Gateway {
    /// Base URL without a trailing slash.
    url: String,
    client: Reloadable<Client<Connector, Full<Bytes>>>,
}

/// Response of the gateway.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    result: String,
    info: String,
}

/// Time limit for a request. The gateway waits for the fabric's controllers.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Size limit of a response in bytes.
const MAX_RESPONSE: usize = 1 << 20;

impl Gateway {
    /// With an https URL, `ca` verifies the gateway's certificate. Returns the gateway with a future that reads `ca` again
    /// when it changes; the caller must run it.
    pub fn new(
        url: String,
        ca: Option<PathBuf>,
    ) -> Result<(Gateway, impl Future<Output = ()> + Send + 'static), tls::Error> {
        let watched = ca.iter().cloned().collect();
        let load = move || -> Result<_, tls::Error> {
            let transport = Transport::new(ca.as_deref().map(|ca| tls::client(ca, None)).transpose()?)?;
            Ok(Client::builder(TokioExecutor::new()).build(transport.connector()))
        };
        let (client, follow) = Reloadable::load("CA bundle of the ACI gateway", watched, load)?;
        Ok((Gateway { url, client }, follow))
    }

    /// Creates the profile in the fabric.
    pub async fn create(&self, spec: &Spec) -> Result<(), Problem> {
        let reply = self.post("createAppProf", spec).await?;
        reply.accepted("Validation failed. Error:")
    }

    /// Deletes the profile from the fabric.
    pub async fn delete(&self, spec: &Spec) -> Result<(), Problem> {
        let reply = self.post("deleteAppProf", spec).await?;
        reply.accepted("Delete failed. Error:")
    }

    /// Like [`Gateway::delete`], for a profile that may not exist in the fabric: fails only if the
    /// gateway does not respond.
    pub async fn delete_if_present(&self, spec: &Spec) -> Result<(), Problem> {
        let reply = self.post("deleteAppProf", spec).await?;
        if let Err(problem) = reply.accepted("Delete failed. Error:") {
            tracing::info!(%problem, "delete a profile from the ACI gateway: refused; the profile may not exist there");
        }
        Ok(())
    }

    async fn post(&self, call: &str, spec: &Spec) -> Result<Reply, Problem> {
        let url = format!("{}/{call}", self.url);
        let failed = |why: String| Problem::gateway(format!("ACI gateway: {url}: {why}"));
        let body = serde_json::to_vec(spec).map_err(|e| failed(e.to_string()))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(&url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.into()))
            .map_err(|e| failed(e.to_string()))?;
        let exchange = async {
            let response = self.client.now().request(request).await.map_err(|e| {
                failed(format!("{}; check that the gateway runs, and --aci-gateway", one_line(&e)))
            })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
            let body = body.map_err(|e| failed(e.to_string()))?.to_bytes();
            match status {
                StatusCode::OK => {
                    serde_json::from_slice(&body).map_err(|e| failed(format!("decode the response: {e}")))
                }
                StatusCode::NOT_FOUND => Err(failed("page not found".into())),
                StatusCode::FORBIDDEN => Err(failed("access denied".into())),
                status => Err(failed(status.to_string())),
            }
        };
        let slow = |_| failed(format!("no response within {} s", REQUEST_TIMEOUT.as_secs()));
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(slow)?
    }
}

impl Reply {
    fn accepted(&self, otherwise: &str) -> Result<(), Problem> {
        match self.result.as_str() {
            "success" => Ok(()),
            result => Err(Problem::conflict(format!("{otherwise} {result} - {}", self.info))),
        }
    }
}
