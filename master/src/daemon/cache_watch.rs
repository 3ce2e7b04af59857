//! The store's watch, taken in: a follower's view is as current as the leader's, so that it can lead at once.

use contiv_model::event::Event;
use contiv_model::key;
use contiv_store::{Store, Update};
use futures::StreamExt;
use tokio::sync::watch;

use crate::cache::Shared;
use crate::commit::DECIDED;

/// Updates that the watch tells at once, at most: readers wait while they are taken in.
const CHUNK: usize = 64;

/// The leader's lock, as the view has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    /// Who holds it.
    pub(super) holder: Option<String>,
    /// The revision of its creation, or of the last one. The view holds everything up to then.
    pub(super) since: i64,
    /// A change of several transactions is decided, and not carried out to its end.
    pub(super) pending: bool,
    /// The first snapshot is in.
    pub(super) complete: bool,
}

/// Takes in what the watch tells. Never ends.
pub(super) async fn run(store: Store, world: Shared, lock: watch::Sender<Lock>) {
    let mut watch = store.watch(key::ROOT).ready_chunks(CHUNK);
    while let Some(updates) = watch.next().await {
        {
            let _gate = world.gate().await;
            let mut world = world.write();
            for update in &updates {
                world.observe(update);
            }
        }
        lock.send_if_modified(|lock| updates.iter().filter(|update| lock.learn(update)).count() > 0);
    }
}

impl Lock {
    /// True when it changed.
    fn learn(&mut self, update: &Update) -> bool {
        match &update.event {
            Event::InitApply(key, kv) | Event::Apply(key, kv) if key == key::LEADER => {
                self.holder = Some(String::from_utf8_lossy(&kv.value).into_owned());
                self.since = kv.create_revision;
            }
            Event::Delete(key) if key == key::LEADER => self.holder = None,
            Event::InitApply(key, _) | Event::Apply(key, _) if key == DECIDED => self.pending = true,
            Event::Delete(key) if key == DECIDED => self.pending = false,
            Event::InitDone => self.complete = true,
            _ => return false,
        }
        true
    }
}
