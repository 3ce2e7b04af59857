//! The file of intended differences from the original, each entry with its reason.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::{
    compare::{same_json, same_text},
    recording::{Call, Recording},
};
use crate::http::Response;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    #[serde(default)]
    difference: Vec<Difference>,
    #[serde(default)]
    pub(super) stored: Vec<Stored>,
}

/// A key of the store with an intended difference.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    /// File name of the dump; none for all dumps.
    dump: Option<String>,
    key: String,
    /// Part of the value, as a JSON pointer; the rest equals the original.
    at: Option<String>,
    /// Expected value, as JSON; empty if the key must not exist, none if any value is accepted. Contains group keys in place
    /// of group ids.
    pub(super) value: Option<String>,
    pub(super) reason: String,
}

impl Stored {
    pub(super) fn is_about(&self, dump: &str, key: &str) -> bool {
        self.dump.as_deref().is_none_or(|known| known == dump) && self.key == key
    }

    /// Whether the value is as declared.
    pub(super) fn agrees(&self, want: Option<&Value>, have: Option<&Value>) -> bool {
        let value = match self.value.as_deref() {
            None => return have.is_some(),
            Some("") => return have.is_none(),
            Some(text) => serde_json::from_str::<Value>(text).ok(),
        };
        let Some(at) = &self.at else { return value.as_ref() == have };
        let mut changed = want.cloned();
        match (changed.as_mut().and_then(|want| want.pointer_mut(at)), value) {
            (Some(place), Some(value)) => *place = value,
            _ => return false,
        }
        changed.as_ref() == have
    }
}

/// An intended difference. Of `file` to `note`, all present fields must match the call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Difference {
    /// End of the path of the recording, such as `a/05_groups.jsonl`.
    file: Option<String>,
    lines: Option<Vec<usize>>,
    method: Option<String>,
    path: Option<String>,
    note: Option<String>,
    /// Expected status.
    pub(super) status: u16,
    /// Expected body: JSON (compared by value) or text (compared by its first line).
    pub(super) body: String,
    pub(super) reason: String,
}

/// Formats an entry for the file, without its reason.
pub(super) fn entry(recording: &Recording, call: &Call, response: &Response) -> String {
    let path = Path::new(&recording.name);
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let body = if response.json().is_ok() { response.body.trim_end() } else { response.first_line() };
    format!(
        "[[difference]]\nfile = \"{folder}/{file}\"\nlines = [{}]\nstatus = {}\nbody = {}\nreason = \"\"\n\n",
        call.line,
        response.status,
        toml::Value::from(body)
    )
}

impl Differences {
    /// No file is no differences.
    pub fn read(path: &Path) -> Result<Differences> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Differences::default()),
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        };
        let differences: Differences =
            toml::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        for difference in &differences.difference {
            if difference.reason.trim().is_empty() {
                bail!("{}: difference without a reason: {:?}", path.display(), difference.body);
            }
            if difference.matches_everything() {
                bail!("{}: difference without file, path and note: {:?}", path.display(), difference.body);
            }
        }
        if let Some(stored) = differences.stored.iter().find(|stored| stored.reason.trim().is_empty()) {
            bail!("{}: difference without a reason: {}", path.display(), stored.key);
        }
        Ok(differences)
    }

    pub(super) fn find(&self, recording: &Recording, call: &Call) -> Option<&Difference> {
        self.difference.iter().find(|difference| difference.matches(recording, call))
    }
}

impl Difference {
    fn matches_everything(&self) -> bool {
        self.file.is_none() && self.path.is_none() && self.note.is_none()
    }

    fn matches(&self, recording: &Recording, call: &Call) -> bool {
        let is =
            |want: &Option<String>, have: Option<&str>| want.as_deref().is_none_or(|want| Some(want) == have);
        self.file.as_ref().is_none_or(|file| recording.name.ends_with(file.as_str()))
            && self.lines.as_ref().is_none_or(|lines| lines.contains(&call.line))
            && is(&self.method, Some(&call.method))
            && is(&self.path, Some(&call.path))
            && is(&self.note, call.note.as_deref())
    }

    pub(super) fn agrees(&self, response: &Result<Response, String>) -> bool {
        match response {
            Ok(response) => {
                response.status == self.status
                    && (same_json(&self.body, &response.body) || same_text(&self.body, &response.body))
            }
            Err(_) => false,
        }
    }
}
