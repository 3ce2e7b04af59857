//! HTTP transport to netmaster.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;

use crate::tls::{self, Error};

/// Connects by http or https, as the URL says.
pub type Connector = HttpsConnector<HttpConnector>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Scheme and connector for the addresses in the leader's lock, which contain no scheme.
#[derive(Clone)]
pub struct Transport {
    connector: Connector,
    scheme: &'static str,
}

impl Transport {
    /// Uses https with `tls`, else plain http.
    pub fn new(tls: Option<ClientConfig>) -> Result<Transport, Error> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let config = tls.map_or_else(tls::without_trust, Ok)?;
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Transport { connector, scheme })
    }

    pub fn connector(&self) -> Connector {
        self.connector.clone()
    }

    /// The URL of `path`, which begins with a slash, at `address`, an `ip:port`.
    pub fn url(&self, address: &str, path: &str) -> String {
        format!("{}://{address}{path}", self.scheme)
    }
}
