//! Escapes of characters that change the state of a terminal.

use std::{
    borrow::Cow,
    io::{self, Write},
};

use serde::{Serialize, Serializer};
use serde_json::{
    Value,
    ser::{CompactFormatter, Formatter, PrettyFormatter},
};
use serde_saphyr::DoubleQuoted;

/// Whether the character is escaped: a terminal acts on it, or does not show it.
fn is_active(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Characters without a glyph (Default_Ignorable_Code_Point of Unicode), among them the overrides of the direction of text,
/// joiners and variation selectors; separators of lines and annotations. Terminals disagree about their widths.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes active characters as Rust does: `\n`, `\u{1b}`.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_active, |c| c.escape_default().to_string())
}

/// YAML of a value, without active characters except line breaks.
pub(super) fn yaml(value: &Value) -> Result<String, serde_saphyr::SerializeError> {
    let text = serde_saphyr::to_string(&Quoted(value))?;
    // What is left of them is within double quotes, where the escape has the same value.
    let escape = |c: char| match u32::from(c) {
        code @ ..=0xffff => format!("\\u{code:04X}"),
        code => format!("\\U{code:08X}"),
    };
    Ok(escaped(&text, |c| is_active(c) && c != '\n', escape).into_owned())
}

fn escaped(text: &str, is_escaped: fn(char) -> bool, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut done = String::new();
    for c in text.chars() {
        match is_escaped(c) {
            true => done.push_str(&escape(c)),
            false => done.push(c),
        }
    }
    done.into()
}

/// A value whose texts with active characters are in double quotes: the other styles of YAML have no escapes.
struct Quoted<'a>(&'a Value);

impl Serialize for Quoted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(Quoted)),
            Value::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, Quoted(value))))
            }
            Value::String(text) if text.contains(|c| is_active(c) && c != '\n') => {
                DoubleQuoted(text).serialize(serializer)
            }
            other => other.serialize(serializer),
        }
    }
}

/// Formatter of JSON without active characters; serde_json escapes those below U+0020 only.
pub(super) struct Json<F>(F);

impl Json<PrettyFormatter<'static>> {
    pub(super) fn indented() -> Self {
        Json(PrettyFormatter::new())
    }
}

impl Json<CompactFormatter> {
    pub(super) fn one_line() -> Self {
        Json(CompactFormatter)
    }
}

impl<F: Formatter> Formatter for Json<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(is_active) {
            let (before, after) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            let mut characters = after.chars();
            if let Some(c) = characters.next() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
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
    use serde_json::json;

    use super::*;
    use crate::output;

    const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\r\n\tb";

    #[test]
    fn controls_are_shown_as_escapes() {
        assert_eq!(printable(HOSTILE), "a\\u{1b}[2J\\u{9b}31m\\u{7f}\\u{202e}\\r\\n\\tb");
        assert!(matches!(printable("grün 日本"), Cow::Borrowed("grün 日本")));
    }

    #[test]
    fn invisible_characters_are_shown_as_escapes() {
        for (text, shown) in [
            ("a\u{200b}b", "a\\u{200b}b"),
            ("a\u{ad}\u{feff}\u{2060}", "a\\u{ad}\\u{feff}\\u{2060}"),
            ("\u{e0041}\u{fe0f}\u{2028}\u{3164}", "\\u{e0041}\\u{fe0f}\\u{2028}\\u{3164}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[track_caller]
    fn round_trips(value: &Value) {
        let text = |write: fn(&mut dyn Write, &Value) -> Result<(), crate::Error>| {
            let mut text = vec![];
            write(&mut text, value).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(!text.contains(|c| is_active(c) && c != '\n'), "{text:?}");
            text
        };
        assert_eq!(serde_json::from_str::<Value>(&text(output::json)).unwrap(), *value);
        let line = text(output::json_line);
        assert_eq!((line.lines().count(), serde_json::from_str::<Value>(&line).unwrap()), (1, value.clone()));
        let yaml = text(output::yaml);
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), *value, "{yaml}");
    }

    #[test]
    fn json_and_yaml_keep_the_value_and_have_no_controls() {
        round_trips(&json!({"name": HOSTILE, "list": [HOSTILE, 1], "empty": {}, "text": "plain"}));
        // Texts that YAML would otherwise write plain, folded or as a block.
        for text in [
            "a\u{202e}b",
            "a\u{200b}",
            "a\n\tb",
            "\u{200f}a\nb\n",
            "a\nb",
            "\u{e0041}x",
            "long long long long long long long long long long long long long long long long long \u{2066}",
            "\\u202E \u{202e}",
            "- \u{202e}",
            "日本 grün e\u{301}",
        ] {
            round_trips(&json!({"a": text, "b": [text, {"c": text}], "d": 1}));
        }
        let plain = json!({"a": [], "b": [{"c": "\u{1}\"\\"}], "d": {}, "e": null});
        let mut ours = vec![];
        output::json(&mut ours, &plain).unwrap();
        assert_eq!(String::from_utf8(ours).unwrap(), serde_json::to_string_pretty(&plain).unwrap() + "\n");
    }
}
