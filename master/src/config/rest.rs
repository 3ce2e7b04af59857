//! Flags of the REST API: TLS, tokens and limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use contiv_daemon::tls::KeyPair;

use crate::api::Limits;

#[derive(Clone, Debug, Args)]
pub struct RestFlags {
    /// Certificate chain of the API (PEM), enables HTTPS; reloaded on change
    #[arg(long, env = "CONTIV_NETMASTER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert (PEM)
    #[arg(long, env = "CONTIV_NETMASTER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// CA bundle (PEM) used to verify client certificates; clients without a valid certificate are
    /// rejected
    #[arg(long, env = "CONTIV_NETMASTER_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    pub client_ca: Option<PathBuf>,

    /// CA bundle (PEM) used to verify the other netmasters [default: --client-ca, otherwise
    /// --tls-cert itself]
    #[arg(long, env = "CONTIV_NETMASTER_PEER_CA", value_name = "FILE", requires = "tls_cert")]
    pub peer_ca: Option<PathBuf>,

    /// File of bearer tokens, one line each: NAME ROLE TOKEN; mode 0600, reloaded on change; requires
    /// --tls-cert except on loopback addresses
    #[arg(long, env = "CONTIV_NETMASTER_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// File of client certificates' roles, one line each: ROLE CN=NAME or ROLE O=NAME; mode 0600,
    /// reloaded on change; requires --client-ca
    #[arg(long, env = "CONTIV_NETMASTER_ROLE_FILE", value_name = "FILE")]
    pub role_file: Option<PathBuf>,

    /// File to which changes and refused requests are logged, a line of JSON each; opened again when
    /// it is renamed or removed
    #[arg(long, env = "CONTIV_NETMASTER_AUDIT_LOG", value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// Time limit in seconds for a client to send headers, to send a body, and to receive a
    /// response; a large response has a second more for each 32 KiB that were sent
    #[arg(long, env = "CONTIV_NETMASTER_CLIENT_TIMEOUT", default_value = "20", value_parser = seconds)]
    pub client_timeout: Duration,

    /// Time limit in seconds for a whole request
    #[arg(long, env = "CONTIV_NETMASTER_REQUEST_TIMEOUT", default_value = "60", value_parser = seconds)]
    pub request_timeout: Duration,

    /// Limit of open connections on each listening address; further connections wait. One
    /// client address has at most half of them. Netmasters use the internal address
    #[arg(long, env = "CONTIV_NETMASTER_MAX_CONNECTIONS", default_value = "1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Limit of the requests of one client that are in flight, with its watches; further ones are
    /// answered with 429. A client is a token or the subject of a certificate, or an address if
    /// netmaster asks for neither. Calls of agents (/plugin) are not limited
    #[arg(long, env = "CONTIV_NETMASTER_MAX_REQUESTS_PER_CLIENT", default_value = "200",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_requests_per_client: u32,

    /// Limit in MiB of the responses to one client that are in memory because it has not taken them
    /// yet; a request whose response would exceed it is answered with 429. Responses up to 64 KiB and
    /// those to changes do not count, and a single one may be larger
    #[arg(long, env = "CONTIV_NETMASTER_MAX_RESPONSE_MEMORY_PER_CLIENT", default_value = "64", value_name = "MIB",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_response_memory_per_client: u32,

    /// Limit in MiB of these responses to all clients
    #[arg(long, env = "CONTIV_NETMASTER_MAX_RESPONSE_MEMORY", default_value = "512", value_name = "MIB",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_response_memory: u32,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(n @ 1..=3600) => Ok(Duration::from_secs(n)),
        _ => Err("expected 1 to 3600 seconds".into()),
    }
}

impl RestFlags {
    /// Certificate and key of the API; none without TLS.
    pub fn tls(&self) -> Option<KeyPair> {
        Some(KeyPair { certificate: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }

    /// Limits of what is in flight.
    pub fn in_flight(&self) -> Limits {
        let bytes = |mib: u32| u64::from(mib) << 20;
        Limits {
            requests: self.max_requests_per_client as usize,
            client_bytes: bytes(self.max_response_memory_per_client),
            bytes: bytes(self.max_response_memory),
        }
    }

    /// CA bundle that verifies the other netmasters.
    pub fn peers(&self) -> Option<&Path> {
        [&self.peer_ca, &self.client_ca, &self.tls_cert].into_iter().flatten().map(PathBuf::as_path).next()
    }
}
