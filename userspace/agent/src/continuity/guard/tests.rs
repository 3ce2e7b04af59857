use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use contiv_model::{
    key::{ObjectType, POLICIES},
    service::Providers,
};
use contiv_store::{Config, Outcome, Relisted, Txn, embedded};

use serde_json::json;

use super::*;
use crate::{
    source::prefixes,
    state::{self, Rejected},
};

fn node() -> Node {
    Node { host: "h".into(), vtep: [192, 168, 0, 1].into() }
}

const SERVICE: &str = "web:t";
/// Slices of the service; a transaction of netmaster can change all of them.
const SLICES: usize = 120;
const ADDRESS: &str = "10.1.1.2";

/// A transaction that leaves the address in one slice only.
fn move_to(slice: usize) -> Txn {
    (0..SLICES).fold(Txn::new(), |txn, number| {
        let id = if number == 0 { SERVICE.to_owned() } else { format!("{SERVICE}/{number}") };
        let providers = Providers {
            service_name: SERVICE.to_owned(),
            providers: (number == slice).then(|| vec![ADDRESS.to_owned()]),
            id: id.clone(),
        };
        txn.put(Key::Providers(id.as_str().into()).to_string(), serde_json::to_vec(&providers).unwrap())
    })
}

async fn committed(store: &Store, txn: Txn) -> i64 {
    match store.commit(txn).await.unwrap() {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict => panic!("a transaction without guards failed"),
    }
}

/// Time after which the agent must have decided.
const DECIDED: Duration = Duration::from_secs(6);
/// Time limit on a busy machine.
const AT_LAST: Duration = Duration::from_secs(60);

/// Writes `before`, lets an agent read it, and commits `changes` before the agent receives the next one. Returns the
/// reason why the agent no longer applies the store, if that happens within the limit.
async fn regression_by(before: Txn, changes: Vec<Txn>, limit: Duration) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    committed(&store, before).await;
    let (mut writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    let (mut guard, continuity) = Guard::open(store.clone(), node(), reader.clone(), memory).unwrap();
    let mut following = std::pin::pin!(guard.follow(&mut writer));
    tokio::select! {
        _ = &mut following => panic!("the watches have ended"),
        () = reader.synced() => {}
    }
    for txn in changes {
        committed(&store, txn).await;
    }
    let mut regression = continuity.regression.clone();
    tokio::select! {
        _ = &mut following => None,
        () = sleep(limit) => None,
        regressed = regression.wait_for(Option::is_some) => regressed.unwrap().clone().map(|regression| regression.why),
    }
}

fn put(txn: Txn, key: &Key, body: &serde_json::Value) -> Txn {
    txn.put(key.to_string(), serde_json::to_vec(body).unwrap())
}

fn network() -> (Key, Key, serde_json::Value) {
    let state = contiv_model::network::State {
        id: "n.t".into(),
        tenant: "t".into(),
        network_name: "n".into(),
        nw_type: "data".into(),
        pkt_tag_type: "vlan".into(),
        pkt_tag: 7,
        subnet_ip: "10.9.0.0".into(),
        subnet_len: 24,
        ..Default::default()
    };
    let object = Key::Object(ObjectType::Network, "t:n".into());
    (Key::Network("n.t".into()), object, serde_json::to_value(&state).unwrap())
}

#[tokio::test]
async fn an_object_that_is_created_again_is_no_loss() {
    let (record, object, body) = network();
    let both = || put(put(Txn::new(), &record, &body), &object, &json!({}));
    let deleted = Txn::new().delete(record.to_string()).delete(object.to_string());
    assert_eq!(regression_by(both(), vec![deleted, both()], DECIDED).await, None);
}

#[tokio::test]
async fn a_record_that_its_object_outlives_is_a_loss() {
    let (record, object, body) = network();
    let both = || put(put(Txn::new(), &record, &body), &object, &json!({}));
    let lost = Txn::new().delete(record.to_string());
    let touched = put(Txn::new(), &object, &json!({ "changed": true }));
    assert!(regression_by(both(), vec![lost, touched], AT_LAST).await.is_some());
}

/// An endpoint of a group on the node.
fn member(group: &str) -> (Key, serde_json::Value) {
    let id = format!("n.t-{group}");
    let state = contiv_model::endpoint::State {
        id: id.clone(),
        net_id: "n.t".into(),
        endpoint_id: group.to_owned(),
        endpoint_group_id: 1,
        endpoint_group_key: format!("{group}:t"),
        ip_address: "10.9.0.2".into(),
        mac_address: "02:02:0a:09:00:02".into(),
        homing_host: node().host.to_string(),
        ..Default::default()
    };
    (Key::Endpoint(id.as_str().into()), serde_json::to_value(&state).unwrap())
}

