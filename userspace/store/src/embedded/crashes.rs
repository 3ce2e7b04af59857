//! Crashes of the store on a disk that loses writes: what was acknowledged is there afterwards, what
//! was not is there whole or not at all, and revisions continue.

use super::directory::Directory;
use super::disk::{Disk, DiskError};
use super::lossy_disk::{Event, LossyDisk, Random};
use super::span::Span;
use super::state::State;
use super::writer::{Command, Reply, Writer};
use etcd_client::proto::{
    PbCompactionRequest, PbDeleteRequest, PbPutRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Long enough not to expire by itself.
const TTL: i64 = 1_000_000;

/// Digest of the value, revision and lease of a key.
type Content = (u64, i64, i64);

fn digest(value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    revision: i64,
    compacted: i64,
    keys: BTreeMap<Vec<u8>, Content>,
    leases: BTreeSet<i64>,
}

#[derive(Clone, Debug)]
enum Act {
    /// Puts both keys of a pair, under a lease or 0.
    Put(u64, Vec<u8>, i64),
    /// Deletes both keys of a pair.
    Delete(u64),
    Grant(i64),
    Revoke(i64),
    Expire(i64),
    Compact(i64),
}

fn pair(id: u64) -> [Vec<u8>; 2] {
    [format!("/a/{id}").into_bytes(), format!("/b/{id}").into_bytes()]
}

impl Snapshot {
    fn of(state: &State) -> Snapshot {
        let all = Span::new(b"\0", b"\0");
        let keys = state.history.range(&all, state.durable).map(|v| {
            assert!(v.mod_revision <= state.durable);
            (v.key.to_vec(), (digest(&v.value), v.mod_revision, v.lease))
        });
        Snapshot {
            revision: state.durable,
            compacted: state.history.compacted(),
            keys: keys.collect(),
            leases: state.leases.ids().collect(),
        }
    }

    fn after(&self, act: &Act) -> Snapshot {
        let mut next = self.clone();
        let revision = self.revision + 1;
        match act {
            Act::Put(id, value, lease) => {
                for key in pair(*id) {
                    next.keys.insert(key, (digest(value), revision, *lease));
                }
            }
            Act::Delete(id) => next.keys.retain(|key, _| !pair(*id).contains(key)),
            Act::Grant(id) => drop(next.leases.insert(*id)),
            Act::Revoke(id) | Act::Expire(id) => {
                next.leases.remove(id);
                next.keys.retain(|_, (_, _, lease)| lease != id);
            }
            Act::Compact(to) => next.compacted = *to,
        }
        if next.keys != self.keys {
            next.revision = revision;
        }
        next
    }

    /// The change from `self` to a later state: the new content of each key.
    fn change(&self, next: &Snapshot) -> Change {
        let gone =
            self.keys.keys().filter(|key| !next.keys.contains_key(*key)).map(|key| (key.clone(), None));
        let new = next.keys.iter().filter(|(key, content)| self.keys.get(*key) != Some(*content));
        gone.chain(new.map(|(key, content)| (key.clone(), Some(content.0)))).collect()
    }
}

/// Keys and digests of their values; `None` for a deletion.
type Change = BTreeMap<Vec<u8>, Option<u64>>;

/// What the store must hold.
struct Reference {
    /// The last state that was acknowledged or read, and those after each later request.
    states: Vec<Snapshot>,
    changes: BTreeMap<i64, Change>,
}

impl Reference {
    fn new() -> Reference {
        let empty = Snapshot { revision: 1, compacted: -1, keys: BTreeMap::new(), leases: BTreeSet::new() };
        Reference { states: vec![empty], changes: BTreeMap::new() }
    }

    fn last(&self) -> &Snapshot {
        self.states.last().unwrap()
    }

    fn submit(&mut self, act: &Act) {
        let next = self.last().after(act);
        if next.revision > self.last().revision {
            self.changes.insert(next.revision, self.last().change(&next));
        }
        self.states.push(next);
    }

    /// All requests but the last `unknown` are acknowledged.
    fn acknowledged(&mut self, unknown: usize) {
        self.states.drain(..self.states.len() - 1 - unknown);
    }

    /// The store holds one of the possible states, with the whole history of it.
    fn verify(&mut self, state: &State) {
        let found = Snapshot::of(state);
        let matching = self.states.iter().rposition(|s| *s == found);
        let Some(matching) = matching else {
            panic!(
                "lost or torn:\n found {found:?}\n acknowledged {:?}\n last {:?}",
                self.states[0],
                self.last()
            );
        };
        self.states.truncate(matching + 1);
        self.acknowledged(0);
        self.changes.retain(|revision, _| *revision <= found.revision);
        // A watch may begin with the revision of the last compaction.
        let first = found.compacted;
        let history = state.history.changes(first, state.durable).map(|(revision, changes)| {
            let keys = changes.iter().map(|c| {
                let value = (!c.now.is_deletion()).then(|| digest(&c.now.value));
                (c.now.key.to_vec(), value)
            });
            (revision, keys.collect())
        });
        let history: BTreeMap<i64, Change> = history.collect();
        assert_eq!(history, self.changes.clone().split_off(&first), "history");
    }
}

/// Waits for the answer to a request.
type Answer = Box<dyn FnOnce() -> Result<(), Status>>;

/// A running store.
struct Process {
    commands: Sender<Command>,
    state: Arc<RwLock<State>>,
    failure: watch::Receiver<Option<Arc<str>>>,
    thread: JoinHandle<()>,
}

impl Process {
    fn start(disk: &LossyDisk) -> Result<Process, DiskError> {
        let (opened, _, state) = Disk::open(disk)?;
        let (commands, queue): (_, Receiver<Command>) = channel();
        let (durable, _) = watch::channel(state.durable);
        let (report, failure) = watch::channel(None);
        let state = Arc::new(RwLock::new(state));
        let writer = Writer {
            directory: Arc::new(disk.clone()),
            disk: Some(opened),
            failure: report,
            state: state.clone(),
            durable,
            commands: queue,
            _ended: CancellationToken::new().drop_guard(),
        };
        let thread = std::thread::spawn(move || writer.run());
        Ok(Process { commands, state, failure, thread })
    }

    /// Sends a request without waiting.
    fn send<T: 'static>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).unwrap();
        Box::new(move || answer.blocking_recv().unwrap().map(drop))
    }

    fn submit(&self, act: &Act) -> Answer {
        match act.clone() {
            Act::Put(id, value, lease) => {
                let put = |key| {
                    let value = value.clone();
                    PbTxnOpRequest::RequestPut(PbPutRequest { key, value, lease, ..Default::default() })
                };
                self.send(|reply| Command::Txn(txn(pair(id).map(put)), reply))
            }
            Act::Delete(id) => {
                let delete =
                    |key| PbTxnOpRequest::RequestDeleteRange(PbDeleteRequest { key, ..Default::default() });
                self.send(|reply| Command::Txn(txn(pair(id).map(delete)), reply))
            }
            Act::Grant(id) => self.send(|reply| Command::Grant((id, TTL), reply)),
            Act::Revoke(id) => self.send(|reply| Command::Revoke(id, reply)),
            Act::Expire(id) => {
                self.state.write().unwrap().leases.expire(id, Instant::now());
                self.send(Command::Barrier)
            }
            Act::Compact(revision) => {
                let request = PbCompactionRequest { revision, physical: false };
                self.send(|reply| Command::Compact(request, reply))
            }
        }
    }

    fn barrier(&self) -> Result<(), Status> {
        self.send(Command::Barrier)()
    }

    fn stop(self) {
        self.commands.send(Command::Stop).unwrap();
        self.thread.join().unwrap();
    }
}

