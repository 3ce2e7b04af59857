//! Watches of the parts of the store that a node needs: one for the endpoints of each of its networks, and one for the
//! policies of each of its groups.
//!
//! At the start, all endpoints of the store are read once, page by page, to find the networks of the node's own
//! endpoints. Later endpoints of the node are attached by this process, which requests their networks and groups.
//!
//! A node that needs many networks, because it routes between them, watches all endpoints instead: otherwise one watch
//! per network would cost the store more than the endpoints of the other networks. The same applies to policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    time::Duration,
};

use contiv_model::{
    key::{ENDPOINTS, POLICIES, endpoints_of, policies_of},
    name::HostName,
};
use contiv_store::{Batch, KeyValue, Status, Store};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::endpoints::{Found, may_be_of, read};
use crate::state::{Needs, Reader, Source};

/// Maximum number of networks with a separate watch.
const MAX_NETWORKS: usize = 32;
/// Maximum number of groups with a separate watch: the maximum number of pods that kubelet starts on a node, each in its
/// own group.
const MAX_GROUPS: usize = 110;

/// Prefixes of the sources of which a node needs only parts, in the order in which they become complete.
const PREFIXES: [&str; 2] = [ENDPOINTS, POLICIES];

/// Time for which unneeded parts are kept, because replaced pods soon need them again.
const UNNEEDED_TIMEOUT: Duration = Duration::from_secs(5);