#[tokio::test]
async fn a_policy_is_detached_by_a_change_before_others() {
    let policy = |group: &str| Key::Policy(format!("t:{group}:t:p").as_str().into());
    let attached = |txn, group, rules: &str| {
        let id = format!("t:{group}:t:p");
        let state =
            json!({ "id": id, "EpgPolicyKey": id, "EndpointGroupID": 1, "RuleMaps": {}, "rules": rules });
        put(txn, &policy(group), &state)
    };
    let group = |name: &str| Key::Object(ObjectType::EndpointGroup, format!("t:{name}"));
    let object = Key::Object(ObjectType::Policy, "t:p".into());
    let before = ["g1", "g2"].into_iter().fold(put(Txn::new(), &object, &json!({})), |txn, name| {
        // The node needs the policies of its endpoints' groups.
        let (key, member) = member(name);
        put(put(attached(txn, name, "old"), &group(name), &json!({})), &key, &member)
    });
    let detached = put(Txn::new(), &group("g1"), &json!({ "policies": [] })).delete(policy("g1").to_string());
    let other = attached(Txn::new(), "g2", "new");
    assert_eq!(regression_by(before.clone(), vec![detached, other], DECIDED).await, None);
    // Without a change of the group, the deletion was not made by netmaster.
    let lost = Txn::new().delete(policy("g1").to_string());
    assert!(regression_by(before, vec![lost], AT_LAST).await.is_some());
}

/// Later agents on the node report the same id, for which an operator may have accepted the store.
#[tokio::test]
async fn a_regression_of_an_earlier_release_gets_an_id() {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let (_writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    std::fs::write(memory.path(), r#"{"cluster":1,"revision":7,"regressed":"it was emptied"}"#).unwrap();
    let open = || {
        let (_, continuity) = Guard::open(store.clone(), node(), reader.clone(), memory.clone()).unwrap();
        continuity.regression.borrow().clone().unwrap()
    };
    let first = open();
    assert_eq!((first.id.len(), first.why.as_str()), (16, "it was emptied"));
    assert_eq!(open(), first);
}

/// The answer to the deletion may be lost, and the agent may be killed after it.
#[tokio::test]
async fn an_acceptance_is_in_the_file_before_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let (mut writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    let open = || Guard::open(store.clone(), node(), reader.clone(), memory.clone()).unwrap();
    let (mut guard, continuity) = open();
    guard.freeze("it was emptied".to_owned());
    let id = continuity.regression.borrow().clone().unwrap().id;
    let key = Key::AcceptedStore("h".into());
    let acceptance = put(Txn::new(), &key, &json!({ "host": "h", "regressionId": id }));
    committed(&store, acceptance).await;
    assert!(guard.try_release(&mut writer).await);
    let key = key.to_string();
    let exists = async || store.get(&key).await.unwrap().is_some();
    assert!(exists().await);

    drop(guard);
    let (mut guard, continuity) = open();
    assert_eq!(*continuity.regression.borrow(), None);
    let deleted = async {
        while exists().await {
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        _ = guard.follow(&mut writer) => panic!("the watches have ended"),
        deleted = tokio::time::timeout(AT_LAST, deleted) => deleted.unwrap(),
    }
    assert_eq!(*continuity.regression.borrow(), None);
}

/// A server may send changes of several revisions in one message.
#[tokio::test]
async fn deletions_of_one_message_have_their_own_revisions() {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let (_writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    let (mut guard, _continuity) = Guard::open(store, node(), reader, memory).unwrap();
    let source = Source::from(POLICIES);
    let policy = |group: &str| Key::Policy(format!("t:{group}:t:p").as_str().into());
    let update = |revision, event| Update { source: source.clone(), revision, event };
    let other = Rejected { key: policy("g2").to_string(), why: String::new() };
    let mut batch = Batch {
        source: source.clone(),
        kind: BatchKind::Updates,
        relisted: None,
        resumed: false,
        identity: None,
        newest: None,
        updates: vec![
            update(100, Event::Delete(policy("g1"))),
            update(101, Event::Apply(policy("g2"), Err(other))),
        ],
    };
    let revisions = |guard: &Guard, batch: &Batch| -> Vec<_> {
        let deleted = guard.deleted(batch);
        deleted.iter().map(|deletion| (deletion.earliest, deletion.latest)).collect()
    };
    assert_eq!(revisions(&guard, &batch), [(100, 100)]);

    // A later listing reports deletions at any time since the last batch.
    guard.seen.insert(source, 50);
    let position = Position { cluster: 1, revision: 100 };
    batch.relisted = Some(Relisted { position, divergence: None });
    assert_eq!(revisions(&guard, &batch), [(51, 100)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_of_one_transaction_change_in_one_step() {
    let directory = tempfile::tempdir().unwrap();
    let server = embedded::Server::open(directory.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
    let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
    let commit = async |slice| committed(&store, move_to(slice)).await;
    commit(0).await;
    let (mut writer, _, reader, _) = state::new(prefixes());
    let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
    let (mut guard, _continuity) = Guard::open(store.clone(), node(), reader.clone(), memory).unwrap();
    let following = tokio::spawn(async move { guard.follow(&mut writer).await });
    reader.synced().await;

    let (done, watched) = (Arc::new(AtomicBool::default()), reader.clone());
    let seen_in_parts = {
        let done = done.clone();
        thread::spawn(move || {
            let count = || watched.with(|state| state.providers(&SERVICE.into()).len());
            while !done.load(Ordering::Relaxed) {
                if count() != 1 {
                    return true;
                }
            }
            false
        })
    };
    for round in 1..=60 {
        // From the first to the last slice and back.
        let revision = commit((round % 2) * (SLICES - 1)).await;
        reader.caught_up(&[(Key::Providers(SERVICE.into()), revision)], None).await;
    }
    done.store(true, Ordering::Relaxed);
    assert!(!seen_in_parts.join().unwrap(), "a reader saw a part of a transaction");
    following.abort();
}
