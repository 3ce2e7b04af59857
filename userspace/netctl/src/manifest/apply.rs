//! `netctl apply` and `netctl delete`.

use std::{collections::BTreeSet, io::Write, path::PathBuf};

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    client::Client,
    error::{Error, Outcome},
    manifest::{
        document::{self, Manifest, Purpose},
        plan::{self, Action, Omitted, Step, Stored},
    },
    output::{style, text},
    schema::{Kind, Mutability},
};

/// Arguments of `netctl apply` and `netctl delete`.
#[derive(Args, Debug)]
pub struct Files {
    /// File, folder with .yaml, .yml and .json files, or - for standard input; repeatable.
    #[arg(long = "file", short, required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show the changes without sending them.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `netctl diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// File, folder with .yaml, .yml and .json files, or - for standard input; repeatable.
    #[arg(long = "file", short, required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Creates and updates the objects of the files. Sends nothing if a file is invalid or an immutable field differs.
pub fn apply(client: &Client, files: &Files, out: &mut dyn Write) -> Result<(), Error> {
    let manifests = document::read(&files.files, Purpose::Apply)?;
    let steps = planned(client, &manifests, Omitted::Keep)?;
    if files.dry_run {
        steps.iter().try_for_each(|step| write!(out, "{}", preview(step)))?;
    }
    check(&steps)?;
    if files.dry_run { Ok(()) } else { send(client, &steps, out) }
}

/// Shows the differences between the files and the stored objects.
pub fn diff(client: &Client, args: &Diff, out: &mut dyn Write) -> Result<Outcome, Error> {
    let manifests = document::read(&args.files, Purpose::Apply)?;
    let steps = planned(client, &manifests, Omitted::Keep)?;
    let different: Vec<_> = steps.iter().filter(|step| step.action != Action::Nothing).collect();
    different.iter().try_for_each(|step| write!(out, "{}", preview(step)))?;
    Ok(if different.is_empty() { Outcome::Done } else { Outcome::Different })
}

/// Reads the stored objects and plans the changes.
pub fn planned<'a>(
    client: &Client,
    manifests: &'a [Manifest],
    omitted: Omitted,
) -> Result<Vec<Step<'a>>, Error> {
    let stored = stored(client, plan::needed(manifests))?;
    plan::steps(manifests, &stored, omitted).map_err(Error::Several)
}

/// Fails if a step changes an immutable field.
pub fn check(steps: &[Step<'_>]) -> Result<(), Error> {
    let rejected: Vec<String> = steps.iter().filter_map(immutable_error).collect();
    if rejected.is_empty() { Ok(()) } else { Err(Error::Several(rejected)) }
}

fn stored(client: &Client, kinds: BTreeSet<ObjectType>) -> Result<Stored, Error> {
    let mut stored = Stored::new();
    for kind in kinds {
        let objects = client.list(kind)?;
        stored.insert(kind, objects.into_iter().map(|object| (text(&object, "key"), object)).collect());
    }
    Ok(stored)
}

/// Returns one line per step, followed by its diff.
fn preview(step: &Step<'_>) -> String {
    let manifest = step.manifest;
    match &step.action {
        Action::Nothing => format!("{manifest} unchanged\n"),
        Action::Create => format!("{manifest} create\n{}", style::diff(&step.diff())),
        Action::Update => format!("{manifest} update\n{}", style::diff(&step.diff())),
        Action::Recreate(fields) => {
            format!(
                "{manifest} cannot change {}: recreate needed\n{}",
                fields.join(", "),
                style::diff(&step.diff())
            )
        }
    }
}

fn immutable_error(step: &Step<'_>) -> Option<String> {
    let Action::Recreate(fields) = &step.action else { return None };
    let manifest = step.manifest;
    Some(format!(
        "{}: {manifest}: netmaster cannot change {}: recreate it with `netctl delete` and `netctl apply`; nothing was sent",
        manifest.origin,
        fields.join(", ")
    ))
}

/// Sends the changes in order; stops at the first that netmaster refuses.
pub fn send(client: &Client, steps: &[Step<'_>], out: &mut dyn Write) -> Result<(), Error> {
    // All changes are sent even if the reader of the output closes the pipe.
    let mut written = Ok(());
    for (at, step) in steps.iter().enumerate() {
        let manifest = step.manifest;
        let result = match step.action {
            Action::Create => "created",
            Action::Update => "updated",
            Action::Nothing | Action::Recreate(_) => "unchanged",
        };
        if matches!(step.action, Action::Create | Action::Update) {
            client
                .put(manifest.kind.object_type, &manifest.key, &Value::Object(step.after.clone()))
                .map_err(|error| {
                    let remaining =
                        steps.iter().skip(at + 1).filter(|step| step.action != Action::Nothing).count();
                    error.with_object(format!("{}: {manifest}", manifest.origin), remaining)
                })?;
        }
        written = written.and_then(|()| writeln!(out, "{manifest} {result}"));
    }
    Ok(written?)
}

/// Deletes the objects of the files. A missing object is not an error; a rejection does not stop later deletions.
pub fn delete(client: &Client, files: &Files, out: &mut dyn Write) -> Result<(), Error> {
    let manifests = document::read(&files.files, Purpose::Delete)?;
    let stored = stored(client, manifests.iter().map(|manifest| manifest.kind.object_type).collect())?;
    let (mut written, mut refused) = (Ok(()), vec![]);
    for manifest in plan::removals(&manifests) {
        let exists =
            stored.get(&manifest.kind.object_type).is_some_and(|objects| objects.contains_key(&manifest.key));
        let done = match (manifest.kind.mutability, exists) {
            (Mutability::Settings, _) => "kept: settings cannot be deleted",
            (_, false) => "absent",
            (_, true) if files.dry_run => "delete",
            (_, true) => match remove(client, manifest.kind, &manifest.key) {
                Ok(done) => done,
                Err(Error::Refused(message)) => {
                    refused.push(format!("{}: {manifest}: {message}", manifest.origin));
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        written = written.and_then(|()| writeln!(out, "{manifest} {done}"));
    }
    written?;
    if refused.is_empty() { Ok(()) } else { Err(Error::Several(refused)) }
}

/// Deletes one object. It may be missing by now: deleting a policy deletes its rules.
fn remove(client: &Client, kind: &Kind, key: &str) -> Result<&'static str, Error> {
    match client.delete(kind.object_type, key) {
        Ok(()) => Ok("deleted"),
        Err(Error::Refused(message)) if message == format!("{} not found", kind.name()) => Ok("absent"),
        Err(error) => Err(error),
    }
}
