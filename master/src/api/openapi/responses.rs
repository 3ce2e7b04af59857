//! What every request may be answered.

use serde_json::{Map, Value, json};

const TEXT: &str = "text/plain; charset=utf-8";
const PROBLEM: &str = "application/problem+json";

/// Statuses of problems, what they mean, and whether clients that did not ask for problems see them too.
const FAILURES: [(&str, &str, &str, bool); 10] = [
    ("400", "Invalid", "The request itself is wrong. Without a word of its own: it is no HTTP.", false),
    ("401", "Unauthorized", "A token is needed, and there is none, or one that is not known.", true),
    ("403", "Forbidden", "The token may only read.", true),
    ("404", "NotFound", "There is no such object, or no such path.", true),
    ("408", "TooSlow", "The request's body did not come in time.", false),
    ("409", "Conflict", "It does not go together with what is there.", false),
    ("413", "TooLarge", "The request's body is larger than any that means something.", false),
    ("501", "NotBuilt", "The original does it; this release does not.", false),
    ("502", "Gateway", "What netmaster had to ask for it refused, or did not answer.", false),
    (
        "503",
        "Unavailable",
        "Another try may do it; the line says so when this one may have been carried out.",
        true,
    ),
];

pub(super) fn components() -> Value {
    let mut responses = Map::new();
    let line = json!({"schema": {"type": "string", "pattern": "^[^\n]*\n$"}});
    for (_, name, description, also_text) in FAILURES {
        let mut content = json!({PROBLEM: {"schema": problem()}});
        if also_text {
            content[TEXT] = line.clone();
        }
        responses.insert(name.into(), json!({"description": description, "content": content}));
    }
    responses["Unavailable"]["headers"] =
        json!({"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}});
    let description = "The original's answer to everything that it cannot do: one line says why.";
    responses.insert("Failure".into(), json!({"description": description, "content": {TEXT: line}}));
    Value::Object(responses)
}

/// RFC 9457.
fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"const": "about:blank"},
            "title": {"type": "string", "description": "The status, in words."},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "description": "What a client that did not ask for problems reads."},
        },
        "additionalProperties": false,
    })
}

/// 200 with `good`, or any failure.
pub(super) fn responses(good: Value) -> Value {
    let mut responses = json!({"200": good});
    for (status, name, ..) in FAILURES {
        responses[status] = json!({"$ref": format!("#/components/responses/{name}")});
    }
    responses["500"] = json!({"$ref": "#/components/responses/Failure"});
    responses
}

pub(super) fn json_body(description: &str, schema: &Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

pub(super) fn text_body(description: &str) -> Value {
    json!({"description": description, "content": {TEXT: {"schema": {"type": "string"}}}})
}
