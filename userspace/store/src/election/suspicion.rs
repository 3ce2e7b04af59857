//! When a candidate deposes a leader that has not renewed its lease in time.

use std::time::Duration;
use tokio::time::Instant;

/// Findings of a candidate about the lease of the leader.
///
/// A store that cannot write, or that continues after it could not, may report a stale lease although
/// its leader sends keep-alives. So the candidate first gets a write committed, and the leader is
/// deposed only if its lease is still stale afterwards, when it has had time for a keep-alive.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// The last check found the lease stale.
    suspected: bool,
}

/// The write of the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Pending,
    Failed,
    Committed(Instant),
}

/// What the candidate does after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// Begin a write.
    Write,
    Depose,
}

impl Suspicion {
    /// `stale` is the time at which a check began that found the lease stale; none if it was not, or if
    /// the store did not answer. `pause` is the time for a keep-alive after the write.
    pub(super) fn next(&mut self, stale: Option<Instant>, write: Write, pause: Duration) -> Step {
        let was_suspected = std::mem::replace(&mut self.suspected, stale.is_some());
        let Some(checked) = stale else { return Step::Wait };
        match write {
            _ if !was_suspected => Step::Write,
            Write::Failed => Step::Write,
            Write::Committed(at) if at + pause <= checked => Step::Depose,
            Write::Committed(_) | Write::Pending => Step::Wait,
        }
    }

    /// Begins again: another process holds the lock, or its deletion has been tried.
    pub(super) fn clear(&mut self) {
        self.suspected = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(60);

    fn at(start: Instant, millis: u64) -> Option<Instant> {
        Some(start + Duration::from_millis(millis))
    }

    #[test]
    fn a_leader_without_keep_alives_is_deposed_at_the_second_check() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        assert_eq!(suspicion.next(None, Write::Pending, PAUSE), Step::Wait);
        assert_eq!(suspicion.next(at(start, 0), Write::Pending, PAUSE), Step::Write);
        let written = Write::Committed(start + Duration::from_millis(10));
        assert_eq!(suspicion.next(at(start, 125), written, PAUSE), Step::Depose);
    }

    #[test]
    fn a_store_that_cannot_write_deposes_nobody() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        assert_eq!(suspicion.next(at(start, 0), Write::Pending, PAUSE), Step::Write);
        for millis in [125, 250, 2000] {
            assert_eq!(suspicion.next(at(start, millis), Write::Pending, PAUSE), Step::Wait);
        }
        // The keep-alives of the leader may be the next that the store handles.
        let written = Write::Committed(start + Duration::from_millis(2100));
        assert_eq!(suspicion.next(at(start, 2125), written, PAUSE), Step::Wait);
        assert_eq!(suspicion.next(None, written, PAUSE), Step::Wait);
        // A suspicion begins with a write of its own.
        assert_eq!(suspicion.next(at(start, 2250), written, PAUSE), Step::Write);
    }

    #[test]
    fn a_write_that_failed_is_repeated() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        assert_eq!(suspicion.next(at(start, 0), Write::Pending, PAUSE), Step::Write);
        assert_eq!(suspicion.next(at(start, 125), Write::Failed, PAUSE), Step::Write);
        let written = Write::Committed(start + Duration::from_millis(130));
        assert_eq!(suspicion.next(at(start, 250), written, PAUSE), Step::Depose);
        suspicion.clear();
        assert_eq!(suspicion.next(at(start, 375), written, PAUSE), Step::Write);
    }
}
