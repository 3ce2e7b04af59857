//! Responses common to all operations.

use serde_json::{Map, Value, json};

const TEXT: &str = "text/plain; charset=utf-8";
const PROBLEM: &str = "application/problem+json";

/// Status, name and description of each failure, and whether clients of the text format receive the
/// status too.
const FAILURES: [(&str, &str, &str, bool); 12] = [
    ("400", "Invalid", "The request is invalid. Without a body: it is not valid HTTP.", false),
    ("401", "Unauthorized", "The request has no token and no client certificate, or an unknown token.", true),
    ("403", "Forbidden", "The role of the client does not allow the request.", true),
    ("404", "NotFound", "The object or path does not exist.", true),
    ("408", "TooSlow", "The request body did not arrive in time.", false),
    ("409", "Conflict", "The request conflicts with existing objects.", false),
    (
        "412",
        "Precondition",
        "The object is not in the state that If-Match, If-None-Match or ModRevision requires.",
        true,
    ),
    ("413", "TooLarge", "The request body exceeds the size limit.", false),
    ("429", "TooMany", "The client has too many requests in flight; retry.", true),
    ("501", "NotBuilt", "The original supports the request; this release does not.", false),
    ("502", "Gateway", "A server that netmaster depends on failed or did not respond.", false),
    (
        "503",
        "Unavailable",
        "Temporarily unavailable; retry. The text says if the request may have been carried out.",
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
    for name in ["TooMany", "Unavailable"] {
        responses[name]["headers"] =
            json!({"Retry-After": {"description": "Seconds.", "schema": {"type": "string"}}});
    }
    let description = "Failure in the original's format: one line of text.";
    responses.insert("Failure".into(), json!({"description": description, "content": {TEXT: line}}));
    Value::Object(responses)
}

/// Schema of RFC 9457 problem details.
fn problem() -> Value {
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"const": "about:blank"},
            "title": {"type": "string", "description": "Reason phrase of the status."},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string", "description": "Same text as in the original's format."},
        },
        "additionalProperties": false,
    })
}

/// Status 200 with `good`, and all failures.
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
