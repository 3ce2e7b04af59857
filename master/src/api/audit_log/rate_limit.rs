//! Limits of lines about requests that were refused, of each client with a role and of all others together: such requests
//! cost the client nothing, and must not fill the disk.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
/// Lines in each window.
pub(super) const LINES: u32 = 100;
/// Clients that have a limit of their own.
const MAX_CLIENTS: usize = 1024;

/// The limits of all clients.
#[derive(Debug, Default)]
pub(super) struct RateLimits {
    /// By the name of the client.
    clients: HashMap<String, RateLimit>,
    /// For clients without a role, and those for which `clients` has no room.
    others: RateLimit,
}

#[derive(Debug, Default)]
struct RateLimit {
    /// Begin of the window.
    since: Option<Instant>,
    lines: u32,
    unlogged: u64,
}

/// Permission for a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// Requests since the last line that have none.
    pub(super) unlogged: u64,
}

impl RateLimits {
    /// Admits a request of the client with a role that has this name, or of one without a role. None if the request is not to
    /// be logged. It is counted then.
    pub(super) fn admit(&mut self, client: Option<&str>, now: Instant) -> Option<Admitted> {
        match client {
            Some(name) => self.of(name, now).admit(now),
            None => self.others.admit(now),
        }
    }

    fn of(&mut self, name: &str, now: Instant) -> &mut RateLimit {
        if !self.clients.contains_key(name) {
            if self.clients.len() >= MAX_CLIENTS {
                self.clients.retain(|_, limit| !limit.is_idle(now));
            }
            if self.clients.len() >= MAX_CLIENTS {
                return &mut self.others;
            }
        }
        self.clients.entry(name.to_owned()).or_default()
    }
}

impl RateLimit {
    /// Whether a new limit would be the same.
    fn is_idle(&self, now: Instant) -> bool {
        self.unlogged == 0 && self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW)
    }

    /// None if the request is not to be logged. It is counted then.
    fn admit(&mut self, now: Instant) -> Option<Admitted> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES {
            self.unlogged += 1;
            return None;
        }
        self.lines += 1;
        Some(Admitted { unlogged: mem::take(&mut self.unlogged) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_has_some_lines_and_a_count() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        let admitted = |unlogged| Some(Admitted { unlogged });
        for _ in 0..LINES {
            assert_eq!(limit.admit(start), admitted(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.admit(start + WINDOW / 2), None);
        }
        assert_eq!(limit.admit(start + WINDOW), admitted(7));
        assert_eq!(limit.admit(start + WINDOW), admitted(0));
        assert_eq!(limit.admit(start), admitted(0), "an earlier time");
    }

    #[test]
    fn each_client_has_a_limit_of_its_own() {
        let (mut limits, start) = (RateLimits::default(), Instant::now());
        for client in [Some("a"), Some("b"), None] {
            for _ in 0..LINES {
                assert_eq!(limits.admit(client, start), Some(Admitted { unlogged: 0 }), "{client:?}");
            }
            assert_eq!(limits.admit(client, start), None, "{client:?}");
        }
        assert_eq!(limits.admit(Some("a"), start + WINDOW), Some(Admitted { unlogged: 1 }));
    }

    #[test]
    fn the_number_of_clients_is_limited() {
        let (mut limits, start) = (RateLimits::default(), Instant::now());
        // The first client has a count to report.
        while limits.admit(Some("0"), start).is_some() {}
        for n in 1..2 * MAX_CLIENTS {
            let is_admitted = limits.admit(Some(&n.to_string()), start).is_some();
            assert_eq!(is_admitted, n < MAX_CLIENTS + LINES as usize, "{n}");
        }
        assert_eq!(limits.clients.len(), MAX_CLIENTS);
        // Idle ones make room.
        assert_eq!(limits.admit(Some("new"), start + WINDOW), Some(Admitted { unlogged: 0 }));
        assert_eq!(limits.clients.len(), 2);
        assert_eq!(limits.admit(Some("0"), start + WINDOW), Some(Admitted { unlogged: 1 }));
    }
}
