//! Watches of the endpoints that a node needs, one for each network.
//!
//! At the start, all endpoints of the store are read once, page by page, for the networks of the node's own endpoints. Later
//! endpoints of the node are attached by this process, which requests their networks.
//!
//! A node that needs many networks, because it routes between them, watches all endpoints instead: then a watch for each network
//! would cost the store more than the endpoints of the others.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::Arc,
    time::Duration,
};

use contiv_model::{
    key::{ENDPOINTS, endpoints_of},
    name::{HostName, NetworkId},
};
use contiv_store::{Batch, KeyValue, Status, Store};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::Backoff,
    error::one_line,
    state::{Reader, Source},
};

/// Maximum number of networks that have a watch each.
const MAX_NETWORKS: usize = 32;

/// Time for which the endpoints of a network are kept that the node does not need any more: pods that are replaced come back.
const UNNEEDED_TIMEOUT: Duration = Duration::from_secs(5);

/// What an agent reads of an endpoint before it decodes the record.
#[derive(Deserialize)]
struct Summary<'a> {
    #[serde(borrow, default, rename = "netID")]
    network: Cow<'a, str>,
    #[serde(borrow, default, rename = "homingHost")]
    host: Cow<'a, str>,
}

/// Networks that a reading of all endpoints has found.
#[derive(Debug, Default)]
struct Found {
    /// Networks with endpoints on the node.
    own: BTreeSet<NetworkId>,
    /// Networks with endpoints whose keys are not below the network's prefix.
    scattered: BTreeSet<NetworkId>,
}

/// A change of the watches.
pub(super) enum Event {
    /// A watch is to be polled until its stream ends.
    Opened(Source, BoxStream<'static, Batch>),
    /// The node does not need the source any more.
    Forgotten(Source),
    /// The endpoints of all networks that the node needs have arrived for the first time.
    Complete,
}

struct EndpointWatch {
    /// Ends the stream.
    stop: CancellationToken,
    status: watch::Receiver<Status>,
    is_listed: bool,
}

pub(super) struct EndpointWatches {
    store: Store,
    host: HostName,
    reader: Reader,
    /// The reading of all endpoints, while it runs.
    reading: Option<BoxFuture<'static, Found>>,
    reading_status: watch::Receiver<Status>,
    found: Found,
    watches: BTreeMap<Source, EndpointWatch>,
    /// Sources that the node needed at `interest`.
    needed: BTreeSet<Source>,
    /// Whether the node needs so many networks that it watches all endpoints. This does not end.
    needs_all: bool,
    /// Value of [`Reader::interest`] at the last comparison.
    interest: Option<u64>,
    /// Needed sources without a watch.
    unopened: BTreeSet<Source>,
    /// Watched sources that the node has not needed since.
    unneeded: BTreeMap<Source, Instant>,
    /// Sources in the state that earlier watches have delivered, and that may have no watch.
    earlier: BTreeSet<Source>,
    is_complete: bool,
    changes_of_statuses: u64,
}

impl EndpointWatches {
    pub(super) fn new(store: Store, host: HostName, reader: Reader) -> EndpointWatches {
        let (status, reading_status) = watch::channel(Status::Connecting);
        let reading = read(store.clone(), host.clone(), status).boxed();
        EndpointWatches {
            store,
            host,
            reader,
            reading: Some(reading),
            reading_status,
            found: Found::default(),
            watches: BTreeMap::new(),
            needed: BTreeSet::new(),
            needs_all: false,
            interest: None,
            unopened: BTreeSet::new(),
            unneeded: BTreeMap::new(),
            earlier: BTreeSet::new(),
            is_complete: false,
            changes_of_statuses: 0,
        }
    }

    /// Compares the watches with what the node needs, and returns the next change.
    pub(super) fn update(&mut self) -> Option<Event> {
        if self.reading.is_some() {
            return None;
        }
        let found = self.found.own.len();
        let is_listed = |source: &Source| self.watches.get(source).is_some_and(|watch| watch.is_listed);
        // The state has the listings of these networks.
        self.found.own.retain(|network| !is_listed(&Source::Endpoints(network.clone())));
        if self.found.own.len() != found || self.interest != Some(self.reader.interest()) {
            self.compare();
        }
        if let Some(source) = self.unopened.pop_first() {
            let stream = self.open(&source);
            return Some(Event::Opened(source, stream));
        }
        if self.are_listed()
            && let Some(source) = self.next_unneeded()
        {
            self.close(&source);
            return Some(Event::Forgotten(source));
        }
        if !self.is_complete && self.are_complete() {
            self.is_complete = true;
            return Some(Event::Complete);
        }
        None
    }

