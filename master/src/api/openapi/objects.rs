//! Objects: their schemas, and the paths that all types have.

use serde_json::{Map, Value, json};

use super::responses::{json_body, responses};
use super::{Builder, reference};
use crate::objects::{Operations, Preset};
use crate::schema::{Field, Format, MAX_TEXT_BYTES, MAX_TEXTS, Rule, Schema, Type};

pub(super) fn describe(object: &crate::objects::Type, builder: &mut Builder) {
    let (kind, operations) = (object.kind, &object.operations);
    let name = name(operations.schema);
    stored(operations.schema, &["key"], builder);
    let inspected = inspected(&name, operations, builder);
    let new = format!("New{name}");
    let links = links(operations.schema, builder);
    builder.schemas.insert(new.clone(), requested(operations, &links));

    let tag = json!([kind.as_str()]);
    let (key, example) = (key_parameter(operations), example(operations));
    let object = reference(&name);
    let plural = plural(&name);
    let path = format!("/api/v1/{}s/", kind.as_str());
    let list = json!({"type": "array", "items": object});
    builder.operation(&path, "get", json!({
        "operationId": format!("list{plural}"), "tags": tag, "summary": format!("List all {plural}, sorted by key"),
        "description": "With `watch=1` and optionally `revision`, a stream of server-sent events instead.",
        "parameters": list_parameters(), "responses": responses(listed(&list)),
    }));
    let path = format!("{path}{{key}}/");
    builder.operation(
        &path,
        "get",
        json!({
            "operationId": format!("get{name}"), "tags": tag, "summary": format!("Get a {name}"),
            "parameters": [key, header("If-None-Match", "Entity tags that the client has.")],
            "responses": gotten(&object),
        }),
    );
    for (method, verb) in [("post", "create"), ("put", "put")] {
        builder.operation(
            &path,
            method,
            json!({
                "operationId": format!("{verb}{name}"), "tags": tag,
                "summary": format!("Create or update a {name}"),
                "description": "The key in the path must match the key fields of the body. POST and PUT are equivalent.",
                "parameters": change_parameters(&key),
                // For programs that generate requests from this document.
                "x-key": operations.key,
                "requestBody": {
                    "required": true,
                    "content": {"application/json": {"schema": reference(&new), "example": example}},
                },
                "responses": responses(json_body(
                    "After a creation the stored object, after an update the request.", &object)),
            }),
        );
    }
    builder.operation(
        &path,
        "delete",
        json!({
            "operationId": format!("delete{name}"), "tags": tag, "summary": format!("Delete a {name}"),
            "parameters": change_parameters(&key),
            "responses": responses(json_body("Key of the deleted object.", &json!({"type": "string"}))),
        }),
    );
    let path = format!("/api/v1/inspect/{}s/{{key}}/", kind.as_str());
    builder.operation(&path, "get", json!({
        "operationId": format!("inspect{name}"), "tags": tag, "summary": format!("Get a {name} and its operational state"),
        "parameters": [key], "responses": responses(json_body("The object and its operational state.", &inspected)),
    }));
}

/// Name without the package: `Network` for `contivModel.Network`.
fn name(object_schema: &Schema) -> String {
    object_schema.go_type.rsplit('.').next().unwrap_or(object_schema.go_type).to_owned()
}

fn plural(name: &str) -> String {
    match name.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{name}s"),
    }
}

/// Schema of a stored object: only types, because validation rules may have been different when it
/// was created.
fn stored(object_schema: &'static Schema, required: &[&str], builder: &mut Builder) {
    let members = object_schema.fields.iter();
    let properties: Map<_, _> = members.map(|m| (m.name.into(), stored_type(m.kind, builder))).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    builder.schemas.insert(name(object_schema), schema);
}

fn stored_type(kind: Type, builder: &mut Builder) -> Value {
    let nested = |object_schema: &'static Schema, builder: &mut Builder| {
        if !builder.schemas.contains_key(&name(object_schema)) {
            stored(object_schema, &[], builder);
        }
        reference(&name(object_schema))
    };
    match kind {
        Type::Text => json!({"type": "string"}),
        Type::Int => json!({"type": "integer", "format": "int64"}),
        Type::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Type::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Type::Struct(object_schema) => nested(object_schema, builder),
        Type::StructMap(object_schema) => {
            json!({"type": "object", "additionalProperties": nested(object_schema, builder)})
        }
    }
}

/// Links that a request may contain.
fn links(object_schema: &'static Schema, builder: &mut Builder) -> Map<String, Value> {
    let links =
        object_schema.fields.iter().filter(|m| matches!(m.kind, Type::Struct(_) | Type::StructMap(_)));
    links.map(|m| (m.name.to_owned(), stored_type(m.kind, builder))).collect()
}

