//! Decodes JSON into a struct type.

use serde_json::{Map, Value};

use super::{Json, parse};
use crate::schema::{Field, Schema, Type};

/// Name of the type in Go.
fn go_name(kind: Type) -> String {
    match kind {
        Type::Text => "string".into(),
        Type::Int => "int".into(),
        Type::Texts => "[]string".into(),
        Type::TextMap => "map[string]string".into(),
        Type::Struct(schema) => schema.go_type.into(),
        Type::StructMap(schema) => format!("map[string]{}", schema.go_type),
    }
}

/// Finds a field by its exact name, otherwise ignoring case.
fn find(schema: &'static Schema, name: &str) -> Option<&'static Field> {
    let exact = schema.fields.iter().find(|m| m.name == name);
    exact.or_else(|| schema.fields.iter().find(|m| m.name.eq_ignore_ascii_case(name)))
}

/// Decodes `text`. Members that the schema does not have are ignored; null members count as absent.
pub fn decode(text: &[u8], schema: &'static Schema) -> Result<Map<String, Value>, String> {
    let json = parse(text)?;
    let mut decoder = Decoder::default();
    let value = match json {
        Json::Null => Map::new(),
        Json::Object(members) => decoder.members(members, schema),
        other => {
            let found = describe(&other);
            return Err(format!("json: cannot unmarshal {found} into Go value of type {}", schema.go_type));
        }
    };
    match decoder.error {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// Continues after a mismatch and reports the first one, as Go does.
#[derive(Default)]
struct Decoder {
    /// Innermost struct types and path of field names, for error texts.
    structs: Vec<&'static str>,
    path: Vec<String>,
    error: Option<String>,
}

impl Decoder {
    fn members(&mut self, members: Vec<(String, Json)>, schema: &'static Schema) -> Map<String, Value> {
        let mut object = Map::new();
        self.structs.push(schema.go_type.rsplit('.').next().unwrap_or(schema.go_type));
        for (name, json) in members {
            let Some(field) = find(schema, &name) else { continue };
            self.path.push(field.name.to_owned());
            if let Some(value) = self.value(json, field.kind) {
                object.insert(field.name.to_owned(), value);
            }
            self.path.pop();
        }
        self.structs.pop();
        object
    }

    fn value(&mut self, json: Json, kind: Type) -> Option<Value> {
        match (kind, json) {
            (_, Json::Null) => None,
            (Type::Text, Json::Text(text)) => Some(text.into()),
            (Type::Int, Json::Number(literal)) => match literal.parse::<i64>() {
                Ok(n) => Some(n.into()),
                Err(_) => self.mismatch(format!("number {literal}"), kind),
            },
            (Type::Texts, Json::Array(items)) => {
                let item = |json| self.value(json, Type::Text).unwrap_or_else(|| "".into());
                Some(items.into_iter().map(item).collect())
            }
            (Type::TextMap, Json::Object(entries)) => {
                let entry = |(name, json)| (name, self.value(json, Type::Text).unwrap_or_else(|| "".into()));
                Some(Value::Object(entries.into_iter().map(entry).collect()))
            }
            (Type::Struct(schema), Json::Object(members)) => {
                Some(Value::Object(self.members(members, schema)))
            }
            (Type::StructMap(schema), Json::Object(entries)) => {
                let entry = |(name, json)| {
                    let empty = || Value::Object(Map::new());
                    (name, self.value(json, Type::Struct(schema)).unwrap_or_else(empty))
                };
                Some(Value::Object(entries.into_iter().map(entry).collect()))
            }
            (_, other) => self.mismatch(describe(&other).to_owned(), kind),
        }
    }

    fn mismatch(&mut self, found: String, kind: Type) -> Option<Value> {
        let holder = self.structs.last().copied().unwrap_or_default();
        let path = self.path.join(".");
        self.error.get_or_insert_with(|| {
            format!(
                "json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {}",
                go_name(kind)
            )
        });
        None
    }
}

fn describe(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "bool",
        Json::Number(_) => "number",
        Json::Text(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static INNER: Schema = Schema { go_type: "intent.ConfigEP", fields: &[Field::any("Host", Type::Text)] };
    static OUTER: Schema = Schema {
        go_type: "contivModel.Tenant",
        fields: &[
            Field::any("tenantName", Type::Text),
            Field::any("tag", Type::Int),
            Field::any("list", Type::Texts),
            Field::any("ConfigEP", Type::Struct(&INNER)),
            Field::any("set", Type::StructMap(&INNER)),
        ],
    };

    #[test]
    fn mismatches_have_gos_error_texts() {
        let field =
            |found: &str, rest: &str| format!("json: cannot unmarshal {found} into Go struct field {rest}");
        for (text, error) in [
            ("[]", "json: cannot unmarshal array into Go value of type contivModel.Tenant".to_owned()),
            ("5", "json: cannot unmarshal number into Go value of type contivModel.Tenant".to_owned()),
            (r#"{"tenantName":5}"#, field("number", "Tenant.tenantName of type string")),
            (r#"{"TENANTNAME":true}"#, field("bool", "Tenant.tenantName of type string")),
            (r#"{"tag":"5"}"#, field("string", "Tenant.tag of type int")),
            (r#"{"tag":1.5}"#, field("number 1.5", "Tenant.tag of type int")),
            (r#"{"list":{}}"#, field("object", "Tenant.list of type []string")),
            (r#"{"list":["a",1]}"#, field("number", "Tenant.list of type string")),
            (r#"{"ConfigEP":[]}"#, field("array", "Tenant.ConfigEP of type intent.ConfigEP")),
            (r#"{"ConfigEP":{"Host":1}}"#, field("number", "ConfigEP.ConfigEP.Host of type string")),
            (r#"{"tag":"x","tenantName":1}"#, field("string", "Tenant.tag of type int")),
        ] {
            assert_eq!(decode(text.as_bytes(), &OUTER), Err(error), "{text}");
        }
    }

    #[test]
    fn members_match_case_insensitively_and_unknown_ones_are_ignored() {
        let text = br#"{"TenantNAME":"a","other":[{}],"tag":null,"configep":{"HOST":"h"},"set":{"k":{"host":"x"},"n":null}}"#;
        let value = Value::Object(decode(text, &OUTER).unwrap());
        let expected = r#"{"tenantName":"a","ConfigEP":{"Host":"h"},"set":{"k":{"Host":"x"},"n":{}}}"#;
        assert_eq!(value, serde_json::from_str::<Value>(expected).unwrap());
        assert_eq!(decode(b"null", &OUTER).unwrap(), Map::new());
    }
}
