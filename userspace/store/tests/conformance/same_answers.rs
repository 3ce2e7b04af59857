//! Random requests get the answers of a model that is too simple to be wrong: a full copy of all keys for
//! every revision. The embedded store is held to it, and so is etcd, to know that the model is right.

use crate::peer::{Kind, Peer};
use anyhow::{Context, Result};
use contiv_store::embedded;
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions, KeyValue, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use tokio::runtime::Runtime;

#[derive(Clone, Debug)]
enum Request {
    One(Op),
    Txn {
        compare: Vec<(Target, CompareOp, Key, u8)>,
        then: Vec<Op>,
        otherwise: Vec<Op>,
    },
    /// So many revisions ago.
    Compact(i64),
    Restart,
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: Key, value: u8, prev: bool },
    Delete { from: Key, to: Option<Key>, prev: bool },
    Get { from: Key, to: Option<Key>, back: Option<i64>, limit: i64, sort: (SortTarget, SortOrder) },
}

#[derive(Clone, Copy, Debug)]
enum Target {
    Version,
    Create,
    Mod,
    Value,
}

/// Few, so that requests meet.
type Key = u8;

fn name(key: Key) -> String {
    format!("k{key}")
}

fn text(value: u8) -> String {
    format!("v{value}")
}

fn keys() -> impl Strategy<Value = Key> {
    0_u8..6
}

