//! The watch protocol itself.

use crate::peer::Peer;
use anyhow::{Context, Result, bail, ensure};
use etcd_client::{
    EventType, PutOptions, Txn, TxnOp, WatchFilterType, WatchOptions, WatchResponse, WatchStream,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

async fn message(stream: &mut WatchStream) -> Result<WatchResponse> {
    let message = tokio::time::timeout(SOON, stream.message()).await.context("no message")??;
    message.context("the watch ended")
}

/// `a=1@2` for a put, `-a@3` for a deletion, with what was before in brackets if it is reported.
fn described(response: &WatchResponse) -> Vec<String> {
    let mut said = Vec::new();
    for event in response.events() {
        let Some(kv) = event.kv() else { continue };
        let (key, value) = (kv.key_str().unwrap_or("?"), kv.value_str().unwrap_or("?"));
        let before =
            event.prev_kv().map(|kv| format!("[{}]", kv.value_str().unwrap_or("?"))).unwrap_or_default();
        said.push(match event.event_type() {
            EventType::Put => format!("{key}={value}@{}{before}", kv.mod_revision()),
            EventType::Delete => format!("-{key}@{}{before}", kv.mod_revision()),
        });
    }
    said
}

async fn events(stream: &mut WatchStream, count: usize) -> Result<Vec<String>> {
    let mut all = Vec::new();
    while all.len() < count {
        let response = message(stream).await?;
        ensure!(!response.canceled(), "canceled: {}", response.cancel_reason());
        all.extend(described(&response));
    }
    Ok(all)
}

pub(crate) async fn a_prefix_from_an_old_revision(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    client.put("p/a", "1", None).await?; // 2
    client.put("q", "1", None).await?; // 3
    client.put("p/b", "1", None).await?; // 4
    client.delete("p/a", None).await?; // 5
    let options = WatchOptions::new().with_prefix().with_start_revision(3);
    let mut stream = client.watch("p/", Some(options)).await?;
    ensure!(message(&mut stream).await?.created());
    ensure!(events(&mut stream, 2).await? == ["p/b=1@4", "-p/a@5"]);
    client.put("p", "no", None).await?; // 6
    client.put("p/a", "2", None).await?; // 7
    ensure!(events(&mut stream, 1).await? == ["p/a=2@7"]);

    // From a revision that is still to come.
    let options = WatchOptions::new().with_start_revision(10);
    let mut later = client.watch("x", Some(options)).await?;
    ensure!(message(&mut later).await?.created());
    for value in ["8", "9", "10", "11"] {
        client.put("x", value, None).await?;
    }
    ensure!(events(&mut later, 2).await? == ["x=10@10", "x=11@11"]);
    Ok(())
}

pub(crate) async fn many_watches_on_one_stream(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let mut stream = client.watch("a", Some(WatchOptions::new().with_watch_id(5))).await?;
    let created = message(&mut stream).await?;
    ensure!(created.created() && created.watch_id() == 5);
    stream.watch("b", None).await?;
    let b = message(&mut stream).await?.watch_id();
    stream.watch("", Some(WatchOptions::new().with_all_keys())).await?;
    let all = message(&mut stream).await?.watch_id();
    ensure!(b != 5 && all != 5 && all != b, "ids {b} {all}");
    client.put("b", "1", None).await?;
    let mut ids = vec![message(&mut stream).await?.watch_id(), message(&mut stream).await?.watch_id()];
    ids.sort_unstable();
    let mut expected = vec![b, all];
    expected.sort_unstable();
    ensure!(ids == expected, "{ids:?}");

    stream.cancel(all).await?;
    let canceled = message(&mut stream).await?;
    ensure!(canceled.canceled() && canceled.watch_id() == all && canceled.compact_revision() == 0);
    client.put("b", "2", None).await?;
    client.put("a", "1", None).await?;
    let (first, second) = (message(&mut stream).await?, message(&mut stream).await?);
    ensure!((first.watch_id(), second.watch_id()) == (b, 5));

    stream.watch("c", Some(WatchOptions::new().with_watch_id(5))).await?;
    let refused = message(&mut stream).await?;
    ensure!(refused.canceled() && refused.watch_id() == -1, "a second watch of one id: {refused:?}");
    ensure!(refused.cancel_reason().contains("duplicate watch ID"), "{}", refused.cancel_reason());
    Ok(())
}

pub(crate) async fn filters_and_previous_values(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let options = |filters: Vec<WatchFilterType>| WatchOptions::new().with_prev_key().with_filters(filters);
    let mut puts = client.watch("k", Some(options(vec![WatchFilterType::NoDelete]))).await?;
    let mut deletes = client.watch("k", Some(options(vec![WatchFilterType::NoPut]))).await?;
    ensure!(message(&mut puts).await?.created() && message(&mut deletes).await?.created());
    client.put("k", "1", None).await?; // 2
    client.put("k", "2", None).await?; // 3
    client.delete("k", None).await?; // 4
    client.put("k", "3", None).await?; // 5
    client.delete("k", None).await?; // 6
    ensure!(events(&mut puts, 3).await? == ["k=1@2", "k=2@3[1]", "k=3@5"]);
    ensure!(events(&mut deletes, 2).await? == ["-k@4[2]", "-k@6[3]"]);
    // The same from an old revision.
    let mut past = client.watch("k", Some(options(vec![]).with_start_revision(3))).await?;
    ensure!(message(&mut past).await?.created());
    ensure!(events(&mut past, 4).await? == ["k=2@3[1]", "-k@4[2]", "k=3@5", "-k@6[3]"]);
    Ok(())
}

pub(crate) async fn a_compacted_start_is_canceled(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    for value in ["2", "3", "4", "5"] {
        client.put("k", value, None).await?;
    }
    client.compact(4, None).await?;
    let mut stream = client.watch("k", Some(WatchOptions::new().with_start_revision(2))).await?;
    let canceled = loop {
        let response = message(&mut stream).await?;
        if response.canceled() {
            break response;
        }
        ensure!(response.created(), "{response:?}");
    };
    ensure!(canceled.compact_revision() == 4, "{canceled:?}");
    // The compacted revision itself is still there.
    let mut stream = client.watch("k", Some(WatchOptions::new().with_start_revision(4))).await?;
    ensure!(message(&mut stream).await?.created());
    ensure!(events(&mut stream, 2).await? == ["k=4@4", "k=5@5"]);
    Ok(())
}

pub(crate) async fn progress_comes_after_what_it_covers(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let mut stream = client.watch("k/", Some(WatchOptions::new().with_prefix())).await?;
    ensure!(message(&mut stream).await?.created());
    client.put("other", "1", None).await?; // 2
    client.put("k/a", "1", None).await?; // 3
    ensure!(events(&mut stream, 1).await? == ["k/a=1@3"]);
    client.put("other", "2", None).await?; // 4
    stream.request_progress().await?;
    let progress = message(&mut stream).await?;
    ensure!(progress.events().is_empty() && progress.watch_id() == -1);
    ensure!(progress.header().map(|h| h.revision()) == Some(4), "{progress:?}");
    Ok(())
}

pub(crate) async fn a_revision_is_not_torn(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    let ops = |round: usize| -> Vec<TxnOp> {
        (0..100)
            .map(|i| TxnOp::put(format!("t/{i:03}"), format!("{round}"), Some(PutOptions::new())))
            .collect()
    };
    for round in 0..40 {
        client.txn(Txn::new().and_then(ops(round))).await?;
    }
    let options = WatchOptions::new().with_prefix().with_start_revision(2);
    let mut stream = client.watch("t/", Some(options)).await?;
    ensure!(message(&mut stream).await?.created());
    let (mut seen, mut last) = (0, 1);
    while seen < 4000 {
        let response = message(&mut stream).await?;
        let revisions: Vec<i64> =
            response.events().iter().filter_map(|e| e.kv()).map(|kv| kv.mod_revision()).collect();
        for revision in revisions.chunks(100) {
            if revision.len() != 100 || revision.iter().any(|r| *r != last + 1) {
                bail!("after {last}: {revision:?}");
            }
            last += 1;
        }
        seen += revisions.len();
        ensure!(response.header().is_some_and(|h| h.revision() >= last), "the header is behind its events");
    }
    Ok(())
}

/// With the option `fragment`, responses are no larger than a request may be, with its encoding. All but the
/// last fragment of a response have the flag, and the last one ends with a whole revision.
pub(crate) async fn large_responses_are_divided(peer: &mut Peer) -> Result<()> {
    const KEYS: usize = 128;
    const MAX_MESSAGE: usize = 2 << 20;
    let mut client = peer.client().await?;
    // Two revisions are larger than a message together.
    for bytes in [8_000, 11_000].repeat(4) {
        let put = |key: usize| TxnOp::put(format!("t/{key:03}"), "x".repeat(bytes), None);
        client.txn(Txn::new().and_then((0..KEYS).map(put).collect::<Vec<_>>())).await?;
    }
    let options = WatchOptions::new().with_prefix().with_start_revision(2).with_fragment();
    let mut stream = client.watch("t/", Some(options)).await?;
    ensure!(message(&mut stream).await?.created());
    let (mut revisions, mut divided, mut continues) = (Vec::new(), 0, false);
    while revisions.len() < 8 * KEYS {
        let response = message(&mut stream).await?;
        let kvs = || response.events().iter().filter_map(|event| event.kv());
        let bytes: usize = kvs().map(|kv| kv.key().len() + kv.value().len()).sum();
        ensure!(bytes <= MAX_MESSAGE, "a message of {bytes} bytes");
        revisions.extend(kvs().map(|kv| kv.mod_revision()));
        continues = response.0.fragment;
        divided += usize::from(continues);
        ensure!(continues || revisions.len().is_multiple_of(KEYS), "a response ends within a revision");
    }
    ensure!(divided > 0 && !continues, "{divided} fragments, continues: {continues}");
    let expected = (2..10_i64).flat_map(|revision| std::iter::repeat_n(revision, KEYS));
    ensure!(revisions.iter().copied().eq(expected), "{revisions:?}");
    Ok(())
}
