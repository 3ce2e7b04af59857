//! Where others find this netmaster.

use std::time::Duration;

use contiv_model::key::Key;
use contiv_model::registry::{NETMASTER, Service};
use contiv_store::{Error, Registration, Store};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::Identity;
use crate::committer::one_line;

/// The registrations of one role, kept by a task until they are withdrawn.
pub(super) struct Presence {
    task: JoinHandle<()>,
    withdrawn: CancellationToken,
}

const TTL: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// What is not taken back by then ends with its TTL.
const GOODBYE: Duration = Duration::from_secs(2);
/// The port of the original's RPC between ofnet master and agents, which its agents look up.
const RPC: (&str, u16) = ("netmaster.rpc", 9001);

impl Presence {
    /// Registers as soon as the store lets it: a netmaster without registration can lead all the same.
    pub(super) fn register(store: &Store, identity: &Identity, role: &'static str) -> Presence {
        let withdrawn = CancellationToken::new();
        let (store, identity, until) = (store.clone(), identity.clone(), withdrawn.clone());
        let task = tokio::spawn(async move {
            let mut registrations = Vec::new();
            for service in services(&identity, role) {
                let registered = until.run_until_cancelled(keep(&store, &service)).await;
                registrations.extend(registered);
            }
            until.cancelled().await;
            for registration in registrations {
                if let Err(error) = registration.revoke().await {
                    tracing::debug!(error = one_line(&error), "a registration stays until its TTL ends");
                }
            }
        });
        Presence { task, withdrawn }
    }

    pub(super) async fn withdraw(self) {
        self.withdrawn.cancel();
        if timeout(GOODBYE, self.task).await.is_err() {
            tracing::debug!("registrations stay until their TTL ends");
        }
    }
}

fn services(identity: &Identity, role: &str) -> [Service; 2] {
    let port = identity.address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
    [(NETMASTER, port), RPC].map(|(name, port)| Service {
        service_name: name.to_owned(),
        role: role.to_owned(),
        version: String::new(),
        ttl: TTL.as_secs() as i64,
        host_addr: identity.ip.clone(),
        port,
        hostname: String::new(),
    })
}

async fn keep(store: &Store, service: &Service) -> Registration {
    loop {
        match try_keep(store, service).await {
            Ok(registration) => return registration,
            Err(error) => {
                tracing::warn!(
                    service = service.service_name,
                    error = one_line(&error),
                    "could not register"
                );
                sleep(RETRY).await;
            }
        }
    }
}

async fn try_keep(store: &Store, service: &Service) -> Result<Registration, Error> {
    let address = format!("{}:{}", service.host_addr, service.port);
    let key = Key::Service { name: service.service_name.clone(), address };
    let value = serde_json::to_vec(service).unwrap_or_default();
    store.keep(&key.to_string(), value, TTL).await
}
