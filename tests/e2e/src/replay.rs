//! Replays recorded REST calls of the original against a new netmaster and compares the responses.

mod compare;
mod differences;
mod instance;
mod recording;
mod stored;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use clap::Args;

use crate::http::{Client, Response};
pub use differences::Differences;
pub use recording::{Call, Recording};
pub use stored::{Step, differing as store_differing};

#[derive(Debug, Args)]
pub struct Options {
    /// Folder with .jsonl files, replayed in the order of their names
    folder: PathBuf,
    /// File with the intended differences
    #[arg(long, value_name = "FILE", default_value = "docs/compatibility.toml")]
    differences: PathBuf,
    /// Compare only calls for these objects, such as `tenant,network`; all calls are replayed [default: all]
    #[arg(long, value_name = "OBJECT", value_delimiter = ',')]
    only: Vec<String>,
    /// Print differences as entries for the file of --differences, without reasons
    #[arg(long)]
    declare: bool,
}

/// Result of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// Different as declared; with the reason.
    Known(String),
    Different {
        how: String,
        response: Option<Response>,
    },
}

/// File and line of a call.
pub type Location = (String, usize);

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    passed: usize,
    known: usize,
    failed: usize,
}

/// Replays and prints a summary; returns whether all responses are as recorded or declared.
pub fn run(options: &Options) -> Result<bool> {
    let recordings = Recording::read_folder(&options.folder)?;
    let differences = Differences::read(&options.differences)?;
    let counts = replay(&recordings, &differences, options)?.0;
    let sum = summary(&counts);
    println!("{} passed, {} failed", sum.passed, sum.failed);
    Ok(sum.failed == 0)
}

/// Replays all calls against a new netmaster; counts those for the selected objects.
fn replay(
    recordings: &[Recording],
    differences: &Differences,
    options: &Options,
) -> Result<(BTreeMap<String, Count>, Vec<Location>)> {
    let (_folder, mut master) = instance::start_master()?;
    let client = master.client().clone();
    let mut counts = BTreeMap::<String, Count>::new();
    let mut locations = vec![];
    for recording in recordings {
        for call in &recording.calls {
            let verdict = evaluate(&client, differences, recording, call);
            if let Some(status) = master.process().ended()? {
                bail!(
                    "{}:{}: netmaster ended ({status}): {}",
                    recording.name,
                    call.line,
                    master.process().tail()
                );
            }
            if !options.only.is_empty() && !options.only.contains(&call.object) {
                continue;
            }
            let count = counts.entry(call.object.clone()).or_default();
            match verdict {
                Verdict::Same => count.passed += 1,
                Verdict::Known(_) => {
                    count.passed += 1;
                    count.known += 1;
                }
                Verdict::Different { how, response } => {
                    count.failed += 1;
                    locations.push((recording.name.clone(), call.line));
                    match response {
                        Some(response) if options.declare => {
                            print!("{}", differences::entry(recording, call, &response));
                        }
                        _ => print_difference(recording, call, &how),
                    }
                }
            }
        }
    }
    Ok((counts, locations))
}

fn print_difference(recording: &Recording, call: &Call, how: &str) {
    println!("{}:{}: {} {}{}\n{how}", recording.name, call.line, call.method, call.path, call.remark());
}

fn evaluate(client: &Client, differences: &Differences, recording: &Recording, call: &Call) -> Verdict {
    let response = client
        .send(&call.method, &call.path, call.content_type.as_deref(), call.body.as_deref())
        .map_err(|error| format!("{error:#}"));
    let how = match (compare::compare(call, &response), differences.find(recording, call)) {
        (Ok(()), None) => return Verdict::Same,
        // A declared difference that does not exist is an error, too: the documentation would be wrong.
        (Ok(()), Some(declared)) => format!("    no difference, but declared: {}", declared.reason),
        (Err(how), None) => how,
        (Err(_), Some(declared)) if declared.agrees(&response) => {
            return Verdict::Known(declared.reason.clone());
        }
        (Err(how), Some(declared)) => format!("{how}\n    declared: {} {}", declared.status, declared.body),
    };
    Verdict::Different { how, response: response.ok() }
}

fn summary(counts: &BTreeMap<String, Count>) -> Count {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header([
        "object",
        "passed",
        "declared differences",
        "failed",
    ]);
    let mut sum = Count::default();
    for (object, count) in counts {
        table.add_row([
            object.clone(),
            count.passed.to_string(),
            count.known.to_string(),
            count.failed.to_string(),
        ]);
        sum.passed += count.passed;
        sum.known += count.known;
        sum.failed += count.failed;
    }
    println!("{table}");
    sum
}

/// Calls of `folder` whose responses are neither as recorded nor as declared.
pub fn differing(folder: &Path, differences: &Path) -> Result<Vec<Location>> {
    let options = Options {
        folder: folder.to_owned(),
        differences: differences.to_owned(),
        only: vec![],
        declare: false,
    };
    let recordings = Recording::read_folder(folder)?;
    replay(&recordings, &Differences::read(differences)?, &options).map(|(_, locations)| locations)
}