fn op() -> impl Strategy<Value = Op> {
    use SortTarget::{Create, Key as ByKey, Mod, Value, Version};
    let targets = prop::sample::select(vec![ByKey, Version, Create, Mod, Value]);
    let orders = prop::sample::select(vec![SortOrder::None, SortOrder::Ascend, SortOrder::Descend]);
    prop_oneof![
        5 => (keys(), 0_u8..4, any::<bool>()).prop_map(|(key, value, prev)| Op::Put { key, value, prev }),
        2 => (keys(), prop::option::of(keys()), any::<bool>())
            .prop_map(|(from, to, prev)| Op::Delete { from, to, prev }),
        4 => (keys(), prop::option::of(keys()), prop::option::of(-1_i64..12), 0_i64..4, (targets, orders))
            .prop_map(|(from, to, back, limit, sort)| Op::Get { from, to, back, limit, sort }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let target = prop::sample::select(vec![Target::Version, Target::Create, Target::Mod, Target::Value]);
    let compare = (target, prop::sample::select(vec![Equal, NotEqual, Greater, Less]), keys(), 0_u8..8);
    let ops = || prop::collection::vec(op(), 0..4);
    prop_oneof![
        8 => op().prop_map(Request::One),
        4 => (prop::collection::vec(compare, 0..3), ops(), ops())
            .prop_map(|(compare, then, otherwise)| Request::Txn { compare, then, otherwise }),
        1 => (-1_i64..20).prop_map(Request::Compact),
        1 => Just(Request::Restart),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Kv {
    value: String,
    create: i64,
    modified: i64,
    version: i64,
}

/// One line; what clients can see, and no more.
type Answer = String;

fn line<'a>(kvs: impl IntoIterator<Item = (&'a str, &'a Kv)>) -> String {
    let line = kvs
        .into_iter()
        .map(|(k, kv)| format!("{k}={} c{} m{} n{}", kv.value, kv.create, kv.modified, kv.version));
    line.collect::<Vec<_>>().join(", ")
}

/// By revision, from 1 (empty) on.
struct Model {
    past: Vec<BTreeMap<String, Kv>>,
    compacted: i64,
}

impl Model {
    fn new() -> Model {
        Model { past: vec![BTreeMap::new(), BTreeMap::new()], compacted: -1 }
    }

    fn revision(&self) -> i64 {
        self.past.len() as i64 - 1
    }

    fn now(&self) -> &BTreeMap<String, Kv> {
        &self.past[self.past.len() - 1]
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::One(op) => self.all(std::slice::from_ref(op)),
            Request::Txn { compare, then, otherwise } => {
                if duplicate(then) || duplicate(otherwise) {
                    return "InvalidArgument etcdserver: duplicate key given in txn request".into();
                }
                let holds = compare.iter().all(|c| self.holds(c));
                let answer = self.all(if holds { then } else { otherwise });
                if answer.starts_with("OutOfRange") { answer } else { format!("{holds} {answer}") }
            }
            Request::Compact(back) => {
                let to = self.revision() - back;
                if to <= self.compacted {
                    return "OutOfRange etcdserver: mvcc: required revision has been compacted".into();
                }
                if to > self.revision() {
                    return "OutOfRange etcdserver: mvcc: required revision is a future revision".into();
                }
                self.compacted = to;
                "compacted".into()
            }
            Request::Restart => "restarted".into(),
        }
    }

    fn holds(&self, (target, op, key, wanted): &(Target, CompareOp, Key, u8)) -> bool {
        let kv = self.now().get(&name(*key));
        let wanted_number = i64::from(*wanted);
        let order = match target {
            Target::Value => match kv {
                Some(kv) => kv.value.cmp(&text(*wanted)),
                None => return false,
            },
            Target::Version => kv.map_or(0, |kv| kv.version).cmp(&wanted_number),
            Target::Create => kv.map_or(0, |kv| kv.create).cmp(&wanted_number),
            Target::Mod => kv.map_or(0, |kv| kv.modified).cmp(&wanted_number),
        };
        match op {
            CompareOp::Equal => order.is_eq(),
            CompareOp::NotEqual => order.is_ne(),
            CompareOp::Greater => order.is_gt(),
            CompareOp::Less => order.is_lt(),
        }
    }

    /// All of them at one revision, or none.
    fn all(&mut self, ops: &[Op]) -> Answer {
        for op in ops {
            if let Op::Get { back: Some(back), .. } = op {
                let at = ago(self.revision(), *back);
                if at > self.revision() {
                    return "OutOfRange etcdserver: mvcc: required revision is a future revision".into();
                }
                if at > 0 && at < self.compacted {
                    return "OutOfRange etcdserver: mvcc: required revision has been compacted".into();
                }
            }
        }
        let (begin, revision) = (self.revision(), self.revision() + 1);
        let (mut now, mut changed, mut answers) = (self.now().clone(), false, Vec::new());
        for op in ops {
            answers.push(match op {
                Op::Put { key, value, prev } => {
                    changed = true;
                    let old = now.get(&name(*key)).cloned();
                    let (create, version) =
                        old.as_ref().map_or((revision, 1), |kv| (kv.create, kv.version + 1));
                    now.insert(name(*key), Kv { value: text(*value), create, modified: revision, version });
                    format!("put {}", line(old.iter().filter(|_| *prev).map(|kv| ("", kv))))
                }
                Op::Delete { from, to, prev } => {
                    let gone: Vec<String> = now.keys().filter(|k| inside(k, *from, *to)).cloned().collect();
                    changed |= !gone.is_empty();
                    let gone: Vec<_> = gone.iter().filter_map(|k| now.remove_entry(k)).collect();
                    let found = line(gone.iter().filter(|_| *prev).map(|(k, kv)| (k.as_str(), kv)));
                    format!("deleted {} {found}", gone.len())
                }
                Op::Get { from, to, back, limit, sort } => {
                    let at = back.map_or(0, |back| ago(begin, back));
                    let seen = if at > 0 { &self.past[at as usize] } else { &now };
                    get(seen, *from, *to, *limit, *sort)
                }
            });
        }
        if changed {
            self.past.push(now);
        }
        format!("@{} {}", self.revision(), answers.join("; "))
    }

    /// The events of a watch on all keys that begins at `from`.
    fn changes(&self, from: i64) -> Vec<String> {
        let mut found = Vec::new();
        for revision in from..=self.revision() {
            let (before, now) = (&self.past[revision as usize - 1], &self.past[revision as usize]);
            let puts = now.iter().filter(|(_, kv)| kv.modified == revision);
            let mut lines: Vec<String> = puts.map(|(k, kv)| line([(k.as_str(), kv)])).collect();
            let gone = before.keys().filter(|k| !now.contains_key(*k));
            lines.extend(gone.map(|k| format!("-{k} m{revision}")));
            // Within one revision the order is that of the operations, which is not compared here.
            lines.sort();
            found.extend(lines);
        }
        found
    }
}

/// Never before the beginning: what a negative revision means depends on where etcd is asked.
fn ago(revision: i64, back: i64) -> i64 {
    (revision - back).max(0)
}

fn inside(key: &str, from: Key, to: Option<Key>) -> bool {
    match to {
        None => key == name(from),
        Some(to) => key >= name(from).as_str() && key < name(to).as_str(),
    }
}

fn duplicate(ops: &[Op]) -> bool {
    let deletes = |key: Key| {
        ops.iter().any(|op| matches!(op, Op::Delete { from, to, .. } if inside(&name(key), *from, *to)))
    };
    let puts: Vec<Key> =
        ops.iter().filter_map(|op| if let Op::Put { key, .. } = op { Some(*key) } else { None }).collect();
    puts.iter().enumerate().any(|(i, key)| puts[..i].contains(key) || deletes(*key))
}

fn get(
    seen: &BTreeMap<String, Kv>,
    from: Key,
    to: Option<Key>,
    limit: i64,
    (target, order): (SortTarget, SortOrder),
) -> String {
    let mut found: Vec<(&str, &Kv)> =
        seen.iter().filter(|(k, _)| inside(k, from, to)).map(|(k, kv)| (k.as_str(), kv)).collect();
    let count = found.len();
    let by = |(ka, a): &(&str, &Kv), (kb, b): &(&str, &Kv)| match target {
        SortTarget::Key => ka.cmp(kb),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create.cmp(&b.create),
        SortTarget::Mod => a.modified.cmp(&b.modified),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    match order {
        SortOrder::None | SortOrder::Ascend => found.sort_by(|a, b| by(a, b).then(a.0.cmp(b.0))),
        SortOrder::Descend => found.sort_by(|a, b| by(b, a).then(a.0.cmp(b.0))),
    }
    let more = limit > 0 && count > limit as usize;
    if more {
        found.truncate(limit as usize);
    }
    // The order of equal elements is unspecified: a limit that cuts through them cannot be compared.
    let line = if more && target != SortTarget::Key { String::new() } else { line(sorted(found)) };
    format!("got {count} {more} {line}")
}

fn sorted<'a>(mut found: Vec<(&'a str, &'a Kv)>) -> Vec<(&'a str, &'a Kv)> {
    found.sort_by_key(|(k, _)| *k);
    found
}

/// The same requests over the wire.
struct Wire {
    client: Client,
    revision: i64,
}

impl Wire {
    async fn connect(endpoint: &str) -> Result<Wire> {
        Ok(Wire { client: Client::connect([endpoint], None).await?, revision: 1 })
    }

    async fn answer(&mut self, request: &Request) -> Result<Answer> {
        let answer = match request {
            Request::One(op) => self.txn(&[], std::slice::from_ref(op), &[], false).await,
            Request::Txn { compare, then, otherwise } => self.txn(compare, then, otherwise, true).await,
            Request::Compact(back) => {
                self.client.compact(self.revision - back, None).await.map(|_| "compacted".to_owned())
            }
            Request::Restart => Ok("restarted".to_owned()),
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(Error::GRpcStatus(status)) => Ok(format!("{:?} {}", status.code(), status.message())),
            Err(e) => Err(e.into()),
        }
    }

    async fn txn(
        &mut self,
        compare: &[(Target, CompareOp, Key, u8)],
        then: &[Op],
        otherwise: &[Op],
        found: bool,
    ) -> Result<Answer, Error> {
        let compares = compare.iter().map(|(target, op, key, wanted)| match target {
            Target::Version => Compare::version(name(*key), *op, i64::from(*wanted)),
            Target::Create => Compare::create_revision(name(*key), *op, i64::from(*wanted)),
            Target::Mod => Compare::mod_revision(name(*key), *op, i64::from(*wanted)),
            Target::Value => Compare::value(name(*key), *op, text(*wanted)),
        });
        let ops = |ops: &[Op]| ops.iter().map(|op| self.op(op)).collect::<Vec<_>>();
        let txn = Txn::new().when(compares.collect::<Vec<_>>()).and_then(ops(then)).or_else(ops(otherwise));
        let response = self.client.txn(txn).await?;
        let taken = if response.succeeded() { then } else { otherwise };
        let answers: Vec<String> =
            response.op_responses().iter().zip(taken).map(|(response, op)| answer(response, op)).collect();
        self.revision = response.header().map_or(0, |h| h.revision());
        let answer = format!("@{} {}", self.revision, answers.join("; "));
        Ok(if found { format!("{} {answer}", response.succeeded()) } else { answer })
    }

    fn op(&self, op: &Op) -> TxnOp {
        match op {
            Op::Put { key, value, prev } => {
                let options = if *prev { PutOptions::new().with_prev_key() } else { PutOptions::new() };
                TxnOp::put(name(*key), text(*value), Some(options))
            }
            Op::Delete { from, to, prev } => {
                let options = if *prev { DeleteOptions::new().with_prev_key() } else { DeleteOptions::new() };
                let options = if let Some(to) = to { options.with_range(name(*to)) } else { options };
                TxnOp::delete(name(*from), Some(options))
            }
            Op::Get { from, to, back, limit, sort: (target, order) } => {
                let mut options = GetOptions::new().with_limit(*limit);
                // The library has "none" sort by key, which is the default anyway.
                if (*target, *order) != (SortTarget::Key, SortOrder::None) {
                    options = options.with_sort(*target, *order);
                }
                if let Some(back) = back {
                    options = options.with_revision(ago(self.revision, *back));
                }
                if let Some(to) = to {
                    options = options.with_range(name(*to));
                }
                TxnOp::get(name(*from), Some(options))
            }
        }
    }

    /// Everything from a revision up to the present, in the model's words.
    async fn changes(&mut self, from: i64, count: usize) -> Result<Vec<String>> {
        let options = WatchOptions::new().with_all_keys().with_start_revision(from);
        let mut stream = self.client.watch("", Some(options)).await?;
        let mut found: Vec<(i64, String)> = Vec::new();
        while found.len() < count {
            let response = stream.message().await?.context("the watch ended")?;
            for event in response.events() {
                let Some(kv) = event.kv() else { continue };
                found.push((
                    kv.mod_revision(),
                    match event.event_type() {
                        EventType::Put => line([(kv.key_str()?, &wire_kv(kv))]),
                        EventType::Delete => format!("-{} m{}", kv.key_str()?, kv.mod_revision()),
                    },
                ));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, line)| line).collect())
    }
}

fn wire_kv(kv: &KeyValue) -> Kv {
    Kv {
        value: kv.value_str().unwrap_or("?").to_owned(),
        create: kv.create_revision(),
        modified: kv.mod_revision(),
        version: kv.version(),
    }
}

fn answer(response: &TxnOpResponse, op: &Op) -> String {
    let kvs = |kvs: &[KeyValue]| -> Vec<(String, Kv)> {
        kvs.iter().map(|kv| (kv.key_str().unwrap_or("?").to_owned(), wire_kv(kv))).collect()
    };
    fn pairs(kvs: &[(String, Kv)]) -> Vec<(&str, &Kv)> {
        kvs.iter().map(|(k, kv)| (k.as_str(), kv)).collect()
    }
    match response {
        TxnOpResponse::Put(put) => {
            let prev: Vec<Kv> = put.prev_key().into_iter().map(wire_kv).collect();
            format!("put {}", line(prev.iter().map(|kv| ("", kv))))
        }
        TxnOpResponse::Delete(delete) => {
            format!("deleted {} {}", delete.deleted(), line(pairs(&kvs(delete.prev_kvs()))))
        }
        TxnOpResponse::Get(get) => {
            let by_key = matches!(op, Op::Get { sort: (SortTarget::Key, _), .. });
            let kvs = kvs(get.kvs());
            let line = if get.more() && !by_key { String::new() } else { line(sorted(pairs(&kvs))) };
            format!("got {} {} {line}", get.count(), get.more())
        }
        TxnOpResponse::Txn(_) => "an unexpected transaction".into(),
    }
}

/// All events that are still available are equal. A deletion at the compacted revision itself may be missing.
async fn same_changes(wire: &mut Wire, model: &Model) -> Result<(), TestCaseError> {
    let from = (model.compacted + 1).max(2);
    let expected = model.changes(from);
    let found =
        wire.changes(from, expected.len()).await.map_err(|e| TestCaseError::fail(format!("{e:#}")))?;
    prop_assert_eq!(found, expected);
    Ok(())
}

fn runner(cases: u32, max_shrink_iters: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters, ..Config::default() })
}

