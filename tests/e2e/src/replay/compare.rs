//! Compares responses: JSON by value, texts by their first line.

use serde_json::Value;

use super::recording::{Call, Response};
use crate::http;

/// Compares a response with the recorded one; the error has the differences, ready to print.
pub(super) fn compare(call: &Call, response: &Result<http::Response, String>) -> Result<(), String> {
    let (status, json, body) = match &call.response {
        Response::Dropped => (0, false, "(connection dropped)"),
        Response::Answered { status, json, body } => (*status, *json, body.as_str()),
    };
    let response = match response {
        Ok(response) => response,
        Err(error) => {
            return Err(format!("    want: {status} {}\n    have: no response: {error}", body.trim()));
        }
    };
    let same = response.status == status
        && if json { same_json(body, &response.body) } else { same_text(body, &response.body) };
    if same {
        return Ok(());
    }
    if json
        && response.status == status
        && let (Ok(want), Ok(have)) = (serde_json::from_str(body), serde_json::from_str(&response.body))
    {
        let mut lines = vec![];
        difference("", &normalized(want), &normalized(have), &mut lines);
        return Err(lines.join("\n"));
    }
    Err(format!(
        "    want: {status} {}\n    have: {} {}",
        body.trim_end(),
        response.status,
        response.first_line()
    ))
}

/// Appends one line per difference.
pub(super) fn difference(path: &str, want: &Value, have: &Value, lines: &mut Vec<String>) {
    match (want, have) {
        (Value::Object(wanted), Value::Object(had)) => {
            for (name, want) in wanted {
                difference(&format!("{path}.{name}"), want, had.get(name).unwrap_or(&Value::Null), lines);
            }
            for (name, have) in had.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
                difference(&format!("{path}.{name}"), &Value::Null, have, lines);
            }
        }
        (Value::Array(wanted), Value::Array(had)) if wanted.len() == had.len() => {
            for (at, (want, have)) in wanted.iter().zip(had).enumerate() {
                difference(&format!("{path}[{at}]"), want, have, lines);
            }
        }
        (want, have) if want != have => lines.push(format!("    {path}: want {want}, have {have}")),
        _ => {}
    }
}

pub(super) fn same_text(want: &str, have: &str) -> bool {
    want.lines().next() == have.lines().next()
}

pub(super) fn same_json(want: &str, have: &str) -> bool {
    match (serde_json::from_str(want), serde_json::from_str(have)) {
        (Ok(want), Ok(have)) => normalized(want) == normalized(have),
        _ => false,
    }
}

/// Sorts lists of objects: the original returns them in the random order of Go maps.
fn normalized(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let objects = items.iter().all(Value::is_object);
            let mut items: Vec<_> = items.into_iter().map(normalized).collect();
            if objects {
                items.sort_by_key(Value::to_string);
            }
            Value::Array(items)
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> =
                fields.into_iter().map(|(name, value)| (name, normalized(value))).collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().collect())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_compared_by_value_and_lists_of_objects_as_sets() {
        assert!(same_json(r#"[{"a":1,"b":[]},{"a":2}]"#, r#"[{"a":2},{"b":[],"a":1}]"#));
        assert!(!same_json(r#"{"ip":["10.0.0.1",""]}"#, r#"{"ip":["","10.0.0.1"]}"#));
        assert!(!same_json("{}", "{"));
        assert!(!same_json(r#"{"a":1}"#, r#"{"a":1,"b":null}"#));
    }

    #[test]
    fn only_differences_are_reported() {
        let mut lines = vec![];
        let (want, have) = (
            serde_json::json!({"a": {"b": [1, 2]}, "c": 1}),
            serde_json::json!({"a": {"b": [1, 3]}, "d": 2}),
        );
        difference("", &want, &have, &mut lines);
        assert_eq!(
            lines,
            ["    .a.b[1]: want 2, have 3", "    .c: want 1, have null", "    .d: want null, have 2"]
        );
    }

    #[test]
    fn texts_are_compared_by_their_first_line() {
        assert!(same_text("key not found\n", "key not found\ngithub.com/x [y.go 7]\n"));
        assert!(!same_text("EOF\n", "EOFs\n"));
    }
}
