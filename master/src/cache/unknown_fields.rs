//! Fields of stored values that this release does not know.
//!
//! During an upgrade a leader of the older release may rewrite a value that a newer one has written.
//! It keeps the fields that it does not know.

use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};
use serde_ignored::Path;
use serde_json::{Deserializer, Map, Value};

/// Unknown fields of one value, with their content. Elements of lists are not included: a list is
/// replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct UnknownFields(Option<Arc<[Field]>>);

/// The keys that lead to an unknown field, and its content.
type Field = (Vec<String>, Value);

impl UnknownFields {
    /// Decodes a value and its unknown fields.
    pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<(T, UnknownFields)> {
        let mut paths: Vec<Vec<String>> = vec![];
        let mut decoder = Deserializer::from_slice(json);
        let value = serde_ignored::deserialize(&mut decoder, |path| paths.extend(keys(&path)))?;
        decoder.end()?;
        if paths.is_empty() {
            return Ok((value, UnknownFields(None)));
        }
        let whole: Value = serde_json::from_slice(json)?;
        let content = |path: Vec<String>| {
            let found = path.iter().try_fold(&whole, |value, key| value.get(key))?.clone();
            Some((path, found))
        };
        let fields: Vec<_> = paths.into_iter().filter_map(content).collect();
        Ok((value, UnknownFields(Some(fields.into()))))
    }

    /// Encodes `value` together with the unknown fields. A field whose parent `value` does not have
    /// any more is left out.
    pub(super) fn encode(&self, value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
        let Some(fields) = &self.0 else { return serde_json::to_vec(value) };
        let mut whole = serde_json::to_value(value)?;
        for (path, content) in fields.iter() {
            if let Some((last, parents)) = path.split_last()
                && let Some(parent) = parent(&mut whole, parents)
            {
                parent.entry(last.as_str()).or_insert_with(|| content.clone());
            }
        }
        serde_json::to_vec(&whole)
    }
}

fn parent<'v>(whole: &'v mut Value, path: &[String]) -> Option<&'v mut Map<String, Value>> {
    path.iter().try_fold(whole, |value, key| value.get_mut(key))?.as_object_mut()
}

/// The keys that lead to an unknown field; none if it is in an element of a list.
fn keys(path: &Path<'_>) -> Option<Vec<String>> {
    match path {
        Path::Root => Some(vec![]),
        Path::Seq { .. } => None,
        Path::Map { parent, key } => {
            let mut keys = keys(parent)?;
            keys.push(key.clone());
            Some(keys)
        }
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            keys(parent)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Object {
        name: String,
        inner: Inner,
        links: BTreeMap<String, Inner>,
        list: Vec<Inner>,
        #[serde(skip_serializing_if = "Option::is_none")]
        optional: Option<Inner>,
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Inner {
        n: i64,
    }

    #[test]
    fn unknown_fields_survive_a_rewrite() {
        let stored = json!({
            "name": "a", "new": [1, {"x": null}], "inner": {"n": 1, "deep": {"x": 2}}, "list": [{"n": 1, "lost": 2}],
            "links": {"kept": {"n": 1, "more": 3}, "removed": {"n": 1, "more": 4}}, "optional": {"n": 1, "more": 5},
        });
        let (mut object, unknown) = UnknownFields::read::<Object>(stored.to_string().as_bytes()).unwrap();
        object.name = "b".into();
        object.inner.n = 2;
        object.links.remove("removed");
        object.optional = None;
        let written: Value = serde_json::from_slice(&unknown.encode(&object).unwrap()).unwrap();
        let expected = json!({
            "name": "b", "new": [1, {"x": null}], "inner": {"n": 2, "deep": {"x": 2}}, "list": [{"n": 1}],
            "links": {"kept": {"n": 1, "more": 3}},
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn known_values_keep_their_bytes() {
        let object = Object { name: "a".into(), ..Object::default() };
        let json = serde_json::to_vec(&object).unwrap();
        let (read, unknown) = UnknownFields::read::<Object>(&json).unwrap();
        assert_eq!(unknown.encode(&read).unwrap(), json);
        assert!(UnknownFields::read::<Object>(b"{} x").is_err());
    }
}
