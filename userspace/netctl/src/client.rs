//! Requests to netmaster.

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

use crate::{Error, cli::Server, token};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A netmaster to ask.
pub struct Client {
    agent: Agent,
    base: String,
    token: Option<String>,
}

impl Client {
    /// The netmaster at `server.netmaster`, e.g. `http://netmaster:9999` or `https://proxy:10000`.
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
        // A token in the clear is anybody's.
        let token = match &server.token_file {
            Some(_) if !secure => {
                return Err(Error::Usage(format!(
                    "--token-file is for https alone, and --netmaster is {url}"
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

    fn signed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("X-Auth-Token", token),
            None => request,
        }
    }

    /// Asks the authentication proxy for a token.
    pub fn login(&self, user: &str, password: &str) -> Result<String, Error> {
        let url = format!("{}/api/v1/auth_proxy/login/", self.base);
        let answer = self.agent.post(&url).send_json(json!({"username": user, "password": password}));
        match read("POST", url, answer)?.get("token").and_then(Value::as_str) {
            Some(token) => Ok(token.to_owned()),
            None => Err(Error::Refused("login: the answer has no token".into())),
        }
    }

    /// GET of any path.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        let url = format!("{}{path}", self.base);
        let answer = self.signed(self.agent.get(&url)).call();
        read("GET", url, answer)
    }

    /// A body that goes on, of another server than netmaster: `url` is whole.
    pub fn stream(&self, url: &str) -> Result<impl BufRead + use<>, Error> {
        let url = url.to_owned();
        let failed = |source| Error::Request {
            method: "GET",
            url: url.clone(),
            hint: "is netplugin running there? --agent names its REST address",
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

    /// All objects of a type.
    pub fn list(&self, kind: ObjectType) -> Result<Vec<Value>, Error> {
        match self.get(&format!("/api/v1/{}s/", kind.as_str()))? {
            Value::Array(objects) => Ok(objects),
            other => Err(Error::Refused(format!("expected a list of {}s, got {other}", kind.as_str()))),
        }
    }

    /// One object.
    pub fn object(&self, kind: ObjectType, key: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/{}s/{key}/", kind.as_str()))
    }

    /// One object and what is known of its use.
    pub fn inspect(&self, kind: &str, key: &str) -> Result<Value, Error> {
        self.get(&format!("/api/v1/inspect/{kind}s/{key}/"))
    }

    /// Makes or changes an object.
    pub fn put(&self, kind: ObjectType, key: &str, object: &Value) -> Result<Value, Error> {
        let url = format!("{}/api/v1/{}s/{key}/", self.base, kind.as_str());
        let answer = self.signed(self.agent.post(&url)).send_json(object);
        read("POST", url, answer)
    }

    /// Removes an object.
    pub fn delete(&self, kind: ObjectType, key: &str) -> Result<(), Error> {
        let url = format!("{}/api/v1/{}s/{key}/", self.base, kind.as_str());
        let answer = self.signed(self.agent.delete(&url)).call();
        read("DELETE", url, answer).map(drop)
    }
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
                Error::Usage(format!("--key {}: there is no private key (PEM) in it", key.display()))
            })?;
            Some(ClientCert::new_with_certs(&certificates("--cert", cert)?, private))
        }
        (Some(_), None) => {
            return Err(Error::Usage("--cert needs --key, the certificate's private key".into()));
        }
        (None, Some(_)) => return Err(Error::Usage("--key needs --cert, the key's certificate".into())),
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
        true => Err(Error::Usage(format!("{flag} {}: there is no certificate (PEM) in it", file.display()))),
        false => Ok(found),
    }
}

/// What to try when a connection to `url` failed.
fn hint(url: &str, error: &ureq::Error) -> &'static str {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};

    let of_tls = match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::Pem(_) => true,
        // A handshake that fails. A server that misses a certificate may hang up before its reason is read.
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
    if of_tls {
        "--cacert names those who sign for netmaster, --cert and --key a certificate of your own if it asks for one"
    } else {
        "is netmaster running there? --netmaster or NETMASTER names another"
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

fn refused(method: &str, url: &str, status: http::StatusCode, text: &str, who: &str) -> Error {
    let line = text.lines().next().unwrap_or_default();
    Error::Refused(if line.is_empty() {
        format!("{method} {url}: {who} answered {status}")
    } else {
        line.to_owned()
    })
}
