//! The client: a handle on the store, with the connections to its members. Each kind of request has a file.

mod commit;
mod lease;
mod listing;
mod read;
mod request;
mod walk;

pub(crate) use listing::Page;
pub(crate) use request::{ANSWER_LIMIT, Again};
pub use walk::Without;
pub(crate) use walk::{Omission, Walk, omitted};

use crate::members::Members;
use crate::rotation::Files;
use crate::{Cause, Config, Error, Operation, RequestMetrics};
use etcd_client::{GetOptions, LeaseClient, WatchClient};
use request::Limits;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time that each member has to answer [`Store::connect`].
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// One call has the time for the answers of so many members.
const MOST_ASKED: u32 = 8;

/// Key of reads whose answer's header is of interest. Below contiv's prefix, which is all that etcd's
/// user may be permitted to read.
const PROBED: &str = "/contiv.io/";

/// A handle on the store. Clones share the connections.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    members: Members,
    endpoints: String,
    request_timeout: Duration,
    metrics: RequestMetrics,
    last_answer: Mutex<Instant>,
}

impl Store {
    /// Connects to the first endpoint that answers.
    ///
    /// # Errors
    ///
    /// Fails if the configuration is invalid, if a TLS file cannot be read, or if no endpoint answers. Each
    /// has 3 s, or the request timeout if that is shorter, to log in and as long to answer.
    pub async fn connect(config: &Config) -> Result<Store, Error> {
        let urls = config.urls()?;
        let endpoints = urls.join(",");
        let limit = CONNECT_LIMIT.min(config.request_timeout);
        let asked = u32::try_from(urls.len()).unwrap_or(MOST_ASKED).clamp(1, MOST_ASKED);
        let options = config.options().await?;
        let members = match Members::connect(urls, &options, limit).await {
            Ok(members) => {
                members.map_err(|e| request_error(Operation::Connect, "the store", &endpoints, e))?
            }
            Err(_) => {
                return Err(Error::Timeout {
                    operation: Operation::Connect,
                    key: "the store".into(),
                    endpoints,
                    limit,
                });
            }
        };
        let store = Store::begin(members, endpoints, config);
        store.probe(limit, limit * asked).await?;
        store.follow_files(config);
        Ok(store)
    }

    /// Like [`Store::connect`], without waiting for the store. Requests fail until it answers, and, if the
    /// configuration has a user, until [`Store::reach`] has succeeded.
    ///
    /// # Errors
    ///
    /// Fails if the configuration is invalid, or if a TLS file cannot be read.
    pub async fn open(config: &Config) -> Result<Store, Error> {
        let urls = config.urls()?;
        let endpoints = urls.join(",");
        let options = config.options().await?;
        // A login needs the store.
        let anonymous = Config { auth: None, ..config.clone() }.options().await?;
        let members = Members::open(urls, options, &anonymous).await;
        let members = members.map_err(|e| request_error(Operation::Connect, "the store", &endpoints, e))?;
        let store = Store::begin(members, endpoints, config);
        store.follow_files(config);
        Ok(store)
    }

    /// Logs in if the configuration, which is that of [`Store::open`], has a user, and waits for an answer.
    ///
    /// # Errors
    ///
    /// Fails within some seconds if the store does not answer, or if it refuses the user. May be repeated.
    pub async fn reach(&self, config: &Config) -> Result<(), Error> {
        let limit = CONNECT_LIMIT.min(config.request_timeout);
        if config.auth.is_some() {
            let (members, options) = (&self.shared.members, config.options().await?);
            let turn = members.turn();
            let error = match tokio::time::timeout(limit, members.reload(options)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(self.error(Operation::Connect, "the store", error)),
                Err(_) => Some(self.timeout(Operation::Connect, "the store", limit)),
            };
            if let Some(error) = error {
                if error.is_transient() {
                    members.failed(turn, &error).await;
                }
                return Err(error);
            }
        }
        self.probe(limit, limit).await
    }

    fn begin(members: Members, endpoints: String, config: &Config) -> Store {
        let (request_timeout, metrics) = (config.request_timeout, config.metrics.clone());
        let last_answer = Mutex::new(Instant::now());
        let shared = Shared { members, endpoints, request_timeout, metrics, last_answer };
        Store { shared: Arc::new(shared) }
    }

    /// Waits for an answer: until `limit` for that of one member, until `all` for that of any.
    async fn probe(&self, limit: Duration, all: Duration) -> Result<(), Error> {
        let options = GetOptions::new().with_count_only();
        // Without a limit for each, the first members would have the time of the last ones.
        let limits = Limits { all, first: self.patience(Again::Always).min(limit), longest: limit };
        self.request_within(limits, Operation::Connect, "the store", Again::Always, || {
            let (mut kv, options) = (self.shared.members.kv(), options.clone());
            async move { kv.get(PROBED, Some(options)).await }
        })
        .await
        .map(drop)
    }

    /// Reconnects when the TLS files change, as long as the store exists.
    fn follow_files(&self, config: &Config) {
        let Some(files) = Files::of(config) else { return };
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(files.follow(move |options| {
            let shared = shared.upgrade();
            async move { Some(shared?.members.reload(options).await) }
        }));
    }

    /// Time since the store last answered a request or a keep-alive of this client.
    pub fn silent_for(&self) -> Duration {
        self.shared.last_answer.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    pub(crate) fn answered(&self) {
        *self.shared.last_answer.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn members(&self) -> &Members {
        &self.shared.members
    }

    pub(crate) fn lease_client(&self) -> LeaseClient {
        self.shared.members.lease()
    }

    pub(crate) fn watch_client(&self) -> WatchClient {
        self.shared.members.watch()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.shared.request_timeout
    }

    pub(crate) fn error(&self, operation: Operation, key: &str, cause: impl Into<Cause>) -> Error {
        request_error(operation, key, &self.shared.endpoints, cause)
    }

    pub(crate) fn timeout(&self, operation: Operation, key: &str, limit: Duration) -> Error {
        // Whole milliseconds, for readable messages.
        let limit = Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        Error::Timeout { operation, key: key.to_owned(), endpoints: self.shared.endpoints.clone(), limit }
    }
}

fn request_error(operation: Operation, key: &str, endpoints: &str, cause: impl Into<Cause>) -> Error {
    let (source, key) = (cause.into(), key.to_owned());
    if source.is_out_of_space() {
        Error::OutOfSpace { operation, key }
    } else if source.code().is_none() {
        Error::Unreachable { operation, key, endpoints: endpoints.to_owned(), source }
    } else {
        Error::Refused { operation, key, source }
    }
}
