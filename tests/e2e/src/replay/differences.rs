//! Where ours answers otherwise on purpose: a file beside `docs/src/compatibility.md`, each entry with its reason.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::{
    compare::{same_json, same_text},
    recording::{Call, Recording},
};
use crate::http::Answer;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Differences {
    #[serde(default)]
    difference: Vec<Difference>,
    #[serde(default)]
    pub(super) stored: Vec<Stored>,
}

/// A key of the store that has another value on purpose.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    /// The file name of the original's dump; in all of them if there is none.
    dump: Option<String>,
    key: String,
    /// Where in the value, as a JSON pointer; the rest of it is the original's.
    at: Option<String>,
    /// Ours, as JSON; empty if we do not have the key, not told if it may be any. Groups stand in it by their keys.
    pub(super) value: Option<String>,
    pub(super) reason: String,
}

impl Stored {
    pub(super) fn is_about(&self, dump: &str, key: &str) -> bool {
        self.dump.as_deref().is_none_or(|known| known == dump) && self.key == key
    }

    /// Whether ours is what is declared.
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

/// What is given of `file` to `note` must all match the call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Difference {
    /// The end of the recording's path, such as `a/05_groups.jsonl`.
    file: Option<String>,
    lines: Option<Vec<usize>>,
    method: Option<String>,
    path: Option<String>,
    note: Option<String>,
    /// What ours answers.
    pub(super) status: u16,
    /// JSON (compared by value) or a text (its first line).
    pub(super) body: String,
    pub(super) reason: String,
}

/// An entry for the file, without its reason.
pub(super) fn entry(recording: &Recording, call: &Call, answer: &Answer) -> String {
    let path = Path::new(&recording.name);
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let body = if answer.json().is_ok() { answer.body.trim_end() } else { answer.first_line() };
    format!(
        "[[difference]]\nfile = \"{folder}/{file}\"\nlines = [{}]\nstatus = {}\nbody = {}\nreason = \"\"\n\n",
        call.line,
        answer.status,
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
                bail!("{}: a difference without a reason: {:?}", path.display(), difference.body);
            }
            if difference.matches_everything() {
                bail!(
                    "{}: a difference that says no file, path or note: {:?}",
                    path.display(),
                    difference.body
                );
            }
        }
        if let Some(stored) = differences.stored.iter().find(|stored| stored.reason.trim().is_empty()) {
            bail!("{}: a difference without a reason: {}", path.display(), stored.key);
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

    pub(super) fn agrees(&self, answer: &Result<Answer, String>) -> bool {
        match answer {
            Ok(answer) => {
                answer.status == self.status
                    && (same_json(&self.body, &answer.body) || same_text(&self.body, &answer.body))
            }
            Err(_) => false,
        }
    }
}
