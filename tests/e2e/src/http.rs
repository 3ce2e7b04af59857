//! Requests as any client of the original would send them.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use testkit::Netns;
use ureq::{
    Agent, Body,
    config::AutoHeaderValue,
    http::{Method, Request, Response},
};

const TIMEOUT: Duration = Duration::from_secs(30);
pub const JSON: &str = "application/json";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Answer {
    /// Error texts of the original go on with a stack trace.
    pub fn first_line(&self) -> &str {
        self.body.lines().next().unwrap_or_default()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("not JSON: {}", self.first_line()))
    }
}

/// A client of one server, in its own namespace or in another. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    server: SocketAddr,
    namespace: Option<Netns>,
}

impl Client {
    pub fn new(server: SocketAddr) -> Client {
        Client::impatient(server, TIMEOUT)
    }

    /// One that waits no longer than `limit`.
    pub fn impatient(server: SocketAddr, limit: Duration) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(limit))
            .proxy(None)
            .accept(AutoHeaderValue::None)
            .build();
        Client { agent: config.into(), server, namespace: None }
    }

    /// A server that only `namespace` can reach.
    pub fn within(namespace: &Netns, server: SocketAddr) -> Client {
        Client { namespace: Some(namespace.clone()), ..Client::new(server) }
    }

    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// One request, whatever comes back. `content_type` goes with a body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        content_type: Option<&str>,
        body: Option<&str>,
    ) -> Result<Answer> {
        let exchange = || {
            let mut request = Request::builder()
                .method(Method::try_from(method)?)
                .uri(format!("http://{}{path}", self.server))
                // netmaster closes a connection after the answer unless it is asked not to.
                .header("connection", "keep-alive");
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let response = match body {
                Some(body) => self.agent.run(request.body(body.to_owned())?),
                None => self.agent.run(request.body(())?),
            };
            answer(response.with_context(|| format!("{method} http://{}{path}", self.server))?)
        };
        match &self.namespace {
            Some(namespace) => namespace.run(exchange),
            None => exchange(),
        }
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, None, None)
    }

    /// A GET that must succeed.
    pub fn get_json(&self, path: &str) -> Result<Value> {
        let answer = self.get(path)?;
        self.expect_success("GET", path, &answer)?;
        answer.json()
    }

    /// A POST that must succeed.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.send("POST", path, Some(JSON), Some(&body.to_string()))?;
        self.expect_success("POST", path, &answer)?;
        answer.json()
    }

    /// A DELETE that must succeed.
    pub fn delete(&self, path: &str) -> Result<()> {
        let answer = self.send("DELETE", path, None, None)?;
        self.expect_success("DELETE", path, &answer)
    }

    fn expect_success(&self, method: &str, path: &str, answer: &Answer) -> Result<()> {
        if answer.status != 200 {
            bail!("{method} http://{}{path}: {} {}", self.server, answer.status, answer.first_line());
        }
        Ok(())
    }
}

fn answer(mut response: Response<Body>) -> Result<Answer> {
    let content_type = match response.headers().get("content-type") {
        Some(value) => value.to_str()?.to_owned(),
        None => String::new(),
    };
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string()?;
    Ok(Answer { status, content_type, body })
}
