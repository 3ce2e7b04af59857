//! Changes that are too large for one transaction of the store: written down first, then carried out.
//!
//! etcd takes 128 operations and 1.5 MB at once. A larger change is cut into steps that the store takes, and each step is
//! written under a key of its own. Then one key more, the head, says that the change is decided: before it, nothing
//! has happened; from it on, the change is carried out whole, by this leader or, if it dies, by the next one before
//! that does anything else. The transaction of a step also deletes what the step was written down in.
//!
//! Who reads the store meanwhile sees each key either before or after the change. A whole policy on a group is one key.

use std::ops::ControlFlow;
use std::time::Duration;

use contiv_model::key::POLICY_RULES;
use contiv_store::election::Leadership;
use contiv_store::{Error, Guard, MAX_TXN_OPS, Op, Outcome, Store, Txn};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::sleep;

use crate::cache::Revisions;
use crate::problem::one_line;

const PREFIX: &str = "/contiv.io/master/pending/";
/// There from the decision until the last step is done.
pub const HEAD: &str = "/contiv.io/master/pending/head";
/// The leader's lock, guarded and put, the deletions of a step's key and of the head go with the operations of a step.
const STEP_OPS: usize = MAX_TXN_OPS - 5;
/// Keys and values of a step, unless a single value has more.
const STEP_BYTES: usize = 1 << 20;
/// What is written down is longer than the transaction that it becomes, so that the store takes that, too.
const MARGIN: usize = 64;
const RETRY: Duration = Duration::from_millis(200);

/// What a large change came to.
pub(super) enum Done {
    Committed(Revisions),
    /// The store has changed meanwhile: nothing was written.
    Conflict,
    /// Another leads. If the change was decided, that one carries it out.
    Deposed,
}

/// A change that is written down.
pub(super) struct Intent {
    name: String,
    steps: Vec<Vec<Op>>,
    /// What is written down of each step.
    written: Vec<Vec<u8>>,
    head: Vec<u8>,
}

/// The value of the head.
#[derive(Serialize, Deserialize)]
struct Head {
    name: String,
    steps: usize,
}

/// The value of a step's key.
#[derive(Serialize, Deserialize)]
struct Step {
    put: Map<String, Value>,
    delete: Vec<String>,
}

/// Does the store take it in one transaction, with the leader's guard? See [`Leadership::commit`].
pub(super) fn fits(txn: &Txn) -> bool {
    let sizes = || txn.ops.iter().map(size);
    // A single value of such a size has to be taken in any case.
    let bytes = sizes().sum::<usize>() - sizes().max().unwrap_or(0);
    txn.ops.len() + 2 <= MAX_TXN_OPS && txn.guards.len() < MAX_TXN_OPS && bytes <= STEP_BYTES
}

/// Bytes of the key and the value.
pub(super) fn size(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}

impl Intent {
    /// `name` is of no other intent that the store may have keys of. Fails when a value is no JSON: what cannot be
    /// written down is not begun.
    pub(super) fn new(name: String, mut ops: Vec<Op>) -> serde_json::Result<Intent> {
        // What nodes read comes first, what follows from it and is for people comes last.
        ops.sort_by_key(|op| op.key().starts_with(POLICY_RULES));
        let mut steps: Vec<Vec<Op>> = vec![];
        let mut bytes = 0;
        for op in ops {
            bytes += size(&op);
            match steps.last_mut() {
                Some(step) if step.len() < STEP_OPS && bytes <= STEP_BYTES => step.push(op),
                _ => {
                    bytes = size(&op);
                    steps.push(vec![op]);
                }
            }
        }
        let written = steps.iter().map(|ops| encode(ops)).collect::<serde_json::Result<_>>()?;
        let head = serde_json::to_vec(&Head { name: name.clone(), steps: steps.len() })?;
        Ok(Intent { name, steps, written, head })
    }

    fn key(&self, step: usize) -> String {
        format!("{PREFIX}{}/{step:06}", self.name)
    }

