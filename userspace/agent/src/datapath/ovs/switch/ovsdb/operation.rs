//! Operations of a transaction (RFC 7047 section 5.2).

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

use super::{OPEN_VSWITCH, Uuid};

/// An existing row, or a row that the same transaction inserts.
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

/// One operation of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    json: Value,
    /// Whether the operation counts as a write of configuration.
    is_write: bool,
}

impl Operation {
    fn new(json: Value) -> Operation {
        Operation { json, is_write: true }
    }

    /// Inserts a row, which has the name `name` within the transaction.
    pub(crate) fn insert(table: &str, name: &str, row: Value) -> (Operation, Reference) {
        let json = json!({"op": "insert", "table": table, "row": row, "uuid-name": name});
        (Operation::new(json), Reference::New(name.into()))
    }

    /// Sets columns of a row.
    pub(crate) fn update(table: &str, row: &Uuid, columns: Value) -> Operation {
        let condition = json!([["_uuid", "==", ["uuid", row.0]]]);
        Operation::new(json!({"op": "update", "table": table, "where": condition, "row": columns}))
    }

    /// Deletes a row.
    pub(crate) fn delete(table: &str, row: &Uuid) -> Operation {
        Operation::new(json!({"op": "delete", "table": table, "where": [["_uuid", "==", ["uuid", row.0]]]}))
    }

    /// Adds references to a set column.
    pub(crate) fn link(table: &str, row: Option<&Uuid>, column: &str, add: &[Reference]) -> Operation {
        Operation::mutate(table, row, json!([[column, "insert", references(add)]]))
    }

    /// Removes references from a set column. The server deletes rows without references.
    pub(crate) fn unlink(table: &str, row: Option<&Uuid>, column: &str, take: &[Reference]) -> Operation {
        Operation::mutate(table, row, json!([[column, "delete", references(take)]]))
    }

    /// Adds entries to a map column. Keys that it has keep their values.
    pub(crate) fn add_entries(table: &str, row: Option<&Uuid>, column: &str, entries: &Value) -> Operation {
        Operation::mutate(table, row, json!([[column, "insert", entries]]))
    }

    /// Removes the entries with these keys from a map column.
    pub(crate) fn remove_entries(table: &str, row: Option<&Uuid>, column: &str, keys: &Value) -> Operation {
        Operation::mutate(table, row, json!([[column, "delete", keys]]))
    }

    /// Increments `next_cfg`. ovs-vswitchd copies it to `cur_cfg` when it has applied the configuration.
    pub(crate) fn increment_next_cfg() -> Operation {
        let operation = Operation::mutate(OPEN_VSWITCH, None, json!([["next_cfg", "+=", 1]]));
        Operation { is_write: false, ..operation }
    }

    /// Reads `next_cfg` of the root table.
    pub(crate) fn read_next_cfg() -> Operation {
        let json = json!({"op": "select", "table": OPEN_VSWITCH, "where": [], "columns": ["next_cfg"]});
        Operation { json, is_write: false }
    }

    /// Mutates one row, or all rows if `row` is `None`.
    fn mutate(table: &str, row: Option<&Uuid>, mutations: Value) -> Operation {
        let condition = row.map_or(json!([]), |uuid| json!([["_uuid", "==", ["uuid", uuid.0]]]));
        Operation::new(json!({"op": "mutate", "table": table, "where": condition, "mutations": mutations}))
    }

    /// UUID of the existing row that the operation is about.
    fn row(&self) -> Option<&str> {
        self.json.pointer("/where/0/2/1").and_then(Value::as_str)
    }

    /// Returns whether the operation changes or deletes rows that exist: the row with a UUID, or else the row of the root table.
    pub(crate) fn changes_rows(&self) -> bool {
        matches!(self.json["op"].as_str(), Some("update" | "mutate" | "delete"))
    }

    /// Returns whether the operation is about the row with a UUID.
    pub(crate) fn has_row(&self) -> bool {
        self.row().is_some()
    }

    pub(crate) fn json(&self) -> Value {
        self.json.clone()
    }

    /// Returns whether the operation changes configuration.
    pub(crate) fn is_write(&self) -> bool {
        self.is_write
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |key: &str| self.json[key].as_str().unwrap_or_default();
        write!(f, "{} {}", word("op"), word("table"))?;
        if let Some(name) = self.json.pointer("/row/name").and_then(Value::as_str) {
            write!(f, " {name}")?;
        }
        if let Some(uuid) = self.row() {
            write!(f, " {uuid}")?;
        }
        Ok(())
    }
}

fn references(rows: &[Reference]) -> Value {
    json!(["set", rows.iter().map(Reference::json).collect::<Vec<_>>()])
}

/// Returns a set of references or values.
pub(crate) fn set<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
    json!(["set", items.into_iter().map(Into::into).collect::<Vec<Value>>()])
}

/// Returns the value of an optional column: a set of at most one.
pub(crate) fn optional<T: Into<Value>>(item: Option<T>) -> Value {
    set(item)
}

pub(crate) fn map(pairs: &BTreeMap<String, String>) -> Value {
    json!(["map", pairs.iter().collect::<Vec<_>>()])
}

/// Returns a map of numbers to a row.
pub(crate) fn numbered(numbers: impl IntoIterator<Item = i64>, row: &Reference) -> Value {
    entries(numbers.into_iter().map(|number| (number, row.json())))
}

/// Returns a map.
pub(crate) fn entries<K: Into<Value>, V: Into<Value>>(pairs: impl IntoIterator<Item = (K, V)>) -> Value {
    let pair = |(key, value): (K, V)| Value::Array(vec![key.into(), value.into()]);
    json!(["map", pairs.into_iter().map(pair).collect::<Vec<_>>()])
}

impl From<Reference> for Value {
    fn from(reference: Reference) -> Value {
        reference.json()
    }
}

/// Returns the text of an error object.
pub(crate) fn failure(error: &Value) -> String {
    let word = |key: &str| error[key].as_str().unwrap_or_default();
    match (word("error"), word("details")) {
        ("", _) => error.to_string(),
        (name, "") => name.to_owned(),
        (name, details) => format!("{name}: {details}"),
    }
}