/// A change of the watches.
pub(super) enum Event {
    /// A new watch, which must be polled until its stream ends.
    Opened(Source, BoxStream<'static, Batch>),
    /// The node no longer needs the source.
    Forgotten(Source),
    /// Everything that the node needs with this prefix has arrived for the first time.
    Complete(&'static str),
}

struct NeededWatch {
    /// Ends the stream.
    stop: CancellationToken,
    status: watch::Receiver<Status>,
    is_listed: bool,
}

pub(super) struct NeededWatches {
    store: Store,
    host: HostName,
    reader: Reader,
    /// The read of all endpoints, while it runs.
    reading: Option<BoxFuture<'static, Found>>,
    reading_status: watch::Receiver<Status>,
    found: Found,
    watches: BTreeMap<Source, NeededWatch>,
    /// Sources that the node needed at `interest`.
    needed: BTreeSet<Source>,
    /// Prefixes of which the node needs so many parts that it watches all keys, for the rest of the process's life.
    needs_all: BTreeSet<&'static str>,
    /// Value of [`Reader::interest`] at the last comparison.
    interest: Option<u64>,
    /// Needed sources without a watch.
    unopened: BTreeSet<Source>,
    /// Watched sources that the node does not need, with the time since then.
    unneeded: BTreeMap<Source, Instant>,
    /// Sources in the state that earlier watches have delivered and that may have no watch now.
    earlier: BTreeSet<Source>,
    /// Prefixes for which [`Event::Complete`] has not been returned yet; the next one is last.
    incomplete: Vec<&'static str>,
    changes_of_statuses: u64,
}

impl NeededWatches {
    pub(super) fn new(store: Store, host: HostName, reader: Reader) -> NeededWatches {
        let (status, reading_status) = watch::channel(Status::Connecting);
        let reading = read(store.clone(), host.clone(), status).boxed();
        let earlier: BTreeSet<Source> =
            PREFIXES.into_iter().flat_map(|prefix| reader.sources(prefix)).collect();
        let all = |prefix: &&'static str| earlier.contains(&Source::Prefix(prefix));
        let needs_all = PREFIXES.into_iter().filter(all).collect();
        NeededWatches {
            store,
            host,
            reader,
            reading: Some(reading),
            reading_status,
            found: Found::default(),
            watches: BTreeMap::new(),
            needed: BTreeSet::new(),
            needs_all,
            interest: None,
            unopened: BTreeSet::new(),
            unneeded: BTreeMap::new(),
            earlier,
            incomplete: PREFIXES.into_iter().rev().collect(),
            changes_of_statuses: 0,
        }
    }

    /// Compares the watches with the node's needs, and returns the next change.
    pub(super) fn update(&mut self) -> Option<Event> {
        if self.reading.is_some() {
            return self.open_policies();
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
        match !self.incomplete.is_empty() && self.are_complete() {
            true => self.incomplete.pop().map(Event::Complete),
            false => None,
        }
    }

    /// Opens the next watch of policies while all endpoints are still being read: a state from earlier watches already
    /// needs some policies.
    fn open_policies(&mut self) -> Option<Event> {
        if self.interest.is_none() {
            self.compare();
        }
        let source = self.unopened.iter().find(|source| source.prefix() == POLICIES)?.clone();
        self.unopened.remove(&source);
        let stream = self.open(&source);
        Some(Event::Opened(source, stream))
    }

    fn compare(&mut self) {
        let Needs { networks, groups, interest } = self.reader.needs(&self.host, &self.found.own);
        self.interest = Some(interest);
        let networks = Some(networks).filter(|networks| networks.len() <= MAX_NETWORKS);
        let groups = groups.filter(|groups| groups.len() <= MAX_GROUPS);
        let endpoints = self.parts_or_all(ENDPOINTS, networks, Source::Endpoints);
        let policies = self.parts_or_all(POLICIES, groups, Source::Policies);
        self.needed = endpoints.into_iter().chain(policies).collect();
        let is_watched = |source: &Source| self.watches.contains_key(source);
        self.unopened = self.needed.iter().filter(|source| !is_watched(source)).cloned().collect();
        let now = Instant::now();
        let unneeded = self.watches.keys().filter(|source| !self.needed.contains(*source));
        let since = |source: &Source| self.unneeded.get(source).copied().unwrap_or(now);
        self.unneeded = unneeded.map(|source| (source.clone(), since(source))).collect();
    }

    /// Returns the sources of the needed parts, or of all keys with the prefix if there is no list of parts, now or
    /// before.
    fn parts_or_all<T>(
        &mut self,
        prefix: &'static str,
        parts: Option<BTreeSet<T>>,
        source: fn(T) -> Source,
    ) -> Vec<Source> {
        match parts {
            Some(parts) if !self.needs_all.contains(prefix) => parts.into_iter().map(source).collect(),
            _ => {
                if self.needs_all.insert(prefix) {
                    tracing::info!(prefix, "watching all keys");
                }
                vec![Source::Prefix(prefix)]
            }
        }
    }

    /// Returns a source in the state that the node does not need. A watched source must have been unneeded for the time
    /// limit.
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

    /// Records that the batch returned next is the listing of the source.
    pub(super) fn listed(&mut self, source: &Source) {
        if let Some(watch) = self.watches.get_mut(source) {
            watch.is_listed = true;
        }
    }

    /// Waits until [`update`](Self::update) may return a change. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        if let Some(reading) = &mut self.reading {
            self.found = reading.await;
            self.reading = None;
            self.interest = None;
            return;
        }
        let Some(interest) = self.interest else { return };
        // Until all are listed, each listing arrives with a batch.
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
                self.store.watch_where(&prefix, move |kv: &KeyValue| may_be_of(kv, &own))
            }
            Source::Policies(group) => self.store.watch(&policies_of(group)),
        };
        let stop = CancellationToken::new();
        let ended = stop.clone().cancelled_owned();
        let entry = NeededWatch { stop, status: watch.status(), is_listed: false };
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

    /// Reports whether everything that the node needs has arrived. Its needs depend on the settings, networks and groups,
    /// and on its endpoints.
    fn are_complete(&self) -> bool {
        let awaited = self.reader.awaited();
        awaited.iter().all(|source| PREFIXES.contains(&source.prefix())) && self.are_listed()
    }
}

#[cfg(test)]
mod tests;