    fn compare(&mut self) {
        let (networks, interest) = self.reader.needed(&self.host, &self.found.own);
        self.interest = Some(interest);
        if !self.needs_all && networks.len() > MAX_NETWORKS {
            tracing::info!(networks = networks.len(), "watching the endpoints of all networks");
            self.needs_all = true;
        }
        self.needed = match self.needs_all {
            true => [Source::Prefix(ENDPOINTS)].into(),
            false => networks.into_iter().map(Source::Endpoints).collect(),
        };
        let is_watched = |source: &Source| self.watches.contains_key(source);
        self.unopened = self.needed.iter().filter(|source| !is_watched(source)).cloned().collect();
        let now = Instant::now();
        let unneeded = self.watches.keys().filter(|source| !self.needed.contains(*source));
        let since = |source: &Source| self.unneeded.get(source).copied().unwrap_or(now);
        self.unneeded = unneeded.map(|source| (source.clone(), since(source))).collect();
    }

    /// A source in the state that the node does not need, and has not needed for the time limit if it is watched.
    fn next_unneeded(&mut self) -> Option<Source> {
        while let Some(source) = self.earlier.pop_first() {
            if !self.watches.contains_key(&source) {
                return Some(source);
            }
        }
        let now = Instant::now();
        let expired = self.unneeded.iter().find(|(_, since)| **since + UNNEEDED_TIMEOUT <= now);
        expired.map(|(source, _)| source.clone())
    }

    /// Notes that the batch returned next is the listing of the source.
    pub(super) fn listed(&mut self, source: &Source) {
        if let Some(watch) = self.watches.get_mut(source) {
            watch.is_listed = true;
        }
    }

    /// Waits until [`update`](Self::update) may have something to do. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        if let Some(reading) = &mut self.reading {
            self.found = reading.await;
            self.reading = None;
            self.earlier = self.reader.sources_of_endpoints();
            self.needs_all = self.earlier.contains(&Source::Prefix(ENDPOINTS));
            return;
        }
        let Some(interest) = self.interest else { return };
        // Before, a listing comes with a batch.
        let are_replaced = self.are_listed();
        let expiry =
            self.unneeded.values().min().filter(|_| are_replaced).map(|since| *since + UNNEEDED_TIMEOUT);
        let expired = async {
            match expiry {
                Some(expiry) => sleep_until(expiry).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.reader.interest_changed(interest) => {}
            () = expired => {}
        }
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = watch::Receiver<Status>> {
        [self.reading_status.clone()]
            .into_iter()
            .chain(self.watches.values().map(|watch| watch.status.clone()))
    }

    pub(super) fn changes_of_statuses(&self) -> u64 {
        self.changes_of_statuses
    }

    fn open(&mut self, source: &Source) -> BoxStream<'static, Batch> {
        let watch = match source {
            Source::Prefix(prefix) => self.store.watch(prefix),
            Source::Endpoints(network) => {
                let prefix = match self.found.scattered.contains(network) {
                    true => ENDPOINTS.to_owned(),
                    false => endpoints_of(network),
                };
                let own = network.clone();
                // Unreadable records, and those that name no network, are reported by the watches whose prefix they have.
                self.store.watch_where(&prefix, move |kv: &KeyValue| {
                    let is_of = |network: &str| network.is_empty() || network == own.as_str();
                    summary(kv).is_none_or(|summary| is_of(&summary.network))
                })
            }
        };
        let stop = CancellationToken::new();
        let ended = stop.clone().cancelled_owned();
        let entry = EndpointWatch { stop, status: watch.status(), is_listed: false };
        self.watches.insert(source.clone(), entry);
        self.changes_of_statuses += 1;
        watch.batches().take_until(ended).boxed()
    }

    fn close(&mut self, source: &Source) {
        self.unneeded.remove(source);
        if let Some(watch) = self.watches.remove(source) {
            watch.stop.cancel();
            self.changes_of_statuses += 1;
        }
    }

    /// Whether the state has all sources that the node needs.
    fn are_listed(&self) -> bool {
        self.needed.iter().all(|source| self.watches.get(source).is_some_and(|watch| watch.is_listed))
    }

    /// Whether the endpoints of all networks that the node needs have arrived. Which ones it needs depends on the settings and on
    /// the networks.
    fn are_complete(&self) -> bool {
        self.reader.awaited().iter().all(|source| source.prefix() == ENDPOINTS) && self.are_listed()
    }
}

/// Reads all endpoints for the networks of those on `host`. Retries without limit.
async fn read(store: Store, host: HostName, status: watch::Sender<Status>) -> Found {
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

/// Whether the record is of an endpoint on one of the networks, is unreadable, or names no network.
pub(super) fn may_be_on(kv: &KeyValue, networks: &BTreeSet<NetworkId>) -> bool {
    summary(kv).is_none_or(|Summary { network, .. }| {
        network.is_empty() || networks.contains(&NetworkId::from(&*network))
    })
}

fn summary(kv: &KeyValue) -> Option<Summary<'_>> {
    serde_json::from_slice(&kv.value).ok()
}

#[cfg(test)]
mod tests;
