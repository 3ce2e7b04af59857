//! The configuration database of Open vSwitch, over its unix socket.
//!
//! A small client of our own: the published crate `ovsdb` (0.0.6) has no monitor, and a datapath that
//! must learn port numbers and notice drift cannot do without one. What is monitored is kept as a live
//! copy, so reading the configuration costs no round trip.

mod operation;
mod rows;
mod stream;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    net::UnixStream,
    sync::{mpsc, oneshot, watch},
    task::AbortHandle,
    time::timeout,
};

pub(crate) use self::{
    operation::{Operation, map, optional, set},
    rows::{Bridge, Database, Interface, Port, Uuid},
};

/// The database's name, and that of its only table with one row.
pub(crate) const OPEN_VSWITCH: &str = "Open_vSwitch";

const ANSWER_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("connect to the Open vSwitch database at {path} (is openvswitch-switch running on this node?)")]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("connection to the Open vSwitch database at {path} is closed: {why}")]
    Closed { path: PathBuf, why: String },
    #[error("the Open vSwitch database did not answer {method} within {ANSWER_WITHIN:?}")]
    Timeout { method: &'static str },
    #[error("the Open vSwitch database refused {method}: {why}")]
    Refused { method: &'static str, why: String },
    #[error("the answer of the Open vSwitch database to {method} makes no sense: {why}")]
    Nonsense { method: &'static str, why: String },
    #[error("{what} did not happen within {after:?} (is ovs-vswitchd running on this node?)")]
    NoReaction { what: String, after: Duration },
}

/// A connection with a live copy of the rows we use. Closes when dropped.
pub(crate) struct Client {
    path: PathBuf,
    calls: Arc<Calls>,
    out: mpsc::UnboundedSender<Value>,
    database: watch::Receiver<Arc<Database>>,
    tasks: [AbortHandle; 2],
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Requests that wait for their answer, by id.
#[derive(Default)]
struct Calls {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    closed: watch::Sender<Option<String>>,
}

impl Calls {
    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Value>>> {
        // Nothing that can panic happens under the lock; were it so, the map would still be sound.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: String) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(why);
            first
        });
        // Dropped senders wake those who wait.
        self.waiting().clear();
    }
}

impl Client {
    /// Connects, and returns when the copy of the database is complete.
    pub(crate) async fn connect(path: &Path) -> Result<Client, Error> {
        let stream = timeout(ANSWER_WITHIN, UnixStream::connect(path))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|source| Error::Connect { path: path.into(), source })?;
        let (reader, writer) = stream.into_split();
        let (out, queue) = mpsc::unbounded_channel();
        let calls = Arc::new(Calls::default());
        let (publish, database) = watch::channel(Arc::new(Database::default()));
        let incoming = Incoming { out: out.clone(), calls: calls.clone(), publish };
        let tasks = [
            tokio::spawn(stream::write(writer, queue, calls.clone())).abort_handle(),
            tokio::spawn(stream::read(reader, incoming)).abort_handle(),
        ];
        let mut client = Client { path: path.into(), calls, out, database, tasks };
        let columns = json!([OPEN_VSWITCH, MONITOR, rows::monitored()]);
        client.call("monitor", columns).await?;
        // The reader published the contents before it woke us.
        client.database.mark_unchanged();
        Ok(client)
    }

    /// The database as it is now.
    pub(crate) fn database(&self) -> Arc<Database> {
        self.database.borrow().clone()
    }

    /// A view for those who wait for changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Database>> {
        self.database.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.calls.closed.borrow().is_some()
    }

    /// Resolves when the connection is lost.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.calls.closed.subscribe();
        async move {
            // An error means that the client is gone, and the connection with it.
            let _closed = closed.wait_for(Option::is_some).await;
        }
    }

    fn closed_error(&self) -> Error {
        let why = self.calls.closed.borrow().clone().unwrap_or_else(|| "by us".into());
        Error::Closed { path: self.path.clone(), why }
    }

    /// Returns when the copy has all that the database had when this was called.
    pub(crate) async fn catch_up(&self) -> Result<(), Error> {
        // Answers and updates come in one order.
        self.call("echo", json!([])).await.map(drop)
    }

    async fn call(&self, method: &'static str, params: Value) -> Result<Value, Error> {
        let id = self.calls.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.calls.waiting().insert(id, answer);
        if self.is_closed() || self.out.send(json!({"method": method, "params": params, "id": id})).is_err() {
            return Err(self.closed_error());
        }
        let mut answer = match timeout(ANSWER_WITHIN, answered).await {
            Err(_) => {
                self.calls.waiting().remove(&id);
                return Err(Error::Timeout { method });
            }
            Ok(Err(_)) => return Err(self.closed_error()),
            Ok(Ok(answer)) => answer,
        };
        match answer["error"].take() {
            Value::Null => Ok(answer["result"].take()),
            error => Err(Error::Refused { method, why: operation::failure(&error) }),
        }
    }

    /// Does all the operations or none.
    pub(crate) async fn transact(&self, operations: &[Operation]) -> Result<(), Error> {
        let method = "transact";
        let params = std::iter::once(Value::from(OPEN_VSWITCH)).chain(operations.iter().map(Operation::json));
        let results = self.call(method, params.collect()).await?;
        let Value::Array(results) = results else {
            return Err(Error::Nonsense { method, why: results.to_string() });
        };
        // An operation that did not happen has an error; one that was not reached is null; an error of the
        // whole stands after the last.
        for (n, result) in results.iter().enumerate() {
            if result.get("error").is_some() {
                let name = operations.get(n).map_or("commit".into(), Operation::to_string);
                return Err(Error::Refused {
                    method,
                    why: format!("{name}: {}", operation::failure(result)),
                });
            }
        }
        Ok(())
    }

    /// Does the operations and waits until ovs-vswitchd has made the switch match them.
    pub(crate) async fn reconfigure(
        &self,
        mut operations: Vec<Operation>,
        within: Duration,
    ) -> Result<(), Error> {
        operations.push(Operation::count_configuration());
        self.transact(&operations).await?;
        let wanted = self.next_configuration().await?;
        let mut database = self.watch();
        let reached = database.wait_for(|database| database.current_configuration >= wanted);
        match timeout(within, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(self.closed_error()),
            Err(_) => {
                let what = "ovs-vswitchd taking over a changed configuration".to_owned();
                Err(Error::NoReaction { what, after: within })
            }
        }
    }

    /// The number that our transaction, or a later one, gave the configuration.
    async fn next_configuration(&self) -> Result<i64, Error> {
        let method = "transact";
        let select = json!({"op": "select", "table": OPEN_VSWITCH, "where": [], "columns": ["next_cfg"]});
        let answer = self.call(method, json!([OPEN_VSWITCH, select])).await?;
        answer
            .pointer("/0/rows/0/next_cfg")
            .and_then(Value::as_i64)
            .ok_or_else(|| Error::Nonsense { method, why: answer.to_string() })
    }
}

/// Our name for the only monitor.
const MONITOR: &str = "contiv";

/// What the reader does with messages.
struct Incoming {
    out: mpsc::UnboundedSender<Value>,
    calls: Arc<Calls>,
    publish: watch::Sender<Arc<Database>>,
}

impl Incoming {
    fn handle(&self, mut message: Value) {
        match message["method"].as_str() {
            Some("echo") => {
                let reply =
                    json!({"result": message["params"].take(), "error": null, "id": message["id"].take()});
                // A closed queue means that the connection is going: the reader will see it too.
                let _sent = self.out.send(reply);
            }
            Some("update") => self.update(&message["params"][1]),
            // Nothing else is asked of a client.
            Some(_) => {}
            None => self.answer(message),
        }
    }

    fn update(&self, updates: &Value) {
        self.publish.send_modify(|database| Arc::make_mut(database).update(updates));
    }

    fn answer(&self, answer: Value) {
        let Some(id) = answer["id"].as_u64() else { return };
        let Some(waiting) = self.calls.waiting().remove(&id) else { return };
        // The first call is the monitor, and its answer the contents to begin with.
        if id == 0 {
            self.update(&answer["result"]);
        }
        // Whoever asked may have given up.
        let _delivered = waiting.send(answer);
    }
}
