//! Role of this process.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::Leader;

#[derive(Clone)]
pub enum Role {
    Leading(Arc<Leader>),
    /// Address in the leader lock; none if the lock is free.
    Following {
        leader: Option<String>,
    },
}

/// Reads the role and waits for changes of it.
#[derive(Clone)]
pub struct Roles {
    role: watch::Receiver<Role>,
    /// Address that this process writes into the leader lock.
    own: Arc<str>,
}

/// Time limit for a newly elected leader to load its state. Requests wait for it.
const ELECTED_TIMEOUT: Duration = Duration::from_secs(10);
impl Roles {
    pub fn new(own: &str) -> (watch::Sender<Role>, Roles) {
        let (sender, role) = watch::channel(Role::Following { leader: None });
        (sender, Roles { role, own: own.into() })
    }

    /// Current role.
    pub fn now(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Waits while there is no leader (at most `no_leader_timeout`), or while this process is
    /// elected and still loading its state.
    pub async fn wait_settled(&self, no_leader_timeout: Duration) -> Role {
        let (mut role, start) = (self.role.clone(), Instant::now());
        loop {
            let now = role.borrow_and_update().clone();
            let limit = match &now {
                Role::Following { leader: None } => no_leader_timeout,
                Role::Following { leader: Some(leader) } if **leader == *self.own => ELECTED_TIMEOUT,
                Role::Leading(_) | Role::Following { .. } => return now,
            };
            match timeout_at(start + limit, role.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Role::Following { leader: None },
            }
        }
    }

    /// Resolves when `leader` no longer leads.
    pub async fn deposed(&self, leader: &str) {
        let mut role = self.role.clone();
        let deposed = |role: &Role| !matches!(role, Role::Following { leader: Some(l) } if l == leader);
        if role.wait_for(deposed).await.is_err() {
            // The process shuts down; the request ends with it.
            std::future::pending::<()>().await;
        }
    }
}
