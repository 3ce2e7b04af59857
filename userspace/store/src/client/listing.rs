//! Listings of all keys with a prefix, page by page.

use super::Store;
use super::read::position;
use super::request::Again;
use super::walk::{Omission, Walk, Without};
use crate::{Error, KeyValue, Listing, Operation, Position};
use etcd_client::GetOptions;
use std::sync::Arc;

/// A part of a listing.
pub(crate) struct Page {
    /// Store and revision of the listing.
    pub(crate) at: Position,
    pub(crate) items: Vec<KeyValue>,
    /// Number of keys that were not kept, or are left out.
    pub(crate) dropped: usize,
    pub(crate) is_last: bool,
}

impl Store {
    /// Reads all keys that begin with `prefix`, in pages of some MB at one revision.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_where(prefix, |_| true).await
    }

    /// Like [`Store::list`], without the values: they are empty.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list_keys(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_keys_where(prefix, |_| true).await
    }

    /// Like [`Store::list_where`], without the values.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list_keys_where(
        &self,
        prefix: &str,
        mut keep: impl FnMut(&KeyValue) -> bool + Send,
    ) -> Result<Listing, Error> {
        let omissions: Arc<[Omission]> = [(prefix.to_owned(), Without::Values)].into();
        Ok(self.list_counting(prefix, &omissions, &mut keep).await?.0)
    }

    /// Like [`Store::list`], with only the keys that `keep` returns true for. The others are dropped page
    /// by page, so they never are in memory together. If the listing has to start again, `keep` sees
    /// keys twice.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list_where(
        &self,
        prefix: &str,
        mut keep: impl FnMut(&KeyValue) -> bool + Send,
    ) -> Result<Listing, Error> {
        Ok(self.list_counting(prefix, &Arc::default(), &mut keep).await?.0)
    }

    /// Like [`Store::list_where`], without what `omissions` say. Also returns the number of keys that are not in the listing.
    pub(crate) async fn list_counting(
        &self,
        prefix: &str,
        omissions: &Arc<[Omission]>,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        loop {
            let walk = Walk::new(prefix, omissions.clone());
            match self.list_once(prefix, walk, keep).await {
                // The revision was compacted between two pages: a newer listing replaces it.
                Err(e) if e.is_compacted() => {
                    tracing::debug!(prefix, "compacted while listing; listing again");
                }
                result => return result,
            }
        }
    }

    async fn list_once(
        &self,
        prefix: &str,
        mut walk: Walk,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        let mut listing = Listing { cluster: 0, revision: 0, items: Vec::new() };
        let mut dropped = 0;
        loop {
            let page = self.list_page(prefix, &mut walk, keep).await?;
            (listing.cluster, listing.revision) = (page.at.cluster, page.at.revision);
            listing.items.extend(page.items);
            dropped += page.dropped;
            if page.is_last {
                return Ok((listing, dropped));
            }
        }
    }

    /// Reads the next page of the walk; all pages are of the revision of the first one. A future that is
    /// dropped before it is complete has no effect.
    ///
    /// # Errors
    ///
    /// As [`Store::get`]. If the revision was compacted since the first page, a new walk is necessary.
    pub(crate) async fn list_page(
        &self,
        prefix: &str,
        walk: &mut Walk,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<Page, Error> {
        let answer = loop {
            let options = GetOptions::new()
                .with_range(walk.to.clone())
                .with_revision(walk.at.map_or(0, |at| at.revision));
            let options = match walk.omitted() {
                // Releases of etcd differ in what they count with a limit.
                Some(Without::Keys) => options.with_count_only(),
                Some(Without::Values) => options.with_limit(walk.limit()).with_keys_only(),
                None => options.with_limit(walk.limit()),
            };
            let answer = self
                .request(Operation::List, prefix, Again::Always, || {
                    let (mut kv, from, options) =
                        (self.shared.members.kv(), walk.from.clone(), options.clone());
                    async move { kv.get(from, Some(options)).await }
                })
                .await;
            match answer {
                Err(e) if e.is_answer_too_large() && walk.shrink() => {}
                answer => break answer?.0,
            }
        };
        let at = *walk.at.get_or_insert_with(|| position(answer.header.as_ref()));
        // Keys that are not UTF-8 count as dropped.
        let received = match walk.omitted() {
            Some(Without::Keys) => usize::try_from(answer.count).unwrap_or(0),
            Some(Without::Values) | None => answer.kvs.len(),
        };
        let is_last = !walk.go_on(&answer.kvs, answer.more, answer.count);
        let kept = answer.kvs.into_iter().filter_map(KeyValue::from_wire).filter(|kv| keep(kv));
        let items: Vec<_> = kept.collect();
        Ok(Page { at, dropped: received - items.len(), items, is_last })
    }
}
