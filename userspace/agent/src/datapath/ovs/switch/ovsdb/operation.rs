//! The parts of a transaction.

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

use super::{OPEN_VSWITCH, Uuid};

/// A row that is there, or one that the same transaction makes.
#[derive(Clone, Debug)]
pub(crate) enum Reference {
    Row(Uuid),
    New(String),
}

impl Reference {
    fn json(&self) -> Value {
        match self {
            Reference::Row(uuid) => json!(["uuid", uuid.0]),
            Reference::New(name) => json!(["named-uuid", name]),
        }
    }
}

impl From<&Uuid> for Reference {
    fn from(uuid: &Uuid) -> Self {
        Reference::Row(uuid.clone())
    }
}

/// One step of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    json: Value,
    /// Whether it changes what the operator configures, or only counts.
    counts: bool,
}

impl Operation {
    fn new(json: Value) -> Operation {
        Operation { json, counts: true }
    }

    /// A new row, known as `name` within the transaction.
    pub(crate) fn insert(table: &str, name: &str, row: Value) -> (Operation, Reference) {
        let json = json!({"op": "insert", "table": table, "row": row, "uuid-name": name});
        (Operation::new(json), Reference::New(name.into()))
    }

    /// New values for some columns of a row.
    pub(crate) fn update(table: &str, row: &Uuid, columns: Value) -> Operation {
        let condition = json!([["_uuid", "==", ["uuid", row.0]]]);
        Operation::new(json!({"op": "update", "table": table, "where": condition, "row": columns}))
    }

    /// Puts rows into a column that holds a set of them.
    pub(crate) fn link(table: &str, row: Option<&Uuid>, column: &str, add: &[Reference]) -> Operation {
        Operation::mutate(table, row, json!([[column, "insert", references(add)]]))
    }

    /// Takes rows out of a column that holds a set of them. A row that nothing holds goes away.
    pub(crate) fn unlink(table: &str, row: Option<&Uuid>, column: &str, take: &[Reference]) -> Operation {
        Operation::mutate(table, row, json!([[column, "delete", references(take)]]))
    }

    /// Tells ovs-vswitchd that there is something new, so that it tells when it is done.
    pub(crate) fn count_configuration() -> Operation {
        let operation = Operation::mutate(OPEN_VSWITCH, None, json!([["next_cfg", "+=", 1]]));
        Operation { counts: false, ..operation }
    }

    /// On one row, or on all where a table has only one.
    fn mutate(table: &str, row: Option<&Uuid>, mutations: Value) -> Operation {
        let condition = row.map_or(json!([]), |uuid| json!([["_uuid", "==", ["uuid", uuid.0]]]));
        Operation::new(json!({"op": "mutate", "table": table, "where": condition, "mutations": mutations}))
    }

    pub(crate) fn json(&self) -> Value {
        self.json.clone()
    }

    /// Whether it changes configuration.
    pub(crate) fn is_write(&self) -> bool {
        self.counts
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |key: &str| self.json[key].as_str().unwrap_or_default();
        write!(f, "{} {}", word("op"), word("table"))?;
        if let Some(name) = self.json.pointer("/row/name").and_then(Value::as_str) {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

fn references(rows: &[Reference]) -> Value {
    json!(["set", rows.iter().map(Reference::json).collect::<Vec<_>>()])
}

/// A set of rows or of plain values.
pub(crate) fn set<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
    json!(["set", items.into_iter().map(Into::into).collect::<Vec<Value>>()])
}

/// A column that may be empty.
pub(crate) fn optional<T: Into<Value>>(item: Option<T>) -> Value {
    set(item)
}

pub(crate) fn map(pairs: &BTreeMap<String, String>) -> Value {
    json!(["map", pairs.iter().collect::<Vec<_>>()])
}

impl From<Reference> for Value {
    fn from(reference: Reference) -> Value {
        reference.json()
    }
}

/// The words of an error object.
pub(crate) fn failure(error: &Value) -> String {
    let word = |key: &str| error[key].as_str().unwrap_or_default();
    match (word("error"), word("details")) {
        ("", _) => error.to_string(),
        (name, "") => name.to_owned(),
        (name, details) => format!("{name}: {details}"),
    }
}
