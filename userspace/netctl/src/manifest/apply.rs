//! `netctl apply` and `netctl diff`.

use std::{io::Write, path::PathBuf};

use clap::Args;

use crate::{
    client::Client,
    error::{Error, Outcome},
    manifest::{
        change,
        document::{self, Files, Manifest, Purpose},
        plan::{self, Action, Omitted, Removal, Step},
        removal::{self, Prune},
        snapshot::Snapshot,
        trial::{Trials, Verdict},
    },
    output::{printable, style},
};

/// Arguments of `netctl apply`.
#[derive(Args, Debug)]
pub struct Apply {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    prune: Prune,
}

/// Arguments of `netctl diff`.
#[derive(Args, Debug)]
pub struct Diff {
    /// File, folder with .yaml, .yml and .json files, or - for standard input; repeatable.
    #[arg(long = "file", short, required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    prune: Prune,
}

/// What files change.
struct Plan<'a> {
    /// Objects of the files, in the order of their changes.
    steps: Vec<Step<'a>>,
    /// Objects to delete, in no order.
    surplus: Vec<Manifest>,
    /// Whether netmaster tries changes without making them.
    has_trials: bool,
}

/// Purpose of a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preview {
    /// All objects; who may not change one could not apply the files.
    Apply,
    /// Differences; they are for readers, too.
    Diff,
}

/// Creates and updates the objects of the files. Sends nothing if a file is invalid or an immutable field differs.
pub fn apply(client: &Client, args: &Apply, out: &mut dyn Write) -> Result<(), Error> {
    let manifests = document::read(&args.files.files, Purpose::Apply)?;
    let plan = planned(client, &manifests, Omitted::Keep, &args.prune)?;
    if args.files.dry_run {
        let refused = preview(client, &plan, Preview::Apply, out)?;
        return several(immutable_errors(&plan.steps).into_iter().chain(refused).collect());
    }
    several(immutable_errors(&plan.steps))?;
    // All changes are sent even if the reader of the output closes the pipe.
    let written = send(client, &plan.steps, out);
    if !matches!(written, Ok(()) | Err(Error::Output(_))) {
        return written;
    }
    let removals = plan::removals(&plan.surplus, |_| true);
    let removed = removal::remove(&removals, |_| true, |it| removal::prune_one(client, it), out);
    written.and(removed)
}

/// Shows the differences between the files and the stored objects.
pub fn diff(client: &Client, args: &Diff, out: &mut dyn Write) -> Result<Outcome, Error> {
    let manifests = document::read(&args.files, Purpose::Apply)?;
    let plan = planned(client, &manifests, Omitted::Keep, &args.prune)?;
    several(preview(client, &plan, Preview::Diff, out)?)?;
    let is_equal = plan.surplus.is_empty() && plan.steps.iter().all(|step| step.action == Action::Nothing);
    Ok(if is_equal { Outcome::Done } else { Outcome::Different })
}

/// Reads the stored objects and plans the changes.
fn planned<'a>(
    client: &Client,
    manifests: &'a [Manifest],
    omitted: Omitted,
    prune: &Prune,
) -> Result<Plan<'a>, Error> {
    prune.check(manifests)?;
    let snapshot = Snapshot::read(client, plan::needed(manifests, &prune.tenants))?;
    let steps = plan::steps(manifests, &snapshot.objects, omitted).map_err(Error::Several)?;
    let surplus = plan::surplus(&steps, &snapshot.objects, &prune.tenants);
    Ok(Plan { steps, surplus, has_trials: snapshot.has_trials })
}

/// Plans the change to what an editor has left.
pub fn edited<'a>(client: &Client, manifests: &'a [Manifest]) -> Result<Vec<Step<'a>>, Error> {
    let plan = planned(client, manifests, Omitted::Clear, &Prune { tenants: vec![] })?;
    several(immutable_errors(&plan.steps))?;
    Ok(plan.steps)
}

fn several(lines: Vec<String>) -> Result<(), Error> {
    if lines.is_empty() { Ok(()) } else { Err(Error::Several(lines)) }
}

