//! The leader's transactions: each is applied once or not at all, and the leader learns which as
//! long as the store answers.
//!
//! All are guarded by the revision of the lock's last put (the fence). When an attempt is not
//! answered, the next one, usually at another member, also puts the lock again, whether its guards
//! hold or not: from then on no earlier attempt can be applied, however long it is delayed. If its
//! guards do not hold, it returns the current values of the keys: equal to those of the
//! transaction, then an earlier attempt was applied; or not, then none was.

use super::Leadership;
use crate::{
    Error, Guard, KeyValue, MAX_LEADER_GUARDS, MAX_LEADER_OPS, Op, Operation, Outcome, Txn, client::Again,
};
use etcd_client::TxnOp;
use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time that a leader that has lost its lock waits for the answer to a request in flight.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_millis(300);

impl Leadership {
    /// Applies all operations of `txn` if its guards hold and this leadership is current, else
    /// none. A transaction may have [`MAX_LEADER_OPS`] operations and [`MAX_LEADER_GUARDS`] guards.
    ///
    /// # Errors
    ///
    /// Fails if `txn` is too large, or if the store does not answer or refuses it. After an error
    /// with [`Error::outcome_unknown`], call [`Leadership::resolve_pending`].
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        if self.is_lost() || self.unsettled.load(Ordering::Acquire) != 0 && !self.resolve_pending().await? {
            return Ok(Outcome::Conflict);
        }
        let (fence, start) = (self.fence.load(Ordering::Acquire), Instant::now());
        let first = self.first(&txn)?;
        let again = LazyLock::new(|| self.again(&txn));
        let mut attempts = 0;
        let asked = self.store.request(Operation::Commit, txn.name(), Again::Lost, || {
            let (mut kv, wire) =
                (self.store.members().kv(), if attempts == 0 { first.clone() } else { again.clone() });
            attempts += 1;
            async move { kv.txn(wire).await }
        });
        let unknown = || self.store.timeout(Operation::Commit, txn.name(), start.elapsed());
        let answer = tokio::select! {
            biased;
            answer = asked => answer.map(|answer| answer.0),
            // Another process leads and may answer sooner.
            () = async { self.lost().await; sleep(IN_FLIGHT_TIMEOUT).await } => Err(unknown()),
        };
        let answer = answer.inspect_err(|error| {
            if error.outcome_unknown() {
                self.unsettled.store(fence, Ordering::Release);
            }
        })?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        match (answer.succeeded, attempts) {
            (true, 1) => Ok(Outcome::Committed { revision }),
            (true, _) => {
                self.fence.store(revision, Ordering::Release);
                Ok(Outcome::Committed { revision })
            }
            (false, 1) => Ok(Outcome::Conflict),
            (false, _) => {
                let (lock, found) = Found::read(answer);
                // Without the lock nothing is known: other leaders write by now.
                let lock = lock.filter(|lock| lock.create_revision == self.create_revision);
                self.fence.store(lock.ok_or_else(unknown)?.mod_revision, Ordering::Release);
                Ok(found.outcome(&txn, revision))
            }
        }
    }

    /// Ensures that no commit of this leadership with an unknown outcome can be applied from now
    /// on. Returns false if the leadership is over.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer or refuses the request.
    pub async fn resolve_pending(&self) -> Result<bool, Error> {
        loop {
            let lock = self.store.get(&self.key).await?;
            let Some(lock) = lock.filter(|lock| lock.create_revision == self.create_revision) else {
                return Ok(false);
            };
            if lock.mod_revision != self.unsettled.load(Ordering::Acquire) {
                self.fence.store(lock.mod_revision, Ordering::Release);
                self.unsettled.store(0, Ordering::Release);
                return Ok(true);
            }
            let held = Guard::ModRevision { key: lock.key, revision: lock.mod_revision };
            // The next read shows the result.
            let _outcome =
                self.store.commit_again(Txn { guards: vec![held], ops: vec![self.lock()] }).await?;
        }
    }

    /// Puts the lock unchanged.
    fn lock(&self) -> Op {
        let (key, value) = (self.key.clone(), self.value.clone().into());
        Op::Put { key, value, lease: Some(self.lease) }
    }

    /// The request of the first attempt.
    fn first(&self, txn: &Txn) -> Result<etcd_client::Txn, Error> {
        if txn.ops.len() > MAX_LEADER_OPS || txn.guards.len() > MAX_LEADER_GUARDS {
            let (key, guards, ops) = (txn.name().to_owned(), txn.guards.len(), txn.ops.len());
            return Err(Error::TooManyOps { key, guards, ops });
        }
        Ok(txn.clone().guard(self.guard()).into_wire())
    }

    /// The request of later attempts.
    fn again(&self, txn: &Txn) -> etcd_client::Txn {
        let mut again = txn.clone().guard(self.guard());
        again.ops.push(self.lock());
        // Only once: a delayed attempt must not move the fence later.
        let fence = Txn { guards: vec![self.guard()], ops: vec![self.lock()] };
        let fence = [TxnOp::txn(fence.into_wire()), TxnOp::get(self.key.as_str(), None)];
        let keys = txn.ops.iter().map(|op| TxnOp::get(op.key(), None));
        again.into_wire().or_else(fence.into_iter().chain(keys).collect::<Vec<_>>())
    }
}

