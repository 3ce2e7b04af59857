use std::{
    env, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

const FIRST_INTERVAL: Duration = Duration::from_millis(2);
const MAX_INTERVAL: Duration = Duration::from_millis(50);

/// Multiplies all limits of waiting.
const PATIENCE_VARIABLE: &str = "CONTIV_TEST_PATIENCE";

/// Polls until there is a value or `deadline` has passed, which `CONTIV_TEST_PATIENCE` multiplies. Errors count as "not yet";
/// the last one is returned when time is up.
pub fn wait_until<T>(
    deadline: Duration,
    what: &str,
    mut poll: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = deadline * patience();
    let start = Instant::now();
    let mut interval = FIRST_INTERVAL;
    loop {
        let answer = poll();
        if let Ok(Some(value)) = answer {
            return Ok(value);
        }
        if start.elapsed() >= deadline {
            let waited = format!("waited {deadline:?} for {what}");
            return Err(match answer {
                Err(error) => error.context(waited),
                Ok(_) => anyhow!(waited),
            });
        }
        thread::sleep(interval);
        interval = (interval * 2).min(MAX_INTERVAL);
    }
}

/// Factor of time limits: on an emulated kernel that shares its processors, everything takes many times longer.
pub fn patience() -> u32 {
    env::var(PATIENCE_VARIABLE).ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_is_returned() {
        let error = wait_until::<()>(Duration::from_millis(20), "the answer", || Err(anyhow!("refused")))
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 20ms for the answer: refused");
    }

    #[test]
    fn late_value_is_returned() {
        let mut polled = 0;
        let value = wait_until(Duration::from_secs(5), "three", || {
            polled += 1;
            Ok((polled == 3).then_some(polled))
        });
        assert_eq!(value.unwrap(), 3);
    }
}
