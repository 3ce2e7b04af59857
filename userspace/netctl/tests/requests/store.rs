//! A netmaster that stores what it is sent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::server::{Reply, Request, Server};

/// Starts the server with objects: type, key and fields.
pub(crate) fn start(objects: &[(&str, &str, Value)]) -> Server {
    let mut stored: BTreeMap<(String, String), Value> = BTreeMap::new();
    for (kind, key, fields) in objects {
        stored.insert(((*kind).into(), (*key).into()), with_key(key, fields));
    }
    Server::start(move |request| answer(&mut stored, request))
}

fn with_key(key: &str, fields: &Value) -> Value {
    let mut object = json!({"key": key});
    for (name, value) in fields.as_object().unwrap() {
        // As netmaster does, leaves out empty fields.
        if value != "" && value != 0 && *value != json!([]) && !value.is_null() {
            object[name] = value.clone();
        }
    }
    object
}

fn answer(stored: &mut BTreeMap<(String, String), Value>, request: &Request) -> Reply {
    let (method, path) = request.line.split_once(' ').unwrap();
    let parts: Vec<&str> = path.strip_prefix("/api/v1/").unwrap().split('/').collect();
    let kind = parts[0].strip_suffix('s').unwrap();
    match (method, &parts[1..]) {
        ("GET", [""]) => {
            let of_kind = stored.iter().filter(|((of, _), _)| of == kind);
            Reply::json(&of_kind.map(|(_, object)| object.clone()).collect())
        }
        ("GET", [key, ""]) => match stored.get(&(kind.into(), (*key).into())) {
            Some(object) => Reply::json(object),
            None => Reply::refused(&format!("{kind} not found")),
        },
        ("POST", [key, ""]) => {
            let object = with_key(key, &request.body);
            stored.insert((kind.into(), (*key).into()), object.clone());
            Reply::json(&object)
        }
        _ => Reply::refused("unexpected request"),
    }
}
