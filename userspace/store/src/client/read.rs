//! Reads of keys, of the number of keys, and of the store's revision.

use super::request::Again;
use super::{PROBED, Store};
use crate::{Error, KeyValue, Operation, Position};
use etcd_client::GetOptions;
use etcd_client::proto::PbResponseHeader;

impl Store {
    /// Reads one key. Returns `None` if the key does not exist. The read is linearizable.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer within the request timeout, or refuses the request.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        Ok(self.get_with_revision(key).await?.0)
    }

    /// Like [`Store::get`], and also returns the store's revision of the read. Watch updates of the
    /// key with a lower revision are older than this value.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn get_with_revision(&self, key: &str) -> Result<(Option<KeyValue>, i64), Error> {
        let answer = self
            .request(Operation::Get, key, Again::Always, || {
                let mut kv = self.shared.members.kv();
                async move { kv.get(key, None).await }
            })
            .await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((answer.0.kvs.into_iter().next().and_then(KeyValue::from_wire), revision))
    }

    /// Reads one key as it was at `revision`. Returns `None` if the key did not exist then.
    ///
    /// # Errors
    ///
    /// As [`Store::get`]. Also fails if the revision was compacted ([`Error::is_compacted`]) or does
    /// not exist yet.
    pub async fn get_at(&self, key: &str, revision: i64) -> Result<Option<KeyValue>, Error> {
        Ok(self.get_at_with_cluster(key, revision).await?.0)
    }

    /// Like [`Store::get_at`], and also returns the store's id.
    pub(crate) async fn get_at_with_cluster(
        &self,
        key: &str,
        revision: i64,
    ) -> Result<(Option<KeyValue>, u64), Error> {
        let options = GetOptions::new().with_revision(revision);
        let answer = self
            .request(Operation::Get, key, Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(key, Some(options)).await }
            })
            .await?
            .0;
        let cluster = position(answer.header.as_ref()).cluster;
        Ok((answer.kvs.into_iter().next().and_then(KeyValue::from_wire), cluster))
    }

    /// Number of keys that began with `prefix` at `revision`.
    pub(crate) async fn count_at(&self, prefix: &str, revision: i64) -> Result<usize, Error> {
        let options = GetOptions::new().with_revision(revision).with_count_only();
        let options = match prefix {
            "" => options.with_all_keys(),
            _ => options.with_prefix(),
        };
        let answer = self
            .request(Operation::List, prefix, Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(prefix, Some(options)).await }
            })
            .await?;
        Ok(usize::try_from(answer.count()).unwrap_or(0))
    }

    /// Reads the store's id and current revision. The read is linearizable.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn position(&self) -> Result<Position, Error> {
        let options = GetOptions::new().with_count_only();
        let answer = self
            .request(Operation::Get, "the store's revision", Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(PROBED, Some(options)).await }
            })
            .await?;
        Ok(position(answer.0.header.as_ref()))
    }
}

pub(super) fn position(header: Option<&PbResponseHeader>) -> Position {
    header.map_or_else(Position::default, |h| Position { cluster: h.cluster_id, revision: h.revision })
}
