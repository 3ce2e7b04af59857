//! Client of the configuration database of Open vSwitch (OVSDB, RFC 7047) over a Unix socket.
//!
//! The client monitors the columns that the datapath uses and keeps a copy, so that reads need no round trip. The published
//! crate `ovsdb` (0.0.6) has no monitor, which port numbers and drift detection need.
//!
//! * [`operation`]: operations of a transaction.
//! * [`rows`]: copy of the monitored tables.
//! * [`stream`]: framing of JSON-RPC messages.

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
    operation::{Operation, Reference, entries, map, numbered, optional, set},
    rows::{Bridge, Database, Interface, Port, Qos, Queue, Uuid},
};

/// Name of the database, and of its root table, which has one row.
pub(crate) const OPEN_VSWITCH: &str = "Open_vSwitch";

/// Key of `external_ids` with the owner of a row: the id of an endpoint, or another name.
pub(crate) const OWNER_KEY: &str = "endpoint-id";

/// Method of requests.
const TRANSACT: &str = "transact";

/// Time limit of each reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("connect to the Open vSwitch database at {path} (is openvswitch-switch running on this node?)")]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("connection to the Open vSwitch database at {path} is closed: {why}")]
    Closed { path: PathBuf, why: String },
    #[error("{method} on the Open vSwitch database: no reply within {REPLY_TIMEOUT:?}")]
    Timeout { method: &'static str },
    #[error("{method} on the Open vSwitch database: rejected: {why}")]
    Refused { method: &'static str, why: String },
    #[error("{method} on the Open vSwitch database: malformed reply: {why}")]
    Malformed { method: &'static str, why: String },
    #[error("{method} on the Open vSwitch database: {operation}: the row has vanished meanwhile")]
    Vanished { method: &'static str, operation: String },
    #[error(
        "Open vSwitch database at {path}: not initialised (no row in the table Open_vSwitch); start Open vSwitch on this node, or \
         run ovs-vsctl init"
    )]
    Uninitialised { path: PathBuf },
    #[error("{what}: not complete within {after:?} (is ovs-vswitchd running on this node?)")]
    NotApplied { what: String, after: Duration },
}

/// Connection with a copy of the monitored tables. It closes when dropped.
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

/// Pending requests by id.
#[derive(Default)]
struct Calls {
    next: AtomicU64,
    pending: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    closed: watch::Sender<Option<String>>,
}

impl Calls {
    fn pending(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Value>>> {
        // No code that holds the lock can panic, and the map is consistent between statements.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, why: String) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(why);
            first
        });
        // Dropping the senders wakes all pending calls.
        self.pending().clear();
    }
}

impl Client {
    /// Connects and waits for the initial contents of the monitored tables.
    pub(crate) async fn connect(path: &Path) -> Result<Client, Error> {
        let stream = timeout(REPLY_TIMEOUT, UnixStream::connect(path))
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
        // The reader published the contents before it delivered the reply.
        client.database.mark_unchanged();
        Ok(client)
    }

    /// Returns the current copy.
    pub(crate) fn database(&self) -> Arc<Database> {
        self.database.borrow().clone()
    }

