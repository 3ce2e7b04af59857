//! A JSON text read into a struct type.

use serde_json::{Map, Value};

use super::{Json, parse};
use crate::schema::{Member, Shape, Type};

/// The type as Go spells it.
fn go_name(kind: Type) -> String {
    match kind {
        Type::Text => "string".into(),
        Type::Int => "int".into(),
        Type::Texts => "[]string".into(),
        Type::TextMap => "map[string]string".into(),
        Type::Struct(shape) => shape.go_type.into(),
        Type::StructMap(shape) => format!("map[string]{}", shape.go_type),
    }
}

/// An exact match first, then one without regard to case.
fn find(shape: &'static Shape, name: &str) -> Option<&'static Member> {
    let exact = shape.members.iter().find(|m| m.name == name);
    exact.or_else(|| shape.members.iter().find(|m| m.name.eq_ignore_ascii_case(name)))
}

/// Reads `text` into `shape`. Members that the shape does not have are left out, absent ones and nulls stay absent.
pub fn decode(text: &[u8], shape: &'static Shape) -> Result<Map<String, Value>, String> {
    let json = parse(text)?;
    let mut decoder = Decoder::default();
    let value = match json {
        Json::Null => Map::new(),
        Json::Object(members) => decoder.members(members, shape),
        other => {
            let found = describe(&other);
            return Err(format!("json: cannot unmarshal {found} into Go value of type {}", shape.go_type));
        }
    };
    match decoder.error {
        Some(error) => Err(error),
        None => Ok(value),
    }
}

/// Goes on after a mismatch and reports the first, as Go does.
#[derive(Default)]
struct Decoder {
    /// Innermost struct type and the path of member names, for error texts.
    structs: Vec<&'static str>,
    path: Vec<String>,
    error: Option<String>,
}

impl Decoder {
    fn members(&mut self, members: Vec<(String, Json)>, shape: &'static Shape) -> Map<String, Value> {
        let mut object = Map::new();
        self.structs.push(shape.go_type.rsplit('.').next().unwrap_or(shape.go_type));
        for (name, json) in members {
            let Some(member) = find(shape, &name) else { continue };
            self.path.push(member.name.to_owned());
            if let Some(value) = self.value(json, member.kind) {
                object.insert(member.name.to_owned(), value);
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
            (Type::Struct(shape), Json::Object(members)) => Some(Value::Object(self.members(members, shape))),
            (Type::StructMap(shape), Json::Object(entries)) => {
                let entry = |(name, json)| {
                    let empty = || Value::Object(Map::new());
                    (name, self.value(json, Type::Struct(shape)).unwrap_or_else(empty))
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

    static INNER: Shape = Shape { go_type: "intent.ConfigEP", members: &[Member::any("Host", Type::Text)] };
    static OUTER: Shape = Shape {
        go_type: "contivModel.Tenant",
        members: &[
            Member::any("tenantName", Type::Text),
            Member::any("tag", Type::Int),
            Member::any("list", Type::Texts),
            Member::any("ConfigEP", Type::Struct(&INNER)),
            Member::any("set", Type::StructMap(&INNER)),
        ],
    };

    #[test]
    fn mismatches_are_gos_words() {
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
    fn members_are_found_without_regard_to_case_and_unknown_ones_left_out() {
        let text = br#"{"TenantNAME":"a","other":[{}],"tag":null,"configep":{"HOST":"h"},"set":{"k":{"host":"x"},"n":null}}"#;
        let value = Value::Object(decode(text, &OUTER).unwrap());
        let expected = r#"{"tenantName":"a","ConfigEP":{"Host":"h"},"set":{"k":{"Host":"x"},"n":{}}}"#;
        assert_eq!(value, serde_json::from_str::<Value>(expected).unwrap());
        assert_eq!(decode(b"null", &OUTER).unwrap(), Map::new());
    }
}
