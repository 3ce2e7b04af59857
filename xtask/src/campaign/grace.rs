//! Grace periods of the kernel (RCU), for which each program waits that is attached or removed.

use std::fs;

use anyhow::{Context as _, Result};

/// Setting of the machine: not 0 if all wait shorter, and other processors are interrupted for it.
const SETTING: &str = "/sys/kernel/rcu_expedited";

/// Grace periods are expedited until this is dropped.
pub(crate) struct Expedited {
    before: String,
}

impl Expedited {
    pub(crate) fn begin() -> Result<Expedited> {
        let before = fs::read_to_string(SETTING).with_context(|| format!("read {SETTING}"))?;
        fs::write(SETTING, "1").with_context(|| format!("write {SETTING}, as root"))?;
        println!("{SETTING} is 1 until the end, and was {}", before.trim());
        Ok(Expedited { before })
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SETTING, &self.before) {
            eprintln!("{SETTING} is still 1, write {} to it: {error}", self.before.trim());
        }
    }
}
