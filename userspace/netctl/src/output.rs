//! Output of objects: fields as text, JSON, YAML, tables.

pub mod style;
pub mod table;

use std::io::Write;

use serde_json::Value;

use crate::{error::Error, flags::ObjectFormat};

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

/// Writes indented JSON.
pub fn json(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Writes YAML.
pub fn yaml(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let text = serde_saphyr::to_string(value)
        .map_err(|error| Error::Output(std::io::Error::other(format!("encode YAML: {error}"))))?;
    Ok(writeln!(out, "{}", text.trim_end())?)
}

/// Writes one object in the requested format.
pub fn object(out: &mut dyn Write, format: ObjectFormat, value: &Value) -> Result<(), Error> {
    match format {
        ObjectFormat::Json => json(out, value),
        ObjectFormat::Yaml => yaml(out, value),
    }
}
