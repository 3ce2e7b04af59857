//! Transactions.

use crate::kv::Committed;
use crate::peer::Peer;
use anyhow::{Context, Result, bail, ensure};
use contiv_store::{Guard, MAX_TXN_OPS, Op, Outcome, Store, Txn as Commit};
use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use tonic::Code;

pub(crate) async fn every_compare_target(peer: &mut Peer) -> Result<()> {
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let mut client = peer.client().await?;
    let lease = client.lease_grant(60, None).await?.id();
    client.put("k", "m", None).await?; // 2
    client.put("k", "n", Some(PutOptions::new().with_lease(lease))).await?; // 3
    client.put("l", "n", None).await?; // 4
    let cases = [
        (Compare::version("k", Equal, 2), true),
        (Compare::version("k", Greater, 2), false),
        (Compare::version("none", Equal, 0), true),
        (Compare::create_revision("k", Equal, 2), true),
        (Compare::create_revision("k", Less, 2), false),
        (Compare::create_revision("none", Equal, 0), true),
        (Compare::mod_revision("k", Equal, 3), true),
        (Compare::mod_revision("k", NotEqual, 3), false),
        (Compare::mod_revision("none", Greater, 0), false),
        (Compare::value("k", Equal, "n"), true),
        (Compare::value("k", Greater, "m"), true),
        (Compare::value("k", Less, "m"), false),
        // An absent value compares with nothing, not even as different.
        (Compare::value("none", Equal, ""), false),
        (Compare::value("none", NotEqual, "x"), false),
        (Compare::lease("k", Equal, lease), true),
        (Compare::lease("l", Equal, 0), true),
        (Compare::lease("k", NotEqual, lease), false),
        (Compare::value("k", Equal, "n").with_prefix(), true),
        (Compare::mod_revision("k", Greater, 2).with_range("z"), true),
        (Compare::mod_revision("k", Greater, 3).with_range("z"), false),
        (Compare::create_revision("x", Equal, 0).with_range("z"), true),
    ];
    for (compare, expected) in cases {
        let what = format!("{compare:?}");
        let response = client.txn(Txn::new().when([compare])).await?;
        ensure!(response.succeeded() == expected, "{what} is not {expected}");
    }
    let both = [Compare::version("k", Equal, 2), Compare::version("l", Equal, 2)];
    ensure!(!client.txn(Txn::new().when(both)).await?.succeeded(), "all have to hold");
    Ok(())
}

pub(crate) async fn branches_nest_and_see_their_own_writes(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    client.put("a", "old", None).await?; // 2
    let inner = Txn::new()
        // The compare sees the state before the transaction.
        .when([Compare::value("a", CompareOp::Equal, "old")])
        .and_then([TxnOp::put("inner", "then", None)])
        .or_else([TxnOp::put("inner", "else", None)]);
    let txn = Txn::new().when([Compare::version("none", CompareOp::Greater, 0)]).or_else([
        TxnOp::get("a", None),
        TxnOp::put("a", "new", Some(PutOptions::new().with_prev_key())),
        TxnOp::get("a", None),
        TxnOp::get("a", Some(GetOptions::new().with_revision(2))),
        TxnOp::txn(inner),
        TxnOp::delete("inner2", None),
    ]);
    let response = client.txn(txn).await?;
    ensure!(!response.succeeded());
    let revision = response.header().context("header")?.revision();
    ensure!(revision == 3, "one revision: {revision}");
    let mut values = Vec::new();
    for op in response.op_responses() {
        values.push(match op {
            TxnOpResponse::Get(get) => get.kvs().iter().map(|kv| kv.value_str().unwrap_or("?")).collect(),
            TxnOpResponse::Put(put) => {
                format!("was {}", put.prev_key().map_or("", |kv| kv.value_str().unwrap_or("?")))
            }
            TxnOpResponse::Delete(delete) => format!("deleted {}", delete.deleted()),
            TxnOpResponse::Txn(txn) => format!("inner {}", txn.succeeded()),
        });
    }
    ensure!(values == ["old", "was old", "new", "old", "inner true", "deleted 0"], "{values:?}");
    let inner = client.get("inner", None).await?;
    ensure!(inner.kvs().iter().all(|kv| kv.value() == b"then" && kv.mod_revision() == 3));
    Ok(())
}

