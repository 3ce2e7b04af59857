//! Leases: grant, revocation, keys and remaining time.

use super::Store;
use super::request::{Again, Limits};
use crate::{Error, Operation};
use etcd_client::LeaseTimeToLiveOptions;
use std::collections::BTreeSet;
use std::time::Duration;

/// Remaining and granted time of a lease, in whole seconds, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) left: Duration,
    pub(crate) granted: Duration,
}

impl Store {
    /// Grants a lease. Returns its id and the TTL that the store granted.
    pub(crate) async fn grant(&self, key: &str, ttl: Duration) -> Result<(i64, Duration), Error> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        // If the answer was lost, the repeated grant leaves an unused lease behind, which expires.
        let answer = self
            .request(Operation::Grant, key, Again::Always, || {
                let mut lease = self.shared.members.lease();
                async move { lease.grant(seconds.max(1), None).await }
            })
            .await?;
        Ok((answer.id(), Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0))))
    }

    /// Revokes a lease. Succeeds if the lease does not exist.
    pub(crate) async fn revoke(&self, key: &str, lease: i64) -> Result<(), Error> {
        let revoked = self.request(Operation::Revoke, key, Again::Always, || {
            let mut client = self.shared.members.lease();
            async move { client.revoke(lease).await }
        });
        match revoked.await {
            Err(e) if e.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Keys of a lease; none if it does not exist. One request, whatever the number of keys.
    pub(crate) async fn keys_of_lease(&self, name: &str, lease: i64) -> Result<BTreeSet<String>, Error> {
        let answer = self
            .request(Operation::TimeToLive, name, Again::Always, || {
                let mut client = self.shared.members.lease();
                let options = LeaseTimeToLiveOptions::new().with_keys();
                async move { client.time_to_live(lease, Some(options)).await }
            })
            .await?;
        Ok(answer.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    /// Reads the remaining time of a lease; `None` if the lease does not exist. Each member has
    /// `patience` to answer.
    pub(crate) async fn time_to_live(
        &self,
        key: &str,
        lease: i64,
        patience: Duration,
    ) -> Result<Option<Remaining>, Error> {
        let all = self.shared.request_timeout;
        let limits = Limits { all, first: patience.min(all), longest: Duration::MAX };
        let answer = self
            .request_within(limits, Operation::TimeToLive, key, Again::Always, || {
                let mut client = self.shared.members.lease();
                async move { client.time_to_live(lease, None).await }
            })
            .await?;
        let seconds = |n: i64| Duration::from_secs(n.unsigned_abs());
        let alive = answer.ttl() >= 0;
        Ok(alive.then(|| Remaining { left: seconds(answer.ttl()), granted: seconds(answer.granted_ttl()) }))
    }
}
