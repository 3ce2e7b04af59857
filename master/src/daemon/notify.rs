//! Readiness and role for the service manager.

use contiv_daemon::notify;
use tokio::sync::watch;

use crate::leadership::Role;

/// Reports the role at each change, and readiness once this netmaster leads or knows the leader. `own` is the address
/// that this netmaster writes into the lock: until its view is current, an elected netmaster counts as not ready.
pub(super) async fn report(mut role: watch::Receiver<Role>, own: String) {
    let mut ready = false;
    loop {
        let (serves, status) = match &*role.borrow_and_update() {
            Role::Leading(_) => (true, "leading".to_owned()),
            Role::Following { leader: Some(leader) } if *leader != own => {
                (true, format!("following {leader}"))
            }
            Role::Following { .. } => (false, "waiting for a leader".to_owned()),
        };
        notify::status(&status);
        if serves && !ready {
            notify::ready();
            ready = true;
        }
        if role.changed().await.is_err() {
            return;
        }
    }
}
