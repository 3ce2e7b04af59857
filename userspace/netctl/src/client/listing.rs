//! Lists of objects, which are read page by page.

use contiv_model::key::ObjectType;
use serde_json::Value;
use ureq::http::header;

use super::{Answer, Client, Request, attempt::Method, segment};
use crate::error::Error;

/// Number of objects on a page.
const PAGE: usize = 500;
/// Response header of a list: the revision of the store that a watch continues after.
const REVISION: &str = "netmaster-revision";

/// The objects of a type whose fields have certain values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    object_type: ObjectType,
    fields: Vec<(&'static str, String)>,
}

/// Objects that a selection selects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    /// The objects.
    pub objects: Vec<Value>,
    /// Revision of the store that the objects are at least as new as. None of a netmaster that has neither watches nor dry
    /// runs nor preconditions, such as the original.
    pub revision: Option<String>,
}

impl Selection {
    /// All objects of a type.
    pub fn of(object_type: ObjectType) -> Selection {
        Selection { object_type, fields: vec![] }
    }

    /// Only the objects with this text in a field.
    pub fn with(mut self, field: &'static str, value: &str) -> Selection {
        self.fields.push((field, value.to_owned()));
        self
    }

    /// Whether the object has the values.
    pub fn selects(&self, object: &Value) -> bool {
        let has = |(field, value): &(&str, String)| {
            object.get(field).and_then(Value::as_str) == Some(value.as_str())
        };
        self.fields.iter().all(has)
    }

    /// Path of the list.
    fn path(&self) -> String {
        format!("/api/v1/{}s/", self.object_type.as_str())
    }

    /// Path of the list with query parameters.
    pub(super) fn path_with(&self, parameters: &str) -> String {
        // Other values could have another meaning within a selector. `selects` filters anyway.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        let fields = self.fields.iter().filter(|(_, value)| !value.is_empty() && value.chars().all(is_plain));
        let selector: Vec<String> = fields.map(|(field, value)| format!("{field}={value}")).collect();
        match selector.is_empty() {
            true => format!("{}?{parameters}", self.path()),
            false => format!("{}?{parameters}&fieldSelector={}", self.path(), segment(&selector.join(","))),
        }
    }
}

impl Client {
    /// Lists the objects of a type.
    pub fn list(&self, kind: ObjectType) -> Result<Vec<Value>, Error> {
        self.select(&Selection::of(kind)).map(|listed| listed.objects)
    }

    /// Lists the objects of a selection. A netmaster that does not know pages or selectors answers with all objects.
    pub fn select(&self, selection: &Selection) -> Result<Listed, Error> {
        let mut path = selection.path_with(&format!("limit={PAGE}"));
        let mut listed: Option<Listed> = None;
        loop {
            let answer = self.exchange(&Request::new(Method::Get, &path))?;
            let next = next_page(&answer).map(|query| format!("{}?{query}", selection.path()));
            // Of several pages, changes after the first one may be missing on those that were read before the change.
            let revision = answer.header(REVISION).filter(|text| is_revision(text)).map(str::to_owned);
            let listed = listed.get_or_insert_with(|| Listed { objects: vec![], revision });
            match answer.json()? {
                Value::Array(objects) => {
                    listed.objects.extend(objects.into_iter().filter(|object| selection.selects(object)));
                }
                other => {
                    let kind = selection.object_type.as_str();
                    return Err(Error::Refused(format!("list {kind}s: expected a JSON array, got {other}")));
                }
            }
            match next {
                None => return Ok(std::mem::take(listed)),
                Some(next) if next == path => {
                    return Err(Error::Refused(format!(
                        "GET {path}: the link to the next page is to this one"
                    )));
                }
                Some(next) => path = next,
            }
        }
    }
}

/// Whether a text may be a revision, which is sent back in a query or a header.
pub(super) fn is_revision(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Query of the link to the next page. Its path is not used: netmaster may be behind a proxy that has other paths, and a link
/// to another host must not get the token.
fn next_page(answer: &Answer) -> Option<&str> {
    let links = answer.headers.get_all(header::LINK).into_iter().filter_map(|value| value.to_str().ok());
    links.flat_map(|value| value.split(", <")).find_map(|link| {
        let (target, parameters) = link.trim_start_matches('<').split_once('>')?;
        let is_next = parameters.split(';').any(|it| matches!(it.trim(), "rel=\"next\"" | "rel=next"));
        let (_, query) = target.split_once('?').filter(|_| is_next)?;
        Some(query)
    })
}
