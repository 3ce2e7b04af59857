//! Configuration of the client: endpoints, TLS and credentials.

use crate::{Error, RequestMetrics};
use etcd_client::{Certificate, ConnectOptions, TlsOptions};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::codegen::http::Uri;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd closes connections that ping more often than every 5 s.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(10);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of a [`Store`](crate::Store).
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of the members: `http://`, `https://` or `etcd://` (the original's name for http)
    /// and `HOST:PORT`, or `HOST:PORT` alone; `unix:PATH` for a socket of this machine.
    pub endpoints: Vec<String>,
    /// User and password, if etcd's authentication is enabled.
    pub auth: Option<Auth>,
    /// TLS files. Required for `https://` endpoints.
    pub tls: Option<Tls>,
    /// Time limit of one request, including retries on other endpoints. Default 5 s.
    pub request_timeout: Duration,
    /// Records the requests of the store.
    pub metrics: RequestMetrics,
}

/// Credentials of an etcd user. `Debug` does not print the password.
#[derive(Clone)]
pub struct Auth {
    /// Name of the user.
    pub user: String,
    /// Password of the user.
    pub password: String,
}

/// TLS files in PEM format.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// CA bundle used to verify the servers' certificates. Without it no server is trusted.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key.
    pub identity: Option<Identity>,
    /// Expected name in the servers' certificates, if it is not the host of the endpoint.
    pub server_name: Option<String>,
}

/// A client certificate, in PEM format.
#[derive(Clone, Debug)]
pub struct Identity {
    /// File with the certificate chain.
    pub certificate: PathBuf,
    /// File with the private key.
    pub key: PathBuf,
}

impl Config {
    /// A configuration for `endpoints` without TLS and credentials. The endpoints are not checked.
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Config {
        Config {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            auth: None,
            tls: None,
            request_timeout: REQUEST_TIMEOUT,
            metrics: RequestMetrics::default(),
        }
    }

    /// Parses a comma-separated list of endpoints, the form of the daemons' flags.
    ///
    /// # Errors
    ///
    /// Fails if the list is empty or an endpoint is malformed.
    pub fn parse(list: &str) -> Result<Config, Error> {
        let config = Config::new(list.split(',').map(str::trim).filter(|e| !e.is_empty()));
        if config.endpoints.is_empty() {
            return Err(Error::NoEndpoint);
        }
        for endpoint in &config.endpoints {
            url(endpoint, endpoint.starts_with("https://"))?;
        }
        Ok(config)
    }

    /// The endpoints in the form that the transport accepts.
    pub(crate) fn urls(&self) -> Result<Vec<String>, Error> {
        if self.endpoints.is_empty() {
            return Err(Error::NoEndpoint);
        }
        self.endpoints.iter().map(|e| url(e, self.tls.is_some())).collect()
    }

    pub(crate) async fn options(&self) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            // Without it, a member that is cut off from its cluster keeps watches open without
            // updates.
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some(auth) = &self.auth {
            options = options.with_user(&auth.user, &auth.password);
        }
        if let Some(tls) = &self.tls {
            options = options.with_tls(tls.load().await?);
        }
        Ok(options)
    }
}

impl Tls {
    async fn load(&self) -> Result<TlsOptions, Error> {
        let mut options = TlsOptions::new();
        if let Some(ca) = &self.ca {
            options = options.ca_certificate(Certificate::from_pem(read("CA certificate", ca).await?));
        }
        if let Some(identity) = &self.identity {
            let certificate = read("client certificate", &identity.certificate).await?;
            let key = read("client key", &identity.key).await?;
            options = options.identity(etcd_client::Identity::from_pem(certificate, key));
        }
        if let Some(name) = &self.server_name {
            options = options.domain_name(name);
        }
        Ok(options)
    }
}

/// URL of a socket of this machine.
pub(crate) fn socket_url(path: &Path) -> String {
    format!("unix://{}", path.display())
}

