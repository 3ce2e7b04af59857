//! The node's own endpoints on networks of type `infra`: an interface on the node, named like the network.

use std::collections::BTreeSet;

use contiv_model::{
    key::Key,
    name::{EndpointId, NetworkId},
    network::Kind,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Failure, Step},
    link::Netns,
    pod::Pod,
    pods::{Parts, Pods},
    warnings::NodeWarnings,
};
use crate::{backoff::Backoff, datapath::Owner, state::State};

/// Maximum length of an interface name in bytes, without the terminating NUL.
const MAX_INTERFACE_NAME: usize = libc::IFNAMSIZ - 1;

/// Changes that attach the node to all infra networks and to no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PendingChanges {
    join: BTreeSet<NetworkId>,
    leave: BTreeSet<NetworkId>,
}

impl PendingChanges {
    fn is_empty(&self) -> bool {
        self.join.is_empty() && self.leave.is_empty()
    }
}

impl Pods {
    /// Keeps the node attached to every infra network until `stop` is cancelled.
    pub async fn maintain_infra(&self, stop: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.parts().reader.synced() => {}
        }
        let mut backoff = Backoff::default();
        loop {
            let pending = self.parts().reader.wait(|state| {
                let pending = self.pending_changes(state);
                let warned = !self.0.warnings.borrow().infra.is_empty();
                (warned || !pending.is_empty()).then_some(pending)
            });
            let pending = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                pending = pending => pending,
            };
            // Not cancelled by `stop`, like a request, so that no partial interface remains.
            if self.apply_changes(&pending).await {
                backoff.reset();
            }
            // Completed changes appear in the state with a delay; failed changes are retried.
            let other =
                self.parts().reader.wait(|state| (self.pending_changes(state) != pending).then_some(()));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(backoff.pause()) => {}
                () = other => {}
            }
        }
    }

    /// Current warnings about the node.
    pub fn warnings(&self) -> watch::Receiver<NodeWarnings> {
        self.0.warnings.subscribe()
    }

    fn infra_id(&self, network: &NetworkId) -> EndpointId {
        EndpointId::new(network, self.parts().node.host.as_str())
    }

    fn pending_changes(&self, state: &State) -> PendingChanges {
        let host = &self.parts().node.host;
        let missing = |id: &EndpointId| state.attachment(id).is_none() || state.endpoint(id).is_none();
        let kind = |id: &NetworkId| state.network(id).map(|network| network.kind);
        let networks = state.infra_networks().map(|network| &network.id);
        let mut pending = PendingChanges {
            join: networks.filter(|id| missing(&self.infra_id(id))).cloned().collect(),
            leave: BTreeSet::new(),
        };
        for id in state.on_host(host).filter(|id| id.as_str().ends_with(host.as_str())) {
            let Some(network) = state.endpoint(id).map(|endpoint| &endpoint.network) else { continue };
            let is_infra = match state.attachment(id) {
                Some(at) => at.owner == Owner::Node,
                // An attempt to leave the network has deleted the interface, but not the endpoint.
                None => self.0.warnings.borrow().infra.contains_key(network),
            };
            // On a data network, an endpoint with the node's name may be a pod.
            let must_leave = match kind(network) {
                None => !state.is_unreadable(&Key::Network(network.clone())),
                Some(Kind::Data) => is_infra,
                Some(Kind::Infra) => false,
            };
            if must_leave && *id == self.infra_id(network) {
                pending.leave.insert(network.clone());
            }
        }
        pending
    }

    /// Applies the changes and returns whether all succeeded. A failure is logged again only if it changes.
    async fn apply_changes(&self, pending: &PendingChanges) -> bool {
        let mut succeeded = true;
        for network in &pending.leave {
            succeeded &= self.report(network, "node left the infra network", self.leave(network).await);
        }
        for network in &pending.join {
            succeeded &= self.report(network, "node joined the infra network", self.join(network).await);
        }
        // Deleted networks have no warnings.
        self.0.warnings.send_if_modified(|NodeWarnings { infra: known, .. }| {
            let before = known.len();
            known.retain(|network, _| pending.join.contains(network) || pending.leave.contains(network));
            known.len() != before
        });
        succeeded
    }

    fn report(&self, network: &NetworkId, done: &str, result: Result<(), Failure>) -> bool {
        let warning = result.err().map(|failure| failure.to_string());
        let changed = self.0.warnings.send_if_modified(|NodeWarnings { infra: known, .. }| {
            let before = match &warning {
                Some(why) => known.insert(network.clone(), why.clone()),
                None => known.remove(network),
            };
            before != warning
        });
        match &warning {
            None => tracing::info!(%network, "{done}"),
            Some(why) if changed => tracing::warn!(%network, "infra endpoint: {why}"),
            Some(_) => {}
        }
        warning.is_none()
    }

    async fn join(&self, network: &NetworkId) -> Result<(), Failure> {
        let Some(pod) = self.node_as_pod(network) else { return Ok(()) };
        let name = &pod.ifname;
        let refuse = |why: String| Err(Failure::new(Step::Plug, why));
        if name.len() > MAX_INTERFACE_NAME {
            return refuse(format!(
                "{name:?} is not usable as an interface name: longer than {MAX_INTERFACE_NAME} characters; give the infra network a \
                 shorter name"
            ));
        }
        let is_attached = self.parts().reader.with(|state| state.attachment(&pod.endpoint_id()).is_some());
        let exists = self.parts().links.exists(name).await.map_err(|e| Failure::link(Step::Plug, &e))?;
        if exists && !is_attached {
            return refuse(format!(
                "interface {name} already exists on the node; rename it, or give the network another name"
            ));
        }
        let netns = Netns::current().map_err(|e| Failure::link(Step::Plug, &e))?;
        self.attach(&pod, &netns).await.map(drop)
    }

    /// Removes the node from a network. A failure does not stop the remaining steps.
    async fn leave(&self, network: &NetworkId) -> Result<(), Failure> {
        let host = self.parts().node.host.as_str();
        let id = self.infra_id(network);
        let _locks = (self.0.locks.lock(host).await, self.0.locks.lock(id.as_str()).await);
        let deleted_interface = self.delete_interface(&id).await;
        let deleted = self.delete_infra_endpoint(network, &id).await;
        deleted_interface.and(deleted).and(self.delete_record(&id).await)
    }

    /// Deletes the node's endpoint at netmaster.
    async fn delete_infra_endpoint(&self, network: &NetworkId, id: &EndpointId) -> Result<(), Failure> {
        // A new network with this id has the endpoint. netmaster finds it only by the names of that network.
        if let Some(pod) = self.node_as_pod(network) {
            return self.delete_at_master(&pod).await.map(drop);
        }
        // The position of the tenant's name is ambiguous without the network's record, but netmaster also concatenates
        // both parts if it has no record.
        let Parts { node, master, .. } = self.parts();
        let (name, tenant) = network.as_str().rsplit_once('.').unwrap_or((network.as_str(), ""));
        let revision = self.stored_revision(id).await?;
        let deleted = master.delete_endpoint(tenant, name, node.host.as_str(), revision).await;
        let is_deleted = deleted.map_err(|e| Failure::master(Step::Delete, &e))?;
        if !is_deleted && self.stored_record(id, Step::Delete).await?.is_some() {
            let why =
                format!("netmaster does not find {id} on network {name} of tenant {tenant}; will retry");
            return Err(Failure::new(Step::Delete, why).temporary());
        }
        Ok(())
    }

    /// The node in the form of a pod; `None` if the network was deleted.
    fn node_as_pod(&self, network: &NetworkId) -> Option<Pod> {
        let network = self.parts().reader.with(|state| state.network(network).cloned())?;
        let host = self.parts().node.host.to_string();
        Some(Pod {
            ifname: network.name.to_string(),
            common_name: host.clone(),
            owner: Owner::Node,
            ..Pod::recorded(network.tenant, network.name, host)
        })
    }
}
