//! Interfaces that were made for another datapath.

use super::{
    journal::{Entry, Progress},
    link::{self, Netns},
    pods::Pods,
};
use crate::error::one_line;

impl Pods {
    /// Makes the interfaces of attached pods meet the requirements of the datapath. A pod whose interface cannot be changed is
    /// logged: it may be about to be deleted.
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
    }
}

async fn disable_tx_offload(entry: &Entry) -> Result<(), link::Error> {
    Netns::open(&entry.netns)?.disable_tx_offload(&entry.ifname).await
}