/// Writes what would change, with netmaster's answers. Returns what it would refuse.
fn preview(
    client: &Client,
    plan: &Plan<'_>,
    purpose: Preview,
    out: &mut dyn Write,
) -> Result<Vec<String>, Error> {
    let surplus = plan.surplus.iter().map(|manifest| (manifest, &manifest.object));
    let trials = Trials::new(client, &plan.steps, surplus);
    let mut refused = vec![];
    for step in &plan.steps {
        let manifest = step.manifest;
        let title = match &step.action {
            Action::Nothing if purpose == Preview::Diff => continue,
            Action::Nothing => {
                writeln!(out, "{manifest} unchanged")?;
                continue;
            }
            Action::Create => "create".to_owned(),
            Action::Update => "update".to_owned(),
            Action::Recreate(fields) => format!("cannot change {}: recreate needed", fields.join(", ")),
        };
        let is_tried = plan.has_trials && !matches!(step.action, Action::Recreate(_));
        let verdict = if is_tried { Some(trials.put(step)?) } else { None };
        let after = match &verdict {
            Some(Verdict::Accepted(spec)) => spec,
            _ => &step.after,
        };
        write!(out, "{manifest} {title}\n{}", style::diff(&step.diff(after)))?;
        let refusal = explain(manifest, verdict, purpose, out)?;
        refused.extend(refusal.map(|why| format!("{}: {manifest}: {why}", manifest.origin)));
    }
    for Removal { manifest, rules } in plan::removals(&plan.surplus, |_| true) {
        preview_removal(manifest, out)?;
        let verdict = if plan.has_trials { Some(trials.delete(manifest)?) } else { None };
        if let Some(why) = explain(manifest, verdict, purpose, out)? {
            refused.push(removal::refusal(manifest, &why));
            continue;
        }
        for rule in rules {
            preview_removal(rule, out)?;
        }
    }
    Ok(refused)
}

fn preview_removal(manifest: &Manifest, out: &mut dyn Write) -> Result<(), Error> {
    Ok(write!(out, "{manifest} delete\n{}", style::diff(&plan::removal(manifest)))?)
}

/// Writes why netmaster has not answered. Returns why it would refuse the change.
fn explain(
    manifest: &Manifest,
    verdict: Option<Verdict>,
    purpose: Preview,
    out: &mut dyn Write,
) -> Result<Option<String>, Error> {
    let why = match verdict {
        None | Some(Verdict::Accepted(_)) => return Ok(None),
        Some(Verdict::Refused(why)) => return Ok(Some(why)),
        Some(Verdict::Forbidden(why)) if purpose == Preview::Apply => return Ok(Some(why)),
        Some(Verdict::Forbidden(why) | Verdict::Unasked(why)) => why,
    };
    writeln!(out, "{manifest} not checked by netmaster: {}", printable(&why))?;
    Ok(None)
}

fn immutable_errors(steps: &[Step<'_>]) -> Vec<String> {
    let error = |step: &Step<'_>| {
        let Action::Recreate(fields) = &step.action else { return None };
        let manifest = step.manifest;
        Some(format!(
            "{}: {manifest}: netmaster cannot change {}: recreate it with `netctl delete` and `netctl apply`; nothing was sent",
            manifest.origin,
            fields.join(", ")
        ))
    };
    steps.iter().filter_map(error).collect()
}

/// Sends the changes in order; stops at the first that netmaster refuses, or whose object another client has changed.
fn send(client: &Client, steps: &[Step<'_>], out: &mut dyn Write) -> Result<(), Error> {
    let mut written = Ok(());
    for (at, step) in steps.iter().enumerate() {
        let manifest = step.manifest;
        let (kind, key) = (manifest.kind, &manifest.key);
        let (result, done) = match (&step.action, &step.before) {
            (Action::Create, _) => ("created", change::create(client, kind, key, &step.after)),
            (Action::Update, Some(before)) => {
                ("updated", change::replace(client, kind, key, before, &step.after))
            }
            (Action::Update | Action::Nothing | Action::Recreate(_), _) => ("unchanged", Ok(())),
        };
        done.map_err(|error| {
            let later = steps.iter().skip(at + 1);
            let remaining = later.filter(|step| step.action != Action::Nothing).count();
            let error = match error {
                Error::Conflict(why) => Error::Conflict(format!("{why}; apply the files again")),
                other => other,
            };
            error.with_object(format!("{}: {manifest}", manifest.origin), remaining)
        })?;
        written = written.and_then(|()| writeln!(out, "{manifest} {result}"));
    }
    Ok(written?)
}
