//! An operator's acceptance of a regressed store. netmaster writes it, the agent deletes it.
//!
//! It has the id of the regression that the operator has seen. An acceptance that remains in the store, or that a
//! restored store contains, belongs to another regression and accepts nothing. The same holds for one without an id,
//! which a netmaster of an earlier release writes: it does not identify the loss of data that its operator has seen.

use std::pin::pin;

use contiv_model::{key::Key, name::HostName, node};
use contiv_store::{Error, Guard, KeyValue, Outcome, Store, Txn};
use tokio::time::sleep;

use crate::{backoff::Backoff, error::one_line};

/// The record of a node's acceptance.
pub(super) struct Acceptance {
    store: Store,
    key: String,
}

impl Acceptance {
    pub(super) fn new(store: &Store, host: &HostName) -> Acceptance {
        Acceptance { store: store.clone(), key: Key::AcceptedStore(host.clone()).to_string() }
    }

    /// Reports whether the record accepts the store for this regression. A record that does not is deleted.
    pub(super) async fn is_of(&self, regression_id: &str) -> Result<bool, Error> {
        let Some(found) = self.store.get(&self.key).await? else { return Ok(false) };
        let accepted = serde_json::from_slice::<node::AcceptedStore>(&found.value).unwrap_or_default();
        if accepted.regression_id == regression_id {
            return Ok(true);
        }
        let key = &self.key;
        match self.delete(&found).await {
            Ok(Outcome::Committed { .. }) if accepted.regression_id.is_empty() => tracing::warn!(
                "ignore {key}: it has no id of a regression, as of a netmaster of an earlier release; upgrade netmaster and repeat: \
                 netctl node accept-store"
            ),
            Ok(Outcome::Committed { .. }) => tracing::warn!(
                "ignore {key}: it is of regression {}, the present one is {regression_id}; if this store is the right one, repeat: \
                 netctl node accept-store",
                accepted.regression_id
            ),
            // The record has been replaced or deleted.
            Ok(Outcome::Conflict) => {}
            Err(error) => tracing::debug!("delete {key}: {}", one_line(&error)),
        }
        Ok(false)
    }

    /// Runs `following`. Meanwhile deletes the record of a regression that has ended.
    pub(super) async fn clear_while<T>(&self, following: impl Future<Output = T>) -> T {
        let mut following = pin!(following);
        tokio::select! {
            ended = &mut following => return ended,
            () = self.clear() => {}
        }
        following.await
    }

    /// Deletes the record; repeats that until it succeeds.
    async fn clear(&self) {
        let mut backoff = Backoff::default();
        loop {
            match self.try_clear().await {
                Ok(true) => return,
                // The record has been replaced.
                Ok(false) => {}
                Err(error) if error.is_permission_denied() => {
                    tracing::warn!(
                        "{}; grant the role of agents readwrite on {}",
                        one_line(&error),
                        self.key
                    );
                    return;
                }
                Err(error) => tracing::debug!("delete {}: {}", self.key, one_line(&error)),
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Deletes the record, if it exists. Returns false if it was replaced meanwhile.
    async fn try_clear(&self) -> Result<bool, Error> {
        let Some(found) = self.store.get(&self.key).await? else { return Ok(true) };
        Ok(matches!(self.delete(&found).await?, Outcome::Committed { .. }))
    }

    /// Deletes the record unless it has changed since it was read.
    async fn delete(&self, found: &KeyValue) -> Result<Outcome, Error> {
        let guard = Guard::ModRevision { key: self.key.clone(), revision: found.mod_revision };
        self.store.commit(Txn::new().guard(guard).delete(&*self.key)).await
    }
}
