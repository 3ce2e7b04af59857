//! Steps of a long run with a table of results and times at its end.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::Result;

#[derive(Debug, Default)]
pub(crate) struct Steps {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    result: String,
    time: Duration,
}

impl Steps {
    /// Does one step. A failure is printed and recorded, and does not end the run.
    pub(crate) fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Option<T> {
        let start = Instant::now();
        println!("== {name}");
        let result = step();
        self.record(name, start.elapsed(), &result);
        result.ok()
    }

    /// Records a step that was done elsewhere.
    pub(crate) fn record<T>(&mut self, name: &str, time: Duration, result: &Result<T>) {
        if let Err(error) = result {
            eprintln!("{name} failed: {error:#}");
        }
        let result = if result.is_ok() { "ok" } else { "FAILED" };
        self.rows.push(Row { name: name.to_owned(), result: result.to_owned(), time });
    }

    pub(crate) fn leave_out(&mut self, name: &str, reason: &str) {
        self.rows.push(Row { name: name.to_owned(), result: reason.to_owned(), time: Duration::ZERO });
    }

    pub(crate) fn failed(&self) -> bool {
        self.rows.iter().any(|row| row.result == "FAILED")
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:40} {:>8}  result", "step", "min:s")?;
        for Row { name, result, time } in &self.rows {
            let seconds = time.as_secs();
            write!(f, "\n{name:40} {:>5}:{:02}  {result}", seconds / 60, seconds % 60)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_in_the_table_and_the_next_one_runs() {
        let mut steps = Steps::default();
        assert_eq!(steps.run("lint", || Err::<(), _>(anyhow::anyhow!("no"))), None);
        assert_eq!(steps.run("test", || Ok(1)), Some(1));
        steps.leave_out("package", "skipped");
        assert!(steps.failed());
        let text = steps.to_string();
        let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(
            rows[1..],
            [["lint", "0:00", "FAILED"], ["test", "0:00", "ok"], ["package", "0:00", "skipped"]]
        );
    }
}