/// Path of the socket, of an endpoint that names one. gRPC has both forms, with and without slashes.
pub(crate) fn socket_path(endpoint: &str) -> Option<&Path> {
    let path = endpoint.strip_prefix("unix:")?;
    Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
}

async fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    tokio::fs::read(path).await.map_err(|source| Error::TlsFile { what, path: path.to_owned(), source })
}

fn url(endpoint: &str, tls: bool) -> Result<String, Error> {
    let fail = |why: &str| Error::Endpoint { endpoint: endpoint.to_owned(), why: why.to_owned() };
    if let Some(path) = socket_path(endpoint) {
        return match path {
            _ if tls => Err(fail("certificates are given but a unix socket has no TLS")),
            _ if !path.is_absolute() => Err(fail("has no absolute path; the form is unix:/run/store.sock")),
            _ => Ok(socket_url(path)),
        };
    }
    let (scheme, rest) = match endpoint.split_once("://") {
        Some(("http" | "etcd", _)) if tls => {
            return Err(fail("certificates are given but the scheme is not https"));
        }
        Some(("http" | "etcd", rest)) => ("http", rest),
        Some(("https", _)) if !tls => return Err(fail("https needs at least a CA certificate (--etcd-ca)")),
        Some(("https", rest)) => ("https", rest),
        Some((scheme, _)) => return Err(fail(&format!("unknown scheme {scheme:?}"))),
        None if tls => ("https", endpoint),
        None => ("http", endpoint),
    };
    let rest = rest.trim_end_matches('/');
    let uri: Uri = format!("{scheme}://{rest}").parse().map_err(|e| fail(&format!("{e}")))?;
    match uri.authority() {
        _ if uri.path() != "/" || uri.query().is_some() => Err(fail("has a path")),
        Some(a) if a.as_str().contains('@') => {
            Err(fail("contains a user; pass user and password separately"))
        }
        Some(a) if a.host().is_empty() => Err(fail("has no host")),
        Some(a) if a.port_u16().is_none() => Err(fail("has no port")),
        Some(a) => Ok(format!("{scheme}://{a}")),
        None => Err(fail("has no host")),
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_in_every_form() {
        let config =
            Config::parse("http://127.0.0.1:2379, etcd://etcd.local:4001/,10.0.0.1:2379,[::1]:2379").unwrap();
        assert_eq!(
            config.urls().unwrap(),
            ["http://127.0.0.1:2379", "http://etcd.local:4001", "http://10.0.0.1:2379", "http://[::1]:2379"]
        );
        let tls = Config { tls: Some(Tls::default()), ..Config::new(["10.0.0.1:2379", "https://a:1"]) };
        assert_eq!(tls.urls().unwrap(), ["https://10.0.0.1:2379", "https://a:1"]);
        let sockets = Config::parse("unix:/run/s.sock,unix:///run/s.sock").unwrap();
        assert_eq!(sockets.urls().unwrap(), ["unix:///run/s.sock"; 2]);
    }

    #[test]
    fn a_bad_endpoint_is_named() {
        for (list, why) in [
            ("http://ok:1,consul://b:2", "\"consul://b:2\": unknown scheme \"consul\""),
            ("127.0.0.1", "has no port"),
            ("http://a:99999", "\"http://a:99999\""),
            ("http://:2379", "has no host"),
            ("http://u:p@h:1", "pass user and password"),
            ("http://h:1/v2", "has a path"),
            ("unix:s.sock", "unix:/run/store.sock"),
            ("", "no store endpoint given"),
        ] {
            let error = Config::parse(list).unwrap_err().to_string();
            assert!(error.contains(why), "{list}: {error}");
        }
        let https = Config::parse("https://h:1").unwrap();
        assert!(https.urls().unwrap_err().to_string().contains("needs at least a CA"));
    }

    #[test]
    fn passwords_stay_out_of_logs() {
        let auth = Auth { user: "root".into(), password: "secret".into() };
        assert!(!format!("{auth:?}").contains("secret"));
    }
}
