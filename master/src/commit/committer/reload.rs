//! Reading what the cache lacks, or may have in an old version.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use contiv_store::Error;
use contiv_store::election::Leadership;
use futures::StreamExt as _;
use futures::future::try_join_all;
use tokio::time::sleep;

use super::Committer;
use crate::cache::DerivedKeys;
use crate::commit::read_derived;
use crate::problem::one_line;

const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Keys that are read again at a time. A large change has tens of thousands.
const RELOADED_TOGETHER: usize = 32;

impl Committer {
    /// Reads the derived records that a plan needs. Breaks when leadership is lost.
    pub(super) async fn complete(
        &self,
        leadership: &Leadership,
        unread: BTreeSet<DerivedKeys>,
    ) -> ControlFlow<()> {
        let mut values = std::pin::pin!(read_derived(&self.store, unread));
        loop {
            let read = tokio::select! {
                biased;
                () = leadership.lost() => return ControlFlow::Break(()),
                read = values.next() => read,
            };
            match read {
                Some(values) => self.cache.write().complete_derived(values),
                None => return ControlFlow::Continue(()),
            }
        }
    }

    /// Reads the keys again until the store answers. Breaks when leadership is lost.
    pub(super) async fn reload(&mut self, leadership: &Leadership, keys: &[String]) -> ControlFlow<()> {
        // Records and chunks are set before the journals, which are relative to them.
        let mut keys: Vec<&String> = keys.iter().collect();
        keys.sort_by_key(|key| key.contains("/state/ipam/") && !key.contains("/state/ipam/chunks/"));
        let mut parts = keys.chunks(RELOADED_TOGETHER).peekable();
        while let Some(part) = parts.peek() {
            if leadership.is_lost() {
                return ControlFlow::Break(());
            }
            match self.try_reload(leadership, part).await {
                Ok(ControlFlow::Continue(())) => drop(parts.next()),
                Ok(ControlFlow::Break(())) => return ControlFlow::Break(()),
                Err(error) => {
                    tracing::warn!(error = one_line(&error), "read keys again");
                    tokio::select! {
                        () = leadership.lost() => return ControlFlow::Break(()),
                        () = sleep(RETRY_INTERVAL) => {}
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    async fn try_reload(&self, leadership: &Leadership, keys: &[&String]) -> Result<ControlFlow<()>, Error> {
        if !leadership.resolve_pending().await? {
            return Ok(ControlFlow::Break(()));
        }
        let found = try_join_all(keys.iter().map(|key| self.store.get_with_revision(key))).await?;
        let mut cache = self.cache.write();
        for (key, (kv, at)) in keys.iter().zip(found) {
            cache.reload(key, kv.as_ref(), at);
        }
        Ok(ControlFlow::Continue(()))
    }
}