    /// Returns a receiver that observes changes of the copy.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Database>> {
        self.database.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.calls.closed.borrow().is_some()
    }

    /// Waits until the connection is closed.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.calls.closed.subscribe();
        async move {
            // An error means that the client is dropped and the connection closed.
            let _closed = closed.wait_for(Option::is_some).await;
        }
    }

    fn closed_error(&self) -> Error {
        let why = self.calls.closed.borrow().clone().unwrap_or_else(|| "closed locally".into());
        Error::Closed { path: self.path.clone(), why }
    }

    /// Waits until the copy contains all changes that the server committed before the call.
    pub(crate) async fn catch_up(&self) -> Result<(), Error> {
        // The server sends replies and updates in one order.
        self.call("echo", json!([])).await.map(drop)
    }

    async fn call(&self, method: &'static str, params: Value) -> Result<Value, Error> {
        let id = self.calls.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.calls.pending().insert(id, answer);
        if self.is_closed() || self.out.send(json!({"method": method, "params": params, "id": id})).is_err() {
            return Err(self.closed_error());
        }
        let mut answer = match timeout(REPLY_TIMEOUT, answered).await {
            Err(_) => {
                self.calls.pending().remove(&id);
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

    /// Executes all operations in one transaction and returns their results. Fails if the row of one does not exist any more; the others
    /// have been executed then.
    async fn transact(&self, operations: &[Operation]) -> Result<Vec<Value>, Error> {
        let method = TRANSACT;
        let params = std::iter::once(Value::from(OPEN_VSWITCH)).chain(operations.iter().map(Operation::json));
        let results = self.call(method, params.collect()).await?;
        let Value::Array(results) = results else {
            return Err(Error::Malformed { method, why: results.to_string() });
        };
        // RFC 7047 section 4.1.3: a failed operation has an error, operations after it are null, and an error of the commit
        // follows the last result.
        for (n, result) in results.iter().enumerate() {
            if result.get("error").is_some() {
                let name = operations.get(n).map_or("commit".into(), Operation::to_string);
                return Err(Error::Refused {
                    method,
                    why: format!("{name}: {}", operation::failure(result)),
                });
            }
        }
        for (operation, result) in operations.iter().zip(&results) {
            if operation.changes_rows() && result["count"] == 0 {
                return Err(if operation.has_row() {
                    Error::Vanished { method, operation: operation.to_string() }
                } else {
                    Error::Uninitialised { path: self.path.clone() }
                });
            }
        }
        Ok(results)
    }

    /// Executes the operations and waits until ovs-vswitchd has applied them (`next_cfg`, `cur_cfg`).
    pub(crate) async fn reconfigure(
        &self,
        mut operations: Vec<Operation>,
        within: Duration,
    ) -> Result<(), Error> {
        // The transaction reads what it has written.
        operations.extend([Operation::increment_next_cfg(), Operation::read_next_cfg()]);
        let results = self.transact(&operations).await?;
        let wanted = results.last().and_then(|read| read.pointer("/rows/0/next_cfg")?.as_i64());
        let wanted = wanted
            .ok_or_else(|| Error::Malformed { method: TRANSACT, why: Value::Array(results).to_string() })?;
        let mut database = self.watch();
        let reached = database.wait_for(|database| database.current_configuration >= wanted);
        match timeout(within, reached).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(self.closed_error()),
            Err(_) => {
                let what = "apply the configuration to ovs-vswitchd".to_owned();
                Err(Error::NotApplied { what, after: within })
            }
        }
    }
}

/// Id of the monitor.
const MONITOR: &str = "contiv";

/// Handler of received messages.
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
                // The queue is closed only when the connection is; the reader reports that.
                let _sent = self.out.send(reply);
            }
            Some("update") => self.update(&message["params"][1]),
            // The server sends no other requests.
            Some(_) => {}
            None => self.answer(message),
        }
    }

    fn update(&self, updates: &Value) {
        self.publish.send_modify(|database| Arc::make_mut(database).update(updates));
    }

    fn answer(&self, answer: Value) {
        let Some(id) = answer["id"].as_u64() else { return };
        let Some(caller) = self.calls.pending().remove(&id) else { return };
        // The first call is the monitor; its reply contains the initial contents.
        if id == 0 {
            self.update(&answer["result"]);
        }
        // Fails if the caller has timed out.
        let _delivered = caller.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixListener,
    };

    use super::*;

    /// Contents of the database, as the reply to the monitor has them: ovs-vswitchd has applied configuration 7.
    fn contents() -> Value {
        json!({OPEN_VSWITCH: {"root": {"new": {"cur_cfg": 7, "bridges": ["set", []]}}}})
    }

    /// A server that replies to the monitor and, with `results`, to one transaction, and closes the connection at the next.
    async fn serve(listener: UnixListener, results: Value) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut replies = [contents(), results].into_iter();
        let mut bytes = vec![];
        while stream.read_buf(&mut bytes).await.unwrap() > 0 {
            let Ok(request) = serde_json::from_slice::<Value>(&bytes) else { continue };
            bytes.clear();
            let Some(result) = replies.next() else { return };
            let reply = json!({"id": request["id"], "result": result, "error": null});
            stream.write_all(reply.to_string().as_bytes()).await.unwrap();
        }
    }

    /// A client of a database that has these results for one transaction.
    async fn client(results: Value) -> Result<Client, Error> {
        let directory = testkit::scratch_dir("ovsdb").unwrap();
        let socket = directory.path().join("db.sock");
        tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), results));
        Client::connect(&socket).await
    }

    async fn transact(operations: &[Operation], results: Value) -> Result<(), Error> {
        client(results).await?.transact(operations).await.map(drop)
    }

    /// One transaction increments the number and reads it.
    #[tokio::test]
    async fn a_reconfiguration_is_one_transaction() {
        let reconfigure = async |results: Value| {
            client(results).await?.reconfigure(vec![], Duration::from_millis(10)).await
        };
        let done = reconfigure(json!([{"count": 1}, {"rows": [{"next_cfg": 7}]}])).await;
        assert!(done.is_ok(), "{done:?}");
        let pending = reconfigure(json!([{"count": 1}, {"rows": [{"next_cfg": 8}]}])).await;
        assert!(matches!(pending, Err(Error::NotApplied { .. })), "{pending:?}");
        let empty = reconfigure(json!([{"count": 0}, {"rows": []}])).await;
        assert!(matches!(empty, Err(Error::Uninitialised { .. })), "{empty:?}");
    }

    fn row() -> Uuid {
        Uuid("0b5a7b5e-0000-4000-8000-000000000001".to_owned())
    }

    /// Another program has removed the row after the agent has seen it.
    #[tokio::test]
    async fn an_operation_on_a_row_that_has_vanished_fails() {
        let operations = [
            Operation::insert("Queue", "queue", json!({})).0,
            Operation::update("Port", &row(), json!({"tag": 5})),
        ];
        let inserted = json!({"uuid": ["uuid", "0b5a7b5e-0000-4000-8000-000000000002"]});
        let done = transact(&operations, json!([inserted, {"count": 1}])).await;
        assert!(done.is_ok(), "{done:?}");
        let error = transact(&operations, json!([inserted, {"count": 0}])).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "transact on the Open vSwitch database: update Port 0b5a7b5e-0000-4000-8000-000000000001: \
             the row has vanished meanwhile"
        );
        for operation in [
            Operation::delete("QoS", &row()),
            Operation::unlink("Bridge", Some(&row()), "ports", &[(&row()).into()]),
        ] {
            let vanished = transact(&[operation], json!([{"count": 0}])).await;
            assert!(matches!(vanished, Err(Error::Vanished { .. })), "{vanished:?}");
        }
    }
}
