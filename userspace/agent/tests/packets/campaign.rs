//! Tests that run for a configurable number of cases, from a seed that reproduces them: `cargo xtask bench
//! equivalence` and `cargo xtask bench fuzz`.

use std::{
    env,
    fmt::Display,
    str::FromStr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};

/// Interval between two progress lines.
const PERIOD: Duration = Duration::from_secs(5);

/// A campaign; `CONTIV_<NAME>_CASES` and `CONTIV_<NAME>_SEED` set the number of cases and the seed.
pub(crate) struct Campaign {
    name: &'static str,
    pub(crate) cases: u64,
    pub(crate) seed: u64,
    began: Instant,
    reported: Instant,
}

impl Campaign {
    /// Starts a campaign with `cases` cases by default. Without a default seed, each run uses a random one.
    pub(crate) fn new(name: &'static str, cases: u64, seed: Option<u64>) -> Result<Campaign> {
        let cases = setting(&format!("CONTIV_{name}_CASES"))?.unwrap_or(cases);
        let seed = setting(&format!("CONTIV_{name}_SEED"))?.or(seed).map_or_else(drawn, Ok)?;
        println!("{name} {cases} cases from seed {seed}");
        Ok(Campaign { name, cases, seed, began: Instant::now(), reported: Instant::now() })
    }

    /// Prints the progress at intervals; `seed` reproduces the next cases.
    pub(crate) fn progress(&mut self, done: u64, seed: u64) {
        if self.reported.elapsed() >= PERIOD {
            self.reported = Instant::now();
            let (Campaign { name, cases, .. }, rate) = (&*self, self.rate(done));
            println!("{name} {done} of {cases} cases, {rate:.0} a second; next seed {seed}");
        }
    }

    pub(crate) fn finish(&self, done: u64, what: &dyn Display) {
        let Campaign { name, seed, began, .. } = self;
        let (took, rate) = (began.elapsed().as_secs_f64(), self.rate(done));
        println!("{name} {done} cases from seed {seed} in {took:.0} s, {rate:.0} a second: {what}");
    }

    fn rate(&self, done: u64) -> f64 {
        done as f64 / self.began.elapsed().as_secs_f64()
    }
}

fn drawn() -> Result<u64> {
    Ok(u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()))
}

fn setting<T: FromStr>(name: &str) -> Result<Option<T>> {
    let read = |text: String| text.parse().ok().with_context(|| format!("{name}={text}: expected a number"));
    env::var(name).ok().map(read).transpose()
}
