use contiv_model::{event::Event, key::Key};
use contiv_store::{Status, Store, Watch};
use futures::{StreamExt as _, stream};
use tokio::sync::watch;

use super::decode;
use crate::state::{Rejected, Update};

/// What the agent follows. Each is complete in itself, and the plan waits for what refers to another.
pub const PREFIXES: [&str; 9] = [
    "/contiv.io/master/config/",
    "/contiv.io/state/nets/",
    "/contiv.io/state/eps/",
    "/contiv.io/state/endpointGroups/",
    "/contiv.io/state/policy/",
    "/contiv.io/state/serviceLB/",
    "/contiv.io/state/provider/",
    "/contiv.io/service/netplugin.vtep/",
    "/contiv.io/oper/node/",
];

/// The store's part of the state.
pub struct Sources {
    updates: stream::SelectAll<stream::BoxStream<'static, Update>>,
    statuses: Vec<watch::Receiver<Status>>,
}

impl Sources {
    /// Follows every prefix; nothing happens before the first poll.
    pub fn new(store: &Store) -> Sources {
        let watches: Vec<(&'static str, Watch)> =
            PREFIXES.into_iter().map(|prefix| (prefix, store.watch(prefix))).collect();
        let statuses = watches.iter().map(|(_, watch)| watch.status()).collect();
        let streams = watches.into_iter().map(|(source, watch)| {
            watch.filter_map(move |update| std::future::ready(understand(source, update))).boxed()
        });
        Sources { updates: stream::select_all(streams), statuses }
    }

    /// The next thing told; the sources do not end.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.next().await
    }

    /// Tells how each connection is doing.
    pub fn statuses(&self) -> Vec<watch::Receiver<Status>> {
        self.statuses.clone()
    }
}

/// None for what the agent has no use for.
fn understand(source: &'static str, update: contiv_store::Update) -> Option<Update> {
    let object = |path: &str, value: &contiv_store::KeyValue| match path.parse::<Key>() {
        Ok(key) => decode(&key, value).map(|object| (key, object)),
        Err(unknown) => {
            tracing::debug!("{unknown}");
            None
        }
    };
    let event: Event<Key, Result<_, Rejected>> = match update.event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(path, value) => {
            let (key, object) = object(&path, &value)?;
            Event::InitApply(key, object)
        }
        Event::Apply(path, value) => {
            let (key, object) = object(&path, &value)?;
            Event::Apply(key, object)
        }
        Event::Delete(path) => Event::Delete(path.parse().ok()?),
    };
    Some(Update { source, revision: update.revision, event })
}
