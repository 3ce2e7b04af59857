//! Deletes attachments that no runtime owns: those that a GC does not list, and those of unfinished requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use contiv_model::name::EndpointId;
use contivk8s::{
    spec::Code,
    wire::{Reply, Request, ValidAttachment},
};
use futures::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Failure, Step},
    journal::{Entry, Progress},
    pod::Pod,
    pods::Pods,
};

/// Interval between attempts to delete what an earlier request left.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of attachments that are deleted in parallel.
const PARALLEL_DELETIONS: usize = 16;

impl Pods {
    /// Deletes the attachments of the runtime's network configuration that it does not list. A failure does not stop the
    /// remaining deletions.
    pub async fn collect_garbage(&self, request: &Request) -> Result<Reply, Failure> {
        if request.network_name.is_empty() {
            // Otherwise attachments of runtimes that sent no name would match.
            let why = "GC: the request does not name its network configuration";
            return Err(Failure::new(Step::Labels, why).code(Code::InvalidConfig));
        }
        // Endpoints of an earlier boot are found in the state.
        self.synced(Step::Delete).await?;
        let began = self.parts().journal.writes();
        let mut garbage = self.unlisted(request);
        let listed: BTreeSet<String> =
            request.valid_attachments.iter().map(ValidAttachment::endpoint).collect();
        let without_interface = self.without_interface().await?.pods.into_iter();
        // Attachments of an unknown network configuration are left to `release_lost`.
        let of_network = without_interface.filter(|pod| pod.configuration == request.network_name);
        garbage.extend(of_network.filter(|pod| !listed.contains(&pod.endpoint)));

        let deletions =
            garbage.into_iter().map(|pod| async move { self.delete_garbage(&pod, began).await.err() });
        let failures: Vec<_> = stream::iter(deletions).buffer_unordered(PARALLEL_DELETIONS).collect().await;
        let mut failures = failures.into_iter().flatten();
        match failures.next() {
            None => Ok(Reply::default()),
            Some(first) => {
                let others: Vec<_> = failures.map(|failure| failure.to_string()).collect();
                Err(first.and(&others).temporary())
            }
        }
    }

    /// Returns the attachments of the network configuration that the request does not list.
    fn unlisted(&self, request: &Request) -> Vec<Pod> {
        let is_listed = |entry: &Entry| request.valid_attachments.iter().any(|valid| entry.is_listed(valid));
        let entries = self.parts().journal.entries().into_iter();
        let of_network = entries.filter(|entry| entry.configuration == request.network_name);
        of_network.filter(|entry| !is_listed(entry)).map(|entry| entry.pod()).collect()
    }

    /// Deletes an attachment that a GC does not list, unless an ADD has succeeded after the first `began` writes of the
    /// journal: the runtime created its list before.
    async fn delete_garbage(&self, pod: &Pod, began: u64) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        let _locks = self.lock(pod).await;
        let journal = &self.parts().journal;
        let is_attached = journal.get(&id).is_some_and(|entry| entry.progress == Progress::Attached);
        if is_attached && journal.written_after(&id, began) {
            return Ok(());
        }
        tracing::info!(endpoint = %id, "deleting an attachment that the runtime does not know");
        self.remove(pod).await
    }

    /// Deletes what requests of an earlier process and failed requests have left, including endpoints that netmaster
    /// creates for them later, until `stop` is cancelled.
    pub async fn finish_requests(&self, stop: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.parts().reader.synced() => {}
        }
        let mut failed = BTreeMap::new();
        loop {
            let round = async {
                failed = self.finish_entries(&failed).await;
                if let Err(failure) = self.delete_created_late().await {
                    tracing::debug!("look for endpoints that were created late: {failure}");
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = round => {}
            }
        }
    }

    /// Number of attachments that requests are creating or deleting, or have left to be deleted.
    pub fn unfinished(&self) -> usize {
        self.parts().journal.unfinished().len()
    }

    /// Deletes what requests have left, and returns the failures. Logs the failures that the last attempt did not have.
    async fn finish_entries(&self, before: &BTreeMap<EndpointId, String>) -> BTreeMap<EndpointId, String> {
        let left: Vec<Pod> = self.parts().journal.unfinished().iter().map(Entry::pod).collect();
        let deletions = left.into_iter().map(|pod| async move {
            let id = pod.endpoint_id();
            // While a request is running, the last failure of the deletion still applies.
            let failure = match self.try_lock(&pod) {
                Some(_locks) => self.finish(&pod).await.err()?.to_string(),
                None => before.get(&id)?.clone(),
            };
            Some((id, failure))
        });
        let results: Vec<_> = stream::iter(deletions).buffer_unordered(PARALLEL_DELETIONS).collect().await;
        let failed: BTreeMap<_, _> = results.into_iter().flatten().collect();
        for (id, why) in failed.iter().filter(|(id, why)| before.get(*id) != Some(*why)) {
            tracing::warn!(endpoint = %id, "delete what a request left: {why}; will retry");
        }
        failed
    }

    /// Deletes what a request has left. The caller holds the locks of the pod.
    async fn finish(&self, pod: &Pod) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        // The request that ended has written the entry under the lock.
        match self.parts().journal.get(&id) {
            Some(entry) if entry.progress != Progress::Attached => self.remove(&entry.pod()).await?,
            _ => return Ok(()),
        }
        tracing::info!(endpoint = %id, "deleted what an interrupted request had left");
        Ok(())
    }
}
