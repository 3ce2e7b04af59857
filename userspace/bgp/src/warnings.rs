//! Warnings about what the neighbor sends.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum interval between warnings. Each message of the neighbor may lead to one.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits the rate of warnings.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    last: Option<Instant>,
    suppressed: u64,
}

impl Warnings {
    /// The text to log, with the number of warnings that were suppressed before; `None` if this one is suppressed.
    pub(crate) fn next(&mut self, warning: &str) -> Option<String> {
        if self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(match std::mem::take(&mut self.suppressed) {
            0 => warning.to_owned(),
            count => format!("{warning} (suppressed before: {count})"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_warning_in_an_interval_is_logged() {
        let mut warnings = Warnings::default();
        assert_eq!(warnings.next("a").as_deref(), Some("a"));
        assert_eq!([warnings.next("b"), warnings.next("c")], [None, None]);
        tokio::time::advance(INTERVAL).await;
        assert_eq!(warnings.next("d").as_deref(), Some("d (suppressed before: 2)"));
        assert_eq!(warnings.next("e"), None);
        tokio::time::advance(2 * INTERVAL).await;
        assert_eq!(warnings.next("f").as_deref(), Some("f (suppressed before: 1)"));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(warnings.next("g").as_deref(), Some("g"));
    }
}
