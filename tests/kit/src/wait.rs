use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Asks until there is a value or the deadline has passed. An error is an answer of "not yet"; the last one is
/// told when time is up.
pub fn wait_until<T>(
    deadline: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = ask();
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
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_told() {
        let error = wait_until::<()>(Duration::from_millis(20), "the answer", || Err(anyhow!("refused")))
            .unwrap_err();
        assert_eq!(format!("{error:#}"), "waited 20ms for the answer: refused");
    }

    #[test]
    fn a_late_value_is_taken() {
        let mut asked = 0;
        let value = wait_until(Duration::from_secs(5), "three", || {
            asked += 1;
            Ok((asked == 3).then_some(asked))
        });
        assert_eq!(value.unwrap(), 3);
    }
}
