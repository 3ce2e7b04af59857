//! `netctl apply` and `netctl delete`.

use std::{collections::BTreeSet, io::Write, path::PathBuf};

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    Error,
    change::{self, Action, Step, Stored},
    client::Client,
    kind::{Change, Kind},
    listing::text,
    manifest::{self, Purpose},
    style,
};

/// Which files.
#[derive(Args, Debug)]
pub struct Files {
    /// A file, a folder with .yaml, .yml and .json files, or - for standard input; may be given again.
    #[arg(long = "file", short, required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Makes netmaster hold what the files say. Nothing is sent unless all of it can be done, as far as can be seen.
pub fn apply(client: &Client, files: &Files, out: &mut dyn Write) -> Result<(), Error> {
    let wanted = manifest::read(&files.files, Purpose::Apply)?;
    let stored = stored(client, change::needed(&wanted))?;
    let steps = change::steps(&wanted, &stored).map_err(Error::Several)?;
    if files.dry_run {
        steps.iter().try_for_each(|step| write!(out, "{}", foretold(step)))?;
    }
    let impossible: Vec<String> = steps.iter().filter_map(impossible).collect();
    if !impossible.is_empty() {
        return Err(Error::Several(impossible));
    }
    if files.dry_run { Ok(()) } else { carry_out(client, &steps, out) }
}

fn stored(client: &Client, kinds: BTreeSet<ObjectType>) -> Result<Stored, Error> {
    let mut stored = Stored::new();
    for kind in kinds {
        let objects = client.list(kind)?;
        stored.insert(kind, objects.into_iter().map(|object| (text(&object, "key"), object)).collect());
    }
    Ok(stored)
}

/// One line, and the difference if there is any.
fn foretold(step: &Step<'_>) -> String {
    let it = step.wanted;
    match &step.action {
        Action::Nothing => format!("{it} unchanged\n"),
        Action::Create => format!("{it} create\n{}", style::diff(&step.diff())),
        Action::Update => format!("{it} update\n{}", style::diff(&step.diff())),
        Action::Recreate(fields) => {
            format!(
                "{it} cannot change {}: recreate needed\n{}",
                fields.join(", "),
                style::diff(&step.diff())
            )
        }
    }
}

fn impossible(step: &Step<'_>) -> Option<String> {
    let Action::Recreate(fields) = &step.action else { return None };
    let it = step.wanted;
    Some(format!(
        "{}: {it}: netmaster cannot change {}: recreate it with `netctl delete` and `netctl apply`; nothing was sent",
        it.origin,
        fields.join(", ")
    ))
}

fn carry_out(client: &Client, steps: &[Step<'_>], out: &mut dyn Write) -> Result<(), Error> {
    // A reader who has gone away stops no change halfway.
    let mut said = Ok(());
    for (at, step) in steps.iter().enumerate() {
        let it = step.wanted;
        let done = match step.action {
            Action::Create => "created",
            Action::Update => "updated",
            Action::Nothing | Action::Recreate(_) => "unchanged",
        };
        if matches!(step.action, Action::Create | Action::Update) {
            client.put(it.kind.of, &it.key, &Value::Object(step.after.clone())).map_err(|error| {
                let rest = steps.iter().skip(at + 1).filter(|step| step.action != Action::Nothing).count();
                error.about(format!("{}: {it}", it.origin), rest)
            })?;
        }
        said = said.and_then(|()| writeln!(out, "{it} {done}"));
    }
    Ok(said?)
}

/// Removes what the files name. What is not there is no mistake; what netmaster refuses does not keep the rest.
pub fn delete(client: &Client, files: &Files, out: &mut dyn Write) -> Result<(), Error> {
    let wanted = manifest::read(&files.files, Purpose::Delete)?;
    let stored = stored(client, wanted.iter().map(|it| it.kind.of).collect())?;
    let (mut said, mut refused) = (Ok(()), vec![]);
    for it in change::removals(&wanted) {
        let there = stored.get(&it.kind.of).is_some_and(|objects| objects.contains_key(&it.key));
        let done = match (it.kind.change, there) {
            (Change::Settings, _) => "kept: settings are changed, not removed",
            (_, false) => "absent",
            (_, true) if files.dry_run => "delete",
            (_, true) => match remove(client, it.kind, &it.key) {
                Ok(done) => done,
                Err(Error::Refused(message)) => {
                    refused.push(format!("{}: {it}: {message}", it.origin));
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        said = said.and_then(|()| writeln!(out, "{it} {done}"));
    }
    said?;
    if refused.is_empty() { Ok(()) } else { Err(Error::Several(refused)) }
}

/// A policy takes its rules with it, so an object may be gone since it was seen.
fn remove(client: &Client, kind: &Kind, key: &str) -> Result<&'static str, Error> {
    match client.delete(kind.of, key) {
        Ok(()) => Ok("deleted"),
        Err(Error::Refused(message)) if message == format!("{} not found", kind.name()) => Ok("absent"),
        Err(error) => Err(error),
    }
}
