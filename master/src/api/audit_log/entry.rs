//! Lines of the audit log.

use serde::Serialize;

use crate::access::Role;

/// Longest text of a client in an entry, in bytes.
const MAX_TEXT: usize = 1024;

/// A line of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    /// RFC 3339, UTC.
    pub(super) time: String,
    /// Name of the client; null if it is not authenticated.
    pub(super) who: Option<String>,
    /// Null if the client has none.
    pub(super) role: Option<String>,
    pub(super) method: String,
    /// Path of the request, and the object of a plugin call.
    pub(super) object: String,
    /// The request was to be checked only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) dry_run: bool,
    /// Status of the response; null if the client disconnected before.
    pub(super) result: Option<u16>,
    pub(super) request_id: String,
    pub(super) remote: Option<String>,
    /// Whether the request says that another netmaster forwarded it. Its audit log has the client's
    /// address.
    pub(super) forwarded: bool,
    /// Refused requests of the client, or of all clients without a role, that were before this one and have no lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unlogged: Option<u64>,
}

/// Statuses of responses to requests that changed nothing, because they were refused. Others may be those of changes that
/// failed halfway.
const REFUSED: [u16; 7] = [401, 403, 404, 405, 412, 413, 429];

impl Entry {
    /// Whether the client has no role that could change anything, or the request was refused.
    pub(super) fn is_refusal(&self) -> bool {
        self.role.as_deref().is_none_or(|role| role == Role::READ_ONLY)
            || self.result.is_some_and(|status| REFUSED.contains(&status))
    }

    /// Encodes the entry as ASCII: clients choose texts, and terminals interpret some characters.
    pub(super) fn line(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_string(self)?;
        let mut line = String::with_capacity(json.len() + 1);
        for c in json.chars() {
            match c {
                ' '..='~' => line.push(c),
                // Other characters are within strings.
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]).iter() {
                        line += &format!("\\u{unit:04x}");
                    }
                }
            }
        }
        line.push('\n');
        Ok(line.into_bytes())
    }
}

/// The text, or its beginning and its length if it is too long.
pub(super) fn bounded(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    format!("{}... ({} bytes)", text.get(..end).unwrap_or_default(), text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn entry(object: &str) -> Entry {
        Entry {
            time: "2026-03-02T10:15:04.120Z".into(),
            who: None,
            role: None,
            method: "POST".into(),
            object: bounded(object),
            dry_run: false,
            result: Some(200),
            request_id: "1".into(),
            remote: None,
            forwarded: false,
            unlogged: None,
        }
    }

    #[test]
    fn a_line_is_ascii_without_control_characters() {
        for object in ["/a\r\n\"\\b", "/\u{1b}[2J\u{7f}\u{9b}2J\u{202e}\u{2028}", "/ü\u{10ffff}😀", ""] {
            let line = String::from_utf8(entry(object).line().unwrap()).unwrap();
            let text = line.strip_suffix('\n').unwrap();
            assert!(text.chars().all(|c| (' '..='~').contains(&c)), "{line:?}");
            let read: Value = serde_json::from_str(text).unwrap();
            assert_eq!(read["object"], object);
        }
    }

    #[test]
    fn long_texts_are_shortened() {
        let fits = "x".repeat(MAX_TEXT);
        assert_eq!(bounded(&fits), fits);
        // The limit is within a character.
        let long = format!("x{}", "ü".repeat(MAX_TEXT));
        let text = bounded(&long);
        assert_eq!(text, format!("x{}... ({} bytes)", "ü".repeat((MAX_TEXT - 1) / 2), 2 * MAX_TEXT + 1));
    }

    #[test]
    fn rare_members_are_left_out() {
        let line = |entry: Entry| serde_json::from_slice::<Value>(&entry.line().unwrap()).unwrap();
        let usual = line(entry("/a"));
        assert!(usual.get("dryRun").is_none() && usual.get("unlogged").is_none(), "{usual}");
        let rare = line(Entry { dry_run: true, unlogged: Some(7), ..entry("/a") });
        assert_eq!((&rare["dryRun"], &rare["unlogged"]), (&Value::Bool(true), &Value::from(7)));
    }
}
