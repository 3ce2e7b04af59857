//! HTTP requests to netmaster.

mod attempt;
mod events;
pub mod listing;
mod path;
mod precondition;
mod proxies;
mod refusal;
mod sent;
mod tls;
pub mod watch;

use std::{
    cell::Cell,
    io::{BufRead, BufReader},
    thread,
    time::{Duration, Instant},
};

use contiv_model::key::ObjectType;
use serde_json::{Value, json};
use ureq::{
    Agent, Body, RequestBuilder,
    http::{HeaderMap, Response, header},
    unversioned::{
        resolver::DefaultResolver,
        transport::{Connector as _, DefaultConnector},
    },
};

pub use self::{path::segment, precondition::Precondition};
use crate::{
    client::{
        attempt::{Method, hint, may_try_next, repeat_after},
        path::object_path,
        proxies::Proxies,
        refusal::{is_temporary, refusal},
        sent::{Marking, Sent},
    },
    connection::{Connection, is_https},
    error::Error,
    flags::Server,
    token,
};

/// Limit of a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of connecting: a host that is down answers nothing, and another netmaster may be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the silence in a stream of events. netmaster sends a comment every ten seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(35);
/// Limit of the attempts of a request that is answered with 503 or 429. A new leader is there after one or two.
const ATTEMPTS: u32 = 8;
/// Largest body of a response, in bytes.
const MAX_BODY: u64 = 1 << 30;

/// HTTP client of one netmaster, or of several of one cluster.
pub struct Client {
    agent: Agent,
    connection: Connection,
    proxies: Proxies,
    /// Position of the netmaster that is asked first: the one that has answered last.
    preferred: Cell<usize>,
    token: Option<String>,
    /// Whether the request in progress has left netctl.
    sent: Sent,
    /// Time when the command ends; requests take no longer.
    deadline: Cell<Option<Instant>>,
}

/// A request to a netmaster.
#[derive(Clone, Debug)]
struct Request<'a> {
    method: Method,
    /// Path and query.
    path: &'a str,
    body: Option<&'a Value>,
    header: Option<(&'static str, String)>,
    /// Whether the answer is a stream without an end.
    is_stream: bool,
}

/// An answer with a status of success.
struct Answer {
    method: Method,
    url: String,
    headers: HeaderMap,
    text: String,
}

impl<'a> Request<'a> {
    fn new(method: Method, path: &'a str) -> Request<'a> {
        Request { method, path, body: None, header: None, is_stream: false }
    }
}

impl Answer {
    fn json(self) -> Result<Value, Error> {
        let (method, url) = (self.method.as_str(), self.url);
        serde_json::from_str(&self.text).map_err(|source| Error::Answer { method, url, source })
    }

    fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Client {
    /// Client for the netmasters that flags, environment and context select.
    pub fn new(server: &Server) -> Result<Client, Error> {
        let connection = Connection::resolve(server)?;
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            // A redirected change would become a GET, and the token would go wherever the redirection points.
            .max_redirects(0)
            // Each request sets its own.
            .proxy(None)
            .tls_config(tls::config(&connection)?)
            .build();
        let token = match &connection.token_file {
            Some(file) => Some(token::first_line(file)?),
            None if connection.is_secure() => {
                token::read(&connection.netmasters, connection.has_only_urls())?
            }
            None => None,
        };
        let sent = Sent::default();
        let connector = DefaultConnector::default().chain(Marking(sent.clone()));
        let agent = Agent::with_parts(config, connector, DefaultResolver::default());
        let (proxies, preferred, deadline) = (Proxies::from_env(), Cell::new(0), Cell::new(None));
        Ok(Client { agent, connection, proxies, preferred, token, sent, deadline })
    }

    /// Whether all connections are encrypted.
    pub fn is_secure(&self) -> bool {
        self.connection.is_secure()
    }

    /// URLs of the netmasters.
    pub fn netmasters(&self) -> &[String] {
        &self.connection.netmasters
    }

    /// Requests end soon after `deadline`, and are not repeated after it.
    pub fn end_at(&self, deadline: Instant) {
        self.deadline.set(Some(deadline));
    }

    /// Requests a token from the authentication proxy.
    pub fn login(&self, user: &str, password: &str) -> Result<String, Error> {
        let body = json!({"username": user, "password": password});
        let mut request = Request::new(Method::Post, "/api/v1/auth_proxy/login/");
        request.body = Some(&body);
        match self.exchange(&request)?.json()?.get("token").and_then(Value::as_str) {
            Some(token) => Ok(token.to_owned()),
            None => Err(Error::Refused("login: no token in the response".into())),
        }
    }

    /// GET of any path.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        self.exchange(&Request::new(Method::Get, path))?.json()
    }

