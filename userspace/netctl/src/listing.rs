//! Lists, in the forms that `ls` offers.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    Error,
    cli::{Detailed, Form, Listed, Shown, Tree},
    client::Client,
    kind::Kind,
    table,
};

/// A field as the original prints it: missing text is empty.
pub fn text(object: &Value, field: &str) -> String {
    match object.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
}

/// A number, 0 when it is missing.
pub fn number(object: &Value, field: &str) -> i64 {
    object.get(field).and_then(Value::as_i64).unwrap_or(0)
}

/// Writes JSON over several lines.
pub fn pretty(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Writes YAML.
pub fn yaml(out: &mut dyn Write, value: &Value) -> Result<(), Error> {
    let text = serde_saphyr::to_string(value)
        .map_err(|error| Error::Output(std::io::Error::other(format!("as YAML: {error}"))))?;
    Ok(writeln!(out, "{}", text.trim_end())?)
}

/// Writes one thing in the form that was asked for.
pub fn tree(out: &mut dyn Write, form: Tree, value: &Value) -> Result<(), Error> {
    match form {
        Tree::Json => pretty(out, value),
        Tree::Yaml => yaml(out, value),
    }
}

/// Shows one object and its use.
pub fn inspect(
    client: &Client,
    kind: &str,
    key: &str,
    form: &Detailed,
    out: &mut dyn Write,
) -> Result<(), Error> {
    tree(out, form.output, &client.inspect(kind, key)?)
}

/// Lists the objects of one tenant, or of all. A tenant that does not exist is an error.
pub fn of_tenant(kind: &Kind, client: &Client, how: &Listed, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Tenant, &how.of.tenant)?;
    let mut objects = client.list(kind.of)?;
    objects.retain(|object| how.all || text(object, "tenantName") == how.of.tenant);
    show(kind, objects, &how.shown, out)
}

/// Writes `objects` in the form that was asked for, sorted by key: the original's netmaster sends them
/// in random order.
pub fn show(kind: &Kind, mut objects: Vec<Value>, how: &Shown, out: &mut dyn Write) -> Result<(), Error> {
    objects.sort_by_cached_key(|object| text(object, "key"));
    match how.form() {
        Form::Json => pretty(out, &Value::Array(objects)),
        Form::Yaml => yaml(out, &Value::Array(objects)),
        Form::Name => {
            let mut names = objects.iter().map(|object| text(object, kind.name_field()));
            Ok(names.try_for_each(|name| writeln!(out, "{name}"))?)
        }
        Form::Table => {
            let rows: Vec<_> = objects.iter().map(kind.row).collect();
            Ok(table::write(out, kind.columns, &rows)?)
        }
    }
}