fn txn<const N: usize>(ops: [PbTxnOpRequest; N]) -> PbTxnRequest {
    let success = ops.into_iter().map(|op| PbTxnRequestOp { request: Some(op) }).collect();
    PbTxnRequest { success, ..Default::default() }
}

/// A store, its disk and its clients.
struct Run {
    random: Random,
    disk: LossyDisk,
    reference: Reference,
    next_lease: i64,
    power_failures: u64,
    failed_syncs: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let (random, disk) = (Random(seed), LossyDisk::new(seed ^ 0x5eed));
        Run { random, disk, reference: Reference::new(), next_lease: 1, power_failures: 0, failed_syncs: 0 }
    }

    /// Starts the store, also if it crashes while it starts.
    fn start(&mut self) -> Process {
        let mut attempts = 0;
        loop {
            if self.random.below(3) == 0 && attempts < 5 {
                let event = if self.random.below(4) == 0 { Event::Failure } else { Event::PowerFailure };
                self.disk.schedule(self.random.below(30), event);
            }
            let started = Process::start(&self.disk);
            attempts += 1;
            match started {
                Ok(process) => {
                    self.reference.verify(&process.state.read().unwrap());
                    return process;
                }
                Err(e) => assert!(attempts < 20, "does not start: {e:?}"),
            }
            self.power_failures += u64::from(!self.disk.is_powered());
            self.disk.kill_processes();
            self.disk.power_on();
        }
    }

    fn act(&mut self) -> Act {
        let last = self.reference.last().clone();
        let id = self.random.below(12);
        let leases: Vec<i64> = last.leases.iter().copied().collect();
        let some_lease = leases.get(self.random.below(leases.len() as u64) as usize).copied();
        match (self.random.below(20), some_lease) {
            (0, _) => {
                self.next_lease += 1;
                Act::Grant(self.next_lease)
            }
            (1, Some(lease)) => Act::Revoke(lease),
            (2, Some(lease)) => Act::Expire(lease),
            (3 | 4, _) => Act::Delete(id),
            (5, _) if self.reference.states[0].revision > last.compacted => {
                Act::Compact(self.reference.states[0].revision)
            }
            (kind, lease) => {
                let lease = lease.filter(|_| kind < 10).unwrap_or(0);
                // Small values, and some that need pages of their own.
                let most = if self.random.below(8) == 0 { 20_000 } else { 200 };
                let value = vec![kind as u8; self.random.below(most) as usize];
                Act::Put(id, value, lease)
            }
        }
    }

    /// Sends up to `most` requests at once and awaits their answers. Returns the first refusal.
    fn batch(&mut self, process: &Process, most: u64) -> Option<Status> {
        let mut answers = Vec::new();
        for _ in 0..=self.random.below(most) {
            let act = self.act();
            // An expired lease ends with whatever the writer does next.
            let alone = matches!(act, Act::Expire(_));
            if alone && !answers.is_empty() {
                continue;
            }
            answers.push(process.submit(&act));
            self.reference.submit(&act);
            if alone {
                break;
            }
        }
        let answers: Vec<_> = answers.into_iter().map(|answer| answer()).collect();
        let done = answers.iter().take_while(|answer| answer.is_ok()).count();
        self.reference.acknowledged(answers.len() - done);
        answers.into_iter().find_map(Result::err)
    }

    /// Works until the power fails or the store does, and a while at most.
    fn work(&mut self, process: &Process) {
        let event = match self.random.below(10) {
            0 | 1 => Event::Failure,
            2 | 3 => Event::Full,
            _ => Event::PowerFailure,
        };
        self.disk.schedule(self.random.below(150), event);
        // After a full disk, later requests of a batch may succeed where earlier ones have not.
        let most = if event == Event::Full { 1 } else { 7 };
        for _ in 0..20 {
            let Some(refused) = self.batch(process, most) else { continue };
            let failed = process.failure.borrow().clone();
            if !self.disk.is_powered() {
                return;
            }
            match failed {
                Some(why) => {
                    assert!(why.starts_with("store failed: write lossy/store.redb"), "{why}");
                    self.failed_syncs += 1;
                    self.refuses_everything(process);
                    return;
                }
                None => {
                    assert!(refused.message().contains("lossy/store.redb"), "{refused:?}");
                    process.barrier().unwrap();
                    self.reference.verify(&process.state.read().unwrap());
                }
            }
        }
    }

    /// A store that has failed takes no writes and serves what was acknowledged.
    fn refuses_everything(&mut self, process: &Process) {
        let acknowledged = self.reference.states[0].clone();
        for _ in 0..3 {
            let refused = process.submit(&Act::Put(0, vec![], 0))().unwrap_err();
            assert!(refused.message().starts_with("store failed: "), "{refused:?}");
            assert!(process.barrier().is_err());
        }
        let now = Snapshot::of(&process.state.read().unwrap());
        assert_eq!((now.revision, now.keys), (acknowledged.revision, acknowledged.keys));
    }

    /// The power fails, or the process ends.
    fn end(&mut self, process: Process) {
        if self.disk.is_powered() {
            match self.random.below(4) {
                0 => self.disk.kill_processes(),
                1 => {}
                _ => self.disk.cut_power(),
            }
        }
        self.power_failures += u64::from(!self.disk.is_powered());
        process.stop();
        self.disk.power_on();
    }
}

