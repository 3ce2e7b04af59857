//! The store's members: one of them is asked, until it fails; then the next.
//!
//! A member that is cut off from the others, or whose packets are lost, is noticed by the first request that it does
//! not answer. Spreading requests over all members would let each of them meet it anew.

use crate::Error;
use etcd_client::{Client, ConnectOptions, KvClient, LeaseClient, WatchClient};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

/// How often the members were changed so far.
pub(crate) type Turn = usize;

pub(crate) struct Members {
    urls: Vec<String>,
    options: ConnectOptions,
    clients: RwLock<Clients>,
    turn: watch::Sender<Turn>,
    /// One move at a time.
    place: Mutex<Place>,
}

/// Of the member that is asked. Another member means other clients: telling a client's channel of another address waits
/// for requests on it, and those may wait for just that.
struct Clients {
    requests: Client,
    /// On connections of its own: a watch that nobody polls fills its connection's window, and must not hold up
    /// requests and keep-alives.
    watches: Client,
}

impl Clients {
    /// Logs in when a user is given; a connection is only made by the first request.
    async fn connect(url: &str, options: &ConnectOptions) -> Result<Clients, etcd_client::Error> {
        let requests = Client::connect([url], Some(options.clone())).await?;
        Ok(Clients { requests, watches: Client::connect([url], Some(options.clone())).await? })
    }
}

/// Who is asked, and what is known of the others.
struct Place {
    /// Among the URLs.
    asked: usize,
    /// Those that did not answer, until when they are passed over.
    silent: Vec<Option<Instant>>,
    /// When the last move was.
    moved: Option<Instant>,
}

/// Listings of large bodies are larger than the 4 MiB that gRPC clients take by default.
const MAX_ANSWER: usize = 256 << 20;
/// A member that did not answer is not asked again for so long, if there is another: each time would cost a time-out.
const SILENCE: Duration = Duration::from_secs(3);
/// A member that takes longer to let a user log in is none to turn to.
const LOGIN: Duration = Duration::from_secs(1);
/// Moves that follow each other faster are not worth a line each.
const QUIET: Duration = Duration::from_secs(5);

impl Members {
    /// Begins with the first. When a user is given, with the first that lets it log in.
    pub(crate) async fn connect(
        urls: Vec<String>,
        options: &ConnectOptions,
    ) -> Result<Members, etcd_client::Error> {
        let mut asked = 0;
        loop {
            match Clients::connect(&urls[asked], options).await {
                Ok(clients) => {
                    let place = Place { asked, silent: vec![None; urls.len()], moved: None };
                    let (turn, place) = (watch::Sender::new(0), Mutex::new(place));
                    let (options, clients) = (options.clone(), RwLock::new(clients));
                    return Ok(Members { urls, options, clients, turn, place });
                }
                Err(_) if asked + 1 < urls.len() => asked += 1,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn several(&self) -> bool {
        self.urls.len() > 1
    }

    pub(crate) fn turn(&self) -> Turn {
        *self.turn.borrow()
    }

    /// Another member is asked from now on, unless somebody saw to that since `turn`.
    pub(crate) async fn failed(&self, turn: Turn, error: &Error) {
        if !self.several() {
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
        match timeout(LOGIN, Clients::connect(to, &self.options)).await {
            Ok(Ok(clients)) => *self.clients.write().unwrap_or_else(PoisonError::into_inner) = clients,
            // Requests go on failing at the member before, and then the next one's turn has come.
            Ok(Err(error)) => tracing::warn!(%error, to, "could not turn to another member of the store"),
            Err(_) => tracing::warn!(to, "this member of the store lets nobody log in within {LOGIN:?}"),
        }
        let what = "a member of the store does not answer as it should; asking the next";
        // When all of them fail, that is told by whoever asks.
        if place.moved.replace(now).is_none_or(|last| now.duration_since(last) > QUIET) {
            tracing::info!(from, to, %error, "{what}");
        } else {
            tracing::debug!(from, to, %error, "{what}");
        }
        self.turn.send_replace(turn + 1);
    }

    /// Resolves when another member than at `turn` is asked.
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

    pub(crate) fn watch(&self) -> WatchClient {
        self.clients().watches.watch_client().max_decoding_message_size(MAX_ANSWER)
    }
}

/// The next one that is not silent; the next one, if all others are.
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
