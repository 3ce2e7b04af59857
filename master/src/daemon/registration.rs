//! Where others find this netmaster.

use std::time::Duration;

use contiv_model::key::Key;
use contiv_model::registry::{NETMASTER, ServiceInfo};
use contiv_store::{Error, Registration, Store};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::leadership::Identity;
use crate::problem::one_line;

/// The registrations of this netmaster, kept by a task until they are withdrawn.
pub(super) struct Presence {
    role: watch::Sender<&'static str>,
    task: JoinHandle<()>,
    withdrawn: CancellationToken,
}

const TTL: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// What is not taken back by then ends with its TTL.
const GOODBYE: Duration = Duration::from_secs(1);
/// The port of the original's RPC between ofnet master and agents, which its agents look up.
const RPC: (&str, u16) = ("netmaster.rpc", 9001);

impl Presence {
    /// Registers as a follower, as soon as the store lets it: a netmaster without registration can lead all the same.
    pub(super) fn register(store: &Store, identity: &Identity) -> Presence {
        let withdrawn = CancellationToken::new();
        let (role, roles) = watch::channel("follower");
        let (store, identity) = (store.clone(), identity.clone());
        let task = tokio::spawn(keep_current(store, identity, roles, withdrawn.clone()));
        Presence { role, task, withdrawn }
    }

    /// The registrations follow when they can; nobody waits for them.
    pub(super) fn becomes(&self, role: &'static str) {
        self.role.send_replace(role);
    }

    pub(super) async fn withdraw(self) {
        self.withdrawn.cancel();
        if timeout(GOODBYE, self.task).await.is_err() {
            tracing::debug!("registrations stay until their TTL ends");
        }
    }
}

async fn keep_current(
    store: Store,
    identity: Identity,
    mut roles: watch::Receiver<&'static str>,
    withdrawn: CancellationToken,
) {
    let mut current: Vec<Registration> = Vec::new();
    loop {
        let role = *roles.borrow_and_update();
        let mut next = Vec::new();
        for service in services(&identity, role) {
            next.extend(withdrawn.run_until_cancelled(keep(&store, &service)).await);
        }
        // The keys hang on the new leases by now.
        revoke(std::mem::replace(&mut current, next)).await;
        tokio::select! {
            changed = roles.changed() => if changed.is_err() { break },
            () = withdrawn.cancelled() => break,
        }
    }
    revoke(current).await;
}

async fn revoke(registrations: Vec<Registration>) {
    for registration in registrations {
        if let Err(error) = registration.revoke().await {
            tracing::debug!(error = one_line(&error), "a registration stays until its TTL ends");
        }
    }
}

fn services(identity: &Identity, role: &str) -> [ServiceInfo; 2] {
    let port = identity.address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
    [(NETMASTER, port), RPC].map(|(name, port)| ServiceInfo {
        service_name: name.to_owned(),
        role: role.to_owned(),
        version: String::new(),
        ttl: TTL.as_secs() as i64,
        host_addr: identity.ip.clone(),
        port,
        hostname: String::new(),
    })
}

async fn keep(store: &Store, service: &ServiceInfo) -> Registration {
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

async fn try_keep(store: &Store, service: &ServiceInfo) -> Result<Registration, Error> {
    let address = format!("{}:{}", service.host_addr, service.port);
    let key = Key::Service { name: service.service_name.clone(), address };
    let value = serde_json::to_vec(service).unwrap_or_default();
    store.register(&key.to_string(), value, TTL).await
}
