//! The initial read of all endpoints, which finds the networks of the node's own endpoints.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use contiv_model::{
    key::ENDPOINTS,
    name::{HostName, NetworkId},
};
use contiv_store::{KeyValue, Status, Store};
use serde::Deserialize;
use tokio::{sync::watch, time::sleep};

use crate::{backoff::Backoff, error::one_line};

/// Fields of an endpoint that an agent reads before it decodes the record.
#[derive(Deserialize)]
struct Summary<'a> {
    #[serde(borrow, default, rename = "netID")]
    network: Cow<'a, str>,
    #[serde(borrow, default, rename = "homingHost")]
    host: Cow<'a, str>,
}

/// Networks found in a read of all endpoints.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Networks with endpoints on the node.
    pub(super) own: BTreeSet<NetworkId>,
    /// Networks with endpoints whose keys are not below the network's prefix.
    pub(super) scattered: BTreeSet<NetworkId>,
}

/// Reads all endpoints to find the networks of those on `host`. Retries without limit.
pub(super) async fn read(store: Store, host: HostName, status: watch::Sender<Status>) -> Found {
    let (mut backoff, mut failures) = (Backoff::default(), 0);
    loop {
        let mut found = Found::default();
        let listing = store.list_where(ENDPOINTS, |kv| {
            found.note(kv, &host);
            false
        });
        match listing.await {
            Ok(_) => {
                status.send_replace(Status::Connected);
                return found;
            }
            Err(error) => {
                failures += 1;
                let error: Arc<str> = one_line(&error).into();
                tracing::warn!("read the endpoints of this node: {error}; retrying");
                status.send_replace(Status::Retrying { failures, error });
                sleep(backoff.pause()).await;
            }
        }
    }
}

impl Found {
    fn note(&mut self, kv: &KeyValue, host: &HostName) {
        let Some(Summary { network, host: homing_host }) = summary(kv) else { return };
        let is_below = |id: &str| id.strip_prefix(&*network).is_some_and(|rest| rest.starts_with('-'));
        if kv.key.strip_prefix(ENDPOINTS).is_some_and(|id| !is_below(id)) {
            self.scattered.insert((&*network).into());
        }
        if homing_host == host.as_str() && !self.own.iter().any(|own| own.as_str() == network) {
            self.own.insert((&*network).into());
        }
    }
}

/// Reports whether the record belongs to an endpoint on one of the networks, is unreadable, or contains no network.
pub(super) fn may_be_on(kv: &KeyValue, networks: &BTreeSet<NetworkId>) -> bool {
    summary(kv).is_none_or(|Summary { network, .. }| {
        network.is_empty() || networks.contains(&NetworkId::from(&*network))
    })
}

/// Reports whether the record contains this network or no network, or is unreadable. Unreadable records are reported by
/// each watch whose prefix matches their key.
pub(super) fn may_be_of(kv: &KeyValue, network: &NetworkId) -> bool {
    summary(kv).is_none_or(|summary| summary.network.is_empty() || summary.network == network.as_str())
}

fn summary(kv: &KeyValue) -> Option<Summary<'_>> {
    serde_json::from_slice(&kv.value).ok()
}
