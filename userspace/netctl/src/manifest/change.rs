//! Changes that replace only what they were made for.

use std::{collections::BTreeSet, fmt::Write as _};

use serde_json::{Map, Value};

use crate::{
    client::{Client, Precondition},
    error::Error,
    schema::Kind,
};

/// Limit of the attempts to replace an object of which only other fields change meanwhile.
const ATTEMPTS: usize = 5;
/// Message after the last attempt.
const UNSTEADY: &str = "changed by other clients all the time";
/// Fields that netmaster sets.
const OWN_FIELDS: [&str; 3] = ["key", "links", "link-sets"];

/// Creates an object. Fails with [`Error::Conflict`] if another client has created it.
pub fn create(client: &Client, kind: &Kind, key: &str, spec: &Map<String, Value>) -> Result<(), Error> {
    let object = Value::Object(spec.clone());
    match client.put_if(kind.object_type, key, &object, &Precondition::Absent) {
        Err(Error::Conflict(_)) => Err(Error::Conflict("created by another client meanwhile".into())),
        done => done.map(drop),
    }
}

/// Replaces the spec of an object. Fails with [`Error::Conflict`] if it is not `before` any more.
pub fn replace(
    client: &Client,
    kind: &Kind,
    key: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let (stored, precondition) = match client.versioned(kind.object_type, key) {
            Err(Error::Refused(message)) if message == kind.not_found() => {
                return Err(Error::Conflict("deleted by another client meanwhile".into()));
            }
            stored => stored?,
        };
        let now = kind.spec(&stored);
        if now != *before {
            return Err(Error::Conflict(difference(kind, before, &now)));
        }
        match client.put_if(kind.object_type, key, &replaced(kind, &stored, after), &precondition) {
            // Another version of the same spec, for example because an object that names this one was created.
            Err(Error::Conflict(_)) => {}
            done => return done.map(drop),
        }
    }
    Err(Error::Conflict(UNSTEADY.into()))
}

/// Deletes an object; false if it does not exist. Fails with [`Error::Conflict`] if its spec is not `before` any more, or if it
/// is a policy that has other rules than `rules`: netmaster deletes them with it.
pub fn delete(
    client: &Client,
    kind: &Kind,
    key: &str,
    before: &Map<String, Value>,
    rules: &BTreeSet<&str>,
) -> Result<bool, Error> {
    for _ in 0..ATTEMPTS {
        let (stored, precondition) = match client.versioned(kind.object_type, key) {
            Err(Error::Refused(message)) if message == kind.not_found() => return Ok(false),
            stored => stored?,
        };
        let now = kind.spec(&stored);
        if now != *before {
            return Err(Error::Conflict(difference(kind, before, &now)));
        }
        if let Some(rule) = rules_of(&stored).find(|rule| !rules.contains(rule)) {
            let why = format!("changed by another client meanwhile: rule {rule} was added");
            return Err(Error::Conflict(why));
        }
        match client.delete_if(kind.object_type, key, &precondition) {
            // Another version of the same spec, or the object was deleted.
            Err(Error::Conflict(_)) => {}
            Err(Error::Refused(message)) if message == kind.not_found() => return Ok(false),
            done => return done.map(|()| true),
        }
    }
    Err(Error::Conflict(UNSTEADY.into()))
}

/// Keys of the rules of a policy.
pub fn rules_of(object: &Value) -> impl Iterator<Item = &str> {
    let rules = object.get("link-sets").and_then(|sets| sets.get("Rules")).and_then(Value::as_object);
    rules.into_iter().flat_map(Map::keys).map(String::as_str)
}

/// The object to send: fields that this release does not know keep their values.
fn replaced(kind: &Kind, stored: &Value, after: &Map<String, Value>) -> Value {
    let is_unknown =
        |name: &str| !OWN_FIELDS.contains(&name) && !kind.fields.iter().any(|field| field.name == name);
    let mut object = after.clone();
    let fields = stored.as_object().into_iter().flatten().filter(|(name, _)| is_unknown(name));
    object.extend(fields.map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(object)
}

/// What another client has changed.
pub fn difference(kind: &Kind, before: &Map<String, Value>, now: &Map<String, Value>) -> String {
    let mut text = "changed by another client meanwhile".to_owned();
    let shown = |value: Option<&Value>| value.map_or("empty".to_owned(), Value::to_string);
    let mut separator = ": ";
    for field in kind.fields {
        let (was, is) = (before.get(field.name), now.get(field.name));
        if was != is {
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}{} is {}, was {}", field.name, shown(is), shown(was));
            separator = ", ";
        }
    }
    text
}
