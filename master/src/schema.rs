//! Schemas of request bodies, used for decoding, validation and the OpenAPI document.

mod checks;
pub mod format;

pub use format::Format;
use serde_json::{Map, Value};

/// A struct type of the original.
#[derive(Debug)]
pub struct Schema {
    /// Name with package, as in error texts: `contivModel.Tenant`.
    pub go_type: &'static str,
    /// Sorted by name. Fields are validated in this order.
    pub fields: &'static [Field],
}

/// A field of a struct.
#[derive(Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    pub kind: Type,
    pub rule: Rule,
}

/// Type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    Text,
    Int,
    Texts,
    /// `map[string]string`.
    TextMap,
    Struct(&'static Schema),
    /// `map[string]` of a struct type.
    StructMap(&'static Schema),
}

/// Validation rule of a field. An absent text is validated as the empty text.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    Any,
    /// At most `max` bytes, in the given format.
    Text {
        max: usize,
        format: Format,
    },
    AtMost(i64),
    Within {
        min: i64,
        max: i64,
    },
}

/// Largest number of texts in a list, and of links in a set. Plans look up the object that each of them names.
pub const MAX_TEXTS: usize = 1024;
/// Largest size of a text in a list, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

impl Field {
    pub const fn any(name: &'static str, kind: Type) -> Field {
        Field { name, kind, rule: Rule::Any }
    }

    pub const fn text(name: &'static str, max: usize, format: Format) -> Field {
        Field { name, kind: Type::Text, rule: Rule::Text { max, format } }
    }

    /// A field with one of the given values. It may be absent only if the empty text is among them.
    pub const fn one_of(name: &'static str, words: &'static [&'static str]) -> Field {
        Field { name, kind: Type::Text, rule: Rule::Text { max: usize::MAX, format: Format::OneOf(words) } }
    }

    pub const fn int(name: &'static str, max: i64) -> Field {
        Field { name, kind: Type::Int, rule: Rule::AtMost(max) }
    }

    pub const fn range(name: &'static str, min: i64, max: i64) -> Field {
        Field { name, kind: Type::Int, rule: Rule::Within { min, max } }
    }

    fn check(&self, object: &Map<String, Value>) -> Result<(), String> {
        let value = object.get(self.name);
        if let (Type::Texts, Some(Value::Array(texts))) = (self.kind, value) {
            check_count(self.name, texts.len())?;
            let mut sizes = texts.iter().filter_map(Value::as_str).map(str::len);
            if let Some(size) = sizes.find(|size| *size > MAX_TEXT_BYTES) {
                let key = object.get("key").and_then(Value::as_str).unwrap_or_default();
                return Err(format!(
                    "{} of {key} has an entry of {size} bytes; accepted: at most {MAX_TEXT_BYTES}",
                    self.name
                ));
            }
        }
        match self.rule {
            Rule::Any => Ok(()),
            Rule::Text { max, format } => match value.and_then(Value::as_str).unwrap_or_default() {
                text if text.len() > max => Err(format!("{} string too long", self.name)),
                text if !format.matches(text) => Err(format!("{} string invalid format", self.name)),
                _ => Ok(()),
            },
            Rule::AtMost(max) => self.within(value, i64::MIN, max),
            Rule::Within { min, max } => self.within(value, min, max),
        }
    }

    fn within(&self, value: Option<&Value>, min: i64, max: i64) -> Result<(), String> {
        match value.and_then(Value::as_i64).unwrap_or_default() {
            n if n < min || n > max => Err(format!("{} Value Out of bound", self.name)),
            _ => Ok(()),
        }
    }
}

impl Schema {
    /// Validates the object. Returns the original's error text for the first violation.
    pub fn check(&self, object: &Map<String, Value>) -> Result<(), String> {
        self.fields.iter().try_for_each(|field| field.check(object))
    }

    /// Checks the number of links in each set of a request that creates the object. An update stores no links, and may have
    /// all that a client has read.
    pub fn check_links(&self, object: &Map<String, Value>) -> Result<(), String> {
        let sets = self.fields.iter().filter_map(|field| match (field.kind, object.get(field.name)) {
            (Type::Struct(schema), Some(Value::Object(sets))) => Some((schema, sets)),
            _ => None,
        });
        for (schema, sets) in sets {
            for set in schema.fields.iter().filter(|set| matches!(set.kind, Type::StructMap(_))) {
                let links = sets.get(set.name).and_then(Value::as_object);
                check_count(set.name, links.map_or(0, Map::len))?;
            }
        }
        Ok(())
    }
}

fn check_count(name: &str, count: usize) -> Result<(), String> {
    match count > MAX_TEXTS {
        true => Err(format!("{name} has {count} entries; the limit is {MAX_TEXTS}")),
        false => Ok(()),
    }
}

/// Schema of `modeldb.Link`.
pub static LINK: Schema = Schema {
    go_type: "modeldb.Link",
    fields: &[Field::any("type", Type::Text), Field::any("key", Type::Text)],
};
