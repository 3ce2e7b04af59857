//! Plays recorded REST conversations of the original against a fresh netmaster of ours and compares.

mod compare;
mod differences;
mod recording;
mod stored;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};
use clap::Args;
use tempfile::TempDir;
use testkit::{free_port, scratch_dir};

use crate::{
    http::{Answer, Client},
    master::{Master, Options as MasterOptions, Store},
};
pub use differences::Differences;
pub use recording::{Call, Recording};
pub use stored::{Step, differing as store_differing};

#[derive(Debug, Args)]
pub struct Options {
    /// Folder of .jsonl files, played in name order
    folder: PathBuf,
    /// Differences that are meant, with what ours answers
    #[arg(long, value_name = "FILE", default_value = "docs/compatibility.toml")]
    differences: PathBuf,
    /// Compare only calls on these objects (the rest is still played), such as `tenant,network`
    #[arg(long, value_name = "OBJECT", value_delimiter = ',')]
    only: Vec<String>,
    /// Print what differs as entries for that file, to be given reasons
    #[arg(long)]
    declare: bool,
}

/// How one call went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// Different as declared, for this reason.
    Known(String),
    Different {
        how: String,
        answer: Option<Answer>,
    },
}

/// File and line of a call.
pub type Place = (String, usize);

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    passed: usize,
    known: usize,
    failed: usize,
}

/// Whether all calls agree; the sums are the last line that it prints.
pub fn run(options: &Options) -> Result<bool> {
    let recordings = Recording::read_folder(&options.folder)?;
    let differences = Differences::read(&options.differences)?;
    let counts = play(&recordings, &differences, options)?.0;
    let sum = summary(&counts);
    println!("{} passed, {} failed", sum.passed, sum.failed);
    Ok(sum.failed == 0)
}

/// Plays all calls against one fresh master; counts those on the objects asked for.
fn play(
    recordings: &[Recording],
    differences: &Differences,
    options: &Options,
) -> Result<(BTreeMap<String, Count>, Vec<Place>)> {
    let (_folder, mut master) = fresh_master()?;
    let client = master.client().clone();
    let mut counts = BTreeMap::<String, Count>::new();
    let mut places = vec![];
    for recording in recordings {
        for call in &recording.calls {
            let verdict = judge(&client, differences, recording, call);
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
                Verdict::Different { how, answer } => {
                    count.failed += 1;
                    places.push((recording.name.clone(), call.line));
                    match answer {
                        Some(answer) if options.declare => {
                            print!("{}", differences::entry(recording, call, &answer));
                        }
                        _ => print_difference(recording, call, &how),
                    }
                }
            }
        }
    }
    Ok((counts, places))
}

/// On an empty store, which lasts as long as its folder.
fn fresh_master() -> Result<(TempDir, Master)> {
    let folder = scratch_dir("replay")?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let store = Store::Embedded { folder: folder.path().join("store"), listen };
    Ok((folder, Master::start(MasterOptions::alone(store)?)?))
}

fn print_difference(recording: &Recording, call: &Call, how: &str) {
    println!("{}:{}: {} {}{}\n{how}", recording.name, call.line, call.method, call.path, call.remark());
}

fn judge(client: &Client, differences: &Differences, recording: &Recording, call: &Call) -> Verdict {
    let answer = client
        .send(&call.method, &call.path, call.content_type.as_deref(), call.body.as_deref())
        .map_err(|error| format!("{error:#}"));
    let how = match (compare::compare(call, &answer), differences.find(recording, call)) {
        (Ok(()), None) => return Verdict::Same,
        // A declared difference that is none is as wrong as an undeclared one: the documents would lie.
        (Ok(()), Some(declared)) => format!("    is the same, but declared to differ: {}", declared.reason),
        (Err(how), None) => how,
        (Err(_), Some(declared)) if declared.agrees(&answer) => {
            return Verdict::Known(declared.reason.clone());
        }
        (Err(how), Some(declared)) => format!("{how}\n    declared: {} {}", declared.status, declared.body),
    };
    Verdict::Different { how, answer: answer.ok() }
}

fn summary(counts: &BTreeMap<String, Count>) -> Count {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header([
        "object",
        "passed",
        "of these declared",
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

/// Where the calls of `folder` are answered otherwise than recorded or declared.
pub fn differing(folder: &Path, differences: &Path) -> Result<Vec<Place>> {
    let options = Options {
        folder: folder.to_owned(),
        differences: differences.to_owned(),
        only: vec![],
        declare: false,
    };
    let recordings = Recording::read_folder(folder)?;
    play(&recordings, &Differences::read(differences)?, &options).map(|(_, places)| places)
}
