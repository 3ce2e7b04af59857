//! Where others find this netmaster.

use std::time::Duration;

use contiv_model::key::Key;
use contiv_model::registry::{NETMASTER, Service};
use contiv_store::{Error, Registration, Store};

use crate::api::Identity;
use crate::committer::one_line;

/// The registrations of one role.
pub(super) struct Presence(Vec<Registration>);

const TTL: Duration = Duration::from_secs(10);
/// The port of the original's RPC between ofnet master and agents, that its agents look up.
const RPC: (&str, u16) = ("netmaster.rpc", 9001);

impl Presence {
    pub(super) async fn register(store: &Store, identity: &Identity, role: &str) -> Result<Presence, Error> {
        let port = identity.address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
        let mut registrations = Vec::new();
        for (name, port) in [(NETMASTER, port), RPC] {
            let service = Service {
                service_name: name.to_owned(),
                role: role.to_owned(),
                version: String::new(),
                ttl: TTL.as_secs() as i64,
                host_addr: identity.ip.clone(),
                port,
                hostname: String::new(),
            };
            let key = Key::Service { name: name.to_owned(), address: format!("{}:{port}", identity.ip) };
            let value = serde_json::to_vec(&service).unwrap_or_default();
            registrations.push(store.keep(&key.to_string(), value, TTL).await?);
        }
        Ok(Presence(registrations))
    }

    /// Takes the registrations back; what the store does not take back ends with its TTL.
    pub(super) async fn withdraw(self) {
        for registration in self.0 {
            if let Err(error) = registration.revoke().await {
                tracing::debug!(error = one_line(&error), "a registration stays until its TTL ends");
            }
        }
    }
}
