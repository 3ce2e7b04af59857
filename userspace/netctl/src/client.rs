//! HTTP requests to netmaster.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use contiv_model::key::ObjectType;
use serde_json::{Value, json};
use ureq::{
    Agent, Body, RequestBuilder, http,
    tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem},
};

use crate::{error::Error, flags::Server, token};

/// Limit of a whole request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP client of one netmaster.
pub struct Client {
    agent: Agent,
    base: String,
    token: Option<String>,
}

impl Client {
    /// Client for `server.netmaster`, such as `http://netmaster:9999` or `https://proxy:10000`.
    pub fn new(server: &Server) -> Result<Client, Error> {
        let url = &server.netmaster;
        let secure = url.starts_with("https://");
        if !secure && !url.starts_with("http://") {
            return Err(Error::Usage(format!(
                "--netmaster {url:?}: expected http://HOST:PORT or https://HOST:PORT"
            )));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .tls_config(tls(server)?)
            .build();
        let base = url.trim_end_matches('/').to_owned();
        // A token is a secret: it is never sent over plain HTTP.
        let token = match &server.token_file {
            Some(_) if !secure => {
                return Err(Error::Usage(format!(
                    "--token-file requires an https URL, and --netmaster is {url}"
                )));
            }
            Some(file) => Some(token::first_line(file)?),
            None if secure => token::read()?,
            None => None,
        };
        Ok(Client { agent: config.into(), base, token })
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.base.starts_with("https://")
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("X-Auth-Token", token),
            None => request,
        }
    }

    /// Requests a token from the authentication proxy.
    pub fn login(&self, user: &str, password: &str) -> Result<String, Error> {
        let url = format!("{}/api/v1/auth_proxy/login/", self.base);
        let answer = self.agent.post(&url).send_json(json!({"username": user, "password": password}));
        match read("POST", url, answer)?.get("token").and_then(Value::as_str) {
            Some(token) => Ok(token.to_owned()),
            None => Err(Error::Refused("login: no token in the response".into())),
        }
    }

    /// GET of any path.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        let url = format!("{}{path}", self.base);
        let answer = self.authorized(self.agent.get(&url)).call();
        read("GET", url, answer)
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
        let url = format!("{}/api/v1/{}s/{}/", self.base, kind.as_str(), segment(key));
        let answer = self.authorized(self.agent.post(&url)).send_json(object);
        read("POST", url, answer)
    }

    /// POST of any path, without a body.
    pub fn post(&self, path: &str) -> Result<Value, Error> {
        let url = format!("{}{path}", self.base);
        let answer = self.authorized(self.agent.post(&url)).send_empty();
        read("POST", url, answer)
    }

    /// Deletes an object.
    pub fn delete(&self, kind: ObjectType, key: &str) -> Result<(), Error> {
        let url = format!("{}/api/v1/{}s/{}/", self.base, kind.as_str(), segment(key));
        let answer = self.authorized(self.agent.delete(&url)).call();
        read("DELETE", url, answer).map(drop)
    }
}

/// Percent-encodes a key as one segment of a path.
pub fn segment(key: &str) -> String {
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

fn tls(server: &Server) -> Result<TlsConfig, Error> {
    let roots = match &server.cacert {
        None => RootCerts::PlatformVerifier,
        Some(file) => RootCerts::new_with_certs(&certificates("--cacert", file)?),
    };
    let own = match (&server.cert, &server.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => {
            let text = fs::read(key).map_err(Error::file("read", key))?;
            let private = PrivateKey::from_pem(&text).map_err(|_| {
                Error::Usage(format!("--key {}: no private key (PEM) in the file", key.display()))
            })?;
            Some(ClientCert::new_with_certs(&certificates("--cert", cert)?, private))
        }
        (Some(_), None) => {
            return Err(Error::Usage("--cert requires --key, the private key of the certificate".into()));
        }
        (None, Some(_)) => {
            return Err(Error::Usage("--key requires --cert, the certificate of the key".into()));
        }
    };
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .client_cert(own)
        .disable_verification(server.insecure)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let text = fs::read(file).map_err(Error::file("read", file))?;
    let found: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match found.is_empty() {
        true => Err(Error::Usage(format!("{flag} {}: no certificate (PEM) in the file", file.display()))),
        false => Ok(found),
    }
}

/// Remedy for a failed connection to `url`.
fn hint(url: &str, error: &ureq::Error) -> &'static str {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};

    let is_tls = match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => true,
        // A failed handshake. A server that requires a client certificate may close the connection before its alert is read.
        ureq::Error::Io(source) => {
            source.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
                || url.starts_with("https://")
                    && matches!(
                        source.kind(),
                        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
                    )
        }
        _ => false,
    };
    if is_tls {
        "--cacert sets the CA bundle for netmaster's certificate; --cert and --key set a client certificate if it requires one"
    } else {
        "check that netmaster runs there; --netmaster or NETMASTER sets the URL"
    }
}

fn read(
    method: &'static str,
    url: String,
    answer: Result<http::Response<Body>, ureq::Error>,
) -> Result<Value, Error> {
    let failed = |source| Error::Request {
        method,
        url: url.clone(),
        hint: hint(&url, &source),
        source: Box::new(source),
    };
    let mut answer = answer.map_err(failed)?;
    let text = answer.body_mut().with_config().limit(1 << 30).read_to_string().map_err(failed)?;
    if !answer.status().is_success() {
        return Err(refused(method, &url, answer.status(), &text, "netmaster"));
    }
    serde_json::from_str(&text).map_err(|source| Error::Answer { method, url, source })
}

fn refused(method: &str, url: &str, status: http::StatusCode, text: &str, server: &str) -> Error {
    let line = text.lines().next().unwrap_or_default();
    Error::Refused(if line.is_empty() {
        format!("{method} {url}: {server} answered {status}")
    } else {
        line.to_owned()
    })
}
