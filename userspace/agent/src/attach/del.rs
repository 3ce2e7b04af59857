use std::collections::{BTreeMap, BTreeSet};

use contiv_model::name::EndpointId;
use contiv_store::KeyValue;
use contivk8s::{
    spec::Code,
    wire::{Reply, Request},
};
use serde::Deserialize;
use tokio::sync::OwnedMutexGuard;

use super::{
    failure::{Failure, Step},
    journal::Progress,
    pod::Pod,
    pods::Pods,
    undo::interface_failure,
};
use crate::{error::one_line, fail_point::reach, reconcile::Presence};

/// Node of an endpoint according to the store.
#[derive(Debug, PartialEq, Eq)]
enum HomingHost {
    /// The endpoint does not exist.
    Absent,
    /// The record does not contain the node.
    Unreadable,
    /// Name of the node; empty for an endpoint without a node.
    Node(String),
}

impl HomingHost {
    /// Reads the node from a record whose other fields may be invalid: they must not prevent the deletion of a pod.
    fn of(record: &KeyValue) -> HomingHost {
        #[derive(Deserialize)]
        struct Summary {
            #[serde(default, rename = "homingHost")]
            host: String,
        }
        serde_json::from_slice(&record.value)
            .map_or(HomingHost::Unreadable, |Summary { host }| HomingHost::Node(host))
    }
}

