//! Who leads, as this process knows it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Leader;

#[derive(Clone)]
pub enum Role {
    Leading(Arc<Leader>),
    /// The address in the lock, if somebody holds it.
    Following {
        leader: Option<String>,
    },
}

/// Reads the role, and waits for it when it is about to change.
#[derive(Clone)]
pub struct Roles {
    role: watch::Receiver<Role>,
    /// What this process writes into the lock.
    own: Arc<str>,
}

/// An elected netmaster reads its state first; requests wait so long for it.
const SETTLE: Duration = Duration::from_secs(10);
impl Roles {
    pub fn new(own: &str) -> (watch::Sender<Role>, Roles) {
        let (sender, role) = watch::channel(Role::Following { leader: None });
        (sender, Roles { role, own: own.into() })
    }

    /// At this moment.
    pub fn now(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Waits while nobody leads, for `vacancy`, or this process was elected and does not lead yet, but not for ever.
    pub async fn settled(&self, vacancy: Duration) -> Role {
        let (mut role, start) = (self.role.clone(), Instant::now());
        loop {
            let now = role.borrow_and_update().clone();
            let limit = match &now {
                Role::Following { leader: None } => vacancy,
                Role::Following { leader: Some(leader) } if **leader == *self.own => SETTLE,
                Role::Leading(_) | Role::Following { .. } => return now,
            };
            match timeout_at(start + limit, role.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Role::Following { leader: None },
            }
        }
    }

    /// Resolves when `leader` does not lead any more.
    pub async fn deposed(&self, leader: &str) {
        let mut role = self.role.clone();
        let gone = |role: &Role| !matches!(role, Role::Following { leader: Some(l) } if l == leader);
        if role.wait_for(gone).await.is_err() {
            // The process ends, and with it whoever asked.
            std::future::pending::<()>().await;
        }
    }
}
