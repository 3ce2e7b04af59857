use contiv_model::key::ObjectType;
use contiv_store::{Config, Outcome, Txn, embedded};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{sleep, timeout};

use super::super::in_flight::{Client, InFlight, Limits, Slot};
use super::page::{PAGE_BYTES, Snapshot, Taken};
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

fn watch(types: &str, scope: Scope) -> ObjectWatch {
    let cache = SharedCache::default();
    ObjectWatch {
        object_type: Type::by_plural(types).unwrap(),
        scope,
        selector: FieldSelector::default(),
        after: None,
        history: History::default(),
        reads: Reads::new(cache.clone()),
        backlogs: WatchBacklogs::default(),
        memory: None,
        cache,
    }
}

fn change(object_type: ObjectType, key: &str, revision: i64) -> LinkChange {
    LinkChange { object_type, key: key.to_owned(), revision }
}

#[test]
fn an_object_whose_links_changed_often_is_sent_once() {
    let changes: Vec<LinkChange> = (0..1000)
        .map(|n| change(ObjectType::Netprofile, if n % 2 == 0 { "blue:a" } else { "red:a" }, n))
        .chain([change(ObjectType::Policy, "blue:p", 1000)])
        .collect();
    let keys = |scope| watch("netprofiles", scope).relinked(changes.clone());
    assert_eq!(keys(Scope::All), ["blue:a", "red:a"].map(str::to_owned).into());
    // Objects of other tenants are not encoded.
    let blue = Scope::Tenants(BTreeSet::from(["blue".to_owned()]));
    assert_eq!(keys(blue), ["blue:a"].map(str::to_owned).into());
}

/// An object of the tenant with a body of this size.
fn taken(key: &str, tenant: &str, size: usize) -> Taken {
    let stored = Stored { body: vec![b' '; size], fields: json!({}), tenant: Some(tenant.to_owned()) };
    Taken { key: key.to_owned(), changed: 1, object: Some(Box::new(move || Ok(stored))) }
}

#[test]
fn a_page_ends_after_so_many_bytes() {
    let watch = watch("netprofiles", Scope::Tenants(BTreeSet::from(["t".to_owned()])));
    let half = PAGE_BYTES / 2;
    let page = |objects: Vec<Taken>| {
        let page = watch.encode(objects);
        let keys: Vec<String> = page.passed.into_iter().map(|object| object.key).collect();
        (page.events.len(), keys.concat(), page.is_whole)
    };
    let objects = |sizes: &[usize]| {
        ["a", "b", "c"].into_iter().zip(sizes).map(|(key, size)| taken(key, "t", *size)).collect::<Vec<_>>()
    };
    assert_eq!(page(objects(&[half, half, half])), (2, "ab".to_owned(), false));
    assert_eq!(page(objects(&[half, half])), (2, "ab".to_owned(), true));
    assert_eq!(page(objects(&[2 * PAGE_BYTES, 1])), (1, "a".to_owned(), false));
    // What is not sent does not count, and the next page begins after it.
    let mut others = vec![taken("x", "other", 2 * PAGE_BYTES)];
    others.push(Taken { key: "y".to_owned(), changed: 1, object: None });
    others.extend(objects(&[1]));
    assert_eq!(page(others), (1, "xya".to_owned(), true));
    assert_eq!(page(vec![]), (0, String::new(), true));
}

/// The record of a profile with this DSCP, written at a revision.
fn profile(name: &str, dscp: i64, revision: i64) -> KeyValue {
    let body =
        json!({"key": format!("t:{name}"), "tenantName": "t", "profileName": name, "DSCP": dscp}).to_string();
    KeyValue {
        key: format!("{MODELDB}netprofile/t:{name}"),
        value: body.into(),
        create_revision: 1,
        mod_revision: revision,
        version: 1,
        lease: 0,
    }
}

/// After a loss of link changes the client gets all objects again. It may have one that has ceased to be selected meanwhile, which
/// is not among them.
#[tokio::test]
async fn a_change_of_an_object_that_the_snapshot_leaves_out_is_sent() {
    let all = watch("netprofiles", Scope::All);
    let selector = FieldSelector::parse("DSCP=46", all.object_type.operations.schema).unwrap();
    let watch = Arc::new(ObjectWatch { selector, after: Some(2), ..all });
    let records = [profile("a", 46, 3), profile("b", 46, 7), profile("c", 10, 8)];
    for kv in &records {
        let event = event::Event::Apply(kv.key.clone(), kv.clone());
        watch.cache.write().apply_update(&Update { revision: kv.mod_revision, event });
    }
    let snapshot = Snapshot { revision: Some(5), ..Snapshot::default() };
    let page = watch.page(snapshot).await.unwrap();
    assert_eq!((page.events.len(), page.newest, page.next.is_none()), (2, 3, true));
    assert_eq!(page.later, [("t:b".to_owned(), 7)]);
    // The store's change of the other one tells that it is not selected.
    let [.., other] = records;
    let event = event::Event::Apply(other.key.clone(), other);
    assert_eq!(watch.changes(vec![Update { revision: 8, event }]).len(), 1);
}

/// A watch of three profiles by a client with a limit of memory.
fn counted_watch(memory: StreamMemory) -> ObjectWatch {
    let watch = ObjectWatch { memory: Some(memory), ..watch("netprofiles", Scope::All) };
    for kv in [profile("a", 46, 3), profile("b", 46, 4), profile("c", 46, 5)] {
        let event = event::Event::Apply(kv.key.clone(), kv.clone());
        watch.cache.write().apply_update(&Update { revision: kv.mod_revision, event });
    }
    watch
}

