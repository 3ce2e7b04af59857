//! Lists, in the forms that `ls` offers.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    Error,
    cli::{Detailed, Form, Listed, Shown, Tree},
    client::Client,
    table::{self, Column},
};

/// A kind of object as lists show it.
pub struct Listing {
    /// The type.
    pub kind: ObjectType,
    /// The field with the name.
    pub name: &'static str,
    /// The columns.
    pub columns: &'static [Column],
    /// The cells of one object.
    pub row: fn(&Value) -> Vec<String>,
}

/// A field as the original prints it: missing text is empty.
pub fn text(object: &Value, field: &str) -> String {
    match object.get(field) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
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

/// Shows one object and its use.
pub fn inspect(
    client: &Client,
    kind: &str,
    key: &str,
    form: &Detailed,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let object = client.inspect(kind, key)?;
    match form.output {
        Tree::Json => pretty(out, &object),
        Tree::Yaml => yaml(out, &object),
    }
}

impl Listing {
    /// Lists the objects of one tenant, or of all. A tenant that does not exist is an error.
    pub fn of_tenant(&self, client: &Client, how: &Listed, out: &mut dyn Write) -> Result<(), Error> {
        client.object(ObjectType::Tenant, &how.of.tenant)?;
        let mut objects = client.list(self.kind)?;
        objects.retain(|object| how.all || text(object, "tenantName") == how.of.tenant);
        self.show(objects, &how.shown, out)
    }

    /// Writes `objects` in the form that was asked for, sorted by key: the original's netmaster sends them
    /// in random order.
    pub fn show(&self, mut objects: Vec<Value>, how: &Shown, out: &mut dyn Write) -> Result<(), Error> {
        objects.sort_by_cached_key(|object| text(object, "key"));
        match how.form() {
            Form::Json => pretty(out, &Value::Array(objects)),
            Form::Yaml => yaml(out, &Value::Array(objects)),
            Form::Name => {
                for object in &objects {
                    writeln!(out, "{}", text(object, self.name))?;
                }
                Ok(())
            }
            Form::Table => {
                let rows: Vec<_> = objects.iter().map(self.row).collect();
                Ok(table::write(out, self.columns, &rows)?)
            }
        }
    }
}