    /// GET with a response body of unlimited duration, from a server other than netmaster; `url` is the complete URL.
    pub fn stream(&self, url: &str) -> Result<impl BufRead + use<>, Error> {
        let failed = |source| Error::Request {
            method: "GET",
            url: url.to_owned(),
            hint: "check that netplugin runs there; --agent sets its REST address",
            source: Box::new(source),
        };
        let request = self.routed(url, self.agent.get(url))?;
        let request = request.config().timeout_connect(Some(TIMEOUT)).build();
        let mut answer = request.call().map_err(failed)?;
        if answer.status().is_success() {
            return Ok(BufReader::new(answer.into_body().into_reader()));
        }
        let text = answer.body_mut().read_to_string().map_err(failed)?;
        Err(refusal(Method::Get, url, &answer, &text, "the agent"))
    }

    /// POST to a server other than netmaster; `url` is the complete URL.
    pub fn ask(&self, url: &str, body: &Value) -> Result<Value, Error> {
        let failed = |source| Error::Request {
            method: "POST",
            url: url.to_owned(),
            hint: "check that netplugin runs there; its --rest-address must be an address that netctl reaches",
            source: Box::new(source),
        };
        let request = self.routed(url, self.agent.post(url))?;
        let request = request.config().timeout_global(Some(TIMEOUT)).build();
        let mut answer = request.send_json(body).map_err(failed)?;
        let text = answer.body_mut().with_config().limit(MAX_BODY).read_to_string().map_err(failed)?;
        if !answer.status().is_success() {
            return Err(refusal(Method::Post, url, &answer, &text, "the agent"));
        }
        serde_json::from_str(&text).map_err(|source| Error::Answer {
            method: "POST",
            url: url.to_owned(),
            source,
        })
    }

    /// Reads one object.
    pub fn object(&self, kind: ObjectType, key: &str) -> Result<Value, Error> {
        self.get(&object_path(kind, key))
    }

    /// Reads one object, with the precondition of a change that replaces this version.
    pub fn versioned(&self, kind: ObjectType, key: &str) -> Result<(Value, Precondition), Error> {
        let answer = self.exchange(&Request::new(Method::Get, &object_path(kind, key)))?;
        // A proxy may have weakened the tag. It names the version of the object all the same.
        let tag = answer.header(header::ETAG).map(|tag| tag.strip_prefix("W/").unwrap_or(tag).to_owned());
        Ok((answer.json()?, tag.map_or(Precondition::None, Precondition::Unchanged)))
    }

    /// Reads one object with its operational state.
    pub fn inspect(&self, kind: &str, key: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/inspect/{kind}s/{}/", segment(key)))
    }

    /// Creates or updates an object.
    pub fn put(&self, kind: ObjectType, key: &str, object: &Value) -> Result<Value, Error> {
        self.put_if(kind, key, object, &Precondition::None)
    }

    /// Creates or updates an object if the precondition is true; otherwise fails with [`Error::Conflict`].
    pub fn put_if(
        &self,
        kind: ObjectType,
        key: &str,
        object: &Value,
        precondition: &Precondition,
    ) -> Result<Value, Error> {
        let path = object_path(kind, key);
        let mut request = Request::new(Method::Post, &path);
        request.body = Some(object);
        request.header = precondition.header();
        self.exchange(&request)?.json()
    }

    /// Asks netmaster what it would make of a change; nothing is changed. The original does not know such requests and would
    /// carry this one out: only for a netmaster that [has revisions](listing::Listed::revision).
    pub fn try_put(&self, kind: ObjectType, key: &str, object: &Value) -> Result<Value, Error> {
        let path = format!("{}?dryRun=All", object_path(kind, key));
        let mut request = Request::new(Method::Post, &path);
        request.body = Some(object);
        self.exchange(&request)?.json()
    }

    /// As [`Client::try_put`], for a deletion.
    pub fn try_delete(&self, kind: ObjectType, key: &str) -> Result<(), Error> {
        let path = format!("{}?dryRun=All", object_path(kind, key));
        self.exchange(&Request::new(Method::Delete, &path)).map(drop)
    }

    /// POST of any path, without a body.
    pub fn post(&self, path: &str) -> Result<Value, Error> {
        self.exchange(&Request::new(Method::Post, path))?.json()
    }

    /// Deletes an object.
    pub fn delete(&self, kind: ObjectType, key: &str) -> Result<(), Error> {
        self.delete_if(kind, key, &Precondition::None)
    }

    /// Deletes an object if the precondition is true; otherwise fails with [`Error::Conflict`].
    pub fn delete_if(&self, kind: ObjectType, key: &str, precondition: &Precondition) -> Result<(), Error> {
        let path = object_path(kind, key);
        let mut request = Request::new(Method::Delete, &path);
        request.header = precondition.header();
        self.exchange(&request)?.json().map(drop)
    }

