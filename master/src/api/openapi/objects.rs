//! The objects: their schemas from their shapes, and the same paths for each of them.

use serde_json::{Map, Value, json};

use super::responses::{json_body, responses};
use super::{Book, reference};
use crate::objects::{Operations, Preset};
use crate::schema::{Form, Member, Rule, Shape, Type};

pub(super) fn describe(object: &crate::objects::Type, book: &mut Book) {
    let (kind, operations) = (object.kind, &object.operations);
    let name = name(operations.shape);
    stored(operations.shape, &["key"], book);
    let inspected = inspected(&name, operations, book);
    let new = format!("New{name}");
    let links = links(operations.shape, book);
    book.schemas.insert(new.clone(), requested(operations, &links));

    let tag = json!([kind.as_str()]);
    let (key, example) = (key_parameter(operations), example(operations));
    let object = reference(&name);
    let plural = plural(&name);
    let path = format!("/api/v1/{}s/", kind.as_str());
    let list = json!({"type": "array", "items": object});
    book.operation(&path, "get", json!({
        "operationId": format!("list{plural}"), "tags": tag, "summary": format!("All {plural}, in the order of their keys"),
        "responses": responses(json_body("All of them.", &list)),
    }));
    let path = format!("{path}{{key}}/");
    book.operation(&path, "get", json!({
        "operationId": format!("get{name}"), "tags": tag, "summary": format!("One {name}"), "parameters": [key],
        "responses": responses(json_body("As it is stored.", &object)),
    }));
    for (method, verb) in [("post", "create"), ("put", "put")] {
        book.operation(
            &path,
            method,
            json!({
                "operationId": format!("{verb}{name}"), "tags": tag,
                "summary": format!("Make a {name}, or change the one that is there"),
                "description": "The key in the path is made of the body's members. POST and PUT do the same.",
                "parameters": [key],
                // How the key is made, for those who make requests from this document.
                "x-key": operations.key,
                "requestBody": {
                    "required": true,
                    "content": {"application/json": {"schema": reference(&new), "example": example}},
                },
                "responses": responses(json_body(
                    "A new object as it is stored; of one that was changed, the request.", &object)),
            }),
        );
    }
    book.operation(&path, "delete", json!({
        "operationId": format!("delete{name}"), "tags": tag, "summary": format!("Delete a {name}"), "parameters": [key],
        "responses": responses(json_body("Its key.", &json!({"type": "string"}))),
    }));
    let path = format!("/api/v1/inspect/{}s/{{key}}/", kind.as_str());
    book.operation(&path, "get", json!({
        "operationId": format!("inspect{name}"), "tags": tag, "summary": format!("A {name} and what became of it"),
        "parameters": [key], "responses": responses(json_body("The object, and what there is to tell of it.", &inspected)),
    }));
}

/// `contivModel.Network` is a `Network` here.
fn name(shape: &Shape) -> String {
    shape.go_type.rsplit('.').next().unwrap_or(shape.go_type).to_owned()
}

fn plural(name: &str) -> String {
    match name.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{name}s"),
    }
}

/// What is stored: types alone, because the rules of requests may have been others when it was made.
fn stored(shape: &'static Shape, required: &[&str], book: &mut Book) {
    let members = shape.members.iter();
    let properties: Map<_, _> = members.map(|m| (m.name.into(), stored_type(m.kind, book))).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    book.schemas.insert(name(shape), schema);
}

fn stored_type(kind: Type, book: &mut Book) -> Value {
    let nested = |shape: &'static Shape, book: &mut Book| {
        if !book.schemas.contains_key(&name(shape)) {
            stored(shape, &[], book);
        }
        reference(&name(shape))
    };
    match kind {
        Type::Text => json!({"type": "string"}),
        Type::Int => json!({"type": "integer", "format": "int64"}),
        Type::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Type::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        Type::Struct(shape) => nested(shape, book),
        Type::StructMap(shape) => json!({"type": "object", "additionalProperties": nested(shape, book)}),
    }
}

