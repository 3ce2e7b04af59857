//! What container runtimes ask for, by way of `contivk8s`: pods come and go.
//!
//! Every request is carried out to its end, even when the one who asked goes away, and either wholly or not at all.

mod add;
mod del;
mod failure;
mod native;
mod pod;
mod server;
mod turns;
mod undo;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use contiv_model::{name::EndpointId, tag::Encap};
use contiv_store::Store;
use tokio::sync::watch;

pub use failure::{Failure, Step};
pub use native::Troubles;
pub use pod::Pod;
pub use server::{Server, ServerError};

use crate::{
    datapath::PortRequirements,
    link::{self, Links},
    master::Master,
    plan::Node,
    reconcile::{self, Presence, Settled},
    state::{Attacher, Reader},
};
use turns::Turns;

/// How long the datapath may take to forward for an endpoint, or to let it go.
const DATAPATH_PATIENCE: Duration = Duration::from_secs(15);
/// How long the state may be behind the master.
const STATE_PATIENCE: Duration = Duration::from_secs(10);
/// What the tunnel's headers take of a frame.
const VXLAN_OVERHEAD: u32 = 50;

/// Attaches pods and lets them go.
#[derive(Clone)]
pub struct Pods(Arc<Inner>);

/// What [`Pods`] work with.
pub struct Parts {
    /// This node.
    pub node: Node,
    /// Makes and removes endpoints.
    pub master: Master,
    /// Makes and removes interfaces.
    pub links: Arc<Links>,
    /// Keeps what this node made of an endpoint.
    pub store: Store,
    /// Tells the state of interfaces.
    pub attacher: Attacher,
    /// Looks at networks and endpoints.
    pub reader: Reader,
    /// Says when the datapath has followed.
    pub settled: Settled,
    /// Says why it did not.
    pub status: watch::Receiver<reconcile::Status>,
    /// What the datapath wants of interfaces.
    pub needs: PortRequirements,
}

struct Inner {
    parts: Parts,
    turns: Turns,
    /// Of the node; 0 while not known.
    mtu: AtomicU32,
    troubles: watch::Sender<Troubles>,
}

impl Pods {
    /// Nothing happens before a request comes.
    pub fn new(parts: Parts) -> Pods {
        let (troubles, _) = watch::channel(Troubles::default());
        Pods(Arc::new(Inner { parts, turns: Turns::default(), mtu: AtomicU32::new(0), troubles }))
    }

    fn parts(&self) -> &Parts {
        &self.0.parts
    }

    /// Looks at the node's interfaces again: their MTU is that of new pods.
    pub async fn refresh_mtu(&self) -> Result<u32, link::Error> {
        let mtu = self.parts().links.lowest_mtu().await?;
        self.0.mtu.store(mtu, Ordering::Relaxed);
        Ok(mtu)
    }

    async fn mtu(&self, encap: Encap) -> Result<u32, link::Error> {
        let mtu = match self.0.mtu.load(Ordering::Relaxed) {
            0 => self.refresh_mtu().await?,
            known => known,
        };
        Ok(match encap {
            Encap::Vlan(_) => mtu,
            Encap::Vxlan { .. } => mtu.saturating_sub(VXLAN_OVERHEAD),
        })
    }

    /// Interfaces that went without anybody saying so, such as with their pod's namespace, are no attachments any
    /// more.
    pub async fn forget_vanished(&self) -> Result<(), link::Error> {
        let Parts { links, reader, attacher, .. } = self.parts();
        let before: Vec<_> =
            reader.with(|state| state.attachments().map(|(id, at)| (id.clone(), at.port.clone())).collect());
        // Listed after, so that an interface made meanwhile is not missed.
        let there = links.attachments().await?;
        for (id, port) in before {
            if !there.iter().any(|attachment| attachment.port == port && attachment.endpoint == id) {
                let still = |at: &crate::state::Attachment| at.port == port;
                if reader.with(|state| state.attachment(&id).is_some_and(still)) {
                    tracing::warn!(endpoint = %id, port, "the interface is gone: its pod's namespace was removed");
                    attacher.detach(&id);
                }
            }
        }
        Ok(())
    }

    /// Interfaces whose endpoint is not in the store any more stay until their pods are removed.
    pub fn report_unaccounted(&self) {
        self.parts().reader.with(|state| {
            let unaccounted = state.attachments().filter(|(id, _)| state.endpoint(id).is_none());
            for (id, attachment) in unaccounted {
                tracing::warn!(endpoint = %id, port = attachment.port, "an interface whose endpoint is not in the store");
            }
        });
    }

    /// Waits for the datapath, which was just told.
    async fn settle(
        &self,
        told: tokio::sync::oneshot::Receiver<Result<(), String>>,
        wanted: Presence,
    ) -> Result<(), String> {
        let what = match wanted {
            Presence::Present => "take the endpoint in",
            Presence::Absent => "let the endpoint go",
        };
        match tokio::time::timeout(DATAPATH_PATIENCE, told).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the agent is stopping".to_owned()),
            Err(_) => {
                let why = self.parts().status.borrow().error.clone();
                let why = why.unwrap_or_else(|| "the state has not told of it yet".to_owned());
                Err(format!("the datapath did not {what} within {DATAPATH_PATIENCE:?}: {why}"))
            }
        }
    }

    /// Takes an endpoint of this node out of the datapath and removes its interface; true when it had one. The
    /// master's part is left alone.
    pub async fn reclaim(&self, id: &EndpointId) -> Result<bool, Failure> {
        let _turn = self.0.turns.take(id.as_str()).await;
        let attached = self.parts().reader.with(|state| state.attachment(id).is_some());
        if attached {
            self.unplug(id).await?;
            self.forget_oper(id).await?;
        }
        Ok(attached)
    }
}
