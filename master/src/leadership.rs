//! Leadership as this process knows it, and the state of a leader.

mod history;
mod linearizable_read;
mod reads;
mod role;
mod store_health;
mod watch_backlogs;

use std::sync::Arc;

use contiv_store::Store;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::aci::FabricSync;
use crate::cache::SharedCache;
use crate::commit::Queue;
use crate::objects::Cluster;

pub use history::{ClientRevision, History};
pub use linearizable_read::LinearizableRead;
pub use reads::{READ_LIMIT, Reads};
pub use role::{Role, Roles};
pub use store_health::StoreHealth;
pub use watch_backlogs::{BacklogReceiver, BacklogSender, WatchBacklogs};

/// What a leader serves requests with.
pub struct Leader {
    pub cache: SharedCache,
    pub queue: Queue,
    pub reads: Reads,
    pub linearizable_read: LinearizableRead,
    pub fabric: Arc<FabricSync>,
    pub cluster: Cluster,
    pub identity: Identity,
    pub store: Store,
    /// History that the revisions of this term are of.
    pub history: History,
    /// Each open watch of a client holds a permit.
    pub watch_permits: Arc<Semaphore>,
    pub watch_backlogs: WatchBacklogs,
    /// Cancelled when this leadership ends, or the process stops.
    pub ended: CancellationToken,
}

/// Identity of this netmaster.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `ip:port` of the internal address.
    pub address: String,
    /// IP of `address`.
    pub ip: String,
}
