//! Pages and selections of lists.

use std::num::NonZeroUsize;

use serde_json::Value;

use crate::problem::Problem;
use crate::schema::{Schema, Type};

/// The part of a list that a request asks for.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub selector: FieldSelector,
    /// Only objects with a later key.
    pub after: Option<String>,
    /// Largest number of objects.
    pub limit: Option<NonZeroUsize>,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// JSON array of the objects, sorted by key.
    pub body: Vec<u8>,
    /// Key of the last object, if more objects follow.
    pub more_after: Option<String>,
    /// The list contains all changes up to this revision of the store.
    pub revision: i64,
}

/// Requirements on fields, all of which an object must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    field: &'static str,
    /// Text of an absent field.
    absent: &'static str,
    equal: bool,
    value: String,
}

impl FieldSelector {
    /// Parses requirements separated by commas: `field=value`, `field==value` or `field!=value`.
    /// Fields are texts and numbers of `schema`, or `key`.
    pub fn parse(text: &str, schema: &Schema) -> Result<FieldSelector, Problem> {
        let requirements = text.split(',').filter(|part| !part.is_empty());
        requirements.map(|part| Requirement::parse(part, schema)).collect::<Result<_, _>>().map(FieldSelector)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the JSON object meets all requirements.
    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(object))
    }
}

impl Requirement {
    fn parse(part: &str, schema: &Schema) -> Result<Requirement, Problem> {
        let (field, equal, value) = if let Some((field, value)) = part.split_once("!=") {
            (field, false, value)
        } else if let Some((field, value)) = part.split_once('=') {
            (field, true, value.strip_prefix('=').unwrap_or(value))
        } else {
            let why = format!("fieldSelector: {part:?} is not of the form field=value or field!=value");
            return Err(Problem::invalid(why));
        };
        let fields = || {
            let scalars = schema.fields.iter().filter_map(|field| match field.kind {
                Type::Text => Some((field.name, "")),
                Type::Int => Some((field.name, "0")),
                Type::Texts | Type::TextMap | Type::Struct(_) | Type::StructMap(_) => None,
            });
            scalars.filter(|(name, _)| *name != "key").chain([("key", "")])
        };
        match fields().find(|(name, _)| *name == field) {
            Some((field, absent)) => Ok(Requirement { field, absent, equal, value: value.to_owned() }),
            None => {
                let names = fields().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
                let why =
                    format!("fieldSelector: {} has no field {field:?}; fields are {names}", schema.go_type);
                Err(Problem::invalid(why))
            }
        }
    }

    fn is_met(&self, object: &Value) -> bool {
        let equal = match object.get(self.field) {
            Some(Value::String(text)) => *text == self.value,
            Some(Value::Null) | None => self.absent == self.value,
            Some(other) => {
                let text = other.to_string();
                text == self.value
            }
        };
        equal == self.equal
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::Field;

    static SCHEMA: Schema = Schema {
        go_type: "contivModel.Network",
        fields: &[
            Field::any("encap", Type::Text),
            Field::any("key", Type::Text),
            Field::any("links", Type::TextMap),
            Field::any("pktTag", Type::Int),
        ],
    };

    #[test]
    fn objects_are_selected_by_their_fields() {
        let network = json!({"key": "t:n", "encap": "vlan", "pktTag": 7});
        for (text, matches) in [
            ("", true),
            ("encap=vlan", true),
            ("encap==vlan", true),
            ("encap!=vlan", false),
            ("encap=vlan,pktTag=7", true),
            ("encap=vlan,pktTag=8", false),
            ("key=t:n", true),
            ("key=", false),
        ] {
            let selector = FieldSelector::parse(text, &SCHEMA).unwrap();
            assert_eq!(selector.matches(&network), matches, "{text}");
        }
        let empty = json!({"key": "t:n"});
        for text in ["encap=", "pktTag=0", "pktTag!=1", "encap!=vlan"] {
            assert!(FieldSelector::parse(text, &SCHEMA).unwrap().matches(&empty), "{text}");
        }
    }

    #[test]
    fn unknown_fields_and_forms_are_refused() {
        let refusal = |text| FieldSelector::parse(text, &SCHEMA).unwrap_err().text;
        let fields = "contivModel.Network has no field \"links\"; fields are encap, pktTag, key";
        assert_eq!(refusal("links=x"), format!("fieldSelector: {fields}"));
        assert_eq!(
            refusal("encap=vlan,pktTag"),
            "fieldSelector: \"pktTag\" is not of the form field=value or field!=value"
        );
    }
}
