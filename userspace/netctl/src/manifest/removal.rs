//! `netctl delete`, and the deletions of `netctl apply --prune`.

use std::io::Write;

use clap::Args;

use crate::{
    client::Client,
    error::Error,
    manifest::{
        document::{self, Files, Manifest, Origin, Purpose},
        plan,
        snapshot::Snapshot,
    },
    output::text,
    schema::{Kind, Mutability},
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
    let stored = Snapshot::read(client, kinds)?.objects;
    let is_stored = |manifest: &Manifest| {
        stored.get(&manifest.kind.object_type).is_some_and(|objects| objects.contains_key(&manifest.key))
    };
    remove(client, &plan::removals(&manifests), is_stored, files.dry_run, out)
}

/// Deletes objects in this order. A missing object is not an error; a rejection does not stop later deletions.
pub fn remove(
    client: &Client,
    manifests: &[&Manifest],
    is_stored: impl Fn(&Manifest) -> bool,
    dry_run: bool,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let (mut written, mut refused) = (Ok(()), vec![]);
    for manifest in manifests {
        let done = match (manifest.kind.mutability, is_stored(manifest)) {
            (Mutability::Settings, _) => "kept: settings cannot be deleted",
            (_, false) => "absent",
            (_, true) if dry_run => "delete",
            (_, true) => match remove_one(client, manifest.kind, &manifest.key) {
                Ok(done) => done,
                Err(Error::Refused(message) | Error::Forbidden(message)) => {
                    refused.push(refusal(manifest, &message));
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

/// Line of an object that netmaster does not delete.
pub fn refusal(manifest: &Manifest, message: &str) -> String {
    match manifest.origin {
        Origin::Netmaster => format!("delete {manifest}: {message}"),
        Origin::Document { .. } => format!("{}: {manifest}: {message}", manifest.origin),
    }
}

/// Deletes one object. It may be missing by now: deleting a policy deletes its rules.
fn remove_one(client: &Client, kind: &Kind, key: &str) -> Result<&'static str, Error> {
    match client.delete(kind.object_type, key) {
        Ok(()) => Ok("deleted"),
        Err(Error::Refused(message)) if message == kind.not_found() => Ok("absent"),
        Err(error) => Err(error),
    }
}
