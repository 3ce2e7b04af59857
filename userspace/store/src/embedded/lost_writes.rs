//! Concurrent clients of a store whose power fails again and again, on a disk that loses writes.
//! `cargo xtask bench lost-writes` runs it with more crashes.

use super::directory::Directory;
use super::lossy_disk::{Event, LossyDisk, Random};
use super::{Error, Server};
use anyhow::{Context, Result, ensure};
use etcd_client::{Client, Compare, CompareOp, EventType, GetOptions, Txn, TxnOp, WatchOptions};
use std::collections::BTreeMap;
use std::env::VarError;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

const CLIENTS: u64 = 16;
/// Crashes without `CONTIV_LOST_WRITES_CRASHES`, and their seed.
const CRASHES: u64 = 20;
const SEED: u64 = 7;
/// Requests of a client between two crashes, at most.
const MAX_REQUESTS: u64 = 60;
const COUNTER: &str = "/counter";
/// Guards against hanging.
const HANG: Duration = Duration::from_secs(60);

/// What one client knows of its two keys, which it always puts together.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    acknowledged: u64,
    tried: u64,
    /// Highest revision of an answer.
    revision: i64,
    /// Increments of the common counter.
    counted: u64,
    maybe_counted: u64,
}

/// Revision and value of keys, as a watch has reported them.
#[derive(Debug, Default)]
struct Watched {
    revision: i64,
    keys: BTreeMap<Vec<u8>, (i64, Vec<u8>)>,
}

#[derive(Debug, Default)]
struct Counts {
    power_failures: u64,
    /// Those of them while the store was being opened.
    at_start: u64,
    failed_syncs_and_writes: u64,
}

fn pair(id: u64) -> [String; 2] {
    [format!("/a/{id}"), format!("/b/{id}")]
}

fn number(value: &[u8]) -> Result<u64> {
    Ok(std::str::from_utf8(value)?.trim_end().parse()?)
}

async fn connect(server: &Server) -> Result<Client> {
    Ok(Client::connect([server.endpoint()], None).await?)
}

/// Puts numbers until it is refused, or often enough. Returns what it knows then.
async fn client(mut client: Client, id: u64, mut known: Known, mut random: Random) -> Known {
    for _ in 0..random.below(MAX_REQUESTS) {
        let answer = if random.below(8) == 0 {
            count(&mut client, &mut known).await
        } else {
            known.tried += 1;
            // Some values need pages of their own.
            let padding = if random.below(16) == 0 { random.below(30_000) } else { random.below(300) };
            let value = format!("{}{}", known.tried, " ".repeat(padding as usize));
            let puts = pair(id).map(|key| TxnOp::put(key, value.clone(), None));
            client.txn(Txn::new().and_then(puts)).await.map(|answer| {
                known.acknowledged = known.tried;
                answer.header().map_or(0, |header| header.revision())
            })
        };
        match answer {
            Ok(revision) => known.revision = known.revision.max(revision),
            // It goes on when there is room again.
            Err(e) if e.to_string().contains("no storage space") => {}
            Err(_) => break,
        }
    }
    known
}

/// Increments the common counter if it has not changed since it was read.
async fn count(client: &mut Client, known: &mut Known) -> Result<i64, etcd_client::Error> {
    let found = client.get(COUNTER, None).await?;
    let (value, revision) = match found.kvs().first() {
        Some(kv) => (number(kv.value()).unwrap_or(0), kv.mod_revision()),
        None => (0, 0),
    };
    let unchanged = Compare::mod_revision(COUNTER, CompareOp::Equal, revision);
    let put = TxnOp::put(COUNTER, (value + 1).to_string(), None);
    known.maybe_counted += 1;
    let answer = client.txn(Txn::new().when([unchanged]).and_then([put])).await?;
    if answer.succeeded() {
        known.counted += 1;
    } else {
        known.maybe_counted -= 1;
    }
    Ok(answer.header().map_or(0, |header| header.revision()))
}