impl Pods {
    /// Detaches a pod. Missing parts are not failures. A failure does not stop the remaining steps.
    pub async fn del(&self, request: &Request) -> Result<Reply, Failure> {
        // Labels that became invalid after the ADD must not prevent the deletion: the pod's endpoints are found without
        // them.
        let pod = Pod::try_from(request).or_else(|failure| match failure.code {
            Code::InvalidConfig => Pod::try_from(&Request { labels: BTreeMap::new(), ..request.clone() }),
            _ => Err(failure),
        })?;
        let _names = self.lock_names(&pod).await;
        let mut failures = vec![];
        for pod in self.matching(&pod) {
            // Requests to reclaim the interface have only the endpoint.
            let _lock = self.0.locks.lock(pod.endpoint_id().as_str()).await;
            failures.extend(self.remove(&pod).await.err());
        }
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Ok(Reply { endpoint: pod.endpoint, ..Reply::default() }),
            // The runtime retries until nothing remains.
            Some(failure) => {
                let others: Vec<_> = failures.map(|failure| failure.to_string()).collect();
                Err(failure.and(&others).temporary())
            }
        }
    }

    /// Deletes all parts of an attachment, under its locks. A failure does not stop the remaining steps. The entry then
    /// remains, so that the remaining parts are deleted later, possibly by another process, unless a request does so
    /// before.
    pub(super) async fn remove(&self, pod: &Pod) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        let has_entry = self.parts().journal.contains(&id);
        self.remember_if_unanswered(pod);
        self.begin_deletion(pod);
        reach("entry of the DEL");
        let mut results = vec![self.delete_interface(&id).await];
        // The endpoint and its addresses are released in the store that contains them.
        match self.check_store(Step::Delete) {
            Ok(()) => results.push(self.release(pod, has_entry).await),
            Err(failure) => results.push(Err(failure)),
        }
        let mut failures = results.into_iter().filter_map(Result::err);
        let Some(first) = failures.next() else { return self.remove_entry(&id) };
        let others: Vec<_> = failures.map(|failure| failure.to_string()).collect();
        Err(first.and(&others))
    }

    /// Deletes the endpoint and then its record, unless they belong to another node. Endpoints that this machine has
    /// recorded under another name are its own. No request is sent to netmaster for an endpoint that is not in the store
    /// and that no ADD of this node can have created, because netmaster may be unavailable.
    pub(super) async fn release(&self, pod: &Pod, has_entry: bool) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        let stored = self.stored_record(&id, Step::Delete).await?;
        let host = stored.as_ref().map_or(HomingHost::Absent, HomingHost::of);
        if let HomingHost::Node(host) = &host
            && !host.is_empty()
            && host != self.parts().node.host.as_str()
        {
            let record = self.own_record(pod).await?;
            if record.as_ref().is_none_or(|record| record.oper.homing_host != *host) {
                tracing::warn!(endpoint = %id, host = host.as_str(), "not deleting an endpoint of another node");
                // An ADD that was rejected for this reason may have been interrupted before its record was rolled back.
                return match record {
                    Some(record) => self.delete_preliminary_record(id, record.revision).await,
                    None => Ok(()),
                };
            }
            tracing::warn!(endpoint = %id, host = host.as_str(), "deleting an endpoint of an earlier name of this node");
        }
        // netmaster may still be creating an endpoint that was recorded.
        let is_known = matches!(host, HomingHost::Node(_));
        if is_known || has_entry || self.own_record(pod).await?.is_some() {
            // After a failure the record remains, because the endpoint may exist. So the entry need not survive a power
            // failure.
            self.delete_revision(pod, stored.as_ref().map_or(0, |record| record.mod_revision)).await?;
        } else if matches!(host, HomingHost::Unreadable) {
            tracing::warn!(endpoint = %id, "not deleting an endpoint whose record does not tell its node");
            return Ok(());
        }
        reach("deletion at netmaster");
        self.delete_record(&id).await?;
        reach("deletion of the record");
        Ok(())
    }

    /// Records that the endpoint is being deleted. The next ADD creates it again even if its interface remains: netmaster
    /// may execute the deletion later.
    pub(super) fn begin_deletion(&self, pod: &Pod) {
        if let Err(failure) = self.write_entry(pod, Progress::Deleting) {
            tracing::warn!("{failure}");
        }
    }

    /// Removes the entry of an attachment with no remaining parts.
    pub(super) fn remove_entry(&self, id: &EndpointId) -> Result<(), Failure> {
        self.parts().journal.remove(id).map_err(entry_failure)?;
        reach("removal of the entry");
        Ok(())
    }

    /// Locks the names of the endpoints that a DEL of the pod deletes. They are locked in a fixed order, so that requests
    /// of containers that are named after each other do not deadlock.
    async fn lock_names(&self, pod: &Pod) -> Vec<OwnedMutexGuard<()>> {
        loop {
            let names = self.names(pod);
            let mut locks = Vec::with_capacity(names.len());
            for name in &names {
                locks.push(self.0.locks.lock(name).await);
            }
            // An ADD may have written an entry before its name was locked.
            if self.names(pod).is_subset(&names) {
                return locks;
            }
        }
    }

    /// Returns the name in the request, and the names under which the container's interface was attached.
    fn names(&self, pod: &Pod) -> BTreeSet<String> {
        let entries = self.parts().journal.entries().into_iter();
        let entries = entries.filter(|entry| entry.is_deleted_with(pod)).map(|entry| entry.endpoint);
        entries.chain([pod.endpoint.clone()]).collect()
    }

    /// Returns the endpoints of this container and interface: the one that the labels select, and those on other
    /// networks, because labels, arguments and configuration may have changed after the ADD.
    fn matching(&self, pod: &Pod) -> Vec<Pod> {
        let others = self.parts().reader.with(|state| {
            let same = |id: &EndpointId| {
                let endpoint = state.endpoint(id)?;
                if EndpointId::new(&endpoint.network, &pod.endpoint) != *id {
                    return None;
                }
                let network = state.network(&endpoint.network)?;
                Some(Pod { tenant: network.tenant.clone(), network: network.name.clone(), ..pod.clone() })
            };
            state.on_host(&self.parts().node.host).filter_map(same).collect::<Vec<_>>()
        });
        let entries = self.parts().journal.entries().into_iter();
        let entries = entries.filter(|entry| entry.is_deleted_with(pod)).map(|entry| entry.pod());
        let mut all = vec![pod.clone()];
        for other in others.into_iter().chain(entries) {
            if !all.iter().any(|known| known.endpoint_id() == other.endpoint_id()) {
                all.push(other);
            }
        }
        all.retain(|pod| self.same_id(pod).is_none());
        all
    }

    /// Removes the endpoint from the datapath, then deletes its interface.
    pub(super) async fn delete_interface(&self, id: &EndpointId) -> Result<(), Failure> {
        let known = self.parts().reader.with(|state| state.attachment(id).map(|at| at.port.clone()));
        let (detached, port) = match known {
            Some(port) => (self.detach(id).await, port),
            // An earlier removal of the interface may have failed.
            None => match self.parts().links.port_of(id).await {
                Ok(Some(port)) => (Ok(()), port),
                Ok(None) => return Ok(()),
                Err(error) => return Err(interface_failure(error)),
            },
        };
        reach("deletion in the datapath");
        // Executed even after a failure: a deleted interface forwards nothing.
        let removed = self.parts().links.detach(&port).await.map_err(interface_failure);
        reach("deletion of the interface");
        match (detached, removed) {
            (Ok(()), Ok(_)) => Ok(()),
            (Err(failure), Ok(_)) | (Ok(()), Err(failure)) => Err(failure),
            (Err(failure), Err(more)) => Err(failure.and(&[more.to_string()])),
        }
    }

    /// Removes the endpoint from the state and waits for the datapath. Does not wait while the agent starts: the first
    /// full resync deletes the endpoint then.
    pub(super) async fn detach(&self, id: &EndpointId) -> Result<(), Failure> {
        let parts = self.parts();
        if self.unsettled().is_some() {
            parts.attacher.detach(id);
            return Ok(());
        }
        let reply = parts.waiters.wait(id, Presence::Absent);
        parts.attacher.detach(id);
        self.wait_for_datapath(reply, Presence::Absent).await.map_err(|why| Failure::new(Step::Datapath, why))
    }

    /// Deletes the endpoint at netmaster. Returns true if it existed.
    pub(super) async fn delete_at_master(&self, pod: &Pod) -> Result<bool, Failure> {
        let revision = self.stored_revision(&pod.endpoint_id()).await?;
        self.delete_revision(pod, revision).await
    }

    /// Deletes the endpoint at netmaster if the store has its record at this revision, and no later one. netmaster may
    /// execute an unanswered request after the next ADD, which writes the record again.
    async fn delete_revision(&self, pod: &Pod, revision: i64) -> Result<bool, Failure> {
        let (tenant, network) = (pod.tenant.as_str(), pod.network.as_str());
        let deleted = self.parts().master.delete_endpoint(tenant, network, &pod.endpoint, revision).await;
        deleted.map_err(|e| Failure::master(Step::Delete, &e))
    }

    /// Returns the revision of the endpoint's record as it is now in the store; 0 for no record.
    pub(super) async fn stored_revision(&self, id: &EndpointId) -> Result<i64, Failure> {
        let stored = self.stored_record(id, Step::Delete).await?;
        Ok(stored.map_or(0, |record| record.mod_revision))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
pub(super) fn entry_failure(error: std::io::Error) -> Failure {
    Failure::new(Step::Record, format!("change the attachment's entry: {}", one_line(&error))).temporary()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_read_whatever_else_a_record_has() {
        let host = |body: &str| {
            HomingHost::of(&KeyValue {
                key: "/contiv.io/state/eps/n.t-c1".to_owned(),
                value: body.as_bytes().to_vec().into(),
                create_revision: 1,
                mod_revision: 1,
                version: 1,
                lease: 0,
            })
        };
        let node = |name: &str| HomingHost::Node(name.to_owned());
        assert_eq!(host(r#"{"homingHost":"h","ipAddress":5}"#), node("h"));
        assert_eq!((host(r#"{"ipAddress":5}"#), host(r#"{"homingHost":""}"#)), (node(""), node("")));
        for body in ["", "{", "5", r#"{"homingHost":5}"#, r#"{"homingHost":null}"#] {
            assert_eq!(host(body), HomingHost::Unreadable, "{body}");
        }
    }
}
