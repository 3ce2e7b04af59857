//! An operator's acceptance of a regressed store. netmaster writes it, the agent deletes it.
//!
//! It has the id of the regression that the operator saw. One that remains in the store, or that a restored store contains, is of
//! another regression and accepts nothing. Nor does one without an id, which a netmaster of an earlier release writes: nothing shows
//! which loss of data its operator saw.

use contiv_model::{key::Key, name::HostName, node};
use contiv_store::{Error, Guard, KeyValue, Outcome, Store, Txn};

use crate::error::one_line;

/// The record of a node's acceptance.
pub(super) struct Acceptance {
    store: Store,
    key: String,
}

impl Acceptance {
    pub(super) fn new(store: &Store, host: &HostName) -> Acceptance {
        Acceptance { store: store.clone(), key: Key::AcceptedStore(host.clone()).to_string() }
    }

    /// Returns the record if it accepts the store for this regression. A record that does not is deleted.
    pub(super) async fn find(&self, regression_id: &str) -> Result<Option<KeyValue>, Error> {
        let Some(found) = self.store.get(&self.key).await? else { return Ok(None) };
        let accepted = serde_json::from_slice::<node::AcceptedStore>(&found.value).unwrap_or_default();
        if accepted.regression_id == regression_id {
            return Ok(Some(found));
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
            // It has been replaced or deleted.
            Ok(Outcome::Conflict) => {}
            Err(error) => tracing::debug!("delete {key}: {}", one_line(&error)),
        }
        Ok(None)
    }

    /// Deletes the record unless it has changed since it was read.
    pub(super) async fn delete(&self, found: &KeyValue) -> Result<Outcome, Error> {
        let guard = Guard::ModRevision { key: self.key.clone(), revision: found.mod_revision };
        self.store.commit(Txn::new().guard(guard).delete(&*self.key)).await
    }
}
