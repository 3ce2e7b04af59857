//! Transactions and puts.

use super::Store;
use super::request::Again;
use crate::{Error, Operation, Outcome, Txn};
use bytes::Bytes;
use etcd_client::PutOptions;

impl Store {
    /// Applies all operations of `txn` if all its guards hold, else none.
    ///
    /// # Errors
    ///
    /// Fails if `txn` has more than [`MAX_TXN_OPS`](crate::MAX_TXN_OPS) guards or operations, or if
    /// the store does not answer or refuses it. After an error with [`Error::outcome_unknown`] the
    /// transaction may have been applied: read the keys before a retry.
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        self.commit_by(txn, Again::Unsent).await
    }

    /// Like [`Store::commit`], but repeats the request when the answer was lost. A conflict may
    /// then be with the transaction's own earlier attempt.
    pub(crate) async fn commit_again(&self, txn: Txn) -> Result<Outcome, Error> {
        self.commit_by(txn, Again::Lost).await
    }

    async fn commit_by(&self, txn: Txn, again: Again) -> Result<Outcome, Error> {
        txn.check()?;
        let (key, wire) = (txn.name().to_owned(), txn.into_wire());
        let answer = self
            .request(Operation::Commit, &key, again, || {
                let (mut kv, wire) = (self.shared.members.kv(), wire.clone());
                async move { kv.txn(wire).await }
            })
            .await?
            .0;
        let revision = answer.header.as_ref().map_or(0, |h| h.revision);
        Ok(if answer.succeeded { Outcome::Committed { revision } } else { Outcome::Conflict })
    }

    /// Puts without guards. Repeated when the answer was lost.
    pub(crate) async fn put(&self, key: &str, value: &Bytes, lease: i64) -> Result<(), Error> {
        self.request(Operation::Commit, key, Again::Always, || {
            let mut kv = self.shared.members.kv();
            let options = PutOptions::new().with_lease(lease);
            async move { kv.put(key, value.to_vec(), Some(options)).await }
        })
        .await
        .map(drop)
    }
}
