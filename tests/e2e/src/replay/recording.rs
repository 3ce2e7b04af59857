use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::http::JSON;

/// A file of recorded calls.
#[derive(Debug)]
pub struct Recording {
    /// Path of the file, below the folder as the user typed it.
    pub name: String,
    pub calls: Vec<Call>,
}

/// A request and the response of the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub line: usize,
    pub method: String,
    pub path: String,
    pub content_type: Option<String>,
    pub body: Option<String>,
    pub note: Option<String>,
    /// Type of the object, such as `network`; `plugin` and similar for other routes.
    pub object: String,
    pub response: Response,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// The original panicked and closed the connection.
    Dropped,
    Answered {
        status: u16,
        json: bool,
        body: String,
    },
}

#[derive(Debug, Deserialize)]
struct Line {
    method: String,
    path: String,
    request_body: Value,
    status: u16,
    response_content_type: Option<String>,
    response_body: String,
    note: Option<String>,
}

impl Recording {
    pub fn read_folder(folder: &Path) -> Result<Vec<Recording>> {
        let mut paths = vec![];
        for entry in fs::read_dir(folder).with_context(|| format!("read the folder {}", folder.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            bail!("read {}: no .jsonl files", folder.display());
        }
        paths.iter().map(Recording::read).collect()
    }

    fn read(path: &PathBuf) -> Result<Recording> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let calls: Result<Vec<_>> = (1..)
            .zip(text.lines())
            .map(|(number, line)| {
                Call::parse(number, line).with_context(|| format!("{}:{number}", path.display()))
            })
            .collect();
        Ok(Recording { name: path.display().to_string(), calls: calls? })
    }
}

impl Call {
    fn parse(number: usize, text: &str) -> Result<Call> {
        let line: Line = serde_json::from_str(text).context("parse the recorded call")?;
        let body = match line.request_body {
            Value::Null => None,
            // Sent unchanged: mostly invalid JSON.
            Value::String(raw) => Some(raw),
            body => Some(body.to_string()),
        };
        let response = match line.status {
            0 => Response::Dropped,
            status => Response::Answered {
                status,
                json: line.response_content_type.as_deref() == Some(JSON),
                body: line.response_body,
            },
        };
        Ok(Call {
            line: number,
            content_type: body.as_ref().and_then(|_| content_type(line.note.as_deref())),
            object: object(&line.path),
            method: line.method,
            path: line.path,
            body,
            note: line.note,
            response,
        })
    }

    /// Note in parentheses, or an empty string.
    pub fn remark(&self) -> String {
        self.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default()
    }
}

/// Content type of the request, which only the notes of the recordings contain.
fn content_type(note: Option<&str>) -> Option<String> {
    match note {
        Some("no content type" | "no content-type") => None,
        Some("other ctype") => Some(format!("{JSON}; charset=utf-8")),
        _ => Some(JSON.to_owned()),
    }
}

fn object(path: &str) -> String {
    let mut words = path.split('/').filter(|word| !word.is_empty());
    match words.next() {
        Some("api") => {
            let kind = words.nth(1).unwrap_or_default();
            let kind = if kind == "inspect" { words.next().unwrap_or_default() } else { kind };
            kind.strip_suffix('s').unwrap_or(kind).to_owned()
        }
        other => other.unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_type_is_parsed_from_the_path() {
        for (path, name) in [
            ("/api/v1/networks/default:n1/", "network"),
            ("/api/v1/inspect/endpointGroups/default:g/", "endpointGroup"),
            ("/api/v1/tenants//", "tenant"),
            ("/plugin/allocAddress", "plugin"),
            ("/version", "version"),
        ] {
            assert_eq!(object(path), name, "{path}");
        }
    }

    #[test]
    fn dropped_connection_and_raw_body_are_parsed() {
        let text = r#"{"method":"POST","path":"/plugin/allocAddress","request_body":"{x","status":0,
            "response_content_type":null,"response_body":"EXC","note":"other ctype"}"#;
        let call = Call::parse(3, &text.replace('\n', "")).unwrap();
        assert_eq!((call.body.as_deref(), call.response), (Some("{x"), Response::Dropped));
        assert_eq!(call.content_type.as_deref(), Some("application/json; charset=utf-8"));
    }
}
