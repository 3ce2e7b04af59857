//! Conditions that an ADD waits for. If STATUS fails, a runtime reports the node as not ready, which takes its pods out
//! of service. So STATUS reports only conditions that are missing for longer than an ADD waits.

use std::time::{Duration, Instant};

/// The conditions of an ADD.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    /// The datapath is in sync with the store.
    pub(super) in_sync: Condition,
    /// The store contains the address of a leading netmaster.
    pub(super) leader: Condition,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    /// The condition has not been met in this run of the agent.
    #[default]
    Awaited,
    Met,
    /// The condition has not been met since this time.
    Lost(Instant),
}

impl Condition {
    pub(super) fn update(&mut self, is_met: bool, now: Instant) {
        *self = match (*self, is_met) {
            (_, true) => Condition::Met,
            (Condition::Met, false) => Condition::Lost(now),
            (before, false) => before,
        };
    }

    /// Reports whether the condition was lost before the time limit, or has not been met yet.
    pub(super) fn is_missing_for(self, limit: Duration, now: Instant) -> bool {
        match self {
            Condition::Awaited => true,
            Condition::Met => false,
            Condition::Lost(since) => now.saturating_duration_since(since) >= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_missing_after_the_time_limit_and_before_it_is_met() {
        const LIMIT: Duration = Duration::from_secs(15);
        let (start, mut condition) = (Instant::now(), Condition::default());
        let mut is_missing = |second, is_met: Option<bool>| {
            let now = start + Duration::from_secs(second);
            if let Some(is_met) = is_met {
                condition.update(is_met, now);
            }
            condition.is_missing_for(LIMIT, now)
        };
        assert!(is_missing(0, None) && is_missing(1, Some(false)));
        assert!(!is_missing(2, Some(true)));
        // Later changes of the other conditions do not restart the time.
        assert!(!is_missing(3, Some(false)) && !is_missing(17, Some(false)));
        assert!(is_missing(18, None));
        assert!(!is_missing(19, Some(true)) && !is_missing(20, Some(false)) && !is_missing(34, None));
        assert!(is_missing(35, None));
    }
}
