//! Listings of all keys with a prefix, page by page.

use super::Store;
use super::read::position;
use super::request::Again;
use crate::range::prefix_end;
use crate::{Error, KeyValue, Listing, Operation, Position};
use etcd_client::GetOptions;
use etcd_client::proto::PbKeyValue;

/// Keys on the first page and on the largest page of a listing.
const FIRST_PAGE: i64 = 64;
const LARGEST_PAGE: i64 = 1000;
/// Bytes that a page should have. Each page is as long as the previous one allows to expect.
const PAGE_BYTES: usize = 4 << 20;

impl Store {
    /// Reads all keys that begin with `prefix`, in pages of some MB at one revision.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_where(prefix, |_| true).await
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
        Ok(self.list_counting(prefix, &mut keep).await?.0)
    }

    /// Like [`Store::list_where`], and also returns the number of dropped keys.
    pub(crate) async fn list_counting(
        &self,
        prefix: &str,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        loop {
            match self.list_once(prefix, keep).await {
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
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        let mut listing = Listing { cluster: 0, revision: 0, items: Vec::new() };
        let mut dropped = 0;
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        let end = prefix_end(prefix.as_bytes());
        let mut page = FIRST_PAGE;
        loop {
            let options =
                GetOptions::new().with_range(end.clone()).with_limit(page).with_revision(listing.revision);
            let answer = self
                .request(Operation::List, prefix, Again::Always, || {
                    let (mut kv, from, options) = (self.shared.members.kv(), from.clone(), options.clone());
                    async move { kv.get(from, Some(options)).await }
                })
                .await;
            let answer = match answer {
                Err(e) if e.is_answer_too_large() && page > 1 => {
                    page = (page / 8).max(1);
                    continue;
                }
                answer => answer?.0,
            };
            page = next_page(&answer.kvs);
            if listing.revision == 0 {
                let Position { cluster, revision } = position(answer.header.as_ref());
                (listing.cluster, listing.revision) = (cluster, revision);
            }
            if answer.more
                && let Some(last) = answer.kvs.last()
            {
                from = last.key.clone();
                from.push(0);
            }
            // Keys that are not UTF-8 count as dropped.
            let received = answer.kvs.len();
            let before = listing.items.len();
            listing
                .items
                .extend(answer.kvs.into_iter().filter_map(KeyValue::from_wire).filter(|kv| keep(kv)));
            dropped += received - (listing.items.len() - before);
            if !answer.more {
                return Ok((listing, dropped));
            }
        }
    }
}

/// Keys on the page after one with `keys`.
fn next_page(keys: &[PbKeyValue]) -> i64 {
    let bytes: usize = keys.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let average = (bytes / keys.len().max(1)).max(1);
    i64::try_from(PAGE_BYTES / average).unwrap_or(LARGEST_PAGE).clamp(1, LARGEST_PAGE)
}
