//! How the REST API is served, and to whom.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use contiv_daemon::tls::KeyPair;

#[derive(Clone, Debug, Args)]
pub struct RestFlags {
    /// Certificate chain to serve https with, PEM; read again when it changes
    #[arg(long, env = "CONTIV_NETMASTER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Key of --tls-cert, PEM
    #[arg(long, env = "CONTIV_NETMASTER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Who signed the clients' certificates, PEM; without one of them nobody is answered
    #[arg(long, env = "CONTIV_NETMASTER_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,

    /// Who signed the other netmasters' certificates, PEM [default: --client-ca, else --tls-cert itself]
    #[arg(long, env = "CONTIV_NETMASTER_PEER_CA", value_name = "FILE", requires = "tls_cert")]
    pub peer_ca: Option<PathBuf>,

    /// Bearer tokens of clients, a line each: NAME read|write TOKEN; mode 0600, read again when it changes
    #[arg(long, env = "CONTIV_NETMASTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Seconds that a client may take to send its headers, to send the body, or to take the answer
    #[arg(long, env = "CONTIV_NETMASTER_CLIENT_TIMEOUT", default_value = "20", value_parser = seconds)]
    pub client_timeout: Duration,

    /// Seconds that a request may take as a whole
    #[arg(long, env = "CONTIV_NETMASTER_REQUEST_TIMEOUT", default_value = "60", value_parser = seconds)]
    pub request_timeout: Duration,

    /// Connections that are open at once; more wait
    #[arg(long, env = "CONTIV_NETMASTER_MAX_CONNECTIONS", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(n @ 1..=3600) => Ok(Duration::from_secs(n)),
        _ => Err("expected 1 to 3600 seconds".into()),
    }
}

impl RestFlags {
    /// What https is served with, if it is.
    pub fn tls(&self) -> Option<KeyPair> {
        Some(KeyPair { certificate: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }

    /// Who vouches for the other netmasters.
    pub fn peers(&self) -> Option<&Path> {
        [&self.peer_ca, &self.client_ca, &self.tls_cert].into_iter().flatten().map(PathBuf::as_path).next()
    }
}