/// Some files that must be there after a power failure are not there in this many runs if their
/// directory is not synced.
#[test]
fn a_crash_at_any_point_of_the_first_start_leaves_a_store_that_opens() {
    let mut crashed = 0;
    for operations in 0..60 {
        for seed in 0..6 {
            let disk = LossyDisk::new(seed);
            disk.schedule(operations, Event::PowerFailure);
            let first = Disk::open(&disk).map(|(_, identity, _)| identity);
            // Closing fails without power.
            crashed += u64::from(first.is_err());
            disk.cut_power();
            disk.power_on();
            let (opened, identity, state) =
                Disk::open(&disk).unwrap_or_else(|e| panic!("crash {operations}, seed {seed}: {e:?}"));
            assert_eq!(state.durable, 1);
            if let Ok(first) = first {
                let (first, now) = ((first.cluster, first.member), (identity.cluster, identity.member));
                assert_eq!(first, now, "crash {operations}, seed {seed}: another store");
            }
            drop(opened);
            assert_eq!(disk.names().unwrap(), ["store.redb"], "crash {operations}, seed {seed}");
        }
    }
    assert!(crashed > 60, "{crashed}");
}

#[test]
fn crashes_lose_nothing_that_was_acknowledged() {
    let (mut power_failures, mut failed_syncs) = (0, 0);
    for seed in 0..10 {
        let mut run = Run::new(seed);
        for _ in 0..30 {
            let process = run.start();
            run.work(&process);
            run.end(process);
        }
        run.start().stop();
        power_failures += run.power_failures;
        failed_syncs += run.failed_syncs;
    }
    assert!(power_failures > 150 && failed_syncs > 5, "{power_failures} {failed_syncs}");
}