    /// DELETE of any path.
    pub fn delete_at(&self, path: &str) -> Result<Value, Error> {
        self.exchange(&Request::new(Method::Delete, path))?.json()
    }

    /// Sends a request and reads the answer. While netmaster answers that it is temporarily unavailable, or has too many
    /// requests of this client (503 or 429 with `Retry-After`), the request is repeated.
    fn exchange(&self, request: &Request<'_>) -> Result<Answer, Error> {
        let method = request.method;
        let mut attempt = 1;
        loop {
            let (url, mut answer) = self.reach(request)?;
            let read = answer.body_mut().with_config().limit(MAX_BODY).read_to_string();
            let text = read.map_err(|source| self.failed(method, &url, source))?;
            if answer.status().is_success() {
                return Ok(Answer { method, url, headers: answer.into_parts().0.headers, text });
            }
            let unavailable = is_temporary(answer.status());
            match repeat_after(method, answer.headers(), &text) {
                Some(wait) if unavailable && attempt < ATTEMPTS && self.has_time_for(wait) => {
                    thread::sleep(wait);
                    // A netmaster that is cut off from the others does not learn who leads.
                    self.prefer_next();
                    attempt += 1;
                }
                _ => return Err(refusal(method, &url, &answer, &text, "netmaster")),
            }
        }
    }

    /// Sends a request to the first netmaster that can be reached. Returns the URL and the answer, whose body is not read.
    fn reach(&self, request: &Request<'_>) -> Result<(String, Response<Body>), Error> {
        let mut failures = vec![];
        for _ in &self.connection.netmasters {
            let base = self.connection.netmasters.get(self.preferred.get()).map_or("", String::as_str);
            let url = format!("{base}{}", request.path);
            let answer = match (request.method, request.body) {
                (Method::Get, _) => self.prepared(&url, request, self.agent.get(&url))?.call(),
                (Method::Delete, _) => self.prepared(&url, request, self.agent.delete(&url))?.call(),
                (Method::Post, Some(body)) => {
                    self.prepared(&url, request, self.agent.post(&url))?.send_json(body)
                }
                (Method::Post, None) => self.prepared(&url, request, self.agent.post(&url))?.send_empty(),
            };
            match answer {
                Ok(answer) => return Ok((url, answer)),
                Err(source) => {
                    let next = may_try_next(request.method, self.sent.is_set(), &source);
                    failures.push(self.failed(request.method, &url, source));
                    if !next {
                        break;
                    }
                    self.prefer_next();
                }
            }
        }
        Err(Error::unreachable(failures))
    }

    /// Sets the proxy of the next request.
    fn routed<B>(&self, url: &str, builder: RequestBuilder<B>) -> Result<RequestBuilder<B>, Error> {
        let proxy = self.proxies.of(url)?;
        self.sent.reset(proxy.is_some());
        Ok(builder.config().proxy(proxy).build())
    }

    /// Adds the proxy, headers and time limits.
    fn prepared<B>(
        &self,
        url: &str,
        request: &Request<'_>,
        builder: RequestBuilder<B>,
    ) -> Result<RequestBuilder<B>, Error> {
        let builder = self.routed(url, builder)?;
        let builder = match &self.token {
            // Never over plain HTTP.
            Some(token) if is_https(url) => builder.header("X-Auth-Token", token),
            _ => builder,
        };
        let builder = match &request.header {
            Some((name, value)) => builder.header(*name, value),
            None => builder,
        };
        let left = self.deadline.get().map(|end| end.saturating_duration_since(Instant::now()));
        // Shortly before the deadline, too, a request gets the time to be answered.
        let limit = left.map_or(TIMEOUT, |left| left.clamp(CONNECT_TIMEOUT, TIMEOUT));
        Ok(match request.is_stream {
            true => builder
                .config()
                .timeout_global(left)
                .timeout_recv_response(Some(TIMEOUT))
                .timeout_per_read(Some(IDLE_TIMEOUT))
                .build(),
            false => builder.config().timeout_global(Some(limit)).build(),
        })
    }

    fn has_time_for(&self, wait: Duration) -> bool {
        self.deadline.get().is_none_or(|end| Instant::now() + wait < end)
    }

    fn prefer_next(&self) {
        self.preferred.set((self.preferred.get() + 1) % self.connection.netmasters.len());
    }

    fn failed(&self, method: Method, url: &str, source: ureq::Error) -> Error {
        Error::Request {
            method: method.as_str(),
            url: url.to_owned(),
            hint: hint(method, url, self.sent.is_set(), &source),
            source: Box::new(source),
        }
    }
}