/// The values of a transaction's keys when it conflicted, in its order.
struct Found(Vec<Option<KeyValue>>);

impl Found {
    /// Reads the lock, which comes first, and the keys.
    fn read(answer: PbTxnResponse) -> (Option<KeyValue>, Found) {
        let ranges = answer.responses.into_iter().filter_map(|response| match response.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => Some(range.kvs.into_iter().next()),
            _ => None,
        });
        let mut found = ranges.map(|kv| kv.and_then(KeyValue::from_wire));
        (found.next().flatten(), Found(found.collect()))
    }

    /// Decides whether an earlier attempt was applied; `now` is the store's revision of the
    /// conflict.
    fn outcome(&self, txn: &Txn, now: i64) -> Outcome {
        let ops = &txn.ops;
        // The value before the transaction.
        let old = |kv: &KeyValue| {
            let guard = Guard::ModRevision { key: kv.key.clone(), revision: kv.mod_revision };
            txn.guards.contains(&guard)
        };
        let done = ops.len() == self.0.len()
            && ops.iter().zip(&self.0).all(|(op, found)| match (op, found) {
                (Op::Put { value, .. }, Some(kv)) => kv.value == *value && !old(kv),
                (Op::Delete { .. }, None) => true,
                (Op::Put { .. }, None) | (Op::Delete { .. }, Some(_)) => false,
            });
        let mut written = self.0.iter().flatten().map(|kv| kv.mod_revision);
        let revision = written.next().unwrap_or(now);
        // Guards alone leave no trace; and the writes of one transaction have one revision.
        match done && !ops.is_empty() && written.all(|other| other == revision) {
            true => Outcome::Committed { revision },
            false => Outcome::Conflict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &'static str) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    fn found(key: &str, value: &'static str, mod_revision: i64) -> Option<KeyValue> {
        let value = value.into();
        Some(KeyValue { key: key.into(), value, create_revision: 1, mod_revision, version: 1, lease: 0 })
    }

    #[test]
    fn an_applied_transaction_is_recognised() {
        let ops = vec![put("a", "1"), put("b", "2"), Op::Delete { key: "c".into() }];
        let before = |key: &str| Guard::ModRevision { key: key.into(), revision: 5 };
        let txn = Txn { guards: vec![before("a"), before("b"), before("c")], ops };
        let outcome = |found: [Option<KeyValue>; 3]| Found(found.into()).outcome(&txn, 9);
        let committed = Outcome::Committed { revision: 7 };
        assert_eq!(outcome([found("a", "1", 7), found("b", "2", 7), None]), committed);
        // Another writer's values, values of an earlier write, or none.
        assert_eq!(outcome([found("a", "x", 7), found("b", "2", 7), None]), Outcome::Conflict);
        assert_eq!(outcome([found("a", "1", 6), found("b", "2", 7), None]), Outcome::Conflict);
        assert_eq!(outcome([found("a", "1", 7), found("b", "2", 7), found("c", "", 3)]), Outcome::Conflict);
        assert_eq!(outcome([None, None, None]), Outcome::Conflict);
        assert_eq!(outcome([found("a", "1", 5), found("b", "2", 5), None]), Outcome::Conflict);
        let gone = Txn::new().guard(before("c")).delete("c");
        assert_eq!(Found(vec![None]).outcome(&gone, 9), Outcome::Committed { revision: 9 });
        assert_eq!(Found(vec![]).outcome(&Txn::new(), 9), Outcome::Conflict);
    }
}