/// The answer as clients see it.
async fn refusal(client: &mut Client, txn: Txn) -> Result<String> {
    match client.txn(txn).await {
        Ok(_) => Ok("done".into()),
        Err(etcd_client::Error::GRpcStatus(status)) => {
            Ok(format!("{:?}: {}", status.code(), status.message()))
        }
        Err(e) => Err(e.into()),
    }
}

pub(crate) async fn refusals_have_the_same_code_and_text(peer: &mut Peer) -> Result<()> {
    let mut client = peer.client().await?;
    for value in ["2", "3", "4"] {
        client.put("k", value, None).await?;
    }
    client.compact(3, None).await?;
    let then = |ops: Vec<TxnOp>| Txn::new().and_then(ops);
    let get_at = |revision| TxnOp::get("k", Some(GetOptions::new().with_revision(revision)));
    let put = |key: &str| TxnOp::put(key, "v", None);
    let option = |options: PutOptions| TxnOp::put("none", "", Some(options));
    let invalid = |what: &str| format!("InvalidArgument: etcdserver: {what}");
    let cases = [
        (then(vec![put("")]), invalid("key is not provided")),
        (Txn::new().when([Compare::version("", CompareOp::Equal, 0)]), invalid("key is not provided")),
        (then(vec![put("a"), put("a")]), invalid("duplicate key given in txn request")),
        (then(vec![put("a"), TxnOp::delete("a", None)]), invalid("duplicate key given in txn request")),
        (
            then((0..129).map(|i| put(&format!("{i}"))).collect()),
            invalid("too many operations in txn request"),
        ),
        (then((0..128).map(|i| put(&format!("{i}"))).collect()), "done".into()),
        (then(vec![option(PutOptions::new().with_ignore_value())]), invalid("key not found")),
        (
            then(vec![put("before"), TxnOp::put("k", "v", Some(PutOptions::new().with_ignore_value()))]),
            invalid("value is provided"),
        ),
        (
            then(vec![
                put("before"),
                TxnOp::put("k", "v", Some(PutOptions::new().with_ignore_lease().with_lease(1))),
            ]),
            invalid("lease is provided"),
        ),
        (
            then(vec![put("before"), get_at(2)]),
            "OutOfRange: etcdserver: mvcc: required revision has been compacted".into(),
        ),
        (
            then(vec![put("before"), get_at(99)]),
            "OutOfRange: etcdserver: mvcc: required revision is a future revision".into(),
        ),
    ];
    for (i, (txn, expected)) in cases.into_iter().enumerate() {
        let answer = refusal(&mut client, txn).await?;
        ensure!(answer == expected, "case {i}: {answer}, not {expected}");
    }
    ensure!(client.get("before", None).await?.kvs().is_empty(), "nothing of a refused transaction happened");

    let single = |result: Result<(), etcd_client::Error>| match result {
        Err(etcd_client::Error::GRpcStatus(status)) => (Some(status.code()), status.message().to_owned()),
        Err(e) => (None, e.to_string()),
        Ok(()) => (None, "done".into()),
    };
    let put = client.put("k", "v", Some(PutOptions::new().with_lease(12345))).await.map(drop);
    ensure!(single(put) == (Some(Code::NotFound), "etcdserver: requested lease not found".into()));
    let revoke = client.lease_revoke(12345).await.map(drop);
    ensure!(single(revoke) == (Some(Code::NotFound), "etcdserver: requested lease not found".into()));
    let large = client.put("k", vec![0_u8; (3 << 19) + 1], None).await.map(drop);
    ensure!(single(large) == (Some(Code::InvalidArgument), "etcdserver: request is too large".into()));
    let compact = client.compact(3, None).await.map(drop);
    ensure!(
        single(compact)
            == (Some(Code::OutOfRange), "etcdserver: mvcc: required revision has been compacted".into())
    );
    let compact = client.compact(999, None).await.map(drop);
    ensure!(
        single(compact)
            == (Some(Code::OutOfRange), "etcdserver: mvcc: required revision is a future revision".into())
    );
    let lease = etcd_client::LeaseGrantOptions::new().with_id(7);
    client.lease_grant(60, Some(lease.clone())).await?;
    let again = client.lease_grant(60, Some(lease)).await.map(drop);
    ensure!(single(again) == (Some(Code::FailedPrecondition), "etcdserver: lease already exists".into()));
    Ok(())
}

