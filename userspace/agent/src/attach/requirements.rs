//! Interfaces that were created for another datapath, or for another datapath type of OVS.

use super::{
    journal::{Entry, Progress},
    link::{self, Netns},
    pods::Pods,
};
use crate::error::one_line;

impl Pods {
    /// Changes the interfaces of attached pods, and those of the node on infra networks, so that they meet the
    /// requirements of the datapath. If an interface cannot be changed, logs a warning: its pod may be about to be
    /// deleted.
    pub async fn meet_requirements(&self) {
        if !self.parts().requirements.disable_tx_offload {
            return;
        }
        for entry in self.parts().journal.entries() {
            if entry.progress == Progress::Attached
                && let Err(error) = disable_tx_offload(&entry).await
            {
                let endpoint = entry.pod().endpoint_id();
                tracing::warn!(%endpoint, "prepare the interface for the datapath: {}", one_line(&error));
            }
        }
        if let Err(error) = self.disable_tx_offload_of_node().await {
            tracing::warn!("prepare the node's own interfaces for the datapath: {}", one_line(&error));
        }
    }

    async fn disable_tx_offload_of_node(&self) -> Result<(), link::Error> {
        let netns = Netns::current()?;
        let mut result = Ok(());
        for name in self.parts().links.node_ends().await? {
            result = result.and(netns.disable_tx_offload(&name).await);
        }
        result
    }
}

async fn disable_tx_offload(entry: &Entry) -> Result<(), link::Error> {
    Netns::open(&entry.netns)?.disable_tx_offload(&entry.ifname).await
}