/// Records all changes until the stream ends.
async fn watch(mut client: Client, mut watched: Watched) -> Watched {
    let options = WatchOptions::new().with_prefix().with_start_revision(watched.revision + 1);
    let Ok(mut stream) = client.watch("/", Some(options)).await else { return watched };
    while let Ok(Some(message)) = stream.message().await {
        for event in message.events() {
            let Some(kv) = event.kv().filter(|_| event.event_type() == EventType::Put) else { continue };
            watched.revision = kv.mod_revision();
            watched.keys.insert(kv.key().to_vec(), (kv.mod_revision(), kv.value().to_vec()));
        }
    }
    watched
}

/// Compares the store with what clients and the watch know. Returns its revision.
async fn verify(client: &mut Client, known: &[Known], watched: &Watched) -> Result<i64> {
    let listing = client.get("/", Some(GetOptions::new().with_prefix())).await?;
    let revision = listing.header().context("no header")?.revision();
    let keys: BTreeMap<_, _> = listing.kvs().iter().map(|kv| (kv.key(), kv)).collect();
    for (id, known) in known.iter().enumerate() {
        ensure!(known.revision <= revision, "revision {revision} after {}", known.revision);
        let [a, b] = pair(id as u64).map(|key| keys.get(key.as_bytes()).copied());
        let values = [a, b].map(|kv| kv.map(|kv| (kv.value(), kv.mod_revision(), kv.version())));
        ensure!(values[0] == values[1], "client {id}: half a transaction: {a:?} {b:?}");
        let value = a.map_or(Ok(0), |kv| number(kv.value()))?;
        let Known { acknowledged, tried, .. } = *known;
        ensure!(
            (acknowledged..=tried).contains(&value),
            "client {id}: {acknowledged} was acknowledged, {tried} tried, {value} is there"
        );
    }
    let counter = keys.get(COUNTER.as_bytes()).map_or(Ok(0), |kv| number(kv.value()))?;
    let counted: u64 = known.iter().map(|known| known.counted).sum();
    let most: u64 = known.iter().map(|known| known.maybe_counted).sum();
    ensure!((counted..=most).contains(&counter), "{counted} to {most} increments, the counter is {counter}");
    ensure!(watched.revision <= revision, "revision {revision} after {} of the watch", watched.revision);
    for (key, (seen, value)) in &watched.keys {
        let kv = keys.get(&key[..]).with_context(|| format!("{key:?} was watched and is gone"))?;
        let same = kv.mod_revision() == *seen && kv.value() == &value[..];
        ensure!(
            same || kv.mod_revision() > *seen,
            "{key:?} of {seen} was watched, it is of {}",
            kv.mod_revision()
        );
    }
    Ok(revision)
}

