//! Output of objects: fields as text, JSON, YAML, tables.

mod escape;
pub mod list;
pub mod style;
pub mod table;

use std::{borrow::Cow, io::Write};

use serde::Serialize as _;
use serde_json::Value;

use crate::{error::Error, flags::ObjectFormat, query::Template};

/// Returns a field as the original prints it: a missing field is empty, a list is joined by commas.
pub fn text(object: &Value, field: &str) -> String {
    match object.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
}

/// Returns a numeric field, 0 if it is missing.
pub fn number(object: &Value, field: &str) -> i64 {
    object.get(field).and_then(Value::as_i64).unwrap_or(0)
}

/// Text for a terminal: control characters and characters that are not visible are shown as escapes, so that a stored text
/// cannot move the cursor, change colours, shift columns or pose as other output.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape::printable(text)
}

/// Writes indented JSON. Characters that a terminal acts on are escaped.
pub fn json(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, escape::Json::indented());
    value.serialize(&mut serializer).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Writes JSON in one line, with the same escapes.
pub fn json_line(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, escape::Json::one_line());
    value.serialize(&mut serializer).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Writes YAML.
pub fn yaml(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let text = escape::yaml(value)
        .map_err(|error| Error::Output(std::io::Error::other(format!("encode YAML: {error}"))))?;
    Ok(writeln!(out, "{}", text.trim_end())?)
}

/// Writes one object in the requested format.
pub fn object(out: &mut dyn Write, format: &ObjectFormat, value: &Value) -> Result<(), Error> {
    match format {
        ObjectFormat::Json => json(out, value),
        ObjectFormat::Yaml => yaml(out, value),
        ObjectFormat::JsonPath(template) => values(out, template, value),
    }
}

/// Writes the values of queries.
pub fn values(out: &mut dyn Write, template: &Template, value: &Value) -> Result<(), Error> {
    // The text of the template is the user's.
    Ok(out.write_all(template.render(value, |text| printable(text).into_owned()).as_bytes())?)
}