    /// Writes it down and carries it out, if the `guards` hold. After an error nothing has happened.
    pub(super) async fn commit(
        self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<Done, Error> {
        let written = self.write_down(store, leadership, guards).await;
        let done = match written {
            Ok(Outcome::Committed { .. }) => return Ok(self.carry_out(leadership).await),
            Ok(Outcome::Conflict) => Ok(Done::Conflict),
            Err(error) => Err(error),
        };
        if let Err(error) =
            sweep(leadership, &(0..self.steps.len()).map(|i| self.key(i)).collect::<Vec<_>>()).await
        {
            tracing::debug!(
                error = one_line(&error),
                "what was written down stays until the next leader starts"
            );
        }
        done
    }

    /// The steps, and then the head.
    async fn write_down(
        &self,
        store: &Store,
        leadership: &Leadership,
        guards: Vec<Guard>,
    ) -> Result<Outcome, Error> {
        let mut guards = guards.chunks(STEP_OPS);
        for (n, written) in self.written.iter().enumerate() {
            let txn = Txn {
                guards: guards.next().unwrap_or_default().to_vec(),
                ops: vec![Op::Put { key: self.key(n), value: written.clone().into(), lease: None }],
            };
            if leadership.commit(txn).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
        }
        for rest in guards {
            let txn = Txn { guards: rest.to_vec(), ops: vec![] };
            if leadership.commit(txn).await? == Outcome::Conflict {
                return Ok(Outcome::Conflict);
            }
        }
        let txn = Txn::new().guard(Guard::absent(HEAD)).put(HEAD, self.head.clone());
        match leadership.commit(txn).await {
            Err(error) if error.outcome_unknown() => self.is_decided(store, leadership, error).await,
            result => result,
        }
    }

    /// The answer to the head was lost: has the store taken it?
    async fn is_decided(
        &self,
        store: &Store,
        leadership: &Leadership,
        lost: Error,
    ) -> Result<Outcome, Error> {
        while !leadership.is_lost() {
            let head = match leadership.resolve_pending().await {
                Ok(true) => store.get(HEAD).await,
                Ok(false) => return Err(lost),
                Err(error) => Err(error),
            };
            match head {
                Ok(Some(kv)) if read_head(&kv.value).is_some_and(|head| head.name == self.name) => {
                    return Ok(Outcome::Committed { revision: kv.mod_revision });
                }
                Ok(_) => return Err(lost),
                Err(error) => wait(leadership, &error).await,
            }
        }
        Err(lost)
    }

    /// The steps, until all are done or another leads.
    async fn carry_out(self, leadership: &Leadership) -> Done {
        let mut revisions = Revisions::default();
        let last = self.steps.len();
        for (n, ops) in self.steps.iter().enumerate() {
            let step = Op::Delete { key: self.key(n) };
            let head = (n + 1 == last).then(|| Op::Delete { key: HEAD.to_owned() });
            let keys: Vec<String> = ops.iter().map(|op| op.key().to_owned()).collect();
            let txn = Txn { guards: vec![], ops: ops.iter().cloned().chain([step]).chain(head).collect() };
            match persist(leadership, txn).await {
                ControlFlow::Continue(revision) => revisions.note(keys, revision),
                ControlFlow::Break(()) => return Done::Deposed,
            }
        }
        Done::Committed(revisions)
    }
}

/// What an earlier leader had decided and not carried out is carried out, and what it had not decided is forgotten.
/// Breaks when another leads.
pub(super) async fn finish(store: &Store, leadership: &Leadership) -> ControlFlow<()> {
    let found = loop {
        if leadership.is_lost() {
            return ControlFlow::Break(());
        }
        match store.list(PREFIX).await {
            Ok(found) => break found.items,
            Err(error) => wait(leadership, &error).await,
        }
    };
    let head = found.iter().find(|kv| kv.key == HEAD).and_then(|kv| read_head(&kv.value));
    let mut strays: Vec<String> = vec![];
    let mut steps = vec![];
    for kv in &found {
        match head.as_ref().filter(|head| kv.key.starts_with(&format!("{PREFIX}{}/", head.name))) {
            Some(_) => steps.push((kv.key.clone(), decode(&kv.key, &kv.value))),
            None => strays.push(kv.key.clone()),
        }
    }
    if !steps.is_empty() {
        tracing::info!(steps = steps.len(), "carrying out a change that an earlier leader had decided");
    }
    for (key, ops) in steps {
        let ops = ops.into_iter().chain([Op::Delete { key }]).collect();
        if persist(leadership, Txn { guards: vec![], ops }).await.is_break() {
            return ControlFlow::Break(());
        }
    }
    // With the head, when all is done.
    while let Err(error) = sweep(leadership, &strays).await {
        if leadership.is_lost() {
            return ControlFlow::Break(());
        }
        wait(leadership, &error).await;
    }
    ControlFlow::Continue(())
}

/// Deletes the keys.
async fn sweep(leadership: &Leadership, keys: &[String]) -> Result<(), Error> {
    for some in keys.chunks(STEP_OPS) {
        let ops = some.iter().map(|key| Op::Delete { key: key.clone() }).collect();
        // A conflict means that another leads, who finds them.
        let _deposed = leadership.commit(Txn { guards: vec![], ops }).await?;
    }
    Ok(())
}

/// Commits, however often it takes: the transaction can be repeated. Gives the revision.
async fn persist(leadership: &Leadership, txn: Txn) -> ControlFlow<(), i64> {
    while !leadership.is_lost() {
        match leadership.commit(txn.clone()).await {
            Ok(Outcome::Committed { revision }) => return ControlFlow::Continue(revision),
            Ok(Outcome::Conflict) => return ControlFlow::Break(()),
            Err(error) => wait(leadership, &error).await,
        }
    }
    ControlFlow::Break(())
}

async fn wait(leadership: &Leadership, error: &Error) {
    tracing::warn!(error = one_line(error), "a large change waits for the store");
    tokio::select! {
        () = leadership.lost() => {}
        () = sleep(RETRY) => {}
    }
}

fn read_head(value: &[u8]) -> Option<Head> {
    serde_json::from_slice(value).ok()
}

fn encode(ops: &[Op]) -> serde_json::Result<Vec<u8>> {
    let mut step = Step { put: Map::new(), delete: vec![] };
    for op in ops {
        match op {
            Op::Put { key, value, .. } => {
                step.put.insert(key.clone(), serde_json::from_slice(value)?);
            }
            Op::Delete { key } => step.delete.push(key.clone()),
        }
    }
    let mut value = serde_json::to_vec(&step)?;
    value.resize(value.len() + MARGIN * (ops.len() + 1), b' ');
    Ok(value)
}

fn decode(key: &str, value: &[u8]) -> Vec<Op> {
    let step: Step = match serde_json::from_slice(value) {
        Ok(step) => step,
        Err(error) => {
            tracing::error!(key, %error, "somebody has edited a change that was decided; this step of it is left out");
            return vec![];
        }
    };
    let puts = step.put.into_iter().filter_map(|(key, value)| {
        Some(Op::Put { key, value: serde_json::to_vec(&value).ok()?.into(), lease: None })
    });
    puts.chain(step.delete.into_iter().map(|key| Op::Delete { key })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, bytes: usize) -> Op {
        let value = serde_json::to_vec(&"x".repeat(bytes)).unwrap();
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    #[test]
    fn steps_are_of_a_size_that_the_store_takes_and_rules_for_people_come_last() {
        let rule = format!("{POLICY_RULES}r");
        let mut ops: Vec<Op> = vec![put(&rule, 1)];
        ops.extend((0..300).map(|n| put(&format!("k{n}"), 1)));
        ops.extend([put("big", 1_400_000), put("half", 600_000), put("half2", 600_000)]);
        let intent = Intent::new("1-1".into(), ops.clone()).unwrap();
        assert!(intent.steps.iter().all(|step| step.len() <= STEP_OPS));
        for step in &intent.steps {
            assert!(step.len() == 1 || step.iter().map(size).sum::<usize>() <= STEP_BYTES);
            let txn = step.iter().map(size).sum::<usize>() + intent.key(0).len() + HEAD.len();
            assert!(encode(step).unwrap().len() > txn, "what can be written down can be carried out");
            assert_eq!(decode("", &encode(step).unwrap()).len(), step.len());
        }
        let order: Vec<&Op> = intent.steps.iter().flatten().collect();
        assert_eq!((order.len(), order.last().map(|op| op.key())), (ops.len(), Some(rule.as_str())));
        assert!(!fits(&Txn { guards: vec![], ops }));
    }

    #[test]
    fn what_is_written_down_is_read_back_to_the_byte() {
        let body = r#"{"id":"b","a":1,"z":{"y":[],"x":null},"text":"ü\"\\"}"#;
        let ops = vec![
            Op::Put { key: "k".into(), value: body.as_bytes().to_vec().into(), lease: None },
            Op::Delete { key: "d".into() },
        ];
        assert_eq!(decode("", &encode(&ops).unwrap()), ops);
    }

    #[test]
    fn what_cannot_be_written_down_is_not_begun() {
        let op = Op::Put { key: "k".into(), value: b"no json".to_vec().into(), lease: None };
        assert!(Intent::new("1".into(), vec![op]).is_err());
    }

    /// A store of its own, and the leader of it.
    async fn led(dir: &std::path::Path) -> (contiv_store::embedded::Server, Store, Leadership) {
        let server = contiv_store::embedded::Server::open(dir, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = format!("http://{}", server.local_addr());
        let store = Store::connect(&contiv_store::Config::new([address])).await.unwrap();
        let leadership = lead(&store).await;
        (server, store, leadership)
    }

    async fn lead(store: &Store) -> Leadership {
        let timing = contiv_store::election::Timing {
            ttl: Duration::from_secs(30),
            staleness: Duration::from_secs(1),
        };
        contiv_store::election::campaign(store, "lock", "me", timing).await.unwrap()
    }

    async fn keys(store: &Store, prefix: &str) -> usize {
        store.list(prefix).await.unwrap().items.len()
    }

    fn many() -> Vec<Op> {
        (0..300).map(|n| put(&format!("k{n}"), 10)).collect()
    }

    #[tokio::test]
    async fn the_next_leader_carries_out_what_was_decided_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, store, leadership) = led(dir.path()).await;
        // Dies when all but the head is written.
        let undecided = Intent::new("1".into(), many()).unwrap();
        let txn = Txn::new().put(undecided.key(0), undecided.written[0].clone());
        let _committed = store.commit(txn).await.unwrap();
        assert!(finish(&store, &leadership).await.is_continue());
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));

