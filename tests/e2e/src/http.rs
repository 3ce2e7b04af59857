//! HTTP client for REST requests, which sends them as clients of the original do.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use testkit::Netns;
use ureq::{
    Agent, Body,
    config::AutoHeaderValue,
    http::{self, Method, Request},
};

const TIMEOUT: Duration = Duration::from_secs(30);
pub const JSON: &str = "application/json";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Response {
    /// First line of the body; error texts of the original continue with a stack trace.
    pub fn first_line(&self) -> &str {
        self.body.lines().next().unwrap_or_default()
    }

    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("decode JSON: {}", self.first_line()))
    }
}

/// A client of one server, in the namespace of the caller or in another. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    server: SocketAddr,
    namespace: Option<Netns>,
}

impl Client {
    pub fn new(server: SocketAddr) -> Client {
        Client::with_timeout(server, TIMEOUT)
    }

    /// A client with a timeout per request.
    pub fn with_timeout(server: SocketAddr, timeout: Duration) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(timeout))
            .proxy(None)
            .accept(AutoHeaderValue::None)
            .build();
        Client { agent: config.into(), server, namespace: None }
    }

    /// A client in `namespace`.
    pub fn within(namespace: &Netns, server: SocketAddr) -> Client {
        Client { namespace: Some(namespace.clone()), ..Client::new(server) }
    }

    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Sends a request and returns the response, whatever its status. `content_type` is for a body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        content_type: Option<&str>,
        body: Option<&str>,
    ) -> Result<Response> {
        let exchange = || {
            let mut request = Request::builder()
                .method(Method::try_from(method)?)
                .uri(format!("http://{}{path}", self.server))
                // Without it, netmaster closes the connection after the response.
                .header("connection", "keep-alive");
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let response = match body {
                Some(body) => self.agent.run(request.body(body.to_owned())?),
                None => self.agent.run(request.body(())?),
            };
            read(response.with_context(|| format!("{method} http://{}{path}", self.server))?)
        };
        match &self.namespace {
            Some(namespace) => namespace.run(exchange),
            None => exchange(),
        }
    }

    pub fn get(&self, path: &str) -> Result<Response> {
        self.send("GET", path, None, None)
    }

    /// Sends a GET; fails unless the status is 200.
    pub fn get_json(&self, path: &str) -> Result<Value> {
        let response = self.get(path)?;
        self.expect_success("GET", path, &response)?;
        response.json()
    }

    /// Sends a POST; fails unless the status is 200.
    pub fn post_json(&self, path: &str, body: &Value) -> Result<Value> {
        let response = self.send("POST", path, Some(JSON), Some(&body.to_string()))?;
        self.expect_success("POST", path, &response)?;
        response.json()
    }

    /// Sends a DELETE; fails unless the status is 200.
    pub fn delete(&self, path: &str) -> Result<()> {
        let response = self.send("DELETE", path, None, None)?;
        self.expect_success("DELETE", path, &response)
    }

    fn expect_success(&self, method: &str, path: &str, response: &Response) -> Result<()> {
        if response.status != 200 {
            bail!("{method} http://{}{path}: {} {}", self.server, response.status, response.first_line());
        }
        Ok(())
    }
}

fn read(mut response: http::Response<Body>) -> Result<Response> {
    let content_type = match response.headers().get("content-type") {
        Some(value) => value.to_str()?.to_owned(),
        None => String::new(),
    };
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string()?;
    Ok(Response { status, content_type, body })
}
