//! The committer on an embedded store.

use std::time::Duration;

use contiv_model::api::Tenant;
use contiv_model::event::Event;
use contiv_store::election::{self, Leadership, Timing};
use contiv_store::{Config, Guard, Store, Txn, embedded};
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{COMMIT_RECORD, Committer, LargeValue, Queue};
use crate::cache::{SharedCache, StagedTxn};
use crate::metrics::Metrics;

const LOCK: &str = "lock";

struct Fixture {
    store: Store,
    _server: embedded::Server,
    _dir: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(dir.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = server.endpoint();
        let store = Store::connect(&Config::new([address])).await.unwrap();
        Fixture { store, _server: server, _dir: dir }
    }

    async fn lead(&self, name: &str) -> Leadership {
        let timing = Timing { ttl: Duration::from_secs(30), staleness: Duration::from_secs(1) };
        election::campaign(&self.store, LOCK, name, timing).await.unwrap()
    }

    fn committer(&self) -> (Queue, Committer) {
        Committer::new(self.store.clone(), SharedCache::default(), Metrics::default())
    }
}

/// Creates more tenants than fit in one transaction.
fn many_tenants(staged: &mut StagedTxn<'_>) {
    for n in 0..5000 {
        let name = format!("t{n}");
        staged.put(&name, Tenant { key: name.clone(), tenant_name: name.clone(), ..Tenant::default() });
    }
}

/// The request must not be reported as not carried out: a follower would send it to the next
/// leader, which has applied it already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decided_change_is_acknowledged_although_leadership_is_lost() {
    let fixture = Fixture::new().await;
    let leadership = fixture.lead("first").await;
    let (queue, mut committer) = fixture.committer();
    let store = fixture.store.clone();
    let depose = tokio::spawn(async move {
        let mut watch = store.watch(COMMIT_RECORD);
        while let Some(update) = watch.next().await {
            if matches!(update.event, Event::Apply(..)) {
                return store.commit(Txn::new().delete(LOCK)).await.unwrap();
            }
        }
        panic!("the watch ended");
    });
    let plan = |staged: &mut StagedTxn<'_>| {
        many_tenants(staged);
        Ok(b"done".to_vec())
    };
    let stop = CancellationToken::new();
    let (ended, answer) = tokio::join!(committer.run(&leadership, &stop), queue.submit(Box::new(plan), true));
    assert!(ended.is_err(), "leadership is lost");
    let _deleted = depose.await.unwrap();
    let pending = fixture.store.get(COMMIT_RECORD).await.unwrap();
    assert!(pending.is_some(), "the change was interrupted");
    assert_eq!(answer, Ok(b"done".to_vec()));
    let next = fixture.lead("next").await;
    assert!(Committer::recover(&fixture.store, &next).await.is_ok());
    let tenants = fixture.store.list("/contiv.io/obj/modeldb/tenant/").await.unwrap();
    assert_eq!(tenants.items.len(), 5000);
}

/// The record of one tenant cannot be decoded, and the plan takes it for missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_always_conflicts_does_not_fail_others() {
    const TENANTS: &str = "/contiv.io/obj/modeldb/tenant/";
    let fixture = Fixture::new().await;
    let leadership = fixture.lead("first").await;
    let (queue, mut committer) = fixture.committer();
    let _put = fixture.store.commit(Txn::new().put(format!("{TENANTS}bad"), "x")).await.unwrap();
    let submit = |name: &'static str| {
        let plan = move |staged: &mut StagedTxn<'_>| {
            staged.put(name, Tenant { key: name.into(), tenant_name: name.into(), ..Tenant::default() });
            Ok(name.as_bytes().to_vec())
        };
        queue.submit(Box::new(plan), false)
    };
    let stop = CancellationToken::new();
    let submitted = async {
        let answers = tokio::join!(submit("first"), submit("bad"), submit("last"));
        stop.cancel();
        answers
    };
    let ((first, bad, last), ended) = tokio::join!(submitted, committer.run(&leadership, &stop));
    assert!(ended.is_ok(), "leadership is lost");
    assert_eq!((first, last), (Ok(b"first".to_vec()), Ok(b"last".to_vec())));
    assert_eq!(bad.unwrap_err().kind.status(), 503);
    let tenants = fixture.store.list(TENANTS).await.unwrap().items;
    let revision = |name: &str| {
        let tenant = tenants.iter().find(|kv| kv.key == format!("{TENANTS}{name}"));
        tenant.map(|kv| kv.mod_revision).unwrap()
    };
    assert!(revision("bad") < revision("first") && revision("first") < revision("last"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_of_a_change_is_checked_without_writing_it() {
    let fixture = Fixture::new().await;
    let guarded = |bytes: usize, guards: usize| {
        let json = serde_json::to_vec(&"x".repeat(bytes)).unwrap();
        let guards = (0..guards).map(|n| Guard::absent(format!("{n:0>100}"))).collect();
        LargeValue::find(Txn { guards, ops: vec![] }.put("large", json).put("small", "1")).unwrap()
    };
    let value = |bytes| guarded(bytes, 0);
    assert!(value(500_000).is_none());
    assert_eq!(value(1_400_000).unwrap().check(&fixture.store).await, Ok(()));
    let refused = value(1_600_000).unwrap().check(&fixture.store).await.unwrap_err();
    assert_eq!(refused.kind.status(), 409);
    assert!(refused.text.starts_with("commit large: 1600007 bytes exceed the store's limit"), "{refused}");
    // The redo log checks guards with the value, which count.
    assert_eq!(value(1_567_000).unwrap().check(&fixture.store).await, Ok(()));
    assert!(guarded(1_567_000, 100).unwrap().check(&fixture.store).await.is_err());
    assert_eq!(fixture.store.get("large").await.unwrap(), None);
}
