//! Releases attachments of pods that were not attached again: their interfaces vanished with their network namespaces,
//! for example in a reboot, and no request followed for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::PoisonError,
    time::Instant,
};

use contiv_model::name::EndpointId;

use super::{
    del::entry_failure,
    failure::{Failure, Step},
    journal::{Entry, Progress},
    link::{AttachedPort, Netns},
    pod::Pod,
    pods::Pods,
    recorded::OwnRecord,
};
use crate::{error::one_line, state::State};

/// Attachments that this node has recorded, without an interface and without an entry.
#[derive(Debug, Default)]
pub(super) struct WithoutInterface {
    /// Attachments of this machine.
    pub(super) pods: Vec<Pod>,
    /// VTEP addresses of endpoints that a machine with this node's name but another VTEP address has recorded.
    other_vteps: BTreeMap<EndpointId, String>,
}

impl Pods {
    /// Deletes the attachments that have had no interface and no network namespace for the time limit. Does nothing while
    /// the state is not in sync with the store.
    pub async fn release_lost(&self) -> Result<(), Failure> {
        let parts = self.parts();
        if parts.regression.borrow().is_some() || !parts.reader.awaited().is_empty() {
            return Ok(());
        }
        // Attachments on such a network are not found.
        let has_unreadable_network = parts.reader.with(State::has_unreadable_network);
        let lost = self.lost().await?;
        let is_settled = lost.is_empty() && !has_unreadable_network;
        let mut result = Ok(());
        for pod in self.overdue(lost) {
            result = result.and(self.release_if_lost(&pod).await);
        }
        if !has_unreadable_network && parts.journal.boot().is_new() {
            result = result.and(self.delete_stranded_records().await);
        }
        if !has_unreadable_network && parts.journal.has_damaged() {
            result = result.and(self.remove_unknown_entries().await);
        }
        result?;
        if is_settled && parts.journal.boot().is_new() {
            let settled = parts.journal.boot().settle();
            settled.map_err(|e| Failure::new(Step::Record, format!("record the boot: {}", one_line(&e))))?;
        }
        Ok(())
    }

    /// Deletes the records of endpoints on networks that were deleted while the node was down. No request refers to them.
    async fn delete_stranded_records(&self) -> Result<(), Failure> {
        let recorded = self.recorded().await?;
        if recorded.stranded.is_empty() {
            return Ok(());
        }
        let ports = self.parts().links.attachments().await.map_err(|e| Failure::link(Step::Unplug, &e))?;
        let mut result = Ok(());
        for (id, record) in &recorded.stranded {
            result = result.and(self.delete_stranded_record(id, record, &ports).await);
        }
        result
    }

    /// Removes the unreadable entries that belong to no known endpoint, because no request refers to them.
    async fn remove_unknown_entries(&self) -> Result<(), Failure> {
        let parts = self.parts();
        let recorded = self.recorded().await?;
        let ports = parts.links.attachments().await.map_err(|e| Failure::link(Step::Unplug, &e))?;
        let mut known: BTreeSet<EndpointId> = ports.into_iter().map(|port| port.endpoint).collect();
        known.extend(recorded.pods.keys().chain(recorded.stranded.keys()).cloned());
        let on_host = |state: &State| state.on_host(&parts.node.host).cloned().collect::<Vec<_>>();
        known.extend(parts.reader.with(on_host));
        parts.journal.remove_unknown(&known).map_err(entry_failure)
    }

    /// Returns the attachments whose interface and network namespace do not exist.
    async fn lost(&self) -> Result<Vec<Pod>, Failure> {
        let entries = self.parts().journal.entries().into_iter().filter(|entry| self.is_lost(entry));
        let mut lost: Vec<Pod> = entries.map(|entry| entry.pod()).collect();
        // Entries are lost in a reboot, or if their directory is emptied while the agent is stopped.
        let WithoutInterface { pods, other_vteps } = self.without_interface().await?;
        self.report_other_vteps(other_vteps);
        lost.extend(pods);
        Ok(lost)
    }

    /// Reports endpoints that were recorded with another VTEP address. They are not released: if the address of the node
    /// has not changed, another machine uses its name by mistake.
    fn report_other_vteps(&self, found: BTreeMap<EndpointId, String>) {
        self.0.warnings.send_if_modified(|warnings| {
            let is_changed = warnings.other_vteps != found;
            warnings.other_vteps = found;
            if is_changed && let Some(line) = warnings.other_vteps_line() {
                tracing::warn!("{line}");
            }
            is_changed
        });
    }

    fn is_lost(&self, entry: &Entry) -> bool {
        let id = entry.pod().endpoint_id();
        let parts = self.parts();
        entry.progress == Progress::Attached
            && parts.reader.with(|state| state.attachment(&id).is_none())
            // A namespace whose interface was deleted by hand is still in use.
            && (parts.journal.boot().is_new() || Netns::is_gone(&entry.netns))
    }

