//! Restoration of derived state when a term begins: what requests are planned on before this netmaster leads, and
//! afterwards the content of policies on groups. A large cluster has hundreds of thousands of rules there, which are
//! right unless another program has written them, or an earlier release derived them otherwise.

use std::collections::BTreeSet;
use std::time::Duration;

use contiv_model::key::POLICY_RULES;

use contiv_store::election::Leadership;
use contiv_store::{KeyValue, Store};
use futures::StreamExt as _;
use tokio::time::{Instant, sleep};

use crate::cache::{ClusterCache, SharedCache, StagedTxn};
use crate::commit::{Committer, Deposed, Queue, read_derived};
use crate::domain::attachment::{self, Expansions, groups_with_policies, unread_of_group};
use crate::metrics::Metrics;
use crate::problem::{Answer, Problem, one_line};
use crate::{audit, go_json, repair, restore};

/// Differences that are logged one by one.
const MAX_LOGGED_DIFFERENCES: usize = 20;
/// Pause after a group, as a multiple of the time that it took: requests wait for the same committer, and they and agents that
/// connect for the same store.
const PAUSE: u32 = 4;
/// Longest pause after a group.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Rules without a policy on a group that are deleted in one change.
const DELETED_TOGETHER: usize = 1000;
/// Pause before groups are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Number of keys that a plan writes, and of those that it deletes.
type Counts = (u64, u64);

/// Restores and repairs derived state, and logs what remains inconsistent. With `release`, releases addresses
/// without an owner.
pub(super) async fn before_leading(
    committer: &mut Committer,
    leadership: &Leadership,
    cache: &SharedCache,
    metrics: &Metrics,
    release: bool,
) -> Result<(), Deposed> {
    // By itself: if a restored value is too large for the store, addresses in use must be marked all the same.
    let mark = |staged: &mut StagedTxn<'_>| {
        let repaired = repair::mark_in_use(staged);
        go_json::encode(&(staged.counts(), repaired))
    };
    log_outcome(metrics, committer.commit_or_retry(leadership, mark).await?);
    let plan = move |staged: &mut StagedTxn<'_>| {
        restore::restore(staged);
        let mut repaired = vec![];
        if staged.counts() != (0, 0) {
            // What was restored may have addresses that are free in the records.
            repaired.extend(repair::mark_in_use(staged));
        }
        if release {
            repaired.extend(repair::release_unused(staged));
        }
        go_json::encode(&(staged.counts(), repaired))
    };
    log_outcome(metrics, committer.commit_or_retry(leadership, plan).await?);
    log_unreadable(&cache.read());
    let differences = audit::audit(&StagedTxn::new(&cache.read()));
    for difference in differences.iter().take(MAX_LOGGED_DIFFERENCES) {
        tracing::warn!("{difference}");
    }
    if !differences.is_empty() {
        tracing::warn!(
            differences = differences.len(),
            "allocation records are inconsistent; not repaired (run with --repair)"
        );
    }
    Ok(())
}

/// Reports the records that cannot be decoded. They, and what is derived from them, were not restored.
fn log_unreadable(cache: &ClusterCache) {
    let keys = cache.unreadable_keys();
    let all = keys.len();
    for key in keys.take(MAX_LOGGED_DIFFERENCES) {
        tracing::error!(key, "restore a record of the store: cannot be decoded; repair or delete it");
    }
    if all > MAX_LOGGED_DIFFERENCES {
        tracing::error!(all, "restore records of the store: cannot be decoded");
    }
}

/// Reports the outcome of a restoration.
fn log_outcome(metrics: &Metrics, answer: Answer) {
    match answer {
        Ok(result) => {
            let (counts, repaired): (Counts, Vec<String>) =
                serde_json::from_slice(&result).unwrap_or_default();
            for line in repaired.iter().take(MAX_LOGGED_DIFFERENCES) {
                tracing::warn!("repaired: {line}");
            }
            if repaired.len() > MAX_LOGGED_DIFFERENCES {
                tracing::warn!(all = repaired.len(), "repaired allocation records");
            }
            report(metrics, counts);
        }
        Err(problem) => {
            tracing::error!(%problem, "restore derived keys in the store: failed");
        }
    }
}

