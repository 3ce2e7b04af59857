use contiv_model::{event::Event, key::Key};
use contiv_store::{Status, Store, Watch};
use futures::{StreamExt as _, stream};
use tokio::sync::watch;

use super::decode::decode;
use crate::state::{Rejected, Update};

/// Key prefixes that the agent watches. Each is a source with its own snapshots; the plan tolerates references between
/// sources that are not resolved yet.
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

/// Watches of the store.
pub struct Sources {
    updates: stream::SelectAll<stream::BoxStream<'static, Update>>,
    statuses: Vec<watch::Receiver<Status>>,
}

impl Sources {
    /// Creates a watch for each of [`PREFIXES`]. The watches start at the first poll.
    pub fn new(store: &Store) -> Sources {
        let watches: Vec<(&'static str, Watch)> =
            PREFIXES.into_iter().map(|prefix| (prefix, store.watch(prefix))).collect();
        let statuses = watches.iter().map(|(_, watch)| watch.status()).collect();
        let streams = watches.into_iter().map(|(source, watch)| {
            watch.filter_map(move |update| std::future::ready(decode_update(source, update))).boxed()
        });
        Sources { updates: stream::select_all(streams), statuses }
    }

    /// The next update. The stream does not end while the store client exists.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.next().await
    }

    /// Connection status of each watch.
    pub fn statuses(&self) -> Vec<watch::Receiver<Status>> {
        self.statuses.clone()
    }
}

/// Decodes an update; `None` for keys that the agent does not use.
fn decode_update(source: &'static str, update: contiv_store::Update) -> Option<Update> {
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
