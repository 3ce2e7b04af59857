//! The leader's transactions: each happens once or not at all, and the leader learns which, as long as the store answers.
//!
//! All are guarded by the revision of the lock's last put. When an attempt is not answered, the next one, mostly of
//! another member, also puts the lock again, whether its guards hold or not: from then on no earlier attempt can happen
//! any more, however long it is held up on its way. If its guards do not hold, it tells what the keys are by then: as
//! the transaction makes them, and then an earlier attempt was the one; or not, and then there was none.

use super::Leadership;
use crate::{Error, Guard, KeyValue, MAX_TXN_OPS, Op, Operation, Outcome, Txn, client::Again};
use etcd_client::TxnOp;
use etcd_client::proto::{PbTxnOpResponse, PbTxnResponse};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A leader that has lost its lock waits so long for the answer to what is under way.
const LAST_WORDS: Duration = Duration::from_millis(300);

impl Leadership {
    /// Writes all of it if its guards hold and this leadership does, else nothing. It takes two operations and one
    /// guard less than [`crate::MAX_TXN_OPS`]. After an error with [`Error::outcome_unknown`], [`Leadership::resolve_pending`].
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
            // Another leads, who may answer sooner.
            () = async { self.lost().await; sleep(LAST_WORDS).await } => Err(unknown()),
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
                // Without the lock nothing is certain: others write by now.
                let lock = lock.filter(|lock| lock.create_revision == self.create_revision);
                self.fence.store(lock.ok_or_else(unknown)?.mod_revision, Ordering::Release);
                Ok(found.outcome(&txn, revision))
            }
        }
    }

    /// From now on, no commit of this leadership can happen whose outcome is not known. False if the leadership is over.
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
            // Whatever comes of it, the next look tells.
            let _outcome =
                self.store.commit_again(Txn { guards: vec![held], ops: vec![self.lock()] }).await?;
        }
    }

    /// Puts the lock as it is.
    fn lock(&self) -> Op {
        let (key, value) = (self.key.clone(), self.value.clone().into());
        Op::Put { key, value, lease: Some(self.lease) }
    }

    /// What is asked for first.
    fn first(&self, txn: &Txn) -> Result<etcd_client::Txn, Error> {
        if txn.ops.len() + 2 > MAX_TXN_OPS {
            let (key, guards, ops) = (txn.name().to_owned(), txn.guards.len(), txn.ops.len());
            return Err(Error::TooManyOps { key, guards, ops });
        }
        let txn = txn.clone().guard(self.guard());
        txn.check()?;
        Ok(txn.into_wire())
    }

    /// And then.
    fn again(&self, txn: &Txn) -> etcd_client::Txn {
        let mut again = txn.clone().guard(self.guard());
        again.ops.push(self.lock());
        // Only once: a late attempt must not move the fence behind our back.
        let fence = Txn { guards: vec![self.guard()], ops: vec![self.lock()] };
        let fence = [TxnOp::txn(fence.into_wire()), TxnOp::get(self.key.as_str(), None)];
        let keys = txn.ops.iter().map(|op| TxnOp::get(op.key(), None));
        again.into_wire().or_else(fence.into_iter().chain(keys).collect::<Vec<_>>())
    }
}

/// What the keys of a transaction were when it conflicted, in its order.
struct Found(Vec<Option<KeyValue>>);

impl Found {
    /// And the lock, before them.
    fn read(answer: PbTxnResponse) -> (Option<KeyValue>, Found) {
        let ranges = answer.responses.into_iter().filter_map(|response| match response.response {
            Some(PbTxnOpResponse::ResponseRange(range)) => Some(range.kvs.into_iter().next()),
            _ => None,
        });
        let mut found = ranges.map(|kv| kv.and_then(KeyValue::from_wire));
        (found.next().flatten(), Found(found.collect()))
    }

    /// `now`: the store's revision then.
    fn outcome(&self, txn: &Txn, now: i64) -> Outcome {
        let ops = &txn.ops;
        // As it was before.
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
        // Guards alone leave no trace; and what one transaction has written is of one revision.
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
    fn what_was_written_is_told_from_what_was_not() {
        let ops = vec![put("a", "1"), put("b", "2"), Op::Delete { key: "c".into() }];
        let before = |key: &str| Guard::ModRevision { key: key.into(), revision: 5 };
        let txn = Txn { guards: vec![before("a"), before("b"), before("c")], ops };
        let outcome = |found: [Option<KeyValue>; 3]| Found(found.into()).outcome(&txn, 9);
        let committed = Outcome::Committed { revision: 7 };
        assert_eq!(outcome([found("a", "1", 7), found("b", "2", 7), None]), committed);
        // Somebody else's, another time's, or none at all.
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