fn fail(error: impl std::fmt::Display) -> TestCaseError {
    TestCaseError::fail(format!("{error:#}"))
}

#[test]
fn the_embedded_store_answers_as_the_model_does() -> Result<()> {
    let runtime = Runtime::new()?;
    runner(64, 1000).run(&prop::collection::vec(request(), 1..80), |requests| {
        runtime.block_on(async {
            let dir = tempfile::tempdir()?;
            let open = || embedded::Server::open(dir.path(), (Ipv4Addr::LOCALHOST, 0).into());
            let mut server = open().await.map_err(fail)?;
            let mut model = Model::new();
            let mut wire = Wire::connect(&server.endpoint()).await.map_err(fail)?;
            for request in &requests {
                if matches!(request, Request::Restart) {
                    server.shutdown().await.map_err(fail)?;
                    server = open().await.map_err(fail)?;
                    let revision = wire.revision;
                    wire = Wire::connect(&server.endpoint()).await.map_err(fail)?;
                    wire.revision = revision;
                }
                let (found, expected) = (wire.answer(request).await.map_err(fail)?, model.answer(request));
                prop_assert_eq!(found, expected, "{:?}", request);
            }
            same_changes(&mut wire, &model).await?;
            server.shutdown().await.map_err(fail)
        })
    })?;
    Ok(())
}

#[test]
fn etcd_answers_as_the_model_does() -> Result<()> {
    testkit::needs!(binary("etcd"));
    let runtime = Runtime::new()?;
    runner(6, 100).run(&prop::collection::vec(request(), 150..200), |requests| {
        let peer = Peer::start(Kind::Etcd).map_err(fail)?;
        runtime.block_on(async {
            let mut model = Model::new();
            let mut wire = Wire::connect(&peer.endpoint()).await.map_err(fail)?;
            // Without restarts: killed, etcd 3.4 forgets a compaction, and may count a revision more.
            for request in &requests {
                let (found, expected) = (wire.answer(request).await.map_err(fail)?, model.answer(request));
                prop_assert_eq!(found, expected, "{:?}", request);
            }
            same_changes(&mut wire, &model).await
        })
    })?;
    Ok(())
}
