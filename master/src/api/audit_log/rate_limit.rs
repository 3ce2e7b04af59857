//! Limit of lines about clients without a role: their requests cost them nothing, and must not fill
//! the disk.

use std::mem;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);
/// Lines in each window.
pub(super) const LINES: u32 = 100;

#[derive(Debug, Default)]
pub(super) struct RateLimit {
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

impl RateLimit {
    /// None if the request is not to be logged. It is counted then.
    pub(super) fn admit(&mut self, now: Instant) -> Option<Admitted> {
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
}
