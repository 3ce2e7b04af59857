//! Leadership as this process knows it, and what a leader serves requests with.

mod read_index;
mod role;

use std::sync::Arc;

use crate::aci::Fabric;
use crate::cache::Shared;
use crate::commit::Queue;
use crate::objects::Cluster;

pub use read_index::Assurance;
pub use role::{Role, Roles};

/// A netmaster that leads: what it reads from and where it writes.
pub struct Leader {
    pub world: Shared,
    pub queue: Queue,
    pub assurance: Assurance,
    pub fabric: Arc<Fabric>,
    pub cluster: Cluster,
    pub identity: Identity,
}

/// This netmaster, as others know it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `ip:port` of the internal address.
    pub address: String,
    /// The ip of it.
    pub ip: String,
}
