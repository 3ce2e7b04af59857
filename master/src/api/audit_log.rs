//! The audit log: a line of JSON for each change and for each refused request.
//!
//! A thread writes the lines, so that a slow disk delays no request. A line that cannot be written is
//! counted and logged.

mod log_file;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method};
use axum::response::Response;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

use super::peer::Peer;
use super::proxy;
use crate::access::Principal;
use log_file::LogFile;

/// Lines that wait for the disk.
const QUEUE: usize = 8192;
/// Interval of log lines about lost lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Handle of the audit log.
#[derive(Clone)]
pub struct AuditLog {
    lines: SyncSender<Message>,
    lost: Counter,
    logged: Arc<Mutex<Option<Instant>>>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

enum Message {
    Line(Vec<u8>),
    Close,
}

/// The audit log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    #[error("open {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("start the thread of the audit log")]
    Thread(#[source] std::io::Error),
}

impl AuditLog {
    /// Opens or creates the file, with mode 0600. `lost` counts lines that could not be written.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened or the thread cannot be started.
    pub fn start(path: PathBuf, lost: Counter) -> Result<AuditLog, AuditLogError> {
        let file =
            LogFile::open(&path).map_err(|source| AuditLogError::Open { path: path.clone(), source })?;
        let (lines, queue) = sync_channel(QUEUE);
        let log = AuditLog { lines, lost, logged: Arc::default(), thread: Arc::default() };
        let writer = Writer { file, log: Reporter { lost: log.lost.clone(), logged: log.logged.clone() } };
        let thread = thread::Builder::new().name("audit-log".into()).spawn(move || writer.run(&queue));
        *log.thread.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(thread.map_err(AuditLogError::Thread)?);
        Ok(log)
    }

    /// Writes the lines that wait, and ends the thread.
    pub fn close(&self) {
        // The thread has ended if the send fails.
        let _ended = self.lines.send(Message::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the audit log panicked");
        }
    }

    fn write(&self, entry: &Entry) {
        let reporter = || Reporter { lost: self.lost.clone(), logged: self.logged.clone() };
        let mut line = match serde_json::to_vec(entry) {
            Ok(line) => line,
            Err(error) => return reporter().lost(&error.to_string()),
        };
        line.push(b'\n');
        if self.lines.try_send(Message::Line(line)).is_err() {
            reporter().lost("the disk is too slow, or netmaster is stopping");
        }
    }
}

struct Writer {
    file: LogFile,
    log: Reporter,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Message>) {
        while let Ok(Message::Line(line)) = queue.recv() {
            if let Err(error) = self.file.append(&line) {
                self.log.lost(&format!("{}: {error}", self.file.path().display()));
            }
        }
    }
}

/// Counts and logs lost lines.
struct Reporter {
    lost: Counter,
    logged: Arc<Mutex<Option<Instant>>>,
}

impl Reporter {
    fn lost(&self, why: &str) {
        let lost = self.lost.inc() + 1;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::error!(lost, "write the audit log: {why}; the entry is lost");
            *logged = Some(Instant::now());
        }
    }
}

/// A line of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// RFC 3339, UTC.
    time: String,
    /// Name of the client; null if it is not authenticated.
    who: Option<String>,
    role: Option<String>,
    method: String,
    /// Path of the request, or the object of a plugin call.
    object: String,
    /// Status of the response; null if the client disconnected before.
    result: Option<u16>,
    request_id: String,
    remote: Option<String>,
    /// Whether another netmaster forwarded the request. Its audit log has the client's address.
    forwarded: bool,
}

/// Object of a plugin call, which is not in the path. An extension of responses.
#[derive(Clone, Debug)]
pub(super) struct AuditedObject(pub(super) String);

/// The entry of a request in progress. A change is logged even if the client disconnects.
pub(super) struct Pending {
    log: Option<AuditLog>,
    entry: Entry,
    changes: bool,
}

impl Pending {
    pub(super) fn new(log: Option<AuditLog>, id: &HeaderValue, request: &Request) -> Pending {
        let entry = Entry {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            who: None,
            role: None,
            method: request.method().to_string(),
            object: request.uri().path().to_owned(),
            result: None,
            request_id: String::from_utf8_lossy(id.as_bytes()).into_owned(),
            remote: request.extensions().get::<Peer>().map(|peer| peer.address.to_string()),
            forwarded: proxy::is_forwarded(request.headers()),
        };
        let changes = ![Method::GET, Method::HEAD].contains(request.method());
        Pending { log, entry, changes }
    }

    pub(super) fn id(&self) -> &str {
        &self.entry.request_id
    }

    pub(super) fn set_principal(&mut self, principal: &Principal) {
        self.entry.who = Some(principal.name.clone());
        self.entry.role = Some(principal.role.to_string());
    }

    /// Writes the entry if the request is a change or was refused.
    pub(super) fn finish(mut self, response: &Response<Body>) {
        let status = response.status().as_u16();
        self.entry.result = Some(status);
        if let Some(AuditedObject(object)) = response.extensions().get() {
            self.entry.object = format!("{} {object}", self.entry.object);
        }
        self.changes |= [401, 403].contains(&status);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(log) = self.log.take().filter(|_| self.changes) {
            log.write(&self.entry);
        }
    }
}
