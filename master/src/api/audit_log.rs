//! The audit log: a line of JSON for each change and for each refused request.
//!
//! A thread writes the lines, so that a slow disk delays no request. A line that cannot be written is
//! counted and logged.

mod entry;
mod log_file;
mod rate_limit;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method};
use axum::response::Response;
use prometheus_client::metrics::counter::Counter;

use super::parameters::Parameters;
use super::peer::Peer;
use super::proxy;
use crate::access::Principal;
use entry::{Entry, bounded};
use log_file::LogFile;
use rate_limit::RateLimits;

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
    /// For refused requests.
    limits: Arc<Mutex<RateLimits>>,
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
        let log =
            AuditLog { lines, lost, logged: Arc::default(), limits: Arc::default(), thread: Arc::default() };
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

    /// Writes the entry, unless there are too many about refused requests of the client.
    fn write(&self, mut entry: Entry, now: Instant) {
        if entry.is_refusal() {
            let client = entry.who.as_deref().filter(|_| entry.role.is_some());
            let admitted = self.limits.lock().unwrap_or_else(PoisonError::into_inner).admit(client, now);
            let Some(admitted) = admitted else { return };
            entry.unlogged = Some(admitted.unlogged).filter(|unlogged| *unlogged > 0);
        }
        let reporter = || Reporter { lost: self.lost.clone(), logged: self.logged.clone() };
        let line = match entry.line() {
            Ok(line) => line,
            Err(error) => return reporter().lost(&error.to_string()),
        };
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

/// What a request changes, if that is not in its path. An extension of requests: the handler sets it
/// before the change, so that the log has it even if the client disconnects.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditedObject(Arc<OnceLock<String>>);

impl AuditedObject {
    /// The first object counts.
    pub(super) fn set(&self, object: &str) {
        self.0.get_or_init(|| bounded(object));
    }
}

/// The entry of a request in progress. A change is logged even if the client disconnects.
pub(super) struct Pending {
    /// None after the entry was written.
    open: Option<(AuditLog, Entry)>,
    object: AuditedObject,
    request_id: String,
    changes: bool,
}

impl Pending {
    /// Adds an [`AuditedObject`] to the request.
    pub(super) fn new(log: Option<AuditLog>, id: &HeaderValue, request: &mut Request) -> Pending {
        let object = AuditedObject::default();
        request.extensions_mut().insert(object.clone());
        let changes = ![Method::GET, Method::HEAD].contains(request.method());
        let request_id = String::from_utf8_lossy(id.as_bytes()).into_owned();
        let entry = || Entry {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            who: None,
            role: None,
            method: bounded(request.method().as_str()),
            object: bounded(request.uri().path()),
            dry_run: changes && Parameters::of(request.uri()).dry_run() == Ok(true),
            result: None,
            request_id: request_id.clone(),
            remote: request.extensions().get::<Peer>().map(|peer| peer.address.to_string()),
            forwarded: proxy::is_forwarded(request.headers()),
            unlogged: None,
        };
        let open = log.map(|log| (log, entry()));
        Pending { open, object, request_id, changes }
    }

    pub(super) fn id(&self) -> &str {
        &self.request_id
    }

    pub(super) fn set_principal(&mut self, principal: &Principal) {
        self.set_who(&principal.name);
        if let Some((_, entry)) = &mut self.open {
            entry.role = Some(principal.role.to_string());
        }
    }

    /// Sets the name of a client, which may have no role.
    pub(super) fn set_who(&mut self, name: &str) {
        if let Some((_, entry)) = &mut self.open {
            entry.who = Some(bounded(name));
        }
    }

    /// Writes the entry if the request is a change or was refused.
    pub(super) fn finish(mut self, response: &Response<Body>) {
        let status = response.status().as_u16();
        if let Some((_, entry)) = &mut self.open {
            entry.result = Some(status);
        }
        self.changes |= [401, 403].contains(&status);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some((log, mut entry)) = self.open.take().filter(|_| self.changes) else { return };
        if let Some(object) = self.object.0.get() {
            entry.object = format!("{} {object}", entry.object);
        }
        log.write(entry, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Lines that `write` produces.
    fn lines(write: impl FnOnce(&AuditLog)) -> Vec<Value> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = AuditLog::start(path.clone(), Counter::default()).unwrap();
        write(&log);
        log.close();
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn request(method: &str, uri: &str) -> Request {
        Request::builder().method(method).uri(uri).body(Body::empty()).unwrap()
    }

    fn pending(log: &AuditLog, request: &mut Request) -> Pending {
        Pending::new(Some(log.clone()), &HeaderValue::from_static("id"), request)
    }

    #[test]
    fn a_client_that_disconnects_does_not_hide_what_it_changes() {
        let entries = lines(|log| {
            let mut request = request("POST", "/plugin/deleteEndpoint");
            let pending = pending(log, &mut request);
            let object = request.extensions().get::<AuditedObject>().unwrap();
            object.set("net.blue-c1");
            object.set("other");
            drop(pending);
        });
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0]["object"], "/plugin/deleteEndpoint net.blue-c1");
        assert_eq!(entries[0]["result"], Value::Null);
    }

    #[test]
    fn dry_runs_are_marked() {
        let entries = lines(|log| {
            for uri in ["/a?dryRun=All", "/a?dryRun=0", "/a"] {
                drop(pending(log, &mut request("PUT", uri)));
            }
            drop(pending(log, &mut request("GET", "/a?dryRun=All")));
        });
        let marks: Vec<&Value> = entries.iter().map(|entry| &entry["dryRun"]).collect();
        assert_eq!(marks, [&Value::Bool(true), &Value::Null, &Value::Null]);
    }

    #[test]
    fn long_texts_of_clients_are_shortened() {
        let long = "x".repeat(1 << 20);
        let entries = lines(|log| {
            let mut request = request(&"M".repeat(5000), &format!("/{}", "y".repeat(50_000)));
            let pending = pending(log, &mut request);
            request.extensions().get::<AuditedObject>().unwrap().set(&long);
            drop(pending);
        });
        assert!(entries[0].to_string().len() < 5000, "{}", entries[0]);
    }

    #[test]
    fn a_flood_without_credentials_is_counted_and_hides_no_change() {
        let now = Instant::now();
        let entries = lines(|log| {
            let write = |role: Option<&str>, at: Instant| {
                let mut pending = pending(log, &mut request("DELETE", "/a"));
                if let Some((log, mut entry)) = pending.open.take() {
                    entry.role = role.map(str::to_owned);
                    log.write(entry, at);
                }
            };
            for _ in 0..rate_limit::LINES + 50 {
                write(None, now);
            }
            write(Some("admin"), now);
            write(None, now + Duration::from_secs(2));
        });
        let unlogged = |n: usize| entries.iter().rev().nth(n).map(|entry| &entry["unlogged"]);
        assert_eq!(entries.len(), rate_limit::LINES as usize + 2);
        assert_eq!((unlogged(0), unlogged(1)), (Some(&Value::from(50)), Some(&Value::Null)));
        assert_eq!(entries[entries.len() - 2]["role"], "admin");
    }

    /// A role allows to send any number of requests that are refused.
    #[test]
    fn a_flood_of_refused_requests_is_counted_and_hides_no_change() {
        let now = Instant::now();
        let entries = lines(|log| {
            let write_as = |role: &str, who: &str, result: Option<u16>, at: Instant| {
                let mut pending = pending(log, &mut request("DELETE", "/a"));
                if let Some((log, mut entry)) = pending.open.take() {
                    (entry.who, entry.role) = (Some(who.to_owned()), Some(role.to_owned()));
                    entry.result = result;
                    log.write(entry, at);
                }
            };
            let write =
                |who: &str, result: u16, at: Instant| write_as("tenant-operator", who, Some(result), at);
            for status in [401, 403, 404, 405, 412, 413, 429] {
                (0..rate_limit::LINES).for_each(|_| write("a", status, now));
            }
            for status in [200, 409, 500, 503] {
                (0..rate_limit::LINES).for_each(|_| write("a", status, now));
            }
            // It changes nothing, whatever the answer is, or if its client disconnects.
            for result in [Some(500), None] {
                (0..rate_limit::LINES).for_each(|_| write_as("read-only", "c", result, now));
            }
            write("b", 403, now);
            write("a", 403, now + Duration::from_secs(2));
        });
        assert_eq!(entries.len(), rate_limit::LINES as usize * 6 + 2);
        let unlogged = |n: usize| entries.iter().rev().nth(n).map(|entry| &entry["unlogged"]);
        assert_eq!((unlogged(0), unlogged(1)), (Some(&Value::from(600)), Some(&Value::Null)));
    }
}
