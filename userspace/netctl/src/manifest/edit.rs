//! `netctl edit`.

use std::{
    env,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;
use serde_json::Value;

use crate::{
    client::Client,
    error::{Error, one_line},
    flags::TenantFlag,
    manifest::{
        apply,
        document::{self, Manifest, Purpose},
        get::What,
        plan::Omitted,
    },
    output::{self, printable},
};

/// Arguments of `netctl edit`.
#[derive(Args, Debug)]
pub struct Edit {
    /// Kind of the object, as in `get`; not endpoint and node.
    what: String,
    /// Name of the object; for a rule, POLICY:RULE.
    name: String,
    #[command(flatten)]
    tenant: TenantFlag,
}

const HEADER: &str = "# Save and quit to change the object. A line that is removed clears its field. Quit without a \
                      change to leave\n# the object as it is.\n";

/// Writes an object to a file, runs the editor, and sends the changes.
pub fn run(client: &Client, edit: &Edit, out: &mut dyn Write) -> Result<(), Error> {
    let what = What::named(&edit.what, "edit")?;
    if !matches!(what, What::Kind(_)) {
        return Err(Error::Usage(format!("edit {}: agents report these; they cannot be changed", edit.what)));
    }
    let key = what.key(&edit.tenant.tenant, &edit.name);
    let object = stored(client, what, &key)?;
    let mut text = HEADER.as_bytes().to_vec();
    output::yaml(&mut text, &object)?;
    let file = create(&text)?;
    let edited = open_editor(&file).and_then(|()| fs::read(&file).map_err(Error::file("read", &file)));
    let result = match edited {
        Ok(edited) if edited == text => {
            writeln!(out, "{} {} unchanged", what.word(), printable(&key)).map_err(Error::from)
        }
        Ok(_) => send(client, what, &key, &object, &file, out),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if !error.is_broken_pipe() => {
            let kept = format!("the edited object is kept in {}", file.display());
            Err(Error::Several(vec![one_line(&error), kept]))
        }
        result => {
            fs::remove_file(&file).map_err(Error::file("remove", &file))?;
            result
        }
    }
}

/// The object as a document.
fn stored(client: &Client, what: What, key: &str) -> Result<Value, Error> {
    let found = what.find(client, key)?;
    let object = found.ok_or_else(|| Error::Refused(format!("{} not found", what.word())))?;
    Ok(what.document(&object))
}

/// Creates a new file that only its owner can read.
fn create(text: &[u8]) -> Result<PathBuf, Error> {
    let mut number = 0;
    loop {
        let path = env::temp_dir().join(format!("netctl-edit-{}-{number}.yaml", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            created => {
                let mut file = created.map_err(Error::file("create", &path))?;
                file.write_all(text).map_err(Error::file("write", &path))?;
                return Ok(path);
            }
        }
    }
}

/// Runs the editor, which may have arguments.
fn open_editor(file: &Path) -> Result<(), Error> {
    let set = |name| env::var(name).ok().filter(|command: &String| !command.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into());
    let script = format!("{editor} \"$1\"");
    let status = Command::new("/bin/sh").args(["-c", &script, "sh"]).arg(file).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::Refused(format!("editor {editor}: {status}; nothing was sent"))),
    }
}

fn send(
    client: &Client,
    what: What,
    key: &str,
    before: &Value,
    file: &Path,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let manifests = document::read(&[file.to_owned()], Purpose::Apply)?;
    let is_same = |manifest: &Manifest| manifest.key == key && manifest.kind.name() == what.word();
    if !matches!(&manifests[..], [manifest] if is_same(manifest)) {
        let object = format!("{} {key}", what.word());
        return Err(Error::Refused(format!(
            "{object}: the file must have this object only; nothing was sent"
        )));
    }
    let steps = apply::planned(client, &manifests, Omitted::Clear)?;
    apply::check(&steps)?;
    // The edited object would undo what another client has changed meanwhile.
    if stored(client, what, key)? != *before {
        return Err(Error::Refused(format!(
            "{} {key}: changed by another client meanwhile; nothing was sent",
            what.word()
        )));
    }
    apply::send(client, &steps, out)
}