        // Dies when the first step is carried out.
        let decided = Intent::new("2".into(), many()).unwrap();
        let guards = (0..300).map(|n| Guard::absent(format!("k{n}"))).collect();
        let outcome = decided.write_down(&store, &leadership, guards).await.unwrap();
        assert!(matches!(outcome, Outcome::Committed { .. }));
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (4, 0));
        let ops = decided.steps[0].iter().cloned().chain([Op::Delete { key: decided.key(0) }]).collect();
        let _committed = store.commit(Txn { guards: vec![], ops }).await.unwrap();
        leadership.resign().await.unwrap();
        let leadership = lead(&store).await;
        assert!(finish(&store, &leadership).await.is_continue());
        assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 300));
        assert!(finish(&store, &leadership).await.is_continue(), "there is nothing left to do");
    }

    #[tokio::test]
    async fn nothing_happens_when_a_guard_does_not_hold_or_another_leads() {
        let dir = tempfile::tempdir().unwrap();
        let (_server, store, leadership) = led(dir.path()).await;
        let _committed = store.commit(Txn::new().put("other", "1")).await.unwrap();
        for last in [0, 400] {
            // In the first transaction that checks any, or after the steps.
            let mut guards: Vec<Guard> = (0..400).map(|n| Guard::absent(format!("k{n}"))).collect();
            guards.insert(last, Guard::absent("other"));
            let done = Intent::new(format!("{last}"), many())
                .unwrap()
                .commit(&store, &leadership, guards)
                .await
                .unwrap();
            assert!(matches!(done, Done::Conflict));
            assert_eq!((keys(&store, PREFIX).await, keys(&store, "k").await), (0, 0));
        }
        let done =
            Intent::new("c".into(), many()).unwrap().commit(&store, &leadership, vec![]).await.unwrap();
        let Done::Committed(revisions) = done else { panic!("not committed") };
        for kv in store.list("k").await.unwrap().items {
            assert_eq!(revisions.of(&kv.key), kv.mod_revision);
        }

        let _committed = store.commit(Txn::new().delete("lock")).await.unwrap();
        let done =
            Intent::new("d".into(), vec![put("late", 1)]).unwrap().commit(&store, &leadership, vec![]).await;
        assert!(matches!(done, Ok(Done::Conflict)));
        assert_eq!(keys(&store, "late").await, 0);
    }
}
