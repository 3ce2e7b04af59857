//! Pages and selections of lists.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use serde::Serialize;
use serde_json::Value;

use crate::problem::Problem;
use crate::schema::{Schema, Type};

/// The part of a list that a request asks for.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub selector: FieldSelector,
    /// Only objects with a later key.
    pub after: Option<String>,
    /// Largest number of objects. A list with a limit has pages of bounded size, too.
    pub limit: Option<NonZeroUsize>,
}

/// Largest size in bytes of a page with more than one object.
const PAGE_BYTES: usize = 1 << 20;

impl Selection {
    /// Largest number of objects and of bytes of a page. A list without a limit is not divided.
    pub(super) fn bounds(&self) -> (usize, usize) {
        match self.limit {
            Some(limit) => (limit.get(), PAGE_BYTES),
            None => (usize::MAX, usize::MAX),
        }
    }
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

/// Body of a page, encoded object by object.
pub(super) struct PageBody {
    body: Vec<u8>,
    limit: usize,
    bytes: usize,
    count: usize,
    /// Key of the last object.
    last: String,
    is_full: bool,
}

impl PageBody {
    pub(super) fn new(limit: usize, bytes: usize) -> PageBody {
        PageBody { body: b"[".to_vec(), limit, bytes, count: 0, last: String::new(), is_full: false }
    }

    /// Adds an object. Breaks if the page has no room for it.
    pub(super) fn push(&mut self, key: &str, object: &impl Serialize) -> Result<ControlFlow<()>, Problem> {
        if self.count == self.limit {
            return Ok(self.full());
        }
        let length = self.body.len();
        if self.count > 0 {
            self.body.push(b',');
        }
        serde_json::to_writer(&mut self.body, object)
            .map_err(|e| Problem::unavailable(format!("encode the response: {e}")))?;
        // A page with one object may have any size.
        if self.body.len() > self.bytes && self.count > 0 {
            self.body.truncate(length);
            return Ok(self.full());
        }
        self.count += 1;
        key.clone_into(&mut self.last);
        Ok(ControlFlow::Continue(()))
    }

    fn full(&mut self) -> ControlFlow<()> {
        self.is_full = true;
        ControlFlow::Break(())
    }

    pub(super) fn finish(mut self, revision: i64) -> Page {
        // Like Go's encoder, it ends with a newline.
        self.body.extend_from_slice(b"]\n");
        Page { body: self.body, more_after: self.is_full.then_some(self.last), revision }
    }
}

/// Largest number of requirements of a selector. Each is checked for each object of a list.
const MAX_REQUIREMENTS: usize = 32;

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
        if requirements.clone().nth(MAX_REQUIREMENTS).is_some() {
            let why = format!("fieldSelector: more requirements than the limit of {MAX_REQUIREMENTS}");
            return Err(Problem::invalid(why));
        }
        requirements.map(|part| Requirement::parse(part, schema)).collect::<Result<_, _>>().map(FieldSelector)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Value that the field must have, other than the empty text.
    pub(super) fn required(&self, field: &str) -> Option<&str> {
        let is_about = |requirement: &&Requirement| {
            requirement.field == field && requirement.equal && !requirement.value.is_empty()
        };
        self.0.iter().find(is_about).map(|requirement| requirement.value.as_str())
    }

    /// Whether the only requirement is the value of the field.
    pub(super) fn requires_only(&self, field: &str) -> bool {
        self.0.len() == 1 && self.required(field).is_some()
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

    /// Bodies of the pages of the numbers, with the last of each page.
    fn pages(mut numbers: &[u64], limit: usize, bytes: usize) -> Vec<(String, Option<String>)> {
        let mut pages = vec![];
        loop {
            let mut page = PageBody::new(limit, bytes);
            let added = numbers.iter().take_while(|n| page.push(&n.to_string(), n).unwrap().is_continue());
            let added = added.count();
            numbers = &numbers[added..];
            let page = page.finish(7);
            let is_last = page.more_after.is_none();
            pages.push((String::from_utf8(page.body).unwrap(), page.more_after));
            if is_last {
                return pages;
            }
        }
    }

    #[test]
    fn pages_are_bounded_by_count_and_bytes() {
        let page = |body: &str, last: Option<&str>| (format!("{body}\n"), last.map(str::to_owned));
        assert_eq!(pages(&[], 2, 9), [page("[]", None)]);
        assert_eq!(pages(&[1, 2], 2, 9), [page("[1,2]", None)]);
        assert_eq!(pages(&[1, 2, 3], 2, 9), [page("[1,2]", Some("2")), page("[3]", None)]);
        assert_eq!(pages(&[10, 20, 30, 40], 9, 9), [page("[10,20,30]", Some("30")), page("[40]", None)]);
        // Each page has an object.
        let large = [page("[123456789012]", Some("123456789012")), page("[1]", None)];
        assert_eq!(pages(&[123456789012, 1], 9, 9), large);
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

    #[test]
    fn the_number_of_requirements_is_limited() {
        let selector = |count: usize| FieldSelector::parse(&vec!["encap!=vlan"; count].join(","), &SCHEMA);
        assert!(selector(MAX_REQUIREMENTS).is_ok());
        let refused = selector(MAX_REQUIREMENTS + 1).unwrap_err();
        assert_eq!(refused.kind.status(), 400);
        assert_eq!(refused.text, "fieldSelector: more requirements than the limit of 32");
    }
}