#[tokio::test]
async fn events_that_a_client_has_not_taken_are_in_its_limit_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(folder.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let bytes = Gauge::default();
    let in_flight = InFlight::new(Limits { requests: 9, client_bytes: 1, bytes: 1 << 20 }, bytes.clone());
    let slot = |name: &str| in_flight.begin(Client::Name(name.to_owned())).unwrap();
    let (slow, other) = (slot("slow"), slot("other"));
    let events = |slot: &Slot| counted_watch(slot.stream_memory()).events(store.clone(), None).boxed();
    let mut first = events(&slow);
    assert!(first.next().await.is_some());
    let page = bytes.get();
    assert!(page > 0);
    assert!(events(&slow).next().await.is_none(), "exceeds the limit of the client");
    assert!(events(&other).next().await.is_some(), "another client");
    assert_eq!(bytes.get(), page, "the page of a watch that was dropped");
    // Two other objects, and the end of the snapshot.
    for _ in 0..3 {
        assert!(first.next().await.is_some());
    }
    assert_eq!(bytes.get(), 0);
    let second = events(&slow).next().await;
    assert!(second.is_some(), "the client has taken everything");
    drop((first, slow, other));
    assert_eq!(bytes.get(), 0);
}

/// Writes a profile with so many bytes in a field of a later release. Returns the revision.
async fn write(store: &Store, path: &str, bytes: usize) -> i64 {
    let (key, more) = ("t:p", "x".repeat(bytes));
    let body = json!({"key": key, "tenantName": "t", "profileName": "p", "more": more}).to_string();
    match store.commit(Txn::new().put(path, body)).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict => panic!("a transaction without guards"),
    }
}

#[tokio::test]
async fn a_slow_client_that_gets_all_objects_again_keeps_its_connection_until_it_has_the_changes() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(folder.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let path = format!("{MODELDB}netprofile/t:p");
    let mut revisions = Vec::new();
    for _ in 0..10 {
        revisions.push(write(&store, &path, 0).await);
    }
    let (first, last) = (revisions[0], revisions[9]);
    let after = || Arc::new(ObjectWatch { after: Some(first), ..watch("netprofiles", Scope::All) });
    let following = |changes: Vec<Batch>| Following {
        changes: Some(stream::iter(changes).boxed()),
        catch_up: CatchUp::new(first, last),
        ..Following::new(after(), store.clone())
    };
    // The client is slow: its stream ends after some changes.
    let kv = store.get(&path).await.unwrap().unwrap();
    let apply =
        |revision: &i64| Update { revision: *revision, event: event::Event::Apply(path.clone(), kv.clone()) };
    let batch = Batch { updates: revisions[1..4].iter().map(apply).collect(), ..Batch::default() };
    let mut slow = following(vec![batch]);
    let mut sent = 0;
    while slow.position < Some(last) {
        let (events, next) = slow.step().await.unwrap();
        (sent, slow) = (sent + events.len(), next.unwrap());
    }
    assert!(sent > 3 && slow.catch_up.is_none(), "{sent} changes");
    // Then it connects again, and continues after its last event.
    slow.changes = Some(stream::empty().boxed());
    slow.links.next = Some(0);
    assert!(slow.step().await.is_none());
    // Without progress it does so, too.
    assert!(following(vec![]).step().await.is_none());
}

async fn wait_until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(PATIENCE, holds).await.unwrap();
}

#[tokio::test]
async fn what_waits_for_a_client_that_does_not_read_is_limited_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(folder.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let path = format!("{MODELDB}netprofile/t:p");
    let watch = watch("netprofiles", Scope::All);
    let first = write(&store, &path, 0).await;
    write(&store, &path, 0).await;
    let mut changes = watch.changes_after(&store, first);
    assert_eq!(changes.next().await.unwrap().updates.len(), 1);
    // The client takes nothing more.
    write(&store, &path, 0).await;
    wait_until(|| watch.backlogs.bytes() > 0).await;
    for _ in 0..12 {
        write(&store, &path, 1_000_000).await;
    }
    wait_until(|| watch.backlogs.bytes() == 0).await;
    assert!(changes.next().await.is_none());
    assert_eq!(watch.backlogs.bytes(), 0);
}

/// Earlier changes come as fast as the store has them, also more than may wait.
#[tokio::test]
async fn a_client_that_gets_earlier_changes_keeps_its_connection_until_it_has_them() {
    const CHANGES: usize = 40;
    let folder = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(folder.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let path = format!("{MODELDB}netprofile/t:p");
    let first = write(&store, &path, 0).await;
    let mut last = first;
    for _ in 0..CHANGES {
        last = write(&store, &path, 500_000).await;
    }
    let watch = Arc::new(ObjectWatch { after: Some(first), ..watch("netprofiles", Scope::All) });
    let history = CatchUp::new(first, last);
    let mut following = Following { history, ..Following::new(watch, store.clone()) };
    let mut sent = 0;
    while following.position < Some(last) {
        let (events, next) = following.step().await.unwrap();
        (sent, following) = (sent + events.len(), next.unwrap());
        // Meanwhile the store sends more than may wait.
        sleep(POLL_INTERVAL).await;
    }
    assert_eq!((sent, following.history), (CHANGES, None));
}

#[test]
fn a_client_that_has_the_changes_does_not_catch_up() {
    assert_eq!((CatchUp::new(5, 5), CatchUp::new(6, 5)), (None, None));
    assert_eq!(CatchUp::new(4, 5), Some(CatchUp { until: 5, from: 4 }));
}