struct Run {
    random: Random,
    disk: LossyDisk,
    known: Vec<Known>,
    watched: Watched,
    identity: Option<u64>,
    counts: Counts,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            random: Random(seed),
            disk: LossyDisk::new(!seed),
            known: vec![Known::default(); CLIENTS as usize],
            watched: Watched::default(),
            identity: None,
            counts: Counts::default(),
        }
    }

    /// Opens the store; returns `None` if it crashes meanwhile.
    async fn open(&mut self) -> Result<Option<Server>> {
        if self.random.below(4) == 0 {
            self.disk.schedule(self.random.below(25), Event::PowerFailure);
        }
        let directory: Arc<dyn Directory> = Arc::new(self.disk.clone());
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        match Server::open_in(move || Ok(directory), listen).await {
            Ok(server) => Ok(Some(server)),
            Err(Error::Disk(_)) if !self.disk.is_powered() => {
                (self.counts.power_failures, self.counts.at_start) =
                    (self.counts.power_failures + 1, self.counts.at_start + 1);
                self.disk.power_on();
                Ok(None)
            }
            Err(e) => Err(e).context("the store does not open"),
        }
    }

    /// From one start of the store to its end.
    async fn cycle(&mut self) -> Result<()> {
        let Some(server) = self.open().await? else { return Ok(()) };
        let mut first = connect(&server).await?;
        // The power may fail after the store was opened and before it is read: all is in memory then.
        self.watched.revision = verify(&mut first, &self.known, &self.watched).await?;
        let id = first.status().await?.header().context("no header")?.cluster_id();
        ensure!(*self.identity.get_or_insert(id) == id, "it is another store");

        let event = match self.random.below(10) {
            0 | 1 => Event::Failure,
            2 => Event::Full,
            _ => Event::PowerFailure,
        };
        self.disk.schedule(self.random.below(400), event);
        let watching = tokio::spawn(watch(connect(&server).await?, std::mem::take(&mut self.watched)));
        let mut clients = JoinSet::new();
        for id in 0..CLIENTS {
            let (known, random) = (self.known[id as usize], Random(self.random.next_bits()));
            let connection = connect(&server).await?;
            clients.spawn(async move { (id, client(connection, id, known, random).await) });
        }
        while let Some(ended) = clients.join_next().await {
            let (id, known) = ended?;
            self.known[id as usize] = known;
        }
        self.end(server, first).await?;
        self.watched = tokio::time::timeout(HANG, watching).await.context("the watch goes on")??;
        Ok(())
    }

    /// Cuts the power if it has not failed, or kills a store that has.
    async fn end(&mut self, server: Server, mut client: Client) -> Result<()> {
        let failed = server.failure().borrow().clone();
        if let Some(failed) = failed.filter(|_| self.disk.is_powered()) {
            self.counts.failed_syncs_and_writes += 1;
            let refused = client.put("/late", "", None).await.err().context("it writes after a failure")?;
            ensure!(refused.to_string().contains("store failed") && failed.contains("lossy"), "{refused}");
        }
        if self.disk.is_powered() && self.random.below(3) > 0 {
            self.disk.cut_power();
        }
        drop(client);
        self.counts.power_failures += u64::from(!self.disk.is_powered());
        self.disk.kill_processes();
        // It cannot close its file.
        drop(tokio::time::timeout(HANG, server.shutdown()).await.context("it does not stop")?);
        self.disk.power_on();
        Ok(())
    }
}

/// A client that hears of the end acts on it, and a crash must not undo what it has heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_lease_is_reported_when_it_is_on_the_disk() -> Result<()> {
    let disk = LossyDisk::new(1);
    let (directory, listen) = (disk.clone(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let server = Server::open_in(move || Ok(Arc::new(directory) as Arc<dyn Directory>), listen).await?;
    let mut client = connect(&server).await?;
    let lease = client.lease_grant(1, None).await?.id();
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    // The next write is that of the end.
    disk.schedule(0, Event::Failure);
    let mut failure = server.failure();
    tokio::time::timeout(HANG, failure.wait_for(Option::is_some)).await??;
    keeper.keep_alive().await?;
    let refused = tokio::time::timeout(HANG, answers.message()).await?.err().context("an answer")?;
    ensure!(refused.to_string().contains("store failed"), "{refused}");
    ensure!(client.lease_time_to_live(lease, None).await.is_err() && client.leases().await.is_err());
    drop((client, keeper, answers));
    server.shutdown().await?;
    Ok(())
}

fn setting(name: &str) -> Result<Option<u64>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value.parse().with_context(|| format!("{name}={value}"))?)),
        Err(VarError::NotPresent) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost() -> Result<()> {
    let crashes = setting("CONTIV_LOST_WRITES_CRASHES")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let seed = setting("CONTIV_LOST_WRITES_SEED")?.unwrap_or(if crashes.is_some() { now } else { SEED });
    let (mut run, start) = (Run::new(seed), Instant::now());
    while run.counts.power_failures < crashes.unwrap_or(CRASHES) {
        let crash = run.counts.power_failures;
        run.cycle().await.with_context(|| format!("seed {seed}, after {crash} power failures"))?;
    }
    let mut verified = false;
    while !verified {
        let Some(server) = run.open().await? else { continue };
        verify(&mut connect(&server).await?, &run.known, &run.watched).await?;
        verified = true;
        drop(server.shutdown().await);
    }
    let tried: u64 = run.known.iter().map(|known| known.tried).sum();
    let operations = run.disk.operations();
    println!(
        "lost-writes: seed {seed}, {:.1} s, {CLIENTS} clients, {:?}\n{tried} transactions, {operations:?}\nno acknowledged write lost, no transaction torn",
        start.elapsed().as_secs_f64(),
        run.counts,
    );
    Ok(())
}
