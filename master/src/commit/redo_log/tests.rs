//! Redo logs on an embedded store.

use super::*;

fn put(key: &str, bytes: usize) -> Op {
    let value = serde_json::to_vec(&"x".repeat(bytes)).unwrap();
    Op::Put { key: key.into(), value: value.into(), lease: None }
}

#[test]
fn steps_fit_the_store_and_come_in_the_order_of_their_readers() {
    let [rule, object] = [format!("{POLICY_RULES}r"), format!("{MODELDB}global/global")];
    let mut ops: Vec<Op> = vec![put(&rule, 1), put(&object, 1)];
    ops.extend((0..300).map(|n| put(&format!("k{n}"), 1)));
    ops.extend([put("big", 1_400_000), put("half", 600_000), put("half2", 600_000)]);
    let log = RedoLog::new("1-1".into(), ops.clone()).unwrap();
    assert!(log.steps.iter().all(|step| step.len() <= STEP_OPS));
    for step in &log.steps {
        assert!(step.len() == 1 || step.iter().map(size).sum::<usize>() <= STEP_BYTES);
        let txn = step.iter().map(size).sum::<usize>() + log.key(0).len() + COMMIT_RECORD.len();
        assert!(encode(step).unwrap().len() > txn, "what can be encoded down can be carried out");
        assert_eq!(decode("", &encode(step).unwrap()).len(), step.len());
    }
    let order: Vec<&Op> = log.steps.iter().flatten().collect();
    let last: Vec<&str> = order.iter().rev().take(2).map(|op| op.key()).collect();
    assert_eq!((order.len(), last), (ops.len(), vec![rule.as_str(), object.as_str()]));
    assert!(!fits_one_txn(&Txn { guards: vec![], ops }));
}

#[test]
fn steps_are_decoded_byte_for_byte() {
    let body = r#"{"id":"b","a":1,"z":{"y":[],"x":null},"text":"ü\"\\"}"#;
    let ops = vec![
        Op::Put { key: "k".into(), value: body.as_bytes().to_vec().into(), lease: None },
        Op::Delete { key: "d".into() },
    ];
    assert_eq!(decode("", &encode(&ops).unwrap()), ops);
}

#[test]
fn a_log_with_invalid_json_is_rejected() {
    let op = Op::Put { key: "k".into(), value: b"no json".to_vec().into(), lease: None };
    assert!(RedoLog::new("1".into(), vec![op]).is_err());
}

/// Starts an embedded store and becomes its leader.
async fn start_leader(dir: &std::path::Path) -> (contiv_store::embedded::Server, Store, Leadership) {
    let server = contiv_store::embedded::Server::open(dir, ([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = server.endpoint();
    let store = Store::connect(&contiv_store::Config::new([address])).await.unwrap();
    let leadership = lead(&store).await;
    (server, store, leadership)
}

async fn lead(store: &Store) -> Leadership {
    let timing =
        contiv_store::election::Timing { ttl: Duration::from_secs(30), staleness: Duration::from_secs(1) };
    contiv_store::election::campaign(store, "lock", "me", timing).await.unwrap()
}

async fn keys(store: &Store, prefix: &str) -> usize {
    store.list(prefix).await.unwrap().items.len()
}

fn many() -> Vec<Op> {
    (0..300).map(|n| put(&format!("k{n}"), 10)).collect()
}

#[tokio::test]
async fn the_next_leader_applies_committed_logs_only() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, store, leadership) = start_leader(dir.path()).await;
    // The leader fails before the commit record is written.
    let uncommitted = RedoLog::new("1".into(), many()).unwrap();
    let txn = Txn::new().put(uncommitted.key(0), uncommitted.encoded[0].clone());
    let _committed = store.commit(txn).await.unwrap();
    assert!(recover(&store, &leadership).await.is_continue());
    assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));

    // The leader fails after the first step is applied.
    let committed = RedoLog::new("2".into(), many()).unwrap();
    let guards = (0..300).map(|n| Guard::absent(format!("k{n}"))).collect();
    let outcome = committed.write(&store, &leadership, guards).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed { .. }));
    assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (4, 0));
    let ops = committed.steps[0].iter().cloned().chain([Op::Delete { key: committed.key(0) }]).collect();
    let _committed = store.commit(Txn { guards: vec![], ops }).await.unwrap();
    leadership.resign().await.unwrap();
    let leadership = lead(&store).await;
    assert!(recover(&store, &leadership).await.is_continue());
    assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 300));
    assert!(recover(&store, &leadership).await.is_continue(), "there is nothing left to do");
}

