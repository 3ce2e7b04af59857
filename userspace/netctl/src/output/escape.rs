//! Escapes of characters that change the state of a terminal.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use serde_json::ser::{Formatter, PrettyFormatter};

/// Whether a terminal acts on the character: C0 and C1 controls, DEL, and overrides of the direction of text.
fn is_active(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes active characters as Rust does: `\n`, `\u{1b}`.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return text.into();
    }
    let mut escaped = String::new();
    for c in text.chars() {
        match is_active(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

/// Escapes active characters of a YAML text except line breaks. They are part of double-quoted strings, as all other
/// styles of YAML exclude them or are not chosen for them; the escapes have the same value there.
pub(super) fn yaml(text: &str) -> Cow<'_, str> {
    let escapes = |c: char| is_active(c) && c != '\n';
    if !text.contains(escapes) {
        return text.into();
    }
    let mut escaped = String::new();
    for c in text.chars() {
        match escapes(c) {
            true => escaped.push_str(&format!("\\u{:04X}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

/// Indented JSON in which active characters are escaped; serde_json escapes those below U+0020 only.
#[derive(Default)]
pub(super) struct PrettyJson(PrettyFormatter<'static>);

impl Formatter for PrettyJson {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(is_active) {
            let (before, after) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            let mut characters = after.chars();
            if let Some(c) = characters.next() {
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            rest = characters.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::output;

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\r\n\tb";

    #[test]
    fn controls_are_shown_as_escapes() {
        assert_eq!(printable(HOSTILE), "a\\u{1b}[2J\\u{9b}31m\\u{7f}\\u{202e}\\r\\n\\tb");
        assert!(matches!(printable("grün 日本"), Cow::Borrowed("grün 日本")));
    }

    #[test]
    fn json_and_yaml_keep_the_value_and_have_no_controls() {
        let value = json!({"name": HOSTILE, "list": [HOSTILE, 1], "empty": {}, "text": "plain"});
        let mut text = vec![];
        output::json(&mut text, &value).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains(|c| is_active(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let plain = json!({"a": [], "b": [{"c": "\u{1}\"\\"}], "d": {}, "e": null});
        let mut ours = vec![];
        output::json(&mut ours, &plain).unwrap();
        assert_eq!(String::from_utf8(ours).unwrap(), serde_json::to_string_pretty(&plain).unwrap() + "\n");

        let mut text = vec![];
        output::yaml(&mut text, &value).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains(|c| is_active(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), value, "{text}");
    }
}
