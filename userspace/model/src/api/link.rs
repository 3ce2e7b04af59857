use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use crate::key::ObjectType;

/// A reference to another object; empty when there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// Name of the type, as in paths.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Key of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
}

/// References to objects, by their keys. Nearly all have one or none: a node of a `BTreeMap` would
/// take 800 bytes in each rule.
pub type LinkSet = LiteMap<String, Link>;

impl Link {
    /// A reference to the object `key` of type `kind`.
    pub fn to(kind: ObjectType, key: impl Into<String>) -> Link {
        Link { kind: kind.as_str().to_owned(), key: key.into() }
    }
}
