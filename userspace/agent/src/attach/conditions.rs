//! What an ADD waits for. A runtime takes a failure of STATUS for one of the node, and its pods out of service, so STATUS reports only
//! what lasts for longer than an ADD waits.

use std::time::{Duration, Instant};

/// The conditions of an ADD.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    /// The datapath follows the store.
    pub(super) in_sync: Condition,
    /// The store names a netmaster that leads.
    pub(super) leader: Condition,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Condition {
    /// It has not been met in this run of the agent.
    #[default]
    Awaited,
    Met,
    /// It has not been met since this time.
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

    /// Whether the condition was lost before the time limit, or has not been met yet.
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
        // Later changes of others do not begin the time again.
        assert!(!is_missing(3, Some(false)) && !is_missing(17, Some(false)));
        assert!(is_missing(18, None));
        assert!(!is_missing(19, Some(true)) && !is_missing(20, Some(false)) && !is_missing(34, None));
        assert!(is_missing(35, None));
    }
}
