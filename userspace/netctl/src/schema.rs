//! Description of a kind of object: its fields, its key, its table. Lists, `get`, `apply` and `delete` use it.

pub mod format;

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::{Map, Value};

use crate::{
    error::Error,
    output::{
        list::{self, Width},
        table::{self, Column},
        text,
    },
    schema::format::{Format, is_empty},
};

/// A kind of object of the API.
#[derive(Debug)]
pub struct Kind {
    /// Type of the API.
    pub object_type: ObjectType,
    /// Names that netctl accepts in addition to the type's name.
    pub aliases: &'static [&'static str],
    /// Fields that form the key, joined by colons; the last one is the name.
    pub key_fields: &'static [&'static str],
    /// All fields that a user sets, in output order; the key fields come first.
    pub fields: &'static [Field],
    /// Fields that an update may change.
    pub mutability: Mutability,
    /// Columns of lists; for settings, the titles of `info`.
    pub columns: &'static [Column<'static>],
    /// Returns the cells of one object.
    pub row: fn(&Value) -> Vec<String>,
    /// Message after a creation, with `{key}`, `{name}` and `{tenant}`; empty for none.
    pub created: &'static str,
    /// Message after a removal, in the same form.
    pub deleted: &'static str,
    /// Returns why a new object would not have the effect that its fields show, although netmaster would accept it.
    pub check: Option<fn(&Value) -> Option<String>>,
}

/// What netmaster changes of an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutability {
    /// No field.
    Immutable,
    /// All fields except these.
    Except(&'static [&'static str]),
    /// Settings of the cluster: all fields, and a removal is not possible.
    Settings,
}

/// A field that a user sets.
#[derive(Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Format of its values.
    pub format: Format,
    /// Whether it must be present.
    pub required: bool,
    /// Value that netmaster uses if it is empty.
    pub default: DefaultValue,
    /// Type of the object that it names.
    pub references: Option<ObjectType>,
    /// Field that netmaster derives this one from when that one has a value.
    pub derived_from: Option<&'static str>,
    /// Whether agents keep the value if an update leaves the field empty.
    pub is_kept: bool,
}

/// Value of an empty field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// None, or 0.
    Empty,
    /// A string.
    Text(&'static str),
    /// A number.
    Number(i64),
}

impl Field {
    /// An optional field.
    pub const fn new(name: &'static str, format: Format) -> Field {
        Field {
            name,
            format,
            required: false,
            default: DefaultValue::Empty,
            references: None,
            derived_from: None,
            is_kept: false,
        }
    }

    /// An optional field that names an object of this type in the same tenant.
    pub const fn reference(name: &'static str, format: Format, references: ObjectType) -> Field {
        let mut field = Field::new(name, format);
        field.references = Some(references);
        field
    }

    /// The tenant that an object belongs to.
    pub const fn tenant() -> Field {
        Field::reference("tenantName", Format::Name, ObjectType::Tenant).required()
    }

    /// Makes the field required.
    pub const fn required(mut self) -> Field {
        self.required = true;
        self
    }

    /// Marks a field that netmaster derives from `other` when that one has a value.
    pub const fn derived_from(mut self, other: &'static str) -> Field {
        self.derived_from = Some(other);
        self
    }

    /// Marks a field whose value agents keep if an update leaves it empty.
    pub const fn kept(mut self) -> Field {
        self.is_kept = true;
        self
    }

    /// Sets the value of an empty field.
    pub const fn or(mut self, default: DefaultValue) -> Field {
        self.default = default;
        self
    }
}

impl Kind {
    /// netmaster's message for an object that does not exist.
    pub fn not_found(&self) -> String {
        format!("{} not found", self.name())
    }

    /// Name of the type in the API.
    pub const fn name(&self) -> &'static str {
        self.object_type.as_str()
    }

    /// Key of an object, from its fields.
    pub fn key_of(&self, object: &Value) -> String {
        self.key_fields.iter().map(|field| text(object, field)).collect::<Vec<_>>().join(":")
    }

    /// Writes a table; a wide one has a column for each field.
    pub fn table(&self, objects: &[Value], out: &mut dyn Write, width: Width) -> Result<(), Error> {
        match width {
            Width::Normal => {
                let rows: Vec<_> = objects.iter().map(self.row).collect();
                Ok(table::write(out, self.columns, &rows)?)
            }
            Width::Wide => {
                let titles: Vec<&str> = self.fields.iter().map(|field| field.name).collect();
                let row = |object: &Value| -> Vec<String> {
                    titles.iter().map(|field| text(object, field)).collect()
                };
                list::titled(out, &titles, &objects.iter().map(row).collect::<Vec<_>>())
            }
        }
    }

    /// The fields of an object that a user sets, in order; without empty fields and fields that netmaster derives.
    pub fn spec(&self, object: &Value) -> Map<String, Value> {
        let given = |name: &str| object.get(name).filter(|value| !is_empty(value));
        let own = |field: &&Field| field.derived_from.is_none_or(|other| given(other).is_none());
        let value = |field: &Field| match (given(field.name), field.default) {
            (Some(value), _) => Some(value.clone()),
            (None, DefaultValue::Empty) => None,
            (None, DefaultValue::Text(text)) => Some(text.into()),
            (None, DefaultValue::Number(number)) => Some(number.into()),
        };
        let fields = self.fields.iter().filter(own);
        fields.filter_map(|field| Some((field.name.to_owned(), value(field)?))).collect()
    }

    /// Key field with the name within the tenant.
    pub fn name_field(&self) -> &'static str {
        self.key_fields.last().copied().unwrap_or_default()
    }

    /// Whether objects of this kind belong to a tenant.
    pub fn is_of_tenant(&self) -> bool {
        self.key_fields.len() > 1
    }
}
