//! The members of the store: requests go to one of them until it fails, then to the next.
//!
//! A member that is cut off from the others, or whose packets are lost, is detected by the first
//! request that it does not answer. Spreading requests over all members would expose each of them
//! to the failure.

use crate::Error;
use crate::config::{CONNECT_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, socket_path};
use etcd_client::{Channel, Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;

/// Number of changes of the current member so far.
pub(crate) type Turn = usize;

pub(crate) struct Members {
    urls: Vec<String>,
    options: RwLock<ConnectOptions>,
    clients: RwLock<Clients>,
    turn: watch::Sender<Turn>,
    /// Serialises changes of the member.
    place: Mutex<Place>,
}

/// Clients of the current member. Another member needs other clients: changing the address of a
/// client's channel waits for the requests on it, and these may wait for that change.
struct Clients {
    requests: Client,
    /// Separate connections: a watch that is not polled fills the window of its connection and must
    /// not delay requests and keep-alives.
    watches: Client,
}

impl Clients {
    /// Logs in if a user is given; otherwise the first request establishes the connection.
    async fn connect(url: &str, options: &ConnectOptions) -> Result<Clients, etcd_client::Error> {
        // Together, because a login may take most of its time limit.
        let (requests, watches) = tokio::try_join!(client(url, options), client(url, options))?;
        Ok(Clients { requests, watches })
    }
}

async fn client(url: &str, options: &ConnectOptions) -> Result<Client, etcd_client::Error> {
    if socket_path(url).is_none() {
        return Client::connect([url], Some(options.clone())).await;
    }
    // The client itself takes every address for one of TCP.
    let endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    Client::from_channel(Channel::Tonic(endpoint.connect_lazy()), Some(options.clone())).await
}

/// The current member, and the state of the others.
struct Place {
    /// Index of the current member in the URLs.
    asked: usize,
    /// Until when each member is skipped because it did not answer.
    silent: Vec<Option<Instant>>,
    /// Time of the last change, or of the last login at the only member.
    moved: Option<Instant>,
    /// Logins that have timed out since the last one that succeeded, when changing the member.
    late: u32,
}

/// Largest message from the store. Listings of large bodies exceed gRPC's default of 4 MiB. So does the
/// history of a watch from `etcd grpc-proxy`, which does not divide it into fragments.
const MAX_ANSWER: usize = 256 << 20;
/// Time for which a member that did not answer is skipped if there is another: each attempt would
/// cost a timeout.
const SILENCE: Duration = Duration::from_secs(3);
/// Time limit of a login when changing the member, at first. Each one that is late doubles it: on a slow network no
/// login may be faster.
const LOGIN: Duration = Duration::from_secs(1);
/// The limit is doubled so many times at most: other requests wait for the change meanwhile.
const DOUBLED: u32 = 2;
/// Time limit of a login with other options.
const RELOAD: Duration = Duration::from_secs(10);
/// Changes of the member within this time of each other are logged at debug level.
const QUIET: Duration = Duration::from_secs(5);

impl Members {
    /// Begins with the first member; with credentials, with the first one that accepts the login within `limit`.
    pub(crate) async fn connect(
        urls: Vec<String>,
        options: &ConnectOptions,
        limit: Duration,
    ) -> Result<Result<Members, etcd_client::Error>, Elapsed> {
        let mut asked = 0;
        loop {
            match timeout(limit, Clients::connect(&urls[asked], options)).await {
                Ok(Ok(clients)) => return Ok(Ok(Members::begin(urls, asked, options.clone(), clients))),
                Ok(Err(_)) | Err(_) if asked + 1 < urls.len() => asked += 1,
                Ok(Err(error)) => return Ok(Err(error)),
                Err(elapsed) => return Err(elapsed),
            }
        }
    }

    /// Begins with the first member and `anonymous` options, without a login; `options` are those of later
    /// connections.
    pub(crate) async fn open(
        urls: Vec<String>,
        options: ConnectOptions,
        anonymous: &ConnectOptions,
    ) -> Result<Members, etcd_client::Error> {
        let clients = Clients::connect(&urls[0], anonymous).await?;
        Ok(Members::begin(urls, 0, options, clients))
    }

    fn begin(urls: Vec<String>, asked: usize, options: ConnectOptions, clients: Clients) -> Members {
        let place = Place { asked, silent: vec![None; urls.len()], moved: None, late: 0 };
        let (turn, place) = (watch::Sender::new(0), Mutex::new(place));
        Members { urls, options: RwLock::new(options), clients: RwLock::new(clients), turn, place }
    }

    pub(crate) fn several(&self) -> bool {
        self.urls.len() > 1
    }

    pub(crate) fn turn(&self) -> Turn {
        *self.turn.borrow()
    }

    /// Changes to the next member, unless another request has done so since `turn`. With a single member, logs in
    /// again if the error asks for it.
    pub(crate) async fn failed(&self, turn: Turn, error: &Error) {
        if !self.several() {
            if error.needs_login() {
                self.log_in_again().await;
            }
            return;
        }
        let mut place = self.place.lock().await;
        if self.turn() != turn {
            return;
        }
        let now = Instant::now();
        if matches!(error, Error::Timeout { .. } | Error::Unreachable { .. }) {
            let asked = place.asked;
            place.silent[asked] = Some(now + SILENCE);
        }
        let from = place.asked;
        place.asked = next(from, &place.silent, now);
        let (from, to) = (&self.urls[from], &self.urls[place.asked]);
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner).clone();
        let limit = LOGIN * (1 << place.late.min(DOUBLED));
        match timeout(limit, Clients::connect(to, &options)).await {
            Ok(Ok(clients)) => {
                *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
                place.late = 0;
            }
            // Requests continue to fail at the previous member, and then it is the turn of the next
            // one.
            Ok(Err(error)) => tracing::warn!(%error, to, "connecting to another store member failed"),
            Err(_) => {
                place.late = place.late.saturating_add(1);
                tracing::warn!(to, "login to the store member timed out after {limit:?}");
            }
        }
        let what = "store member failed; changing to the next";
        // When all members fail, the caller reports it.
        if place.moved.replace(now).is_none_or(|last| now.duration_since(last) > QUIET) {
            tracing::info!(from, to, %error, "{what}");
        } else {
            tracing::debug!(from, to, %error, "{what}");
        }
        self.turn.send_replace(turn + 1);
    }

    /// Logs in at the only member, at most once a second. Requests and streams that have begun go on.
    async fn log_in_again(&self) {
        let mut place = self.place.lock().await;
        let now = Instant::now();
        if place.moved.is_some_and(|last| now.duration_since(last) < LOGIN) {
            return;
        }
        let options = self.options.read().unwrap_or_else(PoisonError::into_inner).clone();
        match timeout(RELOAD, Clients::connect(&self.urls[place.asked], &options)).await {
            Ok(Ok(clients)) => {
                *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
                tracing::info!("the login to the store was no longer valid; logged in again");
            }
            Ok(Err(error)) => tracing::warn!(%error, "log in to the store again: failed"),
            Err(_) => tracing::warn!("log in to the store again: no answer within {RELOAD:?}"),
        }
        place.moved = Some(Instant::now());
    }

    /// Connects to the current member with other options. Requests and streams that have begun end on
    /// the earlier connections.
    pub(crate) async fn reload(&self, options: ConnectOptions) -> Result<(), etcd_client::Error> {
        loop {
            let (turn, asked) = {
                let place = self.place.lock().await;
                (self.turn(), place.asked)
            };
            // A member that does not answer must not hold up the change to another one.
            let login = timeout(RELOAD, Clients::connect(&self.urls[asked], &options)).await;
            let late =
                |_| etcd_client::Error::GRpcStatus(tonic::Status::unavailable("no answer to the login"));
            let clients = login.map_err(late)??;
            let _place = self.place.lock().await;
            if self.turn() == turn {
                *self.options.write().unwrap_or_else(PoisonError::into_inner) = options;
                *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
                return Ok(());
            }
        }
    }

    /// Resolves when the current member is not that of `turn`.
    pub(crate) async fn moved(&self, turn: Turn) {
        let mut turns = self.turn.subscribe();
        if turns.wait_for(|now| *now != turn).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn clients(&self) -> RwLockReadGuard<'_, Clients> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn kv(&self) -> KvClient {
        self.clients().requests.kv_client().max_decoding_message_size(MAX_ANSWER)
    }

    pub(crate) fn lease(&self) -> LeaseClient {
        self.clients().requests.lease_client()
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient {
        self.clients().requests.maintenance_client()
    }

    pub(crate) fn watch(&self) -> WatchClient {
        self.clients().watches.watch_client().max_decoding_message_size(MAX_ANSWER)
    }
}

/// The next member that is not skipped; the next one if all others are.
fn next(from: usize, silent: &[Option<Instant>], now: Instant) -> usize {
    let others = || (1..silent.len()).map(|step| (from + step) % silent.len());
    let answers = |member: &usize| silent[*member].is_none_or(|until| until <= now);
    others().find(answers).or_else(|| others().next()).unwrap_or(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_member_is_passed_over_for_a_while() {
        let now = Instant::now();
        let silent = [None, Some(now + SILENCE), None];
        assert_eq!([0, 1, 2].map(|from| next(from, &silent, now)), [2, 2, 0]);
        assert_eq!(next(0, &silent, now + SILENCE), 1);
        let all = [Some(now + SILENCE); 3];
        assert_eq!([0, 1, 2].map(|from| next(from, &all, now)), [1, 2, 0]);
        assert_eq!(next(0, &[None], now), 0);
    }
}
