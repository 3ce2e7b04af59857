//! Deletes attachments that no runtime owns: those that a GC does not list, and those of requests that did not end.

use std::{collections::BTreeSet, time::Duration};

use contiv_model::{endpoint::Oper, key::Key, name::EndpointId};
use contivk8s::wire::{Reply, Request, ValidAttachment};
use tokio_util::sync::CancellationToken;

use super::{
    failure::{Failure, Step},
    journal::Progress,
    pod::Pod,
    pods::Pods,
};
use crate::{datapath::Owner, error::one_line};

/// Interval between attempts to delete what an earlier request left.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

impl Pods {
    /// Deletes the attachments of the runtime's network configuration that it does not list. A failure does not stop the
    /// remaining deletions.
    pub async fn collect_garbage(&self, request: &Request) -> Result<Reply, Failure> {
        self.check_store(Step::Delete)?;
        let valid: BTreeSet<String> =
            request.valid_attachments.iter().map(ValidAttachment::endpoint).collect();
        let is_unknown = |endpoint: &str| !valid.contains(endpoint);
        let entries = self.parts().journal.entries().into_iter();
        let of_network = entries
            .filter(|entry| entry.configuration == request.network_name && is_unknown(&entry.endpoint))
            .map(|entry| entry.pod());
        let mut garbage: Vec<Pod> = of_network.collect();
        let without_interface = self.without_interface().await?.into_iter();
        garbage.extend(without_interface.filter(|pod| is_unknown(&pod.endpoint)));

        let mut failures = vec![];
        for pod in garbage {
            let id = pod.endpoint_id();
            let _locks = (self.0.locks.lock(&pod.endpoint).await, self.0.locks.lock(id.as_str()).await);
            // An ADD that is running, or that ran meanwhile, is not garbage.
            let is_added =
                || self.parts().journal.get(&id).is_some_and(|now| now.progress == Progress::Adding);
            if is_added() && !self.is_unfinished(&id) {
                continue;
            }
            tracing::info!(endpoint = %id, "deleting an attachment that the runtime does not know");
            if let Err(failure) = self.remove(&pod).await {
                failures.push(failure);
            }
        }
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Ok(Reply::default()),
            Some(first) => {
                let others: Vec<_> = failures.map(|failure| failure.to_string()).collect();
                Err(first.and(&others).temporary())
            }
        }
    }

    /// Attachments of earlier boots: this node recorded them, but has neither interface nor entry.
    async fn without_interface(&self) -> Result<Vec<Pod>, Failure> {
        let parts = self.parts();
        let candidates: Vec<Pod> = parts.reader.with(|state| {
            let pod = |id: &EndpointId| {
                let endpoint = state.endpoint(id)?;
                if state.attachment(id).is_some() || parts.journal.get(id).is_some() {
                    return None;
                }
                let network = state.network(&endpoint.network)?;
                let name = id.as_str().strip_prefix(network.id.as_str())?.strip_prefix('-')?;
                // The node's own endpoints are on infra networks.
                if name == parts.node.host.as_str() {
                    return None;
                }
                Some(Pod {
                    tenant: network.tenant.clone(),
                    network: network.name.clone(),
                    group: None,
                    endpoint: name.to_owned(),
                    common_name: String::new(),
                    configuration: String::new(),
                    netns: "".into(),
                    ifname: String::new(),
                    owner: Owner::Pod,
                    defaults: vec![],
                })
            };
            state.on_host(&parts.node.host).filter_map(pod).collect()
        });
        let mut recorded = vec![];
        for pod in candidates {
            // Endpoints that others created at netmaster have no record.
            let key = Key::EndpointOper(pod.endpoint_id()).to_string();
            let record = parts.store.get(&key).await;
            let record = record.map_err(|e| Failure::new(Step::Delete, one_line(&e)).temporary())?;
            let Some(record) = record else { continue };
            match serde_json::from_slice::<Oper>(&record.value) {
                Ok(oper) if oper.cont_uuid == pod.endpoint => recorded.push(pod),
                Ok(_) => {}
                Err(error) => tracing::warn!("read {key}: {error}"),
            }
        }
        Ok(recorded)
    }

    /// Deletes what requests of an earlier process, and failed ones, have left, until `stop` is cancelled.
    pub async fn finish_requests(&self, stop: CancellationToken) -> anyhow::Result<()> {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = self.parts().reader.synced() => {}
        }
        loop {
            let round = async {
                for id in self.unfinished() {
                    if let Err(failure) = self.finish(&id).await {
                        tracing::debug!(endpoint = %id, "delete what a request left: {failure}");
                    }
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = round => {}
            }
        }
    }

    async fn finish(&self, id: &EndpointId) -> Result<(), Failure> {
        let Some(entry) = self.parts().journal.get(id) else {
            self.set_finished(id);
            return Ok(());
        };
        let _locks = (self.0.locks.lock(&entry.endpoint).await, self.0.locks.lock(id.as_str()).await);
        // Another request may have finished it meanwhile.
        if !self.is_unfinished(id) {
            return Ok(());
        }
        self.remove(&entry.pod()).await?;
        tracing::info!(endpoint = %id, "deleted what an interrupted request had left");
        Ok(())
    }
}
