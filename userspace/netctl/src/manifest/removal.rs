//! `netctl delete`, and the deletions of `netctl apply --prune`.

use std::{collections::BTreeSet, io::Write};

use clap::Args;

use crate::{
    client::Client,
    error::{Error, Rejections},
    manifest::{
        change,
        document::{self, Files, Manifest, Origin, Purpose},
        plan::{self, Removal},
        snapshot::Snapshot,
        trial::{Trials, Verdict},
    },
    output::text,
    schema::Mutability,
};

/// `--prune`.
#[derive(Args, Debug)]
pub struct Prune {
    /// Also delete the objects of this tenant that the files do not name; not the tenant, nor networks of type infra;
    /// repeatable.
    #[arg(long = "prune", value_name = "TENANT")]
    pub tenants: Vec<String>,
}

impl Prune {
    /// Fails if the files have no object of a tenant: they are the wrong files, or the name is wrong.
    pub fn check(&self, manifests: &[Manifest]) -> Result<(), Error> {
        let has_object =
            |tenant: &&String| manifests.iter().any(|it| text(&it.object, "tenantName") == **tenant);
        match self.tenants.iter().find(|tenant| !has_object(tenant)) {
            Some(tenant) => Err(Error::Usage(format!(
                "--prune {tenant}: the files have no object of this tenant; nothing was sent"
            ))),
            None => Ok(()),
        }
    }
}

/// Deletes the objects of the files.
pub fn delete(client: &Client, files: &Files, out: &mut dyn Write) -> Result<(), Error> {
    let manifests = document::read(&files.files, Purpose::Delete)?;
    let kinds = manifests.iter().map(|manifest| manifest.kind.object_type).collect();
    let snapshot = Snapshot::read(client, kinds)?;
    let stored = |it: &Manifest| plan::find_stored(&snapshot.objects, it.kind.object_type, &it.key);
    let is_stored = |manifest: &Manifest| stored(manifest).is_some();
    let removals = plan::removals(&manifests, is_stored);
    if !files.dry_run {
        return remove(&removals, is_stored, |removal| delete_one(client, removal.manifest), out);
    }
    let removed = manifests.iter().filter_map(|manifest| Some((manifest, stored(manifest)?)));
    let trials = Trials::new(client, &[], removed);
    let preview = |removal: &Removal<'_>| match snapshot.has_trials {
        true => preview_one(&trials, removal.manifest),
        false => Ok("delete"),
    };
    remove(&removals, is_stored, preview, out)
}

/// Deletes objects in this order. A missing object is not an error; a rejection does not stop later deletions, except for
/// the rules of a policy, which stay with it. Any other failure does.
pub fn remove(
    removals: &[Removal<'_>],
    is_stored: impl Fn(&Manifest) -> bool,
    delete: impl Fn(&Removal<'_>) -> Result<&'static str, Error>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (mut written, mut refused) = (Ok(()), Rejections::default());
    for (at, removal) in removals.iter().enumerate() {
        let Removal { manifest, rules } = removal;
        let done = match (manifest.kind.mutability, is_stored(manifest)) {
            (Mutability::Settings, _) => "kept: settings cannot be deleted",
            (_, false) => "absent",
            (_, true) => match delete(removal) {
                Ok(done) => done,
                Err(error) => {
                    let later = removals.iter().skip(at + 1).map(|removal| removal.manifest);
                    let is_left =
                        |it: &&Manifest| it.kind.mutability != Mutability::Settings && is_stored(it);
                    let remaining = later.filter(is_left).count();
                    refused.add(error, remaining, |message| refusal(manifest, message))?;
                    continue;
                }
            },
        };
        written = written.and_then(|()| writeln!(out, "{manifest} {done}"));
        for rule in rules {
            let done = if is_stored(rule) { done } else { "absent" };
            written = written.and_then(|()| writeln!(out, "{rule} {done}"));
        }
    }
    refused.finish()?;
    Ok(written?)
}

/// Line of an object that is not deleted.
pub fn refusal(manifest: &Manifest, message: &str) -> String {
    match manifest.origin {
        Origin::Netmaster => format!("delete {manifest}: {message}"),
        Origin::Document { .. } => format!("{}: {manifest}: {message}", manifest.origin),
    }
}

/// Deletes one object, which another client may have deleted by now.
fn delete_one(client: &Client, manifest: &Manifest) -> Result<&'static str, Error> {
    let kind = manifest.kind;
    match client.delete(kind.object_type, &manifest.key) {
        Ok(()) => Ok("deleted"),
        Err(Error::Refused(message)) if message == kind.not_found() => Ok("absent"),
        Err(error) => Err(error),
    }
}

/// Deletes one object that no file names, unless another client has changed it since it was read, or has added rules to it.
pub fn prune_one(client: &Client, Removal { manifest, rules }: &Removal<'_>) -> Result<&'static str, Error> {
    let kind = manifest.kind;
    // Rules may have been read after their policy.
    let rules = rules.iter().map(|rule| rule.key.as_str());
    let rules: BTreeSet<&str> = rules.chain(change::rules_of(&manifest.object)).collect();
    match change::delete(client, kind, &manifest.key, &kind.spec(&manifest.object), &rules) {
        Ok(true) => Ok("deleted"),
        Ok(false) => Ok("absent"),
        Err(Error::Conflict(why)) => Err(Error::Conflict(format!("{why}; apply the files again"))),
        Err(error) => Err(error),
    }
}

/// Asks netmaster to try the deletion of one object, unless others have to be deleted before.
fn preview_one(trials: &Trials<'_>, manifest: &Manifest) -> Result<&'static str, Error> {
    match trials.delete(manifest)? {
        Verdict::Accepted(_) | Verdict::Unasked(_) => Ok("delete"),
        Verdict::Refused(why) => Err(Error::Refused(why)),
        Verdict::Forbidden(why) => Err(Error::Forbidden(why)),
    }
}
