//! HTTP requests to netmaster.

mod attempt;
mod tls;

use std::{
    cell::Cell,
    io::{BufRead, BufReader},
    thread,
    time::Duration,
};

use contiv_model::key::ObjectType;
use serde_json::{Value, json};
use ureq::{Agent, Body, RequestBuilder, http};

use crate::{
    client::attempt::{Method, hint, may_try_next, repeat_after},
    connection::{Connection, is_https},
    error::Error,
    flags::Server,
    token,
};

/// Limit of a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of connecting: a host that is down answers nothing, and another netmaster may be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the attempts of a request that is answered with 503. A new leader is there after one or two.
const ATTEMPTS: u32 = 8;

/// HTTP client of one netmaster, or of several of one cluster.
pub struct Client {
    agent: Agent,
    connection: Connection,
    /// Position of the netmaster that is asked first: the one that has answered last.
    preferred: Cell<usize>,
    token: Option<String>,
}

impl Client {
    /// Client for the netmasters that flags, environment and context select.
    pub fn new(server: &Server) -> Result<Client, Error> {
        let connection = Connection::resolve(server)?;
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls::config(&connection)?)
            .build();
        let token = match &connection.token_file {
            Some(file) => Some(token::first_line(file)?),
            None if connection.is_secure() => token::read()?,
            None => None,
        };
        Ok(Client { agent: config.into(), connection, preferred: Cell::new(0), token })
    }

    /// Whether all connections are encrypted.
    pub fn is_secure(&self) -> bool {
        self.connection.is_secure()
    }

    fn authorized<B>(&self, url: &str, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            // Never over plain HTTP.
            Some(token) if is_https(url) => request.header("X-Auth-Token", token),
            _ => request,
        }
    }

    /// Requests a token from the authentication proxy.
    pub fn login(&self, user: &str, password: &str) -> Result<String, Error> {
        let body = json!({"username": user, "password": password});
        match self
            .exchange(Method::Post, "/api/v1/auth_proxy/login/", Some(&body))?
            .get("token")
            .and_then(Value::as_str)
        {
            Some(token) => Ok(token.to_owned()),
            None => Err(Error::Refused("login: no token in the response".into())),
        }
    }

    /// GET of any path.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        self.exchange(Method::Get, path, None)
    }

    /// GET with a response body of unlimited duration, from a server other than netmaster; `url` is the complete URL.
    pub fn stream(&self, url: &str) -> Result<impl BufRead + use<>, Error> {
        let url = url.to_owned();
        let failed = |source| Error::Request {
            method: "GET",
            url: url.clone(),
            hint: "check that netplugin runs there; --agent sets its REST address",
            source: Box::new(source),
        };
        let request =
            self.agent.get(&url).config().timeout_global(None).timeout_connect(Some(TIMEOUT)).build();
        let mut answer = request.call().map_err(failed)?;
        if answer.status().is_success() {
            return Ok(BufReader::new(answer.into_body().into_reader()));
        }
        let status = answer.status();
        let text = answer.body_mut().read_to_string().map_err(failed)?;
        Err(refused("GET", &url, status, &text, "the agent"))
    }

    /// Lists the objects of a type.
    pub fn list(&self, kind: ObjectType) -> Result<Vec<Value>, Error> {
        match self.get(&format!("/api/v1/{}s/", kind.as_str()))? {
            Value::Array(objects) => Ok(objects),
            other => {
                Err(Error::Refused(format!("list {}s: expected a JSON array, got {other}", kind.as_str())))
            }
        }
    }

    /// Reads one object.
    pub fn object(&self, kind: ObjectType, key: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/{}s/{}/", kind.as_str(), segment(key)))
    }

    /// Reads one object with its operational state.
    pub fn inspect(&self, kind: &str, key: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/inspect/{kind}s/{}/", segment(key)))
    }

    /// Creates or updates an object.
    pub fn put(&self, kind: ObjectType, key: &str, object: &Value) -> Result<Value, Error> {
        self.exchange(Method::Post, &format!("/api/v1/{}s/{}/", kind.as_str(), segment(key)), Some(object))
    }

    /// POST of any path, without a body.
    pub fn post(&self, path: &str) -> Result<Value, Error> {
        self.exchange(Method::Post, path, None)
    }

    /// Deletes an object.
    pub fn delete(&self, kind: ObjectType, key: &str) -> Result<(), Error> {
        self.exchange(Method::Delete, &format!("/api/v1/{}s/{}/", kind.as_str(), segment(key)), None)
            .map(drop)
    }

    /// Sends a request and decodes the answer. While netmaster answers that it is temporarily unavailable (503 with
    /// `Retry-After`), the request is repeated.
    fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        for last in (0..ATTEMPTS).map(|attempt| attempt + 1 == ATTEMPTS) {
            let (url, mut answer) = self.reach(method, path, body)?;
            let read = answer.body_mut().with_config().limit(1 << 30).read_to_string();
            let text = read.map_err(|source| failed(method, &url, source))?;
            if answer.status().is_success() {
                let method = method.as_str();
                return serde_json::from_str(&text).map_err(|source| Error::Answer { method, url, source });
            }
            let unavailable = answer.status() == http::StatusCode::SERVICE_UNAVAILABLE;
            match repeat_after(method, answer.headers(), &text) {
                Some(wait) if unavailable && !last => {
                    thread::sleep(wait);
                    // A netmaster that is cut off from the others does not learn who leads.
                    self.prefer_next();
                }
                _ => return Err(refused(method.as_str(), &url, answer.status(), &text, "netmaster")),
            }
        }
        Err(Error::Refused(format!("{} {path}: netmaster is unavailable", method.as_str())))
    }

    /// Sends a request to the first netmaster that can be reached. Returns the URL and the answer.
    fn reach(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(String, http::Response<Body>), Error> {
        let mut failures = vec![];
        for _ in &self.connection.netmasters {
            let base = self.connection.netmasters.get(self.preferred.get()).map_or("", String::as_str);
            let url = format!("{base}{path}");
            let answer = match (method, body) {
                (Method::Get, _) => self.authorized(&url, self.agent.get(&url)).call(),
                (Method::Delete, _) => self.authorized(&url, self.agent.delete(&url)).call(),
                (Method::Post, Some(body)) => self.authorized(&url, self.agent.post(&url)).send_json(body),
                (Method::Post, None) => self.authorized(&url, self.agent.post(&url)).send_empty(),
            };
            match answer {
                Ok(answer) => return Ok((url, answer)),
                Err(source) => {
                    let next = may_try_next(method, &source);
                    failures.push(failed(method, &url, source));
                    if !next {
                        break;
                    }
                    self.prefer_next();
                }
            }
        }
        Err(Error::unreachable(failures))
    }

    fn prefer_next(&self) {
        self.preferred.set((self.preferred.get() + 1) % self.connection.netmasters.len());
    }
}

/// Percent-encodes a key as one segment of a path. Proxies remove segments of dots only, so these are encoded, too.
pub fn segment(key: &str) -> String {
    if matches!(key, "." | "..") {
        return key.replace('.', "%2E");
    }
    let encode = |byte: u8| match byte {
        b'a'..=b'z'
        | b'A'..=b'Z'
        | b'0'..=b'9'
        | b'-'
        | b'.'
        | b'_'
        | b'~'
        | b':'
        | b'@'
        | b'$'
        | b'&'
        | b'+'
        | b'=' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    key.bytes().map(encode).collect()
}

fn failed(method: Method, url: &str, source: ureq::Error) -> Error {
    Error::Request {
        method: method.as_str(),
        url: url.to_owned(),
        hint: hint(url, &source),
        source: Box::new(source),
    }
}

fn refused(method: &str, url: &str, status: http::StatusCode, text: &str, server: &str) -> Error {
    let line = text.lines().next().unwrap_or_default();
    Error::Refused(if line.is_empty() {
        format!("{method} {url}: {server} answered {status}")
    } else {
        line.to_owned()
    })
}
