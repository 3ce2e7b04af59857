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
use serde_json::{Map, Value};

use crate::{
    client::Client,
    error::{Error, one_line},
    flags::TenantFlag,
    manifest::{
        apply, change,
        document::{self, Manifest, Purpose},
        get::What,
        plan::Action,
    },
    output::{self, printable},
    schema::Kind,
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
    let What::Kind(kind) = what else {
        return Err(Error::Usage(format!("edit {}: agents report these; they cannot be changed", edit.what)));
    };
    let key = what.key(&edit.tenant.tenant, &edit.name);
    let object = what.existing(client, &key)?;
    let mut text = HEADER.as_bytes().to_vec();
    output::yaml(&mut text, &what.document(&object))?;
    let file = create(&text)?;
    let edited = open_editor(&file).and_then(|()| fs::read(&file).map_err(Error::file("read", &file)));
    let result = match edited {
        Ok(edited) if edited == text => {
            writeln!(out, "{} {} unchanged", kind.name(), printable(&key)).map_err(Error::from)
        }
        Ok(_) => send(client, kind, &key, &kind.spec(&object), &file, out),
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

/// Sends what the file has. `before` is what the user saw.
fn send(
    client: &Client,
    kind: &Kind,
    key: &str,
    before: &Map<String, Value>,
    file: &Path,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let manifests = document::read(&[file.to_owned()], Purpose::Apply)?;
    let is_same = |manifest: &Manifest| manifest.key == key && manifest.kind.name() == kind.name();
    if !matches!(&manifests[..], [manifest] if is_same(manifest)) {
        let object = format!("{} {key}", kind.name());
        return Err(Error::Refused(format!(
            "{object}: the file must have this object only; nothing was sent"
        )));
    }
    for step in apply::edited(client, &manifests)? {
        let object = step.manifest.to_string();
        let done = match &step.before {
            Some(now) if now == before => match step.action {
                Action::Nothing => Ok("unchanged"),
                _ => change::replace(client, kind, key, before, &step.after).map(|()| "updated"),
            },
            // The edited object would undo what another client has changed.
            Some(now) => Err(Error::Conflict(change::difference(kind, before, now))),
            None => Err(Error::Conflict("deleted by another client meanwhile".into())),
        };
        let done = done.map_err(|error| match error {
            Error::Conflict(why) => Error::Conflict(format!("{object}: {why}; nothing was changed")),
            other => other.with_object(&object, 0),
        })?;
        writeln!(out, "{object} {done}")?;
    }
    Ok(())
}
