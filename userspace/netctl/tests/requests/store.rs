//! A netmaster that stores what it is sent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::server::{Reply, Request, Server};

/// Objects by type and key, each with the revision of its last change.
#[derive(Default)]
pub(crate) struct Objects {
    stored: BTreeMap<(String, String), (Value, u64)>,
    revision: u64,
}

impl Objects {
    fn with(objects: &[(&str, &str, Value)]) -> Objects {
        let mut all = Objects::default();
        for (kind, key, fields) in objects {
            all.put(kind, key, fields);
        }
        all
    }

    /// As netmaster does, leaves out empty fields.
    pub(crate) fn put(&mut self, kind: &str, key: &str, fields: &Value) -> Value {
        let object = with_key(key, fields);
        self.revision += 1;
        self.stored.insert((kind.into(), key.into()), (object.clone(), self.revision));
        object
    }

    /// As netmaster does, removes a policy with its rules.
    pub(crate) fn remove(&mut self, kind: &str, key: &str) -> bool {
        self.revision += 1;
        if kind == "policy" {
            let rules = format!("{key}:");
            self.stored.retain(|(of, name), _| of != "rule" || !name.starts_with(&rules));
        }
        self.stored.remove(&(kind.into(), key.into())).is_some()
    }

    pub(crate) fn get(&self, kind: &str, key: &str) -> Option<&Value> {
        self.stored.get(&(kind.into(), key.into())).map(|(object, _)| object)
    }

    fn list(&self, kind: &str) -> Value {
        let of_kind = self.stored.iter().filter(|((of, _), _)| of == kind);
        of_kind.map(|(_, (object, _))| object.clone()).collect()
    }

    fn tag(&self, kind: &str, key: &str) -> Option<String> {
        self.stored.get(&(kind.into(), key.into())).map(|(_, revision)| format!("\"{revision}\""))
    }
}

/// Starts a server that knows what the original knows, with objects: type, key and fields.
pub(crate) fn start(objects: &[(&str, &str, Value)]) -> Server {
    let mut objects = Objects::with(objects);
    Server::start(move |request| original(&mut objects, request))
}

/// Starts a server with entity tags, preconditions, dry runs and revisions. The hook runs before each request; its reply goes
/// before the server's.
pub(crate) fn modern(
    objects: &[(&str, &str, Value)],
    mut hook: impl FnMut(&Request, &mut Objects) -> Option<Reply> + Send + 'static,
) -> Server {
    let mut objects = Objects::with(objects);
    Server::start(move |request| hook(request, &mut objects).unwrap_or_else(|| answer(&mut objects, request)))
}

fn with_key(key: &str, fields: &Value) -> Value {
    let mut object = json!({"key": key});
    for (name, value) in fields.as_object().unwrap() {
        if value != "" && value != 0 && *value != json!([]) && !value.is_null() {
            object[name] = value.clone();
        }
    }
    object
}

/// Method, type and key of a request; the key of a list is empty.
fn parts(request: &Request) -> (&str, &str, String) {
    let (method, path) = request.line.split_once(' ').unwrap();
    let (types, key) = path.strip_prefix("/api/v1/").unwrap().split_once('/').unwrap();
    (method, types.strip_suffix('s').unwrap(), decoded(key.strip_suffix('/').unwrap_or_default()))
}

/// Decodes a segment of a path.
fn decoded(segment: &str) -> String {
    let mut bytes = vec![];
    let mut rest = segment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'%' => {
                let (code, after) = rest.split_at(2);
                rest = after;
                u8::from_str_radix(std::str::from_utf8(code).unwrap(), 16).unwrap()
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn original(objects: &mut Objects, request: &Request) -> Reply {
    let (method, kind, key) = parts(request);
    let key = key.as_str();
    match method {
        "GET" if key.is_empty() => Reply::json(&objects.list(kind)),
        "GET" => match objects.get(kind, key) {
            Some(object) => Reply::json(object),
            None => Reply::refused(&format!("{kind} not found")),
        },
        "POST" => Reply::json(&objects.put(kind, key, &request.body)),
        "DELETE" => match objects.remove(kind, key) {
            true => Reply::json(&json!(key)),
            false => Reply::refused(&format!("{kind} not found")),
        },
        _ => Reply::refused("unexpected request"),
    }
}

fn answer(objects: &mut Objects, request: &Request) -> Reply {
    let (method, kind, key) = parts(request);
    let key = key.as_str();
    let tag = objects.tag(kind, key);
    if let Some(expected) = request.header("if-match")
        && tag.as_deref() != Some(expected)
    {
        return Reply::new(412, "", format!("If-Match: {kind} {key}: get it again\n"));
    }
    if request.header("if-none-match") == Some("*") && tag.is_some() {
        return Reply::new(412, "", format!("If-None-Match: {kind} {key}\n"));
    }
    match (method, request.query.as_str()) {
        ("GET", _) if key.is_empty() => {
            Reply::json(&objects.list(kind)).with("Netmaster-Revision", objects.revision)
        }
        ("GET", _) => match tag {
            Some(tag) => original(objects, request).with("ETag", tag),
            None => original(objects, request),
        },
        ("POST", "dryRun=All") => Reply::json(&with_key(key, &request.body)),
        ("DELETE", "dryRun=All") if tag.is_some() => Reply::json(&json!(key)),
        _ => original(objects, request),
    }
}