/// Schema of a request that passes validation.
fn requested(operations: &Operations, links: &Map<String, Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in operations.schema.fields {
        let preset =
            operations.defaults.iter().find(|(name, _)| *name == field.name).map(|(_, preset)| *preset);
        let empty = preset.is_some() || allows_empty(field);
        properties.insert(
            field.name.into(),
            match links.get(field.name) {
                Some(links) => links.clone(),
                None => request_type(field, preset, empty),
            },
        );
        if !empty {
            required.push(field.name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn allows_empty(field: &Field) -> bool {
    match field.rule {
        Rule::Any => true,
        Rule::Text { format, .. } => format.matches(""),
        Rule::AtMost(max) => max >= 0,
        Rule::Within { min, max } => min <= 0 && max >= 0,
    }
}

/// Null counts as absent, as in Go.
fn request_type(field: &Field, preset: Option<Preset>, empty: bool) -> Value {
    let name = match field.kind {
        Type::Int => "integer",
        Type::Texts => "array",
        Type::TextMap | Type::Struct(_) | Type::StructMap(_) => "object",
        Type::Text => "string",
    };
    let mut schema = if empty { json!({"type": [name, "null"]}) } else { json!({"type": name}) };
    match field.kind {
        Type::Int => schema["format"] = json!("int64"),
        Type::Texts => {
            schema["items"] = json!({"type": "string", "maxLength": MAX_TEXT_BYTES});
            schema["maxItems"] = json!(MAX_TEXTS);
        }
        Type::TextMap => schema["additionalProperties"] = json!({"type": "string"}),
        _ => {}
    }
    match field.rule {
        Rule::Any => {}
        Rule::Text { max, format } => {
            if max < usize::MAX {
                schema["maxLength"] = json!(max);
            }
            text_format(format, preset.is_some(), &mut schema);
        }
        Rule::AtMost(max) => schema["maximum"] = json!(max),
        Rule::Within { min, max } => {
            schema["minimum"] = json!(if empty { min.min(0) } else { min });
            schema["maximum"] = json!(max);
        }
    }
    match preset {
        None => {}
        Some(Preset::Text(text)) => schema["default"] = json!(text),
        Some(Preset::Int(n)) => schema["default"] = json!(n),
    }
    schema
}

fn text_format(format: Format, preset: bool, schema: &mut Value) {
    match format {
        Format::Any => {}
        Format::OneOf(words) => {
            let mut words: Vec<Value> = words.iter().map(|&word| word.into()).collect();
            if preset {
                words.push("".into());
            }
            if words.contains(&"".into()) {
                words.push(Value::Null);
            }
            schema["enum"] = words.into();
        }
        Format::Pattern(pattern) => {
            schema["pattern"] = if preset && !(pattern.matches)("") {
                format!("^$|{}", pattern.regex).into()
            } else {
                pattern.regex.into()
            };
            schema["examples"] = json!([pattern.example]);
        }
    }
}

fn inspected(name: &str, operations: &Operations, builder: &mut Builder) -> Value {
    let oper = (operations.oper)(&mut builder.types).to_value();
    let mut schema = json!({
        "type": "object",
        "properties": {"Config": reference(name)},
        "required": ["Config"],
        "additionalProperties": false,
    });
    // Types without operational state use the unit type.
    if oper["type"] != "null" {
        schema["properties"]["Oper"] = oper;
        schema["required"] = json!(["Config", "Oper"]);
    }
    schema
}

fn key_parameter(operations: &Operations) -> Value {
    let example = example(operations);
    let parts = operations.key.iter().map(|part| example[*part].as_str().unwrap_or_default());
    json!({
        "name": "key", "in": "path", "required": true,
        "description": format!("{}, joined by colons.", operations.key.join(", ")),
        "schema": {"type": "string", "minLength": 1},
        "example": parts.collect::<Vec<_>>().join(":"),
    })
}

fn header(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "header", "description": description, "schema": {"type": "string"}})
}

fn change_parameters(key: &Value) -> Value {
    json!([
        key,
        header("If-Match", "Entity tags of which the object must have one, or `*`."),
        header("If-None-Match", "Entity tags that the object must not have; `*`: it must not exist."),
        {"name": "dryRun", "in": "query", "description": "Answer as the change would, and change nothing.",
            "schema": {"enum": ["All"]}},
    ])
}

fn list_parameters() -> Value {
    json!([
        {"name": "limit", "in": "query", "description": "Largest number of objects.",
            "schema": {"type": "integer", "minimum": 1}},
        {"name": "continue", "in": "query", "description": "Only objects with a later key.",
            "schema": {"type": "string"}},
        {"name": "fieldSelector", "in": "query",
            "description": "Texts and numbers that objects must have: `field=value` or `field!=value`, separated by commas, at most 32.",
            "schema": {"type": "string"}},
    ])
}

fn listed(list: &Value) -> Value {
    let mut listed = json_body("List of objects.", list);
    listed["headers"] = json!({
        "Netmaster-Revision": {"description": "A watch after this revision continues the list.",
            "schema": {"type": "string"}},
        "Link": {"description": "The next page, if there is one.", "schema": {"type": "string"}},
    });
    listed
}

fn gotten(object: &Value) -> Value {
    let tag = json!({"ETag": {"description": "Changes with the object.", "schema": {"type": "string"}}});
    let mut gotten = json_body("The stored object.", object);
    gotten["headers"] = tag.clone();
    let mut responses = responses(gotten);
    responses["304"] = json!({"description": "The client has the object.", "headers": tag});
    responses
}

/// Example with the required fields.
fn example(operations: &Operations) -> Value {
    let mut example = Map::new();
    for field in operations.schema.fields {
        let needed = !allows_empty(field) || operations.key.contains(&field.name);
        let preset = operations.defaults.iter().any(|(name, _)| *name == field.name);
        if !needed || preset && !operations.key.contains(&field.name) {
            continue;
        }
        let value = match (field.name, field.rule) {
            ("tenantName", _) => "default".into(),
            (_, Rule::Text { format: Format::OneOf(words), .. }) => {
                words.iter().find(|word| !word.is_empty()).copied().into()
            }
            (_, Rule::Text { format: Format::Pattern(pattern), .. }) => pattern.example.into(),
            (_, Rule::Within { min, .. }) => min.into(),
            (_, Rule::AtMost(max)) => max.into(),
            _ => "web".into(),
        };
        example.insert(field.name.into(), value);
    }
    Value::Object(example)
}
