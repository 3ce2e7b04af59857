//! Leases, their deadlines, and the keys attached to them.

use super::refusal::Refusal;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// etcd's upper bound, in seconds.
const LONGEST: i64 = 9_000_000_000;
/// Lower bound, in seconds. etcd's depends on its election timeout (2 s by default); there is no
/// election here.
const SHORTEST: i64 = 1;

/// If the process has not run for longer, it was stopped, or its machine was: no owner could renew a lease meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Leases {
    by_id: BTreeMap<i64, Lease>,
    /// When the process was last seen running.
    ran: Option<Instant>,
}

#[derive(Debug)]
struct Lease {
    /// In seconds.
    ttl: i64,
    deadline: Instant,
    keys: BTreeSet<Bytes>,
}

/// State of a lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    pub(super) seconds: i64,
    pub(super) granted: i64,
    pub(super) keys: Vec<Bytes>,
}

impl Leases {
    /// Grants a lease. Id 0 requests a free one. Returns id and TTL.
    pub(super) fn grant(&mut self, id: i64, ttl: i64, now: Instant) -> Result<(i64, i64), Refusal> {
        if ttl > LONGEST {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        let id = if id == 0 { self.free_id() } else { id };
        if self.by_id.contains_key(&id) {
            return Err(Refusal::LeaseExists);
        }
        let ttl = ttl.max(SHORTEST);
        self.restore(id, ttl, now);
        Ok((id, ttl))
    }

    /// Adds a lease that was granted before a restart, with its full TTL: its owner could not renew
    /// it.
    pub(super) fn restore(&mut self, id: i64, ttl: i64, now: Instant) {
        self.by_id.insert(id, Lease { ttl, deadline: deadline(now, ttl), keys: BTreeSet::new() });
    }

    fn free_id(&self) -> i64 {
        let random = RandomState::new();
        let ids = (0_u64..).map(|i| (random.hash_one(i) >> 1).cast_signed());
        ids.into_iter().find(|id| *id != 0 && !self.by_id.contains_key(id)).unwrap_or(1)
    }

    pub(super) fn exists(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Restarts the full TTL at `now`. A lease ends when it is removed, not when its deadline passes.
    pub(super) fn renew(&mut self, id: i64, now: Instant) -> Option<i64> {
        self.runs(now);
        let lease = self.by_id.get_mut(&id)?;
        lease.deadline = deadline(now, lease.ttl);
        Some(lease.ttl)
    }

    /// Notes that the process runs, as it does more often than once in a [`PAUSE`]. If it has not, gives each lease the time back, up to
    /// the full TTL. A lease without an owner ends nevertheless, however often that happens.
    pub(super) fn runs(&mut self, now: Instant) {
        // Another thread was first to notice the end of a pause.
        if self.ran.is_some_and(|last| now < last) {
            return;
        }
        let since = self.ran.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if since <= PAUSE || self.by_id.is_empty() {
            return;
        }
        tracing::warn!(?since, "the process was stopped; leases end as much later");
        for lease in self.by_id.values_mut() {
            let full = deadline(now, lease.ttl);
            let postponed = lease.deadline.checked_add(since).map_or(full, |later| later.min(full));
            lease.deadline = lease.deadline.max(postponed);
        }
    }

    pub(super) fn remaining(&self, id: i64, now: Instant) -> Option<Remaining> {
        let lease = self.by_id.get(&id).filter(|lease| lease.deadline > now)?;
        let seconds = i64::try_from(lease.deadline.duration_since(now).as_secs()).unwrap_or(i64::MAX);
        Some(Remaining { seconds, granted: lease.ttl, keys: lease.keys.iter().cloned().collect() })
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = i64> {
        self.by_id.keys().copied()
    }

    pub(super) fn expired(&self, now: Instant) -> Vec<i64> {
        self.by_id.iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect()
    }

    #[cfg(test)]
    pub(super) fn expire(&mut self, id: i64, now: Instant) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.deadline = now;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.by_id.values().map(|lease| lease.deadline).min()
    }

    /// Removes the lease and returns its keys, which the caller deletes.
    pub(super) fn remove(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        self.by_id.remove(&id).map(|lease| lease.keys)
    }

    /// Moves the key from one lease to another; 0 means none.
    pub(super) fn moved(&mut self, key: &Bytes, from: i64, to: i64) {
        if from == to {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&to) {
            lease.keys.insert(key.clone());
        }
    }
}

fn deadline(now: Instant, ttl: i64) -> Instant {
    let ttl = Duration::from_secs(ttl.unsigned_abs());
    // The longest TTL is 285 years; a clock that cannot count so far never gets there either.
    now.checked_add(ttl).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lives_while_it_is_renewed() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        let (id, ttl) = leases.grant(0, 0, start).unwrap();
        assert_eq!((id != 0, ttl), (true, SHORTEST));
        assert_eq!(leases.grant(7, 10, start), Ok((7, 10)));
        assert_eq!(leases.grant(7, 10, start), Err(Refusal::LeaseExists));
        assert_eq!(leases.grant(8, LONGEST + 1, start), Err(Refusal::LeaseTtlTooLarge));
        assert_eq!(leases.grant(9, LONGEST, start), Ok((9, LONGEST)));

        leases.moved(&Bytes::from_static(b"k"), 0, 7);
        assert_eq!(leases.renew(7, after(9)), Some(10));
        assert_eq!(leases.remaining(7, after(10)).unwrap().seconds, 9);
        assert_eq!(leases.expired(after(18)), [id]);
        assert!(leases.remaining(7, after(19)).is_none());
        assert_eq!(leases.renew(7, after(20)), Some(10));
        assert_eq!(leases.expired(after(29)), [id]);
        // The process was stopped.
        leases.runs(after(31));
        assert_eq!(leases.expired(after(31)), [id]);
        assert_eq!(leases.remaining(7, after(31)).unwrap().seconds, 10);
        (32..=41).for_each(|seconds| leases.runs(after(seconds)));
        assert!(leases.remaining(7, after(41)).is_none());
        assert_eq!(leases.remove(7).unwrap().len(), 1);
        assert_eq!(leases.renew(7, after(30)), None);
        assert!(!leases.exists(7));
    }
}