    /// Returns the attachments that have been lost for the time limit.
    fn overdue(&self, lost: Vec<Pod>) -> Vec<Pod> {
        let mut lost_since = self.0.lost_since.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: BTreeSet<EndpointId> = lost.iter().map(Pod::endpoint_id).collect();
        lost_since.retain(|id, _| ids.contains(id));
        let limit = self.parts().return_timeout;
        let is_overdue =
            |pod: &Pod| lost_since.entry(pod.endpoint_id()).or_insert_with(Instant::now).elapsed() >= limit;
        lost.into_iter().filter(is_overdue).collect()
    }

    async fn release_if_lost(&self, pod: &Pod) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        let _locks = self.lock(pod).await;
        // An ADD or a DEL may have been executed meanwhile.
        let parts = self.parts();
        let is_lost = match parts.journal.get(&id) {
            Some(entry) => self.is_lost(&entry),
            None => parts.reader.with(|state| state.attachment(&id).is_none()),
        };
        if !is_lost || parts.links.port_of(&id).await.map_err(|e| Failure::link(Step::Unplug, &e))?.is_some()
        {
            return Ok(());
        }
        tracing::warn!(endpoint = %id, "releasing the addresses of a pod that did not come back");
        self.remove(pod).await
    }

    /// Returns the attachments that this node has recorded, without an interface and without a readable entry:
    /// attachments of earlier boots, and those whose entry was lost. A running request has an entry. The network
    /// configuration is that of the record; empty if unknown.
    pub(super) async fn without_interface(&self) -> Result<WithoutInterface, Failure> {
        let parts = self.parts();
        let mut candidates: Vec<Pod> = parts.reader.with(|state| {
            let pod = |id: &EndpointId| {
                let endpoint = state.endpoint(id)?;
                if state.attachment(id).is_some() || parts.journal.get(id).is_some() {
                    return None;
                }
                let network = state.network(&endpoint.network)?;
                let name = id.as_str().strip_prefix(network.id.as_str())?.strip_prefix('-')?;
                // The node's own endpoints are on infra networks.
                let is_node = name == parts.node.host.as_str();
                (!is_node)
                    .then(|| Pod::recorded(network.tenant.clone(), network.name.clone(), name.to_owned()))
            };
            state.on_host(&parts.node.host).filter_map(pod).collect()
        });
        let is_new_boot = parts.journal.boot().is_new();
        if is_new_boot || parts.journal.has_damaged() {
            let is_candidate = |pod: &Pod| is_new_boot || parts.journal.is_damaged(&pod.endpoint_id());
            candidates.extend(self.without_endpoint().await?.into_iter().filter(is_candidate));
        }
        let mut found = WithoutInterface::default();
        if candidates.is_empty() {
            return Ok(found);
        }
        let ports = parts.links.attachments().await.map_err(|e| Failure::link(Step::Unplug, &e))?;
        for pod in candidates {
            match self.record_without_interface(&pod, &ports).await? {
                Some(record) if record.has_vtep_of(&parts.node) => {
                    let configuration = record.oper.cni_configuration.unwrap_or_default();
                    found.pods.push(Pod { configuration, ..pod });
                }
                _ if parts.journal.is_damaged(&pod.endpoint_id()) => found.pods.push(pod),
                Some(OwnRecord { oper, .. }) if oper.homing_host == parts.node.host.as_str() => {
                    found.other_vteps.insert(pod.endpoint_id(), oper.vtep_ip);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// Returns the endpoints that this node has recorded and that are not in the state: the power failed before netmaster
    /// created them, or after it had deleted them.
    async fn without_endpoint(&self) -> Result<Vec<Pod>, Failure> {
        let recorded = self.recorded().await?;
        let parts = self.parts();
        Ok(parts.reader.with(|state| {
            let is_unknown = |(id, _): &(&EndpointId, &Pod)| {
                let is_known = state.endpoint(id).is_some() || state.attachment(id).is_some();
                !is_known && parts.journal.get(id).is_none()
            };
            recorded.pods.iter().filter(is_unknown).map(|(_, pod)| pod.clone()).collect()
        }))
    }

    /// Returns the record that a node has written for the endpoint, if its interface no longer exists on this node.
    async fn record_without_interface(
        &self,
        pod: &Pod,
        ports: &[AttachedPort],
    ) -> Result<Option<OwnRecord>, Failure> {
        let Some(record) = self.record_of(pod).await? else { return Ok(None) };
        let is_of_original = self.is_of_original(&record.oper, ports).await?;
        Ok((!is_of_original).then_some(record))
    }
}