pub(crate) async fn a_commit_is_all_or_nothing(peer: &mut Peer) -> Result<()> {
    let store = peer.store().await?;
    let absent = || Guard::absent("a");
    let made = store.commit(Commit::new().guard(absent()).put("a", "1").put("b", "1")).await?.committed()?;
    ensure!(
        store.commit(Commit::new().guard(absent()).put("a", "2").delete("b")).await? == Outcome::Conflict
    );
    let current = Guard::ModRevision { key: "a".into(), revision: made };
    let same = Guard::CreateRevision { key: "b".into(), revision: made };
    store
        .commit(Commit::new().guard(current.clone()).guard(same.clone()).put("a", "2"))
        .await?
        .committed()?;
    ensure!(
        store.commit(Commit::new().guard(current).guard(same.clone()).put("a", "3")).await?
            == Outcome::Conflict
    );
    store.commit(Commit::new().guard(same).delete("a")).await?.committed()?;
    ensure!(store.get("a").await?.is_none() && store.get("b").await?.is_some());

    let puts = |n: usize| (0..n).map(|i| Op::Put { key: format!("p/{i}"), value: "v".into(), lease: None });
    let fits = Commit { guards: vec![], ops: puts(MAX_TXN_OPS).collect() };
    store.commit(fits).await?.committed()?;
    let error = store.commit(Commit { guards: vec![], ops: puts(MAX_TXN_OPS + 1).collect() }).await.err();
    let error = error.context("too many")?.to_string();
    ensure!(error.contains("129 operations") && error.contains("128"), "{error}");
    Ok(())
}

async fn increment(store: &Store, key: &str) -> Result<()> {
    loop {
        let (value, revision) = match store.get(key).await? {
            Some(kv) => (std::str::from_utf8(&kv.value)?.parse::<u64>()?, kv.mod_revision),
            None => (0, 0),
        };
        let guard = Guard::ModRevision { key: key.to_owned(), revision };
        match store.commit(Commit::new().guard(guard).put(key, (value + 1).to_string())).await? {
            Outcome::Committed { .. } => return Ok(()),
            Outcome::Conflict => {}
        }
    }
}

pub(crate) async fn sixty_four_writers_lose_no_update(peer: &mut Peer) -> Result<()> {
    const WRITERS: u64 = 64;
    const EACH: u64 = 8;
    let store = peer.store().await?;
    let start = store.list("").await?.revision;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for i in 0..EACH {
                increment(&store, "counter").await?;
                // Beside the contended key one that is the writer's own.
                let own = format!("own/{writer}/{i}");
                store.commit(Commit::new().guard(Guard::absent(&own)).put(&own, "v")).await?.committed()?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let counter = store.get("counter").await?.context("counter")?;
    ensure!(&counter.value[..] == (WRITERS * EACH).to_string().as_bytes(), "{counter:?}");
    ensure!(counter.version == (WRITERS * EACH).cast_signed());
    let listing = store.list("").await?;
    ensure!(listing.items.len() as u64 == WRITERS * EACH + 1);
    let writes = listing.revision - start;
    if writes != (2 * WRITERS * EACH).cast_signed() {
        bail!("{writes} revisions for {} writes", 2 * WRITERS * EACH);
    }
    Ok(())
}
