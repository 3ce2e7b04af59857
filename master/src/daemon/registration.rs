//! Registrations by which agents and netmasters find this netmaster.

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

/// Registrations of this netmaster, kept by a task until they are withdrawn.
pub(super) struct Registrations {
    role: watch::Sender<&'static str>,
    task: JoinHandle<()>,
    withdrawn: CancellationToken,
    ended: CancellationToken,
}

const TTL: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for deleting the registrations. Those that remain expire with their TTL.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);
/// Service name and port of the original's RPC_SERVICE between netmaster and agents. Agents of the original
/// look it up.
const RPC_SERVICE: (&str, u16) = ("netmaster.rpc", 9001);

impl Registrations {
    /// Registers as follower, in the background: leading does not depend on the registration.
    pub(super) fn register(store: &Store, identity: &Identity) -> Registrations {
        let withdrawn = CancellationToken::new();
        let (role, roles) = watch::channel("follower");
        let (store, identity) = (store.clone(), identity.clone());
        let ended = CancellationToken::new();
        let (keeping, guard) =
            (keep_current(store, identity, roles, withdrawn.clone()), ended.clone().drop_guard());
        let task = tokio::spawn(async move {
            // Dropped at the end of the task, also after a panic.
            let _guard = guard;
            keeping.await;
        });
        Registrations { role, task, withdrawn, ended }
    }

    /// Resolves when the task has ended, which it does only after a failure or a withdrawal.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Updates the role in the registrations, in the background.
    pub(super) fn set_role(&self, role: &'static str) {
        self.role.send_replace(role);
    }

    pub(super) async fn withdraw(self) {
        self.withdrawn.cancel();
        if timeout(WITHDRAW_TIMEOUT, self.task).await.is_err() {
            tracing::debug!("delete the registrations: time limit exceeded; they expire with their TTL");
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
            next.extend(withdrawn.run_until_cancelled(register_service(&store, &service)).await);
        }
        // The keys belong to the new leases now.
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
            tracing::debug!(
                error = one_line(&error),
                "delete a registration: failed; it expires with its TTL"
            );
        }
    }
}

fn services(identity: &Identity, role: &str) -> [ServiceInfo; 2] {
    let port = identity.address.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default();
    [(NETMASTER, port), RPC_SERVICE].map(|(name, port)| ServiceInfo {
        service_name: name.to_owned(),
        role: role.to_owned(),
        version: String::new(),
        ttl: TTL.as_secs() as i64,
        host_addr: identity.ip.clone(),
        port,
        hostname: String::new(),
    })
}

async fn register_service(store: &Store, service: &ServiceInfo) -> Registration {
    loop {
        match try_register(store, service).await {
            Ok(registration) => return registration,
            Err(error) => {
                tracing::warn!(
                    service = service.service_name,
                    error = one_line(&error),
                    "register this netmaster: failed; retrying"
                );
                sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn try_register(store: &Store, service: &ServiceInfo) -> Result<Registration, Error> {
    let address = format!("{}:{}", service.host_addr, service.port);
    let key = Key::Service { name: service.service_name.clone(), address };
    let value = serde_json::to_vec(service).unwrap_or_default();
    store.register(&key.to_string(), value, TTL).await
}