fn report(metrics: &Metrics, (written, deleted): Counts) {
    if (written, deleted) != (0, 0) {
        metrics.restored.inc_by(written + deleted);
        tracing::warn!(written, deleted, "restored derived keys in the store");
    }
}

/// Compares the policies on all groups with the objects and restores those that differ. Then does nothing for the
/// rest of the term.
pub(super) async fn restore_policies(store: Store, cache: SharedCache, queue: Queue, metrics: Metrics) {
    let start = Instant::now();
    let mut left = groups_with_policies(&cache.read());
    let groups = left.len();
    while !left.is_empty() {
        let mut failed = vec![];
        for group in left {
            let start = Instant::now();
            if let Err(problem) = restore_group(&store, &cache, &queue, &metrics, &group).await {
                if queue.is_closed() {
                    return std::future::pending().await;
                }
                tracing::warn!(%problem, group, "restore the policies of a group: failed; retrying");
                failed.push(group);
            }
            sleep((start.elapsed() * PAUSE).min(LONGEST_PAUSE)).await;
        }
        left = failed;
        if !left.is_empty() {
            sleep(RETRY_INTERVAL).await;
        }
    }
    if let Err(problem) = delete_detached(&store, &cache, &queue, &metrics).await
        && !queue.is_closed()
    {
        tracing::warn!(%problem, "delete rules without a policy on a group: failed; the next leader tries again");
    }
    tracing::info!(groups, duration = ?start.elapsed(), "compared the policies on groups with the objects");
    std::future::pending::<()>().await;
}

/// Deletes the rules of no policy on a group. Another program has written them.
async fn delete_detached(
    store: &Store,
    cache: &SharedCache,
    queue: &Queue,
    metrics: &Metrics,
) -> Result<(), Problem> {
    let expansions = Expansions::of(&StagedTxn::new(&cache.read()));
    let id = |kv: &KeyValue| kv.key.strip_prefix(POLICY_RULES).map(str::to_owned);
    let is_detached = |kv: &KeyValue| id(kv).is_some_and(|id| !expansions.has_directed(&id));
    let listing = store.list_keys_where(POLICY_RULES, is_detached).await;
    let listing = listing.map_err(|error| Problem::unavailable(one_line(&error)))?;
    let ids: Vec<String> = listing.items.iter().filter_map(id).collect();
    for ids in ids.chunks(DELETED_TOGETHER) {
        let ids: BTreeSet<String> = ids.iter().cloned().collect();
        submit(queue, metrics, move |staged| attachment::delete_detached(staged, &ids)).await?;
    }
    Ok(())
}

async fn restore_group(
    store: &Store,
    cache: &SharedCache,
    queue: &Queue,
    metrics: &Metrics,
    group: &str,
) -> Result<(), Problem> {
    // Before a plan needs them: other plans would wait.
    let unread = unread_of_group(&cache.read(), group);
    let mut values = std::pin::pin!(read_derived(store, unread));
    while let Some(values) = values.next().await {
        let _lock = cache.lock_commits().await;
        cache.write().complete_derived(values);
    }
    let group = group.to_owned();
    submit(queue, metrics, move |staged| attachment::restore_group(staged, &group)).await
}

/// Commits a restoration, and reports what it has changed.
async fn submit(
    queue: &Queue,
    metrics: &Metrics,
    restore: impl Fn(&mut StagedTxn<'_>) + Send + Sync + 'static,
) -> Result<(), Problem> {
    let plan = move |staged: &mut StagedTxn<'_>| {
        restore(staged);
        go_json::encode(&staged.counts())
    };
    let counts = queue.submit(Box::new(plan), true).await?;
    report(metrics, serde_json::from_slice(&counts).unwrap_or_default());
    Ok(())
}
