//! The gateway's HTTP API.

use std::time::Duration;

use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::time::timeout;

use crate::domain::fabric::Spec;
use crate::problem::{Problem, one_line};

#[derive(Clone)]
pub struct Gateway {
    /// Without a trailing slash.
    url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What the gateway answers.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verdict {
    result: String,
    info: String,
}

/// The gateway asks the fabric's controllers, which take their time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of an answer.
const LARGEST: usize = 1 << 20;

impl Gateway {
    pub fn new(url: String) -> Gateway {
        Gateway { url, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// The fabric gets the profile.
    pub async fn create(&self, spec: &Spec) -> Result<(), Problem> {
        let verdict = self.post("createAppProf", spec).await?;
        verdict.accepted("Validation failed. Error:")
    }

    /// The fabric has the profile no more.
    pub async fn delete(&self, spec: &Spec) -> Result<(), Problem> {
        let verdict = self.post("deleteAppProf", spec).await?;
        verdict.accepted("Delete failed. Error:")
    }

    /// As [`Gateway::delete`], of a profile that the fabric may not have: only who does not answer has failed.
    pub async fn clear(&self, spec: &Spec) -> Result<(), Problem> {
        let verdict = self.post("deleteAppProf", spec).await?;
        if let Err(problem) = verdict.accepted("Delete failed. Error:") {
            tracing::info!(%problem, "the ACI gateway may not have had the profile");
        }
        Ok(())
    }

    async fn post(&self, call: &str, spec: &Spec) -> Result<Verdict, Problem> {
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
            let response =
                self.client.request(request).await.map_err(|e| {
                    failed(format!("{}; does it run, and is --aci-gateway right?", one_line(&e)))
                })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|e| failed(e.to_string()))?.to_bytes();
            match status {
                StatusCode::OK => {
                    serde_json::from_slice(&body).map_err(|e| failed(format!("its answer: {e}")))
                }
                StatusCode::NOT_FOUND => Err(failed("page not found".into())),
                StatusCode::FORBIDDEN => Err(failed("access denied".into())),
                status => Err(failed(status.to_string())),
            }
        };
        let slow = |_| failed(format!("no answer in {} seconds", PATIENCE.as_secs()));
        timeout(PATIENCE, exchange).await.map_err(slow)?
    }
}

impl Verdict {
    fn accepted(&self, otherwise: &str) -> Result<(), Problem> {
        match self.result.as_str() {
            "success" => Ok(()),
            result => Err(Problem::conflict(format!("{otherwise} {result} - {}", self.info))),
        }
    }
}