/// The links that a request may bring; mostly it brings none.
fn links(shape: &'static Shape, book: &mut Book) -> Map<String, Value> {
    let links = shape.members.iter().filter(|m| matches!(m.kind, Type::Struct(_) | Type::StructMap(_)));
    links.map(|m| (m.name.to_owned(), stored_type(m.kind, book))).collect()
}

/// What a request must be like to come through the checks of its members.
fn requested(operations: &Operations, links: &Map<String, Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for member in operations.shape.members {
        let preset =
            operations.defaults.iter().find(|(name, _)| *name == member.name).map(|(_, preset)| *preset);
        let empty = preset.is_some() || allows_empty(member);
        properties.insert(
            member.name.into(),
            match links.get(member.name) {
                Some(links) => links.clone(),
                None => request_type(member, preset, empty),
            },
        );
        if !empty {
            required.push(member.name);
        }
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn allows_empty(member: &Member) -> bool {
    match member.rule {
        Rule::Any => true,
        Rule::Text { form, .. } => form.holds(""),
        Rule::AtMost(max) => max >= 0,
        Rule::Within { min, max } => min <= 0 && max >= 0,
    }
}

/// Null is the same as nothing, as Go's decoder has it.
fn request_type(member: &Member, preset: Option<Preset>, empty: bool) -> Value {
    let name = match member.kind {
        Type::Int => "integer",
        Type::Texts => "array",
        Type::TextMap | Type::Struct(_) | Type::StructMap(_) => "object",
        Type::Text => "string",
    };
    let mut schema = if empty { json!({"type": [name, "null"]}) } else { json!({"type": name}) };
    match member.kind {
        Type::Int => schema["format"] = json!("int64"),
        Type::Texts => schema["items"] = json!({"type": "string"}),
        Type::TextMap => schema["additionalProperties"] = json!({"type": "string"}),
        _ => {}
    }
    match member.rule {
        Rule::Any => {}
        Rule::Text { max, form } => {
            if max < usize::MAX {
                schema["maxLength"] = json!(max);
            }
            text_form(form, preset.is_some(), &mut schema);
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

fn text_form(form: Form, preset: bool, schema: &mut Value) {
    match form {
        Form::Any => {}
        Form::Words(words) => {
            let mut words: Vec<Value> = words.iter().map(|&word| word.into()).collect();
            if preset {
                words.push("".into());
            }
            if words.contains(&"".into()) {
                words.push(Value::Null);
            }
            schema["enum"] = words.into();
        }
        Form::Like(like) => {
            schema["pattern"] = if preset && !(like.holds)("") {
                format!("^$|{}", like.pattern).into()
            } else {
                like.pattern.into()
            };
            schema["examples"] = json!([like.example]);
        }
    }
}

fn inspected(name: &str, operations: &Operations, book: &mut Book) -> Value {
    let oper = (operations.oper)(&mut book.types).to_value();
    let mut schema = json!({
        "type": "object",
        "properties": {"Config": reference(name)},
        "required": ["Config"],
        "additionalProperties": false,
    });
    // Types of which there is nothing to tell have the unit for it.
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
        "description": format!("Made of {}, joined by colons.", operations.key.join(", ")),
        "schema": {"type": "string", "minLength": 1},
        "example": parts.collect::<Vec<_>>().join(":"),
    })
}

/// The members that must be given, and a value that each may have.
fn example(operations: &Operations) -> Value {
    let mut example = Map::new();
    for member in operations.shape.members {
        let needed = !allows_empty(member) || operations.key.contains(&member.name);
        let preset = operations.defaults.iter().any(|(name, _)| *name == member.name);
        if !needed || preset && !operations.key.contains(&member.name) {
            continue;
        }
        let value = match (member.name, member.rule) {
            ("tenantName", _) => "default".into(),
            (_, Rule::Text { form: Form::Words(words), .. }) => {
                words.iter().find(|word| !word.is_empty()).copied().into()
            }
            (_, Rule::Text { form: Form::Like(like), .. }) => like.example.into(),
            (_, Rule::Within { min, .. }) => min.into(),
            (_, Rule::AtMost(max)) => max.into(),
            _ => "web".into(),
        };
        example.insert(member.name.into(), value);
    }
    Value::Object(example)
}