#[tokio::test]
async fn a_failed_guard_or_lost_leadership_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, store, leadership) = start_leader(dir.path()).await;
    let _committed = store.commit(Txn::new().put("other", "1")).await.unwrap();
    for last in [0, 400] {
        // A failing guard in the first transaction, or after the steps.
        let mut guards: Vec<Guard> = (0..400).map(|n| Guard::absent(format!("k{n}"))).collect();
        guards.insert(last, Guard::absent("other"));
        let done = RedoLog::new(format!("{last}"), many())
            .unwrap()
            .commit(&store, &leadership, guards)
            .await
            .unwrap();
        assert!(matches!(done, LogOutcome::Conflict));
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));
    }
    let done = RedoLog::new("c".into(), many()).unwrap().commit(&store, &leadership, vec![]).await.unwrap();
    let LogOutcome::Committed(revisions) = done else { panic!("not committed") };
    for kv in store.list("k").await.unwrap().items {
        assert_eq!(revisions.of(&kv.key), kv.mod_revision);
    }

    let _committed = store.commit(Txn::new().delete("lock")).await.unwrap();
    let done =
        RedoLog::new("d".into(), vec![put("late", 1)]).unwrap().commit(&store, &leadership, vec![]).await;
    assert!(matches!(done, Ok(LogOutcome::Conflict)));
    assert_eq!(keys(&store, "late").await, 0);
}

/// Another program changes a guarded key after its guard was checked, and before the commit record
/// is written.
#[tokio::test]
async fn the_commit_record_is_written_only_while_all_guards_hold() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, store, leadership) = start_leader(dir.path()).await;
    for count in [50, 400] {
        let existing = |n: usize| format!("existing/{n:03}");
        let mut guards = vec![];
        for n in 0..count {
            let Outcome::Committed { revision } =
                store.commit(Txn::new().put(existing(n), "1")).await.unwrap()
            else {
                panic!("not committed")
            };
            guards.push(Guard::ModRevision { key: existing(n), revision });
        }
        for changed in [0, count - 1] {
            let log = RedoLog::new(format!("{count}-{changed}"), many()).unwrap();
            let Outcome::Committed { revision } = log.write_steps(&leadership, &guards).await.unwrap() else {
                panic!("the guards hold")
            };
            let before = store.get(&existing(changed)).await.unwrap().unwrap();
            let _committed = store.commit(Txn::new().put(existing(changed), "2")).await.unwrap();
            let at_commit = guards::at_commit(guards.clone(), revision);
            assert_eq!(
                log.decide(&store, &leadership, at_commit).await.unwrap(),
                Outcome::Conflict,
                "{changed}"
            );
            let now = store.get(&existing(changed)).await.unwrap().unwrap();
            let guard = |guard: &mut Guard| {
                if let Guard::ModRevision { key, revision } = guard
                    && *key == now.key
                {
                    assert_eq!(*revision, before.mod_revision);
                    *revision = now.mod_revision;
                }
            };
            guards.iter_mut().for_each(guard);
        }
        let log = RedoLog::new(format!("{count}"), many()).unwrap();
        let done = log.commit(&store, &leadership, guards).await.unwrap();
        assert!(matches!(done, LogOutcome::Committed(_)));
    }
}
