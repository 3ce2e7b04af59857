//! Tests that go on for as long as one likes, from a seed that repeats them: `cargo xtask bench equivalence` and `bench fuzz`.

use std::{
    env,
    fmt::Display,
    str::FromStr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};

/// Between two lines about how far it is.
const PERIOD: Duration = Duration::from_secs(5);

/// `CONTIV_<NAME>_CASES` and `CONTIV_<NAME>_SEED` say how much, and where it begins.
pub(crate) struct Campaign {
    name: &'static str,
    pub(crate) cases: u64,
    pub(crate) seed: u64,
    began: Instant,
    told: Instant,
}

impl Campaign {
    /// So many cases when nobody says how many. Without a usual seed, each run begins somewhere else.
    pub(crate) fn new(name: &'static str, cases: u64, seed: Option<u64>) -> Result<Campaign> {
        let cases = setting(&format!("CONTIV_{name}_CASES"))?.unwrap_or(cases);
        let seed = setting(&format!("CONTIV_{name}_SEED"))?.or(seed).map_or_else(drawn, Ok)?;
        println!("{name} {cases} cases from seed {seed}");
        Ok(Campaign { name, cases, seed, began: Instant::now(), told: Instant::now() })
    }

    /// Tells how far it is, now and then; `seed` begins with what comes next.
    pub(crate) fn progress(&mut self, done: u64, seed: u64) {
        if self.told.elapsed() >= PERIOD {
            self.told = Instant::now();
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
